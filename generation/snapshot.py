"""Snapshots: a population's state on disk, so that a killed shard resumes where it was.

Snapshots are safetensors files ``state-1f0c93ab-00042.safetensors``, named after the training they belong to and the
epochs done. The two newest are kept: if the newest is damaged, training resumes from the one before. Snapshots
of another training in the same folder are neither read nor touched.
"""

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from generation.population.engine import PopulationState
from generation.protocol import RunConfig
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import refuse_larger
from zoo.version import VERSION

_KEPT = 2
_PATTERN = "state-*.safetensors"
_LONGEST_HEADER = 1 << 20


def _pattern(owner: str) -> str:
    """The names of one training's snapshots, as a glob."""
    return f"state-{owner[:8]}-*.safetensors"


def fingerprint(configs: Sequence[RunConfig], **surroundings: object) -> str:
    """A hash of everything that a population's future depends on besides its state."""
    content = {"runs": [config.to_dict() for config in configs], "code": VERSION, **surroundings}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save_snapshot(folder: Path, state: PopulationState, owner: str, seconds: float) -> Path:
    """Writes the state, whole or not at all, and deletes all but the two newest snapshots."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.tensors().items()}
    facts = {"epoch": str(state.epoch), "owner": owner, "seconds": repr(seconds)}
    metadata = facts | {"sha256": _digest(facts, tensors)}
    path = folder / _pattern(owner).replace("*", f"{state.epoch:05d}")
    if path.exists() and not path.is_file():
        warnings.warn(f"no snapshot is written: {path} exists and is not a file", stacklevel=2)
        return path
    write_atomically(path, safetensors.torch.save(tensors, metadata))
    for old in _snapshots(folder, _pattern(owner))[:-_KEPT]:
        old.unlink()
    return path


def _snapshots(folder: Path, names: str) -> list[Path]:
    """The files of these names, the oldest first; a folder or a pipe of such a name is not a snapshot."""
    return [path for path in sorted(folder.glob(names)) if path.is_file()]


def load_snapshot(folder: Path, owner: str, like: PopulationState) -> tuple[PopulationState, float] | None:
    """The newest undamaged snapshot of this very training and the seconds it took, or None.

    A damaged one is passed over with a warning.
    """
    for path in sorted(folder.glob(_pattern(owner)), reverse=True):
        try:
            return _read_snapshot(path, owner, like)
        except ValueError as error:
            warnings.warn(f"{path} is not used: {error}", stacklevel=2)
    return None


def _read_snapshot(path: Path, owner: str, like: PopulationState) -> tuple[PopulationState, float]:
    """One snapshot, on the device of ``like``, whose tensors it must match in name, shape and dtype."""
    if not path.is_file():
        raise ValueError("it is not a file")
    try:
        refuse_larger(path, sum(tensor.nbytes for tensor in like.tensors().values()) + _LONGEST_HEADER)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("owner") != owner:
                raise ValueError("it belongs to another training: other runs, data, precision or code")
            expected = {name: (tensor.shape, tensor.dtype) for name, tensor in like.tensors().items()}
            # shapes are compared before anything is read, so a forged header cannot ask for memory
            headers = {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if headers != {name: shape for name, (shape, _) in expected.items()}:
                raise ValueError("its tensors are not those of this training")
            tensors = {name: file.get_tensor(name) for name in headers}
        if any(tensors[name].dtype != dtype for name, (_, dtype) in expected.items()):
            raise ValueError("its tensors are not those of this training")
        facts = {name: metadata[name] for name in ("epoch", "owner", "seconds")}
        if _digest(facts, tensors) != metadata.get("sha256"):
            raise ValueError("its checksum does not fit: the file is damaged")
        epoch, seconds = int(metadata["epoch"]), float(metadata["seconds"])
        if not 0 <= epoch <= like.test_accuracy.shape[1] or not 0 <= seconds < float("inf"):
            raise ValueError(f"epoch {epoch} after {seconds} s does not belong to this training")
    # a data type that torch does not know is a KeyError or an AttributeError, according to its name
    except (safetensors.SafetensorError, OSError, KeyError, AttributeError) as error:
        raise ValueError(f"the file is damaged ({error})") from error
    device = like.weights.device
    return PopulationState(epoch=epoch, **{name: tensor.to(device) for name, tensor in tensors.items()}), seconds


def delete_snapshots(folder: Path) -> None:
    for path in _snapshots(folder, _PATTERN):
        path.unlink()


def _digest(facts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a snapshot's facts and of the names and bytes of its tensors."""
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].numpy().data)
    return total.hexdigest()
