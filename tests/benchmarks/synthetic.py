"""Invented checkpoints with a known label: a function of the weights, or random numbers."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.data import BenchmarkData, Checkpoints
from zoo import TransformerSpec, TransformerWeights
from zoo.format.hyperparameters import OPTIMIZERS

SMALL = TransformerSpec("mnist", classes=2, tokens=4, dim=3, heads=2, key_dim=2, value_dim=2, hidden_dim=2, blocks=1)
Label = Callable[[TransformerWeights, torch.Generator], Tensor]


def invariant_label(weights: TransformerWeights, _: torch.Generator) -> Tensor:
    """A polynomial of Σ_s W^(Q,s)·(W^(K,s))ᵀ, which is invariant under the group."""
    block = weights.blocks[0]
    product = (block.query @ block.key.mT).sum(-3)
    value = product[..., 0, 1] - product[..., 1, 0] + product[..., 1, 1]
    return torch.sigmoid(1.5 * value / value.std())


def random_label(weights: TransformerWeights, generator: torch.Generator) -> Tensor:
    return torch.rand(weights.batch_shape, generator=generator)


def invent(count: int, seed: int, label: Label, spec: TransformerSpec = SMALL) -> Checkpoints:
    generator = torch.Generator().manual_seed(seed)
    weights = TransformerWeights.from_flat(spec, torch.randn(count, spec.num_parameters, generator=generator))
    draw = np.random.default_rng(seed)
    metadata = pd.DataFrame(
        {
            "run_id": [f"{seed}-{number}" for number in range(count)],
            "goodness": label(weights, generator).numpy(),
            "optimizer": draw.choice(OPTIMIZERS, count),
            **{
                name: draw.choice([0.1, 0.2, 0.3], count)
                for name in ("learning_rate", "weight_decay", "init_std", "dropout", "train_fraction")
            },
        }
    )
    return Checkpoints(spec, weights.flat(), metadata)


def invent_data(train: int, validation: int, test: int, label: Label, *, move: bool = False) -> BenchmarkData:
    """Three splits; with ``move`` every checkpoint is acted on by its own group element."""
    splits = [invent(count, seed, label) for seed, count in enumerate((train, validation, test))]
    if move:
        splits = [rows.moved(10 + seed) for seed, rows in enumerate(splits)]
    return BenchmarkData(
        splits[0], splits[1], lambda: splits[2], config="mnist", fingerprint="invented", test_examples=1000
    )
