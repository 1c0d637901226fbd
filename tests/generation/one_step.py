"""One training step of one model on the emulator, with the kernels of a folder; a process that may be aborted.

python tests/generation/one_step.py KERNELS mnist
"""

import sys
from pathlib import Path

from emulated import EmulatedKernels
from small_tasks import few_digits, few_windows

from generation.fused.engine import FusedEngine
from generation.population.engine import PopulationState
from generation.protocol import Protocol, RunConfig
from zoo.transformer.spec import SHAKESPEARE


def main(sources: Path, name: str) -> None:
    task = few_digits(train=16, test=1) if name == "mnist" else few_windows(16, 1, SHAKESPEARE)
    run = RunConfig(
        task=name,
        optimizer="adam",
        learning_rate=1e-3,
        init_std=0.2,
        dropout=0.1,
        protocol=Protocol(1, 1, batch_size=16),
    )
    engine = FusedEngine([run], task, EmulatedKernels(task.spec, sources=sources))
    engine.train_epoch(PopulationState.initial(task.spec, [run], engine.device))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
