"""A small fabricated zoo for the table commands, and a baseline that is fitted quickly."""

from pathlib import Path

import pytest

from benchmarks.models import trees
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, fabricate_embedding, fabricate_shard, publish


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 MNIST runs and 40 of AG News, with random weights and invented accuracies."""
    root = tmp_path_factory.mktemp("tables")
    fabricate_shard(root / "runs", TINY_MNIST, count=70)
    fabricate_shard(root / "runs", TINY_AGNEWS, count=40, embedding=fabricate_embedding(TINY_AGNEWS))
    publish(root / "runs", root / "zoo")
    return root / "zoo"


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boosting on the hyperparameters takes 5 s with all its 2,000 rounds, more than ten times any other model."""
    monkeypatch.setattr(trees, "_ROUNDS", 20)
