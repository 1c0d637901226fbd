"""Small fabricated zoos for the table commands, and a baseline that is fitted quickly."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.models import trees
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, fabricate_embedding, fabricate_shard, publish


@pytest.fixture(scope="session")
def make_zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """Makes a zoo of some MNIST runs and some of AG News, with random weights and invented accuracies."""

    def make(mnist: int, agnews: int) -> Path:
        root = tmp_path_factory.mktemp("tables")
        fabricate_shard(root / "runs", TINY_MNIST, count=mnist)
        fabricate_shard(root / "runs", TINY_AGNEWS, count=agnews, embedding=fabricate_embedding(TINY_AGNEWS))
        publish(root / "runs", root / "zoo")
        return root / "zoo"

    return make


@pytest.fixture(scope="session")
def tiny_zoo(make_zoo: Callable[[int, int], Path]) -> Path:
    return make_zoo(70, 40)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boosting on the hyperparameters takes 5 s with all its 2,000 rounds, more than ten times any other model."""
    monkeypatch.setattr(trees, "_ROUNDS", 20)
