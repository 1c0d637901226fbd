"""The registers and the memory that each variant of the kernels takes on each architecture; it needs no GPU.

python -m tests.kernel_resources                            a table: registers, spilled bytes, shared memory
python -m tests.kernel_resources --architecture sm_80 sm_90 --task mnist
python -m tests.kernel_resources --dim 64 --hidden-dim 128  of transformers with other dimensions than the paper's
"""

from dataclasses import dataclass
from typing import Annotated

from zoo.command import Command, Option, missing
from zoo.transformer.dimensions import DimensionOptions
from zoo.transformer.spec import SPECS, TransformerSpec

_ARCHITECTURES = {  # compute capability, and KiB of shared memory that a thread block may have
    "sm_80": ((8, 0), 163),
    "sm_86": ((8, 6), 99),
    "sm_89": ((8, 9), 99),
    "sm_90": ((9, 0), 227),
    "sm_100": ((10, 0), 227),
    "sm_120": ((12, 0), 99),
}


@dataclass(frozen=True, kw_only=True)
class _Options(DimensionOptions):
    architecture: Annotated[tuple[str, ...], Option("to compile for", choices=tuple(_ARCHITECTURES))] = tuple(
        _ARCHITECTURES
    )
    task: Annotated[tuple[str, ...], Option("whose transformers", choices=tuple(SPECS))] = tuple(SPECS)


_command = Command(__name__, "tests.kernel_resources", __doc__, _Options)

import io
import re
from importlib import import_module
from itertools import product

from generation.fused.compiled import _KERNELS, _SOURCES, _compiler_options
from generation.fused.variants import _VARIANTS, Variant, misfits

_NUMBER = "\ntemplate <int N> __global__ void number() {}\n"
_CONSTANTS = {
    "train_epoch": ("TRAIN_THREADS", "TrainMemory::BYTES"),
    "evaluate": ("EVALUATE_THREADS", "EvaluateMemory::BYTES"),
    "measure": ("in_floats::THREADS", "in_floats::BYTES"),
}
"""Threads per thread block and bytes of shared memory, by their names in the kernels' sources."""
_ROW = "{:8} {:8} {:11} {:12} {:>9} {:>13} {:>10} {:>8}"


def _fits(variant: Variant, architecture: str, spec: TransformerSpec) -> bool:
    capability, kibibytes = _ARCHITECTURES[architecture]
    return variant.fits(spec, 1024 * kibibytes, capability)


def _measure(kernel: str, spec: TransformerSpec, architecture: str, variant: Variant) -> tuple[int, int, int, int]:
    """Registers per thread, bytes spilled per thread, threads and bytes of shared memory per thread block.

    The compiler logs the first two. The others are constants of the source: a template's function is named after
    its number.
    """
    core = import_module("cuda.core")
    source = (_SOURCES / f"{kernel}.cu").read_text(encoding="utf-8") + _NUMBER
    options = core.ProgramOptions(
        include_path=str(_SOURCES),
        name=f"{kernel}.cu",
        ptxas_options="-v",
        **_compiler_options(spec, architecture, variant),
    )
    log = io.StringIO()
    names = [f"number<{constant}>" for constant in _CONSTANTS[kernel]]
    code = core.Program(source, "c++", options).compile("cubin", name_expressions=names, logs=log)
    _, _, own = log.getvalue().partition(f"'{kernel}' for")
    registers, spilled = re.search(r"Used (\d+) registers", own), re.search(r"(\d+) bytes spill stores", own)
    assert registers, log.getvalue()
    assert spilled, log.getvalue()
    threads, shared = (int(re.findall(r"\d+", str(code.symbol_mapping[name]))[-1]) for name in names)
    return int(registers[1]), int(spilled[1]), threads, shared


@_command
def main(options: _Options) -> None:
    specs = [options.applied_to(SPECS[task]) for task in options.task]
    if found := [line for spec in specs for line in misfits(spec)]:
        raise ValueError(f"the fused kernels cannot train that: {found[0]}")
    if lacking := missing("it", ["cuda.core", "cuda.bindings"]):
        raise ValueError(f"the fused engine cannot be compiled here: {lacking}")
    print(_ROW.format("GPU", "variant", "task", "kernel", "registers", "bytes spilled", "threads", "shared"))
    for architecture in options.architecture:
        for variant, spec in product(_VARIANTS, specs):
            for kind in _KERNELS if _fits(variant, architecture, spec) else ():
                numbers = _measure(kind.kernel, spec, architecture, variant)
                print(_ROW.format(architecture, variant.name, spec.task, kind.kernel, *numbers), flush=True)
        too_large = [
            spec.task for spec in specs if not any(_fits(variant, architecture, spec) for variant in _VARIANTS)
        ]
        if too_large:
            kibibytes = _ARCHITECTURES[architecture][1]
            print(f"{architecture:8} no variant fits {', '.join(too_large)} in {kibibytes} KiB of shared memory")
