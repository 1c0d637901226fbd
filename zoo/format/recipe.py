"""What follows from a run's configuration and so can be checked: its seed, its id, the epochs of its checkpoints."""

import hashlib
import json
from collections.abc import Mapping
from itertools import count
from typing import Any

from zoo.format.hyperparameters import LATER, SHARED_SEED, repeats_of

SHARED = 0
"""The seed that all runs share, unless they have their own."""
_CHECKPOINT_SHARES = {"epoch_50": 0.50, "epoch_75": 0.75, "epoch_100": 1.00}


def hashed_configuration(
    hyperparameters: Mapping[str, Any], task: str, protocol: Mapping[str, Any], task_sha256: str | None
) -> dict[str, Any]:
    """A run as plain JSON-ready data; ``task_sha256`` is that of a task file which is not one of the paper's."""
    own_task = {} if task_sha256 is None else {"task_sha256": task_sha256}
    return {**_hashed(hyperparameters), "task": task, "protocol": protocol, **own_task}


def run_id(configuration: Mapping[str, Any]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the configuration as canonical JSON."""
    return _digest(configuration).hex()[:16]


def seeds_by_policy(policy: str, hyperparameters: Mapping[str, Any], task: str) -> list[int]:
    """The seeds that a configuration is trained with.

    Repeats have the first different values of ``_own_seed(repeat=k)``, k = 0, 1, …, so that more repeats change none.
    """
    repeats = repeats_of(policy)
    if repeats is None:
        return [SHARED if policy == SHARED_SEED else _own_seed(hyperparameters, task)]
    numbers, seeds = count(), dict[int, None]()
    while len(seeds) < repeats:
        seeds[_own_seed(hyperparameters, task, repeat=next(numbers))] = None
    return list(seeds)


def _own_seed(hyperparameters: Mapping[str, Any], task: str, **repeat: int) -> int:
    """A 32-bit seed for this configuration alone, or for one repeat of it: a hash of the hyperparameters (and of
    ``repeat=k``), the same under every protocol."""
    content = {"task": task, **_hashed(hyperparameters), **repeat}
    del content["seed"]
    return int.from_bytes(_digest(content)[:4], "big")


def epochs_of_checkpoints(protocol: Mapping[str, Any]) -> dict[str, int]:
    """Label → number of epochs after which it is taken, in order; ``best`` is not among them.

    ``epoch_50``, ``epoch_75`` and ``epoch_100`` are these percents of the training, as in the paper, except where
    the epochs were chosen: then ``epoch_10`` is taken after exactly 10.
    """
    if (chosen := protocol.get("checkpoint_epochs")) is not None:
        return {f"epoch_{epoch}": epoch for epoch in chosen}
    return {label: max(1, round(share * protocol["epochs"])) for label, share in _CHECKPOINT_SHARES.items()}


def _hashed(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """The input of the hashes behind ids and seeds. Later hyperparameters are left out at their defaults, so that the
    runs of the first zoos keep theirs."""
    return {name: value for name, value in hyperparameters.items() if (name, value) not in LATER.items()}


def _digest(content: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).digest()
