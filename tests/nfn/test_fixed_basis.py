"""Transformer-NFN without the freedom of the classifier's basis: what moves a prediction, and what does not."""

import pytest
import torch

from nfn import FullGroupElement, PredictorEnsemble, TransformerNFN
from nfn.predictors.fixed_basis import CanonicalClassifierNFN, CanonicalNFN, InvariantClassifierNFN
from tests.fabricated import TINY_AGNEWS
from tests.nfn.conftest import weights_of
from zoo import TransformerWeights

CLASSIFIER = ("classifier",)
KINDS = [CanonicalNFN, CanonicalClassifierNFN, InvariantClassifierNFN]


@pytest.fixture
def weights() -> TransformerWeights:
    return TransformerWeights.from_flat(TINY_AGNEWS, weights_of(TINY_AGNEWS).flat().double())


def change(
    predictor: TransformerNFN, weights: TransformerWeights, generator: torch.Generator, parts: list[str] | None = None
) -> float:
    """By how much a random element of the whole group, or of these parts, moves the logits."""
    moved = FullGroupElement.sample(weights.spec, tuple(weights.batch_shape), generator=generator, parts=parts)
    with torch.no_grad():
        return float((predictor.logits(moved.act(weights)) - predictor.logits(weights)).abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_the_classifier_is_read_without_a_basis(
    kind: type[TransformerNFN], weights: TransformerWeights, generator: torch.Generator
) -> None:
    fixed = kind(weights.spec, components=CLASSIFIER, generator=generator).double()
    plain = TransformerNFN(weights.spec, components=CLASSIFIER, generator=generator).double()
    assert change(fixed, weights, generator) < 1e-8
    assert change(plain, weights, generator) > 1e-3
    with torch.no_grad():
        assert fixed.logits(weights).std() > 1e-4


def test_canonical_weights_take_every_basis_out(weights: TransformerWeights, generator: torch.Generator) -> None:
    predictors = {kind: kind(weights.spec, generator=generator).double() for kind in (CanonicalNFN, TransformerNFN)}
    assert change(predictors[CanonicalNFN], weights, generator) < 1e-8
    assert change(predictors[TransformerNFN], weights, generator) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_is_not_finite_leaves_the_others_alone(
    kind: type[TransformerNFN], weights: TransformerWeights, generator: torch.Generator
) -> None:
    predictor = kind(weights.spec, generator=generator).double()
    flat = weights.flat().clone()
    with torch.no_grad():
        expected = predictor.logits(flat)
        flat[0, 3] = torch.nan
        logits = predictor.logits(flat)
    assert bool(logits[0].isnan())
    torch.testing.assert_close(logits[1:], expected[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_several_are_read_together_as_each_alone(kind: type[TransformerNFN], generator: torch.Generator) -> None:
    flat = weights_of(TINY_AGNEWS).flat()
    members = [kind(TINY_AGNEWS, generator=generator) for _ in range(2)]
    for member in members:
        member.fit_scale(flat)
    together = PredictorEnsemble(members).read(flat)
    with torch.no_grad():
        torch.testing.assert_close(together, torch.stack([member.logits(flat) for member in members]))
