"""The kernels, compiled for this machine's GPU by NVIDIA's runtime compiler and kept on disk: nvcc is not needed.

The file of compiled code is named after a hash of everything it was made of: sources, options, compiler.
``TrainArguments`` and ``EvaluateArguments`` have the fields of the C++ structs of the same names, in the same order.
A tensor is passed as its address, an integer as 32 bits.
"""

import ctypes
import hashlib
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float16, Float32, Float64, Int16, Int32, UInt8, UInt32
from torch import Tensor

from generation.fused.variants import Variant, best_variant, features
from generation.protocol import EPSILON
from zoo.reading.locate import cache_folder
from zoo.storage.atomic import write_atomically
from zoo.transformer.spec import TransformerSpec


@dataclass(frozen=True)
class TrainArguments:
    """One epoch of a population; weights, moments and losses are written in place."""

    kernel: ClassVar[str] = "train_epoch"
    parts: ClassVar[int] = 1

    tokens: Float16[Tensor, "examples tokens features"] | Int16[Tensor, "examples rows"]
    facts: Int32[Tensor, " examples"]
    positions: Float32[Tensor, "tokens dim"]
    corrections: Float32[Tensor, "steps 2"]
    rules: Float32[Tensor, "models numbers"]
    epsilons: Float32[Tensor, " models"]
    thresholds: Int32[Tensor, " models"]
    seeds: UInt32[Tensor, " models"]
    alive: UInt8[Tensor, " models"]
    weights: Float32[Tensor, "models parameters"]
    first_moments: Float32[Tensor, "models parameters"]
    second_moments: Float32[Tensor, "models parameters"]
    losses: Float64[Tensor, " models"]
    steps: int
    batch: int
    first_step: int
    workspace: Int32[Tensor, "models words"]
    packs: Int32[Tensor, "steps batch"]
    pack_counts: Int32[Tensor, " steps"]


@dataclass(frozen=True)
class EvaluateArguments:
    """All examples through every model; correct answers and losses are written in place, one number per part."""

    kernel: ClassVar[str] = "evaluate"

    tokens: Float[Tensor, "examples tokens features"] | Int16[Tensor, "examples rows"]
    facts: Int32[Tensor, " examples"]
    positions: Float32[Tensor, "tokens dim"]
    alive: UInt8[Tensor, " models"]
    weights: Float32[Tensor, "models parameters"]
    correct: Int32[Tensor, "models parts"]
    losses: Float64[Tensor, "models parts"]
    examples: int
    part_size: int
    parts: int


@dataclass(frozen=True)
class MeasureArguments(EvaluateArguments):
    """The same struct for the kernel that measures in float32."""

    kernel: ClassVar[str] = "measure"


Arguments = TrainArguments | EvaluateArguments


def _rows_of(arguments: Arguments, models: slice) -> Arguments:
    """The arguments for some of the models: views of the tensors that have one row for each."""
    per_model = [each.name for each in fields(arguments) if getattr(each.type, "dim_str", "").split()[:1] == ["models"]]
    assert all(field.name in per_model or "models" not in str(field.type) for field in fields(arguments))
    return replace(arguments, **{name: getattr(arguments, name)[models] for name in per_model})


_Parameter = ctypes.Structure | ctypes.c_void_p
_KERNELS: tuple[type[Arguments], ...] = (TrainArguments, EvaluateArguments, MeasureArguments)


@cache
def _layout(kind: type[Arguments]) -> type[ctypes.Structure]:
    """The struct as C lays it out."""
    members = [(field.name, ctypes.c_int32 if field.type is int else ctypes.c_void_p) for field in fields(kind)]
    return type(kind.__name__, (ctypes.Structure,), {"_fields_": members})


def _pack(arguments: Arguments, device: torch.device) -> ctypes.Structure:
    """The struct that a kernel takes by value. It holds no tensor: keep ``arguments`` until the kernel is launched."""
    values: list[int] = []
    for field in fields(arguments):
        value = getattr(arguments, field.name)
        if isinstance(value, Tensor):
            assert value.is_contiguous(), f"{field.name} is not contiguous"
            assert value.device == device, f"{field.name} is on {value.device}, the kernel on {device}"
            value = value.data_ptr()
        values.append(value)
    return _layout(type(arguments))(*values)


_SOURCES = Path(__file__).parent / "kernels"


def _offset_macro(tensor: str) -> str:
    """The kernels' name for the offset of a tensor: FLAT_FC1_BIAS for ``blocks.0.fc1.bias``, since the first block
    stands for all, and FLAT_CLASSIFIER1 for ``classifier.fc1.weight``."""
    name = tensor.removeprefix("blocks.0.").removesuffix(".weight").replace("classifier.fc", "classifier")
    return f"FLAT_{name.replace('.', '_').upper()}"


def _macros(spec: TransformerSpec, variant: Variant) -> list[tuple[str, str]]:
    """The dimensions, the layout of the flat vector, the protocol's and the variant's numbers, for ``model.cuh``."""
    dimensions = {
        "DIM": spec.dim,
        "HEADS": spec.heads,
        "HEAD_DIM": spec.key_dim,
        "HIDDEN": spec.hidden_dim,
        "BLOCKS": spec.blocks,
        "TOKENS": spec.tokens,
        "FEATURES": features(spec),
        "CLASSES": spec.classes,
        "RESIDUAL": int(spec.residual),
        "BLOCK_STRIDE": spec.block_size,
        "PARAMETERS": spec.num_parameters,
    }
    first_block_and_rest = (name for name in spec.tensors if not name.startswith("blocks.") or ".0." in name)
    offsets = {_offset_macro(name): spec.tensors[name].offset for name in first_block_and_rest}
    numbers = [(name, str(number)) for name, number in (dimensions | offsets).items()]
    floats = {"SCORE_SCALE": spec.key_dim**-0.5, "UPDATE_EPSILON": EPSILON}
    return [*numbers, *((name, f"{number}f") for name, number in floats.items()), *variant.macros(spec)]


