"""The options of the commands that write a page: ``zoo.page`` and ``benchmarks.page``, which inherits them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from zoo.checked import CountOrZero
from zoo.command import DEFAULT_NAME, Argument, Option


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    zoo: Annotated[str, Argument(f"folder of the zoo, or its name on the hub, e.g. {DEFAULT_NAME}", "ZOO")]
    out: Annotated[Path, Argument("folder of the page; an older page is replaced", "OUT")]
    data: Annotated[
        Path | None, Option("folder of the tasks' data, for an example (default: where evaluation looks)", "DIR")
    ] = None
    fetch: Annotated[bool, Option("also download the data that the zoo names on the hub")] = False
    pictures: Annotated[CountOrZero, Option("runs of each config with pictures of their checkpoints", "N")] = 100

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.is_dir():
            raise ValueError(f"{self.data} is not a folder: --data names the folder of the tasks' data")
