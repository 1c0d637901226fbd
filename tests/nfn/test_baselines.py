"""Raw moments and probes: they read what they should."""

import pytest
import torch

from nfn import FullGroupElement, HiddenProbeNFN, ProbeGenNFN, ProbeNFN, RawMomentsPredictor
from nfn.symmetry.parts import available_parts
from tests.nfn.conftest import ODD_SPECS, Bundled, weights_of
from zoo import AGNEWS, MNIST, TransformerSpec, TransformerWeights, build_model
from zoo.transformer.model import ZooTransformer


def test_moments_are_three_of_each_matrix_and_one_of_each_bias():
    weights = weights_of(MNIST)
    moments = RawMomentsPredictor(MNIST).inputs(weights)
    assert moments.shape == (6, 52)
    assert RawMomentsPredictor(AGNEWS).inputs(weights_of(AGNEWS)).shape == (6, 48)
    undone = torch.expm1(moments.abs()) / 10 * moments.sign()
    filters = weights["embedding.weight"].flatten(1)
    torch.testing.assert_close(undone[:, 0], filters.mean(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(undone[:, 1], filters.std(1, correction=0))
    fourth = (filters - filters.mean(1, keepdim=True)).pow(4).mean(1).pow(0.25)
    torch.testing.assert_close(undone[:, 2], fourth)
    torch.testing.assert_close(undone[:, -1], weights["classifier.fc2.bias"].square().mean(1).sqrt())


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_moments_of_collapsed_and_exploded_weights_are_numbers(size: float):
    weights = TransformerWeights.from_flat(MNIST, weights_of(MNIST).flat() * size)
    predictor = RawMomentsPredictor(MNIST)
    predictor.fit_scale(weights)
    assert bool(predictor(weights).isfinite().all())


@pytest.mark.parametrize("spec", [AGNEWS, *ODD_SPECS], ids=lambda spec: spec.task)
def test_probes_are_answered_by_the_checkpoints_own_transformer(spec: TransformerSpec):
    weights, predictor = weights_of(spec, 3), ProbeNFN(spec, probes=5)
    mask = None if spec.patch_size or spec.causal else torch.ones(predictor.probes.shape[:2], dtype=torch.bool)

    def answer(model: ZooTransformer) -> torch.Tensor:
        if spec.vocabulary is None:
            return model(predictor.probes, mask)
        x = predictor.probes.softmax(-1) @ model.state_dict()["embedding.weight"]
        x = x + model.state_dict()["positions.weight"][: x.shape[1]]
        for block in model.blocks:
            x = block(x, mask)
        return model.head(x, mask)[:, -1] if spec.causal else model.head(x, mask)

    with torch.no_grad():
        expected = [answer(build_model(spec, row)) for row in weights.flat()]
        torch.testing.assert_close(predictor.answers(weights.flat()), torch.stack(expected))


@pytest.mark.parametrize("kind", [ProbeNFN, HiddenProbeNFN, ProbeGenNFN])
def test_probes_see_the_function_and_nothing_else(kind: type[ProbeNFN], bundled: Bundled, generator: torch.Generator):
    predictor = kind(bundled.spec, probes=4, generator=generator).double()
    parts = [part for part in available_parts(bundled.spec) if part not in ("boundary_scales", "logits")]
    moved = FullGroupElement.sample(bundled.spec, generator=generator, parts=parts).act(bundled.weights)
    with torch.no_grad():
        before = predictor(bundled.weights)
        torch.testing.assert_close(predictor(moved), before, rtol=1e-9, atol=1e-9)
    assert before.std() > 1e-4


def test_files_of_probes_have_the_names_they_always_had():
    names = {name.partition(".")[0] for name in ProbeNFN(MNIST).state_dict()}
    assert names == {"probes", "positions", "network"}
    assert ProbeNFN(MNIST).config().keys() == {"kind", "spec", "probes", "width"}


def test_probes_learn():
    spec, weights = ODD_SPECS[0], weights_of(ODD_SPECS[0], 4)
    predictor = ProbeNFN(spec, probes=3)
    predictor.logits(weights).sum().backward()
    assert predictor.probes.grad is not None
    assert bool((predictor.probes.grad != 0).any(-1).any(-1).all())


@pytest.mark.parametrize("spec", [MNIST, AGNEWS], ids=lambda spec: spec.task)
def test_baselines_have_at_most_a_million_parameters(spec: TransformerSpec):
    for kind in (ProbeNFN, HiddenProbeNFN, ProbeGenNFN, RawMomentsPredictor):
        assert sum(parameter.numel() for parameter in kind(spec).parameters()) <= 1_000_000
