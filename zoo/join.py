"""Joins published zoos of different configs into one, where several machines each published one.

    python -m zoo.join mnist-zoo agnews-zoo my-zoo

Every file is checked as by zoo.verify and copied as it is, so the rows stay the same; card, croissant.json, tables of
runs as Parquet and manifest are made again. What all zoos state, such as a license, is kept; options state it anew. OUT
is replaced whole, as by zoo.publish, and may be one of the zoos.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from zoo.command import Argument, Command
from zoo.format.statements import NOTHING_STATED, Statements


@dataclass(frozen=True)
class _Options(Statements):
    zoos: Annotated[tuple[Path, ...], Argument("published zoos, no config in two of them", "ZOO")]
    out: Annotated[Path, Argument("folder of the joined zoo; an older zoo is replaced", "OUT")]


_command = Command(__name__, "zoo.join", __doc__, _Options)

from zoo.format.card import DEFAULT_CARD, write_card_and_manifest
from zoo.format.faults import SeenWeights
from zoo.format.manifest import MANIFEST_FILE, FileEntry, Manifest
from zoo.format.published import DERIVED_FILES, ConfigDetails, PublishedZoo, check_target, zoo_files
from zoo.format.record import check_same_data
from zoo.publish import report
from zoo.storage.atomic import atomic_file
from zoo.storage.swap import replacing_folder
from zoo.verify import zoo_faults


def _join(folders: Sequence[Path], out: Path, *, stated: Statements = NOTHING_STATED) -> Manifest:
    """Publishes the configs of all zoos in ``folders`` as the folder ``out``; no two of them may have the same config.

    The card calls the zoo by the name of the folder.
    """
    zoos = [PublishedZoo.read(folder) for folder in folders]
    out = out.resolve()
    template = DEFAULT_CARD.read_text(encoding="utf-8")
    configs: dict[str, ConfigDetails] = {}
    for zoo in zoos:
        if twice := configs.keys() & zoo.configs.keys():
            raise ValueError(f"{zoo.folder} has {sorted(twice)[0]} and so has an earlier zoo: leave one of them out")
        if surplus := zoo.files_of_no_config():
            raise ValueError(f"{zoo.folder} lists {surplus[0]!r}, which belongs to none of its configs")
        configs |= zoo.configs
    check_target(out, "zoo", [folder.resolve() for folder in folders if folder.resolve() != out], configs)
    check_same_data(configs)
    seen: SeenWeights = {}
    for zoo in zoos:
        for fault in zoo_faults(zoo, seen):
            raise ValueError(fault)
    with replacing_folder(out, zoo_files) as folder:
        files: dict[str, FileEntry] = {}
        for zoo in zoos:
            for file in zoo.manifest.files:
                if Path(file).name not in DERIVED_FILES:
                    _copy_file(zoo, file, folder, files)
        files, configs = dict(sorted(files.items())), dict(sorted(configs.items()))
        all_of = [Statements.recorded(zoo.manifest.details, f"{zoo.folder}/{MANIFEST_FILE}").stated() for zoo in zoos]
        common = {key: value for key, value in all_of[0].items() if all(each.get(key) == value for each in all_of)}
        stated = Statements(**common | stated.stated())
        return write_card_and_manifest(folder, files, configs, template, out.name, stated)


def _copy_file(zoo: PublishedZoo, name: str, folder: Path, files: dict[str, FileEntry]) -> None:
    """One whole file of a zoo; a task's embedding may come from several, but must be the same in all."""
    entry = zoo.manifest.files[name]
    if files.setdefault(name, entry) != entry:
        raise ValueError(f"{zoo.folder / name} is not the one of an earlier zoo: they cannot be one zoo")
    with (zoo.folder / name).open("rb") as source, atomic_file(folder / name) as target:
        shutil.copyfileobj(source, target)
    if FileEntry.of(folder / name, entry.rows) != entry:
        raise ValueError(f"{zoo.folder / name} changed while reading: wait for publishing to end")


@_command
def main(options: _Options) -> None:
    _join(options.zoos, options.out, stated=options)
    report(options.out)
