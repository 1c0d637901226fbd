"""The state of every shard of a launch, as one table that is drawn again while it changes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from zoo.terminal import printable

WAITING, RUNNING, FINISHED, MISSING = "waiting", "running", "finished", "missing"
STYLES = {WAITING: "dim", RUNNING: "cyan", FINISHED: "green", MISSING: "bold red"}


@dataclass(frozen=True)
class ShardStatus:
    """One shard: its state, the worker that trains it, how far it is, and what there is to say."""

    state: str = WAITING
    worker: str = ""
    epochs: str = ""
    remark: str = ""
    tries: int = 0


class StatusTable:
    """The status of each shard. ``change`` returns a sentence where a change is worth one, for logs without a table."""

    def __init__(self, shards: Iterable[int], title: str) -> None:
        self.title = title
        self.shards = dict.fromkeys(shards, ShardStatus())

    def change(self, shard: int, **values: object) -> str | None:
        old = self.shards[shard]
        new = self.shards[shard] = replace(old, **values)  # pyright: ignore[reportArgumentType]
        if (old.state, old.worker, old.tries) == (new.state, new.worker, new.tries):
            return None
        parts = (new.state, f"on {new.worker}" if new.worker else "", new.epochs, new.remark)
        return f"shard {shard}: {', '.join(part for part in parts if part)}"

    def in_state(self, state: str) -> list[int]:
        return [shard for shard, status in self.shards.items() if status.state == state]

    def __rich__(self) -> Table:
        table = Table(title=Text(printable(self.title)), caption=self.counts())
        for heading in ("shard", "state", "worker", "epoch", "tries", ""):
            table.add_column(heading, justify="right" if heading in ("shard", "epoch", "tries") else "left")
        for shard, status in self.shards.items():
            tries = str(status.tries) if status.tries > 1 else ""
            state = Text(status.state, style=STYLES[status.state])
            # as text, not as markup: a path may have brackets in it
            table.add_row(
                str(shard), state, Text(printable(status.worker)), status.epochs, tries, Text(printable(status.remark))
            )
        return table

    def counts(self) -> str:
        return ", ".join(f"{len(shards)} {state}" for state in STYLES if (shards := self.in_state(state)))
