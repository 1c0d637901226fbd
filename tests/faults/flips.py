"""Single flipped bytes in snapshots, shards and published zoos: each is found, or changed nothing that is read."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from generation.shard import _read_snapshot
from tests.faults.readers import OWNER, SHARD, STATE, make_shard, make_snapshot, make_zoo
from zoo.format.manifest import Manifest
from zoo.format.published import PublishedZoo
from zoo.verify import _check_files


@dataclass(frozen=True)
class Target:
    """A folder of files to flip a byte in; ``found`` is whether the damage to one of them was noticed."""

    name: str
    make: Callable[[Path], None]
    files: Callable[[Path], list[Path]]
    found: Callable[[Path, Path], bool]


def snapshot_found(folder: Path, path: Path) -> bool:
    try:
        state, _ = _read_snapshot(path, OWNER, STATE)
    except ValueError:
        return True
    # a blank of the header that became another blank
    assert all(torch.equal(tensor, STATE.tensors()[name]) for name, tensor in state.tensors().items())
    return False


def shard_found(folder: Path, path: Path) -> bool:
    manifest = Manifest.read(folder / SHARD)
    try:
        manifest.check_file(folder / SHARD, path.name)
    except ValueError as error:
        return str(path) in str(error)
    return False


def zoo_found(folder: Path, path: Path) -> bool:
    faults = _check_files(PublishedZoo.read(folder / "zoo"))
    return list(faults) == [path.relative_to(folder / "zoo").as_posix()]


def manifest_found(folder: Path, path: Path) -> bool:
    try:
        Manifest.read(path.parent)
    except ValueError as error:
        return str(path) in str(error)
    return False


TARGETS = (
    Target("snapshot", make_snapshot, lambda folder: sorted(folder.glob("state-*")), snapshot_found),
    Target("shard", make_shard, lambda folder: sorted((folder / SHARD).glob("*.arrow")), shard_found),
    Target(
        "zoo",
        make_zoo,
        lambda folder: [path for path in sorted((folder / "zoo").rglob("*.*")) if path.name != "manifest.json"],
        zoo_found,
    ),
    Target("manifest", make_zoo, lambda folder: sorted(folder.rglob("manifest.json")), manifest_found),
)


def flip(target: Target, folder: Path, count: int, seed: int = 0) -> Iterator[bool]:
    """Flips single bytes, one at a time; yields whether each was found."""
    target.make(folder)
    chooser = random.Random(seed)
    files = target.files(folder)
    for _ in range(count):
        path = chooser.choice(files)
        whole = path.read_bytes()
        place = chooser.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ chooser.randrange(1, 256)]) + whole[place + 1 :])
        yield target.found(folder, path)
        path.write_bytes(whole)
