"""One training step of one model on the emulator, with the kernels of a folder; a process that may be aborted.

python tests/generation/one_step.py KERNELS
"""

import sys
from pathlib import Path

from emulated import EmulatedKernels
from small_tasks import few_digits

from generation.fused.engine import FusedEngine
from generation.population.engine import PopulationState
from generation.protocol import Protocol, RunConfig
from zoo.transformer.spec import MNIST


def main(sources: Path) -> None:
    run = RunConfig(
        task="mnist",
        optimizer="adam",
        learning_rate=1e-3,
        init_std=0.2,
        dropout=0.1,
        protocol=Protocol(1, 1, batch_size=16),
    )
    engine = FusedEngine([run], few_digits(train=16, test=1), EmulatedKernels(MNIST, sources=sources))
    engine.train_epoch(PopulationState.initial(MNIST, [run], engine.device))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
