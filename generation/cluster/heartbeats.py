"""What the workers of a launch report while they train. Imports nothing: the actor that keeps it is a process too."""

from dataclasses import dataclass

NOTES_KEPT = 100


@dataclass(frozen=True)
class Heartbeat:
    """How far the worker of a shard is."""

    worker: str
    epoch: int = 0
    epochs: int = 0
    status: str = ""


class Heartbeats:
    """Keeps the newest heartbeat of each shard and the notes of their workers; lives as a Ray actor."""

    def __init__(self) -> None:
        self.newest: dict[int, Heartbeat] = {}
        self.notes: list[str] = []

    def beat(self, shard: int, heartbeat: Heartbeat) -> None:
        self.newest[shard] = heartbeat

    def drop(self, shard: int) -> None:
        """Forgets the worker of a shard, which is gone."""
        self.newest.pop(shard, None)

    def note(self, line: str) -> None:
        self.notes = [*self.notes[-NOTES_KEPT:], line]

    def read(self) -> tuple[dict[int, Heartbeat], list[str]]:
        """The newest heartbeats, and the notes since the last call."""
        notes, self.notes = self.notes, []
        return self.newest, notes