def _compiler_options(spec: TransformerSpec, architecture: str, variant: Variant) -> dict[str, Any]:
    return {
        "std": "c++17",
        "arch": architecture + variant.suffix,
        "define_macro": _macros(spec, variant),
        "device_as_default_execution_space": True,  # without it older compilers take a lambda for host code
    }


def _machine_code(kernel: str, spec: TransformerSpec, architecture: str, variant: Variant) -> bytes:
    """The kernel as a cubin for an architecture such as "sm_90", from the cache or compiled now. It needs no GPU."""
    core, nvrtc = import_module("cuda.core"), import_module("cuda.bindings.nvrtc")
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(_SOURCES.iterdir())}
    _, *compiler = nvrtc.nvrtcVersion()
    options = _compiler_options(spec, architecture, variant)
    made_of = json.dumps([kernel, sources, options, compiler])
    path = cache_folder() / f"{kernel}-{spec.task}-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.cubin"
    if path.exists():
        return path.read_bytes()
    program_options = core.ProgramOptions(include_path=str(_SOURCES), name=f"{kernel}.cu", **options)
    code = bytes(core.Program(sources[f"{kernel}.cu"], "c++", program_options).compile("cubin").code)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, code)
    except OSError as error:
        warnings.warn(f"compiled kernels cannot be kept, the next run will compile them again: {error}", stacklevel=2)
    return code


class CudaKernels:
    """The kernels of a task on one GPU; launches are queued with torch's current stream."""

    def __init__(self, spec: TransformerSpec, device: torch.device, variant: Variant | None = None) -> None:
        core = import_module("cuda.core")
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        with torch.cuda.device(self.device):
            torch.cuda.init()
            core.Device(self.device.index).set_current()
            properties = torch.cuda.get_device_properties(self.device)
            capability = properties.major, properties.minor
            variant = variant or best_variant(spec, properties.shared_memory_per_block_optin, capability)
            assert variant is not None, "obstacle() was checked first"
            self.examples_at_once = variant.shared_memory(spec).examples_at_once
            architecture = f"sm_{properties.major}{properties.minor}"
            self._kernels: dict[str, tuple[Any, int, int]] = {}
            self._beside = torch.cuda.Stream(self.device)
            needs = torch.zeros(4, dtype=torch.int32, device=self.device)
            with ThreadPoolExecutor() as pool:  # compiling takes seconds
                compiled = pool.map(lambda kind: _machine_code(kind.kernel, spec, architecture, variant), _KERNELS)
            for kind, cubin in zip(_KERNELS, compiled, strict=True):
                name = kind.kernel
                code = core.ObjectCode.from_cubin(cubin, name=name)
                self._start(code.get_kernel(f"{name}_needs"), (1, 1), 1, 0, ctypes.c_void_p(needs.data_ptr()))
                threads, shared_bytes, argument_bytes, words = needs.tolist()  # by the kernel's source
                assert argument_bytes == ctypes.sizeof(_layout(kind)), f"{name} and {kind.__name__} disagree"
                if kind is TrainArguments:
                    self.workspace_words = words
                kernel = code.get_kernel(name)
                self._kernels[name] = kernel, threads, shared_bytes
                _allow_shared_memory(kernel, shared_bytes, self.device.index)
            kernel, threads, shared_bytes = self._kernels[TrainArguments.kernel]
            blocks = kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)
            self.models_at_once = max(blocks, 1) * properties.multi_processor_count

    def launch(self, *queue: Arguments) -> None:
        """The models beyond the last full round of thread blocks have a stream of their own: what the others do next
        takes the multiprocessors that they leave idle."""
        models, current = len(queue[0].alive), torch.cuda.current_stream(self.device)
        full = models - models % self.models_at_once
        lanes = [(current, slice(0, full)), (self._beside, slice(full, models))]
        lanes = [(stream, some) for stream, some in lanes if some.start < some.stop]
        self._beside.wait_stream(current)
        for arguments in queue:
            kernel, threads, shared_bytes = self._kernels[arguments.kernel]
            for stream, lane in lanes:
                some = _rows_of(arguments, lane)
                with torch.cuda.stream(stream):
                    self._start(kernel, (len(some.alive), some.parts), threads, shared_bytes, _pack(some, self.device))
        current.wait_stream(self._beside)

    def _start(
        self, kernel: Any, grid: tuple[int, int], threads: int, shared_bytes: int, parameter: _Parameter
    ) -> None:
        """Launches through the driver, since ``cuda.core.launch`` takes no structs; the driver copies the parameter."""
        driver = import_module("cuda.bindings.driver")
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        blocks, block = (*grid, 1), (threads, 1, 1)
        with torch.cuda.device(self.device):
            stream = driver.CUstream(torch.cuda.current_stream(self.device).cuda_stream)
            function, address = driver.CUfunction(int(kernel.handle)), ctypes.addressof(parameters)
            (status,) = driver.cuLaunchKernel(function, *blocks, *block, shared_bytes, stream, address, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the GPU refused to start {grid[0]} × {grid[1]} thread blocks: {status.name}")


def _allow_shared_memory(kernel: Any, shared_bytes: int, device: int) -> None:
    """Lets a kernel use more shared memory than the 48 KiB that every kernel may use."""
    driver = import_module("cuda.bindings.driver")
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    own = driver.CUkernel(int(kernel.handle)), driver.CUdevice(device)
    (status,) = driver.cuKernelSetAttribute(most, shared_bytes, *own)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the GPU refused {shared_bytes} bytes of shared memory per thread block: {status.name}")
