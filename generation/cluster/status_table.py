"""The state of every shard of a launch, as one table that is drawn anew while it changes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

WAITING, RUNNING, FINISHED, MISSING = "waiting", "running", "finished", "missing"
STYLES = {WAITING: "dim", RUNNING: "cyan", FINISHED: "green", MISSING: "bold red"}


@dataclass(frozen=True)
class Line:
    """One shard: its state, who works on it, how far, and what there is to say."""

    state: str = WAITING
    where: str = ""
    epochs: str = ""
    remark: str = ""
    tries: int = 0


class Board:
    """The lines by shard. ``change`` returns a sentence where a change is worth one, for who watches no table."""

    def __init__(self, shards: Iterable[int], title: str) -> None:
        self.title = title
        self.lines = dict.fromkeys(shards, Line())

    def change(self, shard: int, **values: object) -> str | None:
        old = self.lines[shard]
        new = self.lines[shard] = replace(old, **values)  # pyright: ignore[reportArgumentType]
        if (old.state, old.where) == (new.state, new.where) and old.tries == new.tries:
            return None
        said = (new.state, f"on {new.where}" if new.where else "", new.epochs, new.remark)
        return f"shard {shard}: {', '.join(part for part in said if part)}"

    def of(self, state: str) -> list[int]:
        return [shard for shard, line in self.lines.items() if line.state == state]

    def table(self) -> Table:
        table = Table(title=Text(self.title), caption=self.counts())
        for heading in ("shard", "state", "worker", "epoch", "tries", ""):
            table.add_column(heading, justify="right" if heading in ("shard", "epoch", "tries") else "left")
        for shard, line in self.lines.items():
            tries = str(line.tries) if line.tries > 1 else ""
            state = Text(line.state, style=STYLES[line.state])
            # as text, not as markup: a path may have brackets in it
            table.add_row(str(shard), state, Text(line.where), line.epochs, tries, Text(line.remark))
        return table

    def counts(self) -> str:
        return ", ".join(f"{len(self.of(state))} {state}" for state in STYLES if self.of(state))

    def __rich__(self) -> Table:
        return self.table()
