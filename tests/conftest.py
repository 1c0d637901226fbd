"""For every test: one thread, since the suite runs one process per core, and reproducible random numbers."""

import gc
from collections.abc import Iterator

import pytest
from xdist import is_xdist_controller

from tests import type_checks

type_checks.install()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Not in the process that only hands out tests, which need not import torch."""
    if is_xdist_controller(session):
        return
    import hypothesis
    import torch

    torch.set_num_threads(1)
    hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
    hypothesis.settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Objects made by imports stay: scanning them again took each garbage collection half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _repeatable_chance() -> Iterator[None]:
    """The same numbers in every run, whatever ran before: a failing test fails again."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host name is found, and the hub's client does not retry."""

    def unknown(*_: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
