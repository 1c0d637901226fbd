"""Trains a tiny shard below the folder it is given; a process to be killed.

python tests/generation/tiny_shard.py OUT
"""

import sys
from pathlib import Path

from small_tasks import few_digits, train_small_shard

from generation.protocol import Protocol
from generation.sweep import Preset, Sweep
from generation.task import named_task

SWEEP = Sweep(
    named_task("mnist"), Preset("tiny", Protocol(epochs=12, warmup_epochs=2, batch_size=16), runs_per_shard=3)
)
SHARD = 5


def main(out: Path) -> None:
    train_small_shard(SWEEP, SHARD, out, few_digits(train=80, test=30))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
