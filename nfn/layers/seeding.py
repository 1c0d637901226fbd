"""Random numbers come from a generator that is passed in, never from torch's global one."""

import torch


def generator_or_default(generator: torch.Generator | None) -> torch.Generator:
    """The generator itself, or for None a new one with seed 0, so that the same call makes the same layer."""
    return generator if generator is not None else torch.Generator().manual_seed(0)
