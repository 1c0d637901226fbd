"""The kernels, compiled for the GPU at hand by NVIDIA's runtime compiler and kept on disk: no nvcc is needed.

The file of compiled code is named after a hash of everything it was made of: sources, options, compiler.
"""

import ctypes
import hashlib
import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from generation.fused.arguments import KERNELS, Arguments, TrainArguments, layout, pack
from generation.fused.shared_memory import features
from generation.fused.variants import Variant, best_variant
from generation.protocol import EPSILON
from zoo.reading.locate import cache_folder
from zoo.storage.atomic import write_atomically
from zoo.transformer.spec import TransformerSpec

SOURCES = Path(__file__).parent / "kernels"
FLAT_TENSORS = {
    "FLAT_EMBEDDING": "embedding.weight",
    "FLAT_EMBEDDING_BIAS": "embedding.bias",
    "FLAT_QUERY": "blocks.0.query.weight",
    "FLAT_KEY": "blocks.0.key.weight",
    "FLAT_VALUE": "blocks.0.value.weight",
    "FLAT_OUTPUT": "blocks.0.output.weight",
    "FLAT_FC1": "blocks.0.fc1.weight",
    "FLAT_FC1_BIAS": "blocks.0.fc1.bias",
    "FLAT_FC2": "blocks.0.fc2.weight",
    "FLAT_FC2_BIAS": "blocks.0.fc2.bias",
    "FLAT_CLASSIFIER1": "classifier.fc1.weight",
    "FLAT_CLASSIFIER1_BIAS": "classifier.fc1.bias",
    "FLAT_CLASSIFIER2": "classifier.fc2.weight",
    "FLAT_CLASSIFIER2_BIAS": "classifier.fc2.bias",
}
"""The kernels' names for the tensors of the flat vector; the first block stands for all."""


def nvidia(module: str) -> Any:
    """One of NVIDIA's Python modules, which do not declare their types."""
    return import_module(module)


def macros(spec: TransformerSpec, variant: Variant) -> list[tuple[str, str]]:
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
        "BLOCK_STRIDE": spec.block_size,
        "PARAMETERS": spec.num_parameters,
    }
    offsets = {name: spec.tensors[tensor].offset for name, tensor in FLAT_TENSORS.items() if tensor in spec.tensors}
    numbers = [(name, str(number)) for name, number in (dimensions | offsets).items()]
    floats = {"SCORE_SCALE": spec.key_dim**-0.5, "UPDATE_EPSILON": EPSILON}
    return [*numbers, *((name, f"{number}f") for name, number in floats.items()), *variant.macros(spec)]


def compiler_options(spec: TransformerSpec, architecture: str, variant: Variant) -> dict[str, Any]:
    return {
        "std": "c++17",
        "arch": architecture + variant.suffix,
        "define_macro": macros(spec, variant),
        "device_as_default_execution_space": True,  # older compilers take a lambda without it for the host's
    }


def machine_code(kernel: str, spec: TransformerSpec, architecture: str, variant: Variant) -> bytes:
    """The kernel as a cubin for an architecture such as "sm_90", from the cache or compiled now. It needs no GPU."""
    core, nvrtc = nvidia("cuda.core"), nvidia("cuda.bindings.nvrtc")
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())}
    _, *compiler = nvrtc.nvrtcVersion()
    options = compiler_options(spec, architecture, variant)
    made_of = json.dumps([kernel, sources, options, compiler])
    path = cache_folder() / f"{kernel}-{spec.task}-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.cubin"
    if path.exists():
        return path.read_bytes()
    program_options = core.ProgramOptions(include_path=str(SOURCES), name=f"{kernel}.cu", **options)
    code = bytes(core.Program(sources[f"{kernel}.cu"], "c++", program_options).compile("cubin").code)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, code)
    except OSError as error:
        warnings.warn(f"compiled kernels cannot be kept, the next run will compile them again: {error}", stacklevel=2)
    return code


class CudaKernels:
    """Both kernels of a task on one GPU; launches are queued on torch's current stream."""

    def __init__(self, spec: TransformerSpec, device: torch.device, variant: Variant | None = None) -> None:
        core = nvidia("cuda.core")
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        with torch.cuda.device(self.device):
            torch.cuda.init()
            core.Device(self.device.index).set_current()
            properties = torch.cuda.get_device_properties(self.device)
            capability = properties.major, properties.minor
            variant = variant or best_variant(spec, properties.shared_memory_per_block_optin, capability)
            assert variant is not None, "fit.obstacle says so"
            self.samples_at_once = variant.shared_memory(spec).samples_at_once
            architecture = f"sm_{properties.major}{properties.minor}"
            self._kernels: dict[str, Any] = {}
            self._needs: dict[str, tuple[int, int]] = {}
            for kind in KERNELS:
                name = kind.kernel
                code = core.ObjectCode.from_cubin(machine_code(name, spec, architecture, variant), name=name)
                threads, shared_bytes, argument_bytes, parked_words = self._ask_needs(code.get_kernel(f"{name}_needs"))
                assert argument_bytes == ctypes.sizeof(layout(kind)), f"{name} and {kind.__name__} disagree"
                if kind is TrainArguments:
                    self.parked_words = parked_words
                self._kernels[name] = code.get_kernel(name)
                self._needs[name] = threads, shared_bytes
                allow_shared_memory(self._kernels[name], shared_bytes, self.device.index)

    def _ask_needs(self, describe: Any) -> list[int]:
        """Threads per block, bytes of shared memory and of arguments, words to park, by the kernel's source."""
        needs = torch.zeros(4, dtype=torch.int32, device=self.device)
        self._start(describe, (1, 1), 1, 0, ctypes.c_void_p(needs.data_ptr()))
        return needs.tolist()

    def launch(self, arguments: Arguments, models: int, parts: int) -> None:
        threads, shared_bytes = self._needs[arguments.kernel]
        kernel = self._kernels[arguments.kernel]
        self._start(kernel, (models, parts), threads, shared_bytes, pack(arguments, self.device))

    def _start(
        self,
        kernel: Any,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        parameter: ctypes.Structure | ctypes.c_void_p,
    ) -> None:
        """Launches through the driver, since ``cuda.core.launch`` takes no structs; the driver copies the parameter."""
        driver = nvidia("cuda.bindings.driver")
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        blocks, block = (*grid, 1), (threads, 1, 1)
        with torch.cuda.device(self.device):
            (status,) = driver.cuLaunchKernel(
                driver.CUfunction(int(kernel.handle)),
                *blocks,
                *block,
                shared_bytes,
                driver.CUstream(torch.cuda.current_stream(self.device).cuda_stream),
                ctypes.addressof(parameters),
                0,
            )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the GPU refused to start {grid[0]} × {grid[1]} blocks of a kernel: {status.name}")


def allow_shared_memory(kernel: Any, shared_bytes: int, device: int) -> None:
    """Lets a kernel use more shared memory than the 48 KiB that every kernel may use."""
    driver = nvidia("cuda.bindings.driver")
    (status,) = driver.cuKernelSetAttribute(
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        shared_bytes,
        driver.CUkernel(int(kernel.handle)),
        driver.CUdevice(device),
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the GPU refused {shared_bytes} bytes of shared memory per block: {status.name}")
