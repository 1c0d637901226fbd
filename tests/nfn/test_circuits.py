"""Circuits and invariants of language models: the formulas, what keeps them, and what does not."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from nfn import FullGroupElement, InvariantNFN, circuits, invariant_features, invariants
from nfn.symmetry.parts import available_parts
from tests.nfn.conftest import LINES, random_weights
from tests.nfn.language import trained
from zoo import MNIST, SHAKESPEARE, TransformerWeights

KEPT = tuple(part for part in available_parts(SHAKESPEARE) if part != "logits")


def test_circuits_are_the_formulas(generator: torch.Generator):
    weights = random_weights(LINES, (), generator)
    found, state = circuits(weights), weights.state_dict()
    center = torch.eye(8, dtype=torch.float64) - 1 / 8
    tokens = (state["embedding.weight"] + state["positions.weight"].mean(0)) @ center
    positions = (state["positions.weight"] - state["positions.weight"].mean(0)) @ center
    scale = (8 / (tokens.norm(dim=-1).square().mean() + positions.norm(dim=-1).square().mean())).sqrt()
    tokens, positions = scale * tokens, scale * positions
    unembedding = state["unembedding.weight"] @ center
    unembedding = unembedding - unembedding.mean(0)
    torch.testing.assert_close(found.direct, tokens @ unembedding.T)
    for block in range(2):
        rows = {name: state[f"blocks.{block}.{name}.weight"] for name in ("query", "key", "value", "output")}
        for head in range(2):
            query, key = (rows[name][3 * head : 3 * head + 3] for name in ("query", "key"))
            value, output = rows["value"][2 * head : 2 * head + 2], rows["output"][:, 2 * head : 2 * head + 2]
            for seen, expected in ((tokens, found.query_key), (positions, found.position_query_key)):
                torch.testing.assert_close(expected[block, head], (seen @ query.T) @ (seen @ key.T).T / 3**0.5)
            written = scale * (tokens @ value.T) @ output.T @ unembedding.T
            torch.testing.assert_close(found.output_value[block, head], written)
        first, second = state[f"blocks.{block}.fc1.weight"], state[f"blocks.{block}.fc2.weight"]
        torch.testing.assert_close(found.mlp[block], scale * tokens @ first.T @ second.T @ unembedding.T)


def test_composition_is_between_a_head_and_an_earlier_one(generator: torch.Generator):
    weights = random_weights(LINES, (), generator)
    found, blocks = circuits(weights), weights.blocks
    center = torch.eye(8, dtype=torch.float64) - 1 / 8
    wrote = center @ blocks[0].value[1] @ blocks[0].output[1] @ center
    later = {
        "query_composition": center @ blocks[1].query[0] @ blocks[1].key[0].T @ center,
        "key_composition": center @ blocks[1].key[0] @ blocks[1].query[0].T @ center,
        "value_composition": center @ blocks[1].value[0] @ blocks[1].output[0] @ center,
    }
    for name, reads in later.items():
        scores = getattr(found, name)
        torch.testing.assert_close(scores[1, 0, 0, 1], (wrote @ reads).norm() / wrote.norm() / reads.norm())
        assert bool((scores[0] == 0).all())
        assert bool((scores[1, :, 1] == 0).all())


@pytest.mark.parametrize("silence", [0.0, 1e-20], ids=["dead", "nearly dead"])
def test_a_dead_head_takes_part_in_no_composition(silence: float):
    weights = TransformerWeights.from_flat(SHAKESPEARE, trained(0).flat().clone())
    weights.blocks[0].value[0].mul_(silence)
    weights.blocks[1].query.mul_(0.01)
    found = circuits(weights)
    for name in ("query_composition", "key_composition", "value_composition"):
        scores = getattr(found, name)
        assert bool((scores[1, :, 0, 0] < 1e-6).all())
        assert bool((scores[1, :, 0, 1] > 0.01).all())
        assert bool((scores <= 1).all())


def test_circuits_of_a_trained_model_stay_under_every_symmetry(generator: torch.Generator):
    u = trained(0)
    rest = [part for part in KEPT if part != "heads"]
    before = circuits(u)
    after = circuits(FullGroupElement.sample(SHAKESPEARE, (3,), generator=generator, parts=rest).act(u))
    swapped = circuits(FullGroupElement.sample(SHAKESPEARE, (8,), generator=generator, parts=["heads"]).act(u))
    for field in fields(before):
        one = getattr(before, field.name)
        assert float((getattr(after, field.name) - one).abs().max() / one.abs().max()) < 1e-7, field.name
    assert float((swapped.query_key - before.query_key).abs().max()) > 0.1
    torch.testing.assert_close(swapped.query_key.sum(-3), before.query_key.sum(-3).expand(8, -1, -1, -1))


def test_circuits_of_a_batch_are_those_of_each_and_gradients_are_finite():
    flat = torch.stack([trained(0).flat(), trained(1).flat(), torch.zeros_like(trained(0).flat())]).requires_grad_()
    found = circuits(TransformerWeights.from_flat(SHAKESPEARE, flat))
    torch.testing.assert_close(found.output_value[1], circuits(trained(1)).output_value)
    total = sum(getattr(found, field.name).square().sum() for field in fields(found))
    assert isinstance(total, Tensor)
    (gradient,) = torch.autograd.grad(total, flat)
    assert bool(gradient.isfinite().all())


def test_only_language_models_have_circuits(generator: torch.Generator):
    with pytest.raises(ValueError, match="a transformer of mnist is not a language model"):
        circuits(random_weights(MNIST, (), generator))


@torch.no_grad()
@pytest.mark.parametrize("part", [*KEPT, "all"])
def test_invariants_of_trained_language_models_do_not_move(part: str, generator: torch.Generator):
    u = TransformerWeights.from_flat(SHAKESPEARE, torch.stack([trained(0).flat(), trained(1).flat()]))
    g = FullGroupElement.sample(SHAKESPEARE, (2,), generator=generator, parts=KEPT if part == "all" else [part])
    assert float((invariant_features(g.act(u)) - invariant_features(u)).abs().max()) <= 1e-7
    if part not in ("heads", "units", "all"):
        before, after = invariants(u), invariants(g.act(u))
        for one, other in zip((*before.blocks, before.classifier), (*after.blocks, after.classifier), strict=True):
            for field in fields(one):
                tensor = getattr(one, field.name)
                assert float((getattr(other, field.name) - tensor).abs().max() / tensor.abs().max()) <= 1e-7


BROKEN: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "tokens that have not turned": lambda state: state["embedding.weight"].copy_(state["embedding.weight"].roll(1, -1)),
    "positions that have not turned": lambda s: s["positions.weight"].copy_(s["positions.weight"].roll(1, -1)),
    "an unembedding that has not turned": lambda s: s["unembedding.weight"].copy_(s["unembedding.weight"].roll(1, -1)),
    "a writer that has not turned": lambda s: s["blocks.0.fc2.weight"].copy_(s["blocks.0.fc2.weight"].roll(1, 0)),
    "positions of another size": lambda state: state["positions.weight"].mul_(1.1),
    "logits of another size": lambda state: state["unembedding.weight"].mul_(1.1),
    "tokens that changed places": lambda s: s["embedding.weight"].copy_(s["embedding.weight"].flip(0)),
    "one head's V with another's O": lambda s: s["blocks.1.value.weight"].copy_(s["blocks.1.value.weight"].roll(16, 0)),
}


@torch.no_grad()
@pytest.mark.parametrize("coupling", BROKEN)
def test_a_broken_coupling_is_read(coupling: str):
    u = trained(0)
    predictor = InvariantNFN(SHAKESPEARE, components=1, networks=2).double()
    predictor.fit_scale(torch.stack([trained(0).flat(), trained(1).flat()]))
    state = {name: tensor.clone() for name, tensor in u.state_dict().items()}
    BROKEN[coupling](state)
    broken = TransformerWeights.from_state_dict(SHAKESPEARE, state)
    assert float((predictor.logits(broken) - predictor.logits(u)).abs()) > 1e-6


def test_features_of_language_models_without_residual_connections_stay_too(generator: torch.Generator):
    u = random_weights(replace(LINES, residual=False), (2,), generator)
    v = FullGroupElement.sample(u.spec, (2,), generator=generator).act(u)
    torch.testing.assert_close(invariant_features(v), invariant_features(u), rtol=1e-7, atol=1e-7)
