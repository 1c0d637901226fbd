"""One checkpoint in a file of its own, as ``zoo.export`` or ``torch.save(model.state_dict(), …)`` writes it.

Nothing in a file is executed: safetensors has no code, and torch reads tensors only (``weights_only=True``).
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zoo.storage.untrusted import HeldFile, faults_named
from zoo.transformer.spec import TransformerSpec

_SAFETENSORS, _TORCH = (".safetensors",), (".pt", ".pth", ".bin")
SUFFIXES = _SAFETENSORS + _TORCH
_MAX_BYTES = 64 << 20
"""A checkpoint of the paper's zoo has 75 kB."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class CheckpointFile(NamedTuple):
    """The tensors of a file by name, and the metadata of its header, which a torch file does not have."""

    path: Path
    state: Mapping[str, Tensor]
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "CheckpointFile":
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{path} is not a checkpoint file: its name should end in {', '.join(SUFFIXES)}")
        HeldFile(path).refuse_larger(_MAX_BYTES)
        if path.suffix in _SAFETENSORS:
            with faults_named(f"{path} is damaged", SafetensorError), safe_open(path, framework="pt") as file:
                state, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
        else:
            state, metadata = _read_torch(path), {}
        for name, tensor in state.items():
            if not isinstance(name, str) or not _is_plain(tensor):
                raise ValueError(f"{path} is not a state_dict of floating-point tensors: {str(name)[:80]!r} is not one")
        return cls(path, state, metadata)

    def misfit(self, spec: TransformerSpec) -> str | None:
        """The first tensor that is not one of this transformer's, in words; None where all are."""
        for name, slot in spec.tensors.items():
            if name not in self.state:
                return f"{name} is missing"
            if tuple(self.state[name].shape) != slot.shape:
                return f"{name} is {list(self.state[name].shape)} instead of {list(slot.shape)}"
        surplus = sorted(self.state.keys() - spec.tensors.keys())
        return f"{surplus[0][:80]} is unknown" if surplus else None


def _is_plain(tensor: object) -> bool:
    """Whether it is a tensor of floats with a number in memory for each: not sparse, nested, quantized or meta."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in _FLOATS:
        return False
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def _read_torch(path: Path) -> dict[str, Tensor]:
    """A state_dict; anything that would need code to be read is refused by torch, an unpacking bomb here."""
    strange = f"{path} is not a file that torch.save writes"
    with faults_named(strange, zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _MAX_BYTES:
        raise ValueError(f"{path} is damaged: {unpacked:,} bytes unpacked, at most {_MAX_BYTES:,} are read")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    # torch raises a different type for each way in which a file can be wrong
    except Exception as error:
        if type(error).__name__ == "UnpicklingError":  # torch's own message explains how to read it all the same
            raise ValueError(f"{path} holds more than tensors and is not read: save model.state_dict()") from error
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read as tensors alone: {first[:200]}") from error
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} is not a state_dict but a {type(state).__name__}: save model.state_dict()")
    return dict(state)
