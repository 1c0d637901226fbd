"""The fused engine's kernels on a CPU: compiled as plain C++ against the emulator, which runs every lane as a fiber."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from generation.fused.compiled import _KERNELS, _SOURCES, Arguments, TrainArguments, _layout, _macros, _pack, _rows_of
from generation.fused.variants import _LARGEST, Variant
from zoo.storage.atomic import exclusive
from zoo.transformer.spec import TransformerSpec

EMULATOR = Path(__file__).parent / "emulator"


def build(spec: TransformerSpec, variant: Variant, sources: Path = _SOURCES) -> Path:
    """The shared library of a task, compiled by the first test that needs it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the emulator needs g++")
    defines = [f"-D{name}={value}" for name, value in _macros(spec, variant)]
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-w", *defines]
    files = sorted([*EMULATOR.iterdir(), *sources.iterdir()])
    made_of = b"".join([*(path.read_bytes() for path in files), *(option.encode() for option in options)])
    digest = hashlib.sha256(made_of).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "small-transformer-zoo-emulator"
    folder.mkdir(exist_ok=True)
    library = folder / f"{spec.task}-{variant.name}-{digest}.so"
    with exclusive(folder / ".lock", busy=None):
        if not library.exists():
            unfinished = library.with_suffix(".tmp")
            folders = [f"-I{EMULATOR}", f"-I{sources}"]
            subprocess.run([compiler, *options, *folders, "-o", unfinished, EMULATOR / "emulator.cpp"], check=True)
            unfinished.rename(library)
    return library


class EmulatedKernels:
    """Has the interface of ``CudaKernels``; ``schedule`` seeds the order in which warps run."""

    device = torch.device("cpu")

    def __init__(
        self, spec: TransformerSpec, schedule: int = 0, sources: Path = _SOURCES, variant: Variant = _LARGEST
    ) -> None:
        self.library = ctypes.CDLL(str(build(spec, variant, sources)))
        self.schedule = schedule
        self.examples_at_once = variant.shared_memory(spec).examples_at_once
        self.shared_bytes: dict[str, int] = {}
        for kind in _KERNELS:
            needs = (ctypes.c_int32 * 4)()
            getattr(self.library, f"{kind.kernel}_needs")(needs)
            self.shared_bytes[kind.kernel] = needs[1]
            assert needs[2] == ctypes.sizeof(_layout(kind))
            if kind is TrainArguments:
                self.workspace_words = needs[3]

    def launch(self, *queue: Arguments) -> None:
        """The second half of the models does everything before the first one begins."""
        half = len(queue[0].alive) // 2
        for models in slice(half, None), slice(half):
            for arguments in (_rows_of(whole, models) for whole in queue):
                emulate = getattr(self.library, f"emulate_{arguments.kernel}")
                grid, parameter = (len(arguments.alive), arguments.parts), _pack(arguments, self.device)
                emulate(*grid, ctypes.c_uint64(self.schedule), ctypes.byref(parameter))
