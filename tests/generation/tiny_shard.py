"""Trains a tiny shard in the folder it is given; a process to be killed.

python tests/generation/tiny_shard.py OUT
"""

import sys
from pathlib import Path

from conftest import few_digits

from generation.lock import exclusive
from generation.population import PopulationTrainer
from generation.protocol import Protocol
from generation.run import describe, is_finished, train_shard
from generation.sweep import Preset, Sweep

SWEEP = Sweep("mnist", Preset("tiny", Protocol(epochs=12, warmup_epochs=2, batch_size=16), runs_per_shard=3))
SHARD = 5


def main(folder: Path) -> None:
    task = few_digits(train=80, test=30)
    with exclusive(folder.parent / f".{folder.name}.lock"):
        configs = SWEEP.shard(SHARD)
        if not is_finished(folder, SWEEP, len(configs)):
            trainer = PopulationTrainer(configs, task)
            train_shard(trainer, folder, describe(SWEEP, SHARD, task, trainer), snapshot_seconds=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
