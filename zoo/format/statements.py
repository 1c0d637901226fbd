"""What only the publisher of a zoo knows about it. Nothing here takes long to import."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

from zoo.checked import checked
from zoo.command import Option
from zoo.storage.untrusted import faults_named


@dataclass(frozen=True, kw_only=True)
class Statements:
    """What only its publisher knows about a zoo. The card and ``croissant.json`` leave out what is not stated."""

    license: Annotated[str | None, Option("license of the checkpoints, e.g. mit (default: not stated)", "NAME")] = None
    creators: Annotated[tuple[str, ...] | None, Option("people who made the zoo (default: not stated)", "NAME")] = None
    url: Annotated[str | None, Option("its page (default: that on the hub, else not stated)", "URL")] = None
    date_published: Annotated[str | None, Option("day, as YYYY-MM-DD (default: not stated)", "DATE")] = None

    def __post_init__(self) -> None:
        if self.license is not None and not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", self.license, re.ASCII):
            raise ValueError(f"a license is a name such as mit or cc-by-4.0, got {self.license[:80]!r}")
        if self.date_published is not None:
            with faults_named("date_published is a day, YYYY-MM-DD"):
                date.fromisoformat(self.date_published)

    @classmethod
    def recorded(cls, details: dict[str, Any], where: str) -> "Statements":
        """What the publisher of a zoo stated, by the details of its manifest."""
        return checked(details.get("stated", {}), cls, f"{where} is damaged: stated: ")

    def stated(self) -> dict[str, Any]:
        """By name, without what is not stated."""
        values = {name: getattr(self, name) for name in Statements.__dataclass_fields__}
        return {name: value for name, value in values.items() if value}


NOTHING_STATED = Statements()
