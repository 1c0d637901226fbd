"""What every test gets: one thread, since the suite runs one process a core, and chance that repeats itself."""

import gc
from collections.abc import Iterator

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """What all the imports made stays: looking through it again took each collection of garbage half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _repeatable_chance() -> Iterator[None]:
    """The same numbers in every run and whatever ran before: a test that fails can be made to fail again."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
