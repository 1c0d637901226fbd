"""Signs of life from the workers of a launch. Imports nothing, since the actor that keeps them is a process too."""

from dataclasses import dataclass

NOTES_KEPT = 100


@dataclass(frozen=True)
class Sign:
    """A sign of life from a shard's worker."""

    where: str
    epoch: int = 0
    epochs: int = 0
    status: str = ""


class Signs:
    """Keeps the newest sign of each shard, and the notes of their workers; lives as a Ray actor."""

    def __init__(self) -> None:
        self.newest: dict[int, Sign] = {}
        self.notes: list[str] = []

    def give(self, shard: int, sign: Sign) -> None:
        self.newest[shard] = sign

    def note(self, line: str) -> None:
        self.notes = [*self.notes[-NOTES_KEPT:], line]

    def read(self) -> tuple[dict[int, Sign], list[str]]:
        """The newest signs, and the notes since the last call."""
        notes, self.notes = self.notes, []
        return self.newest, notes
