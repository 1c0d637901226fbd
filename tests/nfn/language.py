"""Language models of the zoo's own dimensions, trained briefly on real text."""

import gzip
from functools import lru_cache
from importlib.resources import files

import torch
from torch.nn import functional as F

from zoo import SHAKESPEARE, TransformerWeights
from zoo.transformer.model import ZooTransformer

STEPS = 40


@lru_cache
def tokens() -> torch.Tensor:
    text = gzip.decompress((files("zoo.tasks") / "named" / "shakespeare.txt.gz").read_bytes()).decode()
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[character] for character in text[:100_000]])


@lru_cache
@torch.enable_grad()
def trained(seed: int) -> TransformerWeights:
    """One model in float64: better than single characters, so that heads and units have roles."""
    generator = torch.Generator().manual_seed(seed)
    model = ZooTransformer(SHAKESPEARE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.1 if parameter.ndim > 1 else 0.0))
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=1e-2), torch.tensor(torch.inf)
    for _ in range(STEPS):
        start = torch.randint(len(tokens()) - 65, (4, 1), generator=generator)
        window = tokens()[start + torch.arange(65)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    assert loss < 3.2
    flat = TransformerWeights.from_state_dict(SHAKESPEARE, model.state_dict()).flat().double()
    return TransformerWeights.from_flat(SHAKESPEARE, flat)


def windows(count: int = 3) -> tuple[torch.Tensor, ...]:
    return (tokens()[90_000 : 90_000 + 64 * count].view(count, 64),)
