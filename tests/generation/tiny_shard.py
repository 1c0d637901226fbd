"""A tiny shard, trained by processes that are to be killed."""

from pathlib import Path

from generation.protocol import Preset, Protocol
from generation.sweep import Sweep
from generation.task import named_task
from tests.generation.small_tasks import few_digits, train_small_shard

SWEEP = Sweep(
    named_task("mnist"), Preset("tiny", Protocol(epochs=12, warmup_epochs=2, batch_size=16), runs_per_shard=3)
)
SHARD = 5


def train_tiny_shard(out: Path, runs: int | None = None) -> None:
    train_small_shard(SWEEP, SHARD, out, few_digits(train=80, test=30), runs)
