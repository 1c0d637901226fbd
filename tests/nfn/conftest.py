"""Specs of awkward sizes, and real checkpoints of the bundled sample."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F

import zoo
from nfn.predictors.probes import probe_shape
from tests.fabricated import TINY_PHOTOS
from zoo import MNIST, TransformerSpec, TransformerWeights, build_model
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.paper_data import load_sample_digits
from zoo.transformer import model
from zoo.transformer.spec import spec_for

BUNDLED = Path(zoo.__file__).parents[1] / "small-transformer-zoo"

LINES = TransformerSpec(
    "lines", 7, 5, dim=8, key_dim=3, value_dim=2, hidden_dim=9, blocks=2, residual=True, vocabulary=7, causal=True
)
LEARNED_WORDS = TransformerSpec(
    "words", 3, 5, dim=6, heads=3, key_dim=2, value_dim=3, hidden_dim=7, blocks=2, vocabulary=9
)
ODD_SPECS = [
    TransformerSpec("one_block", 3, 9, 4, dim=7, heads=3, key_dim=2, value_dim=5, hidden_dim=11, blocks=1),
    TransformerSpec("three_blocks", 4, 5, None, dim=5, heads=1, key_dim=3, value_dim=2, hidden_dim=9, blocks=3),
    TransformerSpec("many_heads", 2, 4, 2, dim=9, heads=5, key_dim=4, value_dim=3, hidden_dim=6, blocks=2),
    TransformerSpec("wide_keys", 2, 4, 2, dim=3, heads=2, key_dim=4, value_dim=1, hidden_dim=2, blocks=3),
    TransformerSpec("slim_heads", 5, 6, 4, dim=32, heads=4, key_dim=8, value_dim=8, hidden_dim=48, blocks=3),
    TINY_PHOTOS,
    LINES,
    LEARNED_WORDS,
]
IN_THE_SHORT_SUITE = ("one_block", "three_blocks", "photos", "lines")
MARKED_SPECS = [
    spec if spec.task in IN_THE_SHORT_SUITE else pytest.param(spec, marks=pytest.mark.long) for spec in ODD_SPECS
]


@pytest.fixture(params=MARKED_SPECS, ids=lambda spec: spec.task)
def spec(request: pytest.FixtureRequest) -> TransformerSpec:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors here are small: a second thread only waits, and test processes share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digits() -> torch.Tensor:
    """Real test images [32, 1, 28, 28] in [−1, 1]."""
    return load_sample_digits().test.inputs[:32, None].float() / 127.5 - 1


@pytest.fixture(scope="session")
def checkpoints() -> TransformerWeights:
    """Three MNIST transformers that learned, each from its own start."""
    rows = zoo.open(BUNDLED, "mnist-seeds", split="train")
    chosen = rows.metadata.query("checkpoint == 'best' and test_accuracy > 0.5").index[:3]
    return TransformerWeights.from_flat(MNIST, rows.weights(chosen.tolist()))


@dataclass(frozen=True)
class Bundled:
    """Four well-trained checkpoints of the bundled sample in float64, and inputs of their task."""

    spec: TransformerSpec
    weights: TransformerWeights
    inputs: tuple[torch.Tensor, ...]

    def checkpoint(self, index: int) -> TransformerWeights:
        return TransformerWeights.from_flat(self.spec, self.weights.flat()[index])


@pytest.fixture(scope="session", params=["mnist", "agnews"])
def bundled(request: pytest.FixtureRequest, digits: torch.Tensor) -> Bundled:
    spec = spec_for(request.param)
    rows = zoo.open(BUNDLED, request.param, split="train")
    trained = (rows.metadata["test_accuracy"] > 0.8).to_numpy().nonzero()[0]
    chosen = trained[:: len(trained) // 4][:4].tolist()
    weights = TransformerWeights.from_flat(spec, torch.stack([rows.weights(row) for row in chosen]).double())
    if spec.patch_size is not None:
        return Bundled(spec, weights, (digits[:6].double(),))
    embedding = WordEmbedding.load(BUNDLED / "agnews")
    ids = torch.randint(2, len(embedding.vocabulary), (6, 20), generator=torch.Generator().manual_seed(0))
    ids[:3, 12:] = 0
    vectors, mask = embedding(ids)
    return Bundled(spec, weights, (vectors.double(), mask))


@torch.no_grad()
def logits(weights: TransformerWeights, inputs: tuple[torch.Tensor, ...], epsilon: float = 1e-5) -> torch.Tensor:
    """The transformer's logits, of a language model its log probabilities, with any ε in its LayerNorms."""
    with patch.object(model, "layer_norm", lambda x: F.layer_norm(x, x.shape[-1:], eps=epsilon)):
        answers = build_model(weights.spec, weights)(*inputs)
        return answers.log_softmax(-1) if weights.spec.causal else answers


def change(before: torch.Tensor, after: torch.Tensor) -> float:
    """The largest difference, in units of the largest number."""
    return float((after - before).abs().max() / before.abs().max())


def random_weights(spec: TransformerSpec, batch: tuple[int, ...], generator: torch.Generator) -> TransformerWeights:
    flat = torch.randn(*batch, spec.num_parameters, generator=generator, dtype=torch.float64)
    return TransformerWeights.from_flat(spec, flat)


def inputs_of(spec: TransformerSpec, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Two random inputs of this transformer in float64."""
    if spec.patch_size is not None:
        return (torch.randn(2, *probe_shape(spec), generator=generator, dtype=torch.float64),)
    if spec.vocabulary is not None:
        tokens = torch.randint(spec.vocabulary, (2, spec.tokens), generator=generator)
        return (tokens,) if spec.causal else (tokens, torch.ones(2, spec.tokens, dtype=torch.bool))
    words = torch.randn(2, spec.tokens, spec.dim, generator=generator, dtype=torch.float64)
    return words, torch.ones(2, spec.tokens, dtype=torch.bool)


def weights_of(spec: TransformerSpec, count: int = 6, seed: int = 0) -> TransformerWeights:
    generator = torch.Generator().manual_seed(seed)
    return TransformerWeights.from_flat(spec, torch.randn(count, spec.num_parameters, generator=generator) * 0.1)


def assert_group_axioms(g: Any, h: Any, k: Any, identity: Any, assert_same: Callable[[Any, Any], None]) -> None:
    """Associativity, the identity on either side, and the inverse on either side, for elements of either group."""
    assert_same(g.compose(h).compose(k), g.compose(h.compose(k)))
    assert_same(g.compose(identity), g)
    assert_same(identity.compose(g), g)
    assert_same(g.inverse().compose(g), identity)
    assert_same(g.compose(g.inverse()), identity)
