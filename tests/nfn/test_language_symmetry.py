"""The whole symmetry of a language model: one residual stream, tokens and positions with names, no pinned basis."""

from dataclasses import replace

import pytest
import torch

from nfn import FullGroupElement, GroupElement, canonicalize, match_weights
from nfn.symmetry.parts import Part, available_parts, boundaries
from tests.nfn.conftest import change, logits
from tests.nfn.language import trained, windows
from zoo import SHAKESPEARE, TransformerWeights

EXACT = tuple(part for part in available_parts(SHAKESPEARE) if part not in ("boundary_scales", "logits"))


def with_tensor(u: TransformerWeights, name: str, tensor: torch.Tensor) -> TransformerWeights:
    return TransformerWeights.from_state_dict(u.spec, u.state_dict() | {name: tensor})


def test_one_stream_joins_all_writers_and_readers():
    (stream,) = boundaries(SHAKESPEARE)
    assert not stream.pinned
    others = {name for name in SHAKESPEARE.tensors if name not in (*stream.writers, *stream.readers)}
    assert others == {"blocks.0.fc1.bias", "blocks.1.fc1.bias"}
    assert {"token_shifts", "class_shifts", "rotations", "boundary_scales"} <= set(available_parts(SHAKESPEARE))


@pytest.mark.parametrize("part", EXACT)
def test_each_exact_part_keeps_log_probabilities_to_rounding(part: Part, generator: torch.Generator):
    u = trained(0)
    v = FullGroupElement.sample(SHAKESPEARE, generator=generator, parts=[part], scale_range=100.0).act(u)
    assert change(u.flat(), v.flat()) > 1e-2
    assert change(logits(u, windows()), logits(v, windows())) < 1e-10


def test_the_scale_of_the_stream_keeps_them_as_epsilon_vanishes(generator: torch.Generator):
    u = trained(0)
    v = FullGroupElement.sample(SHAKESPEARE, generator=generator).act(u)
    moved = [change(logits(u, windows(), e), logits(v, windows(), e)) for e in (1e-5, 1e-8, 1e-11, 1e-14)]
    assert moved[1] < 1e-2 * moved[0]
    assert moved[2] < 1e-2 * moved[1]
    assert moved[3] < 1e-9


@pytest.mark.parametrize(
    ("part", "left_behind"),
    [
        ("rotations", "embedding.weight"),
        ("rotations", "positions.weight"),
        ("rotations", "unembedding.weight"),
        ("rotations", "blocks.0.output.weight"),
        ("rotations", "blocks.1.fc1.weight"),
        ("boundary_scales", "positions.weight"),
        ("boundary_scales", "blocks.1.fc2.bias"),
        ("token_shifts", "positions.weight"),
        ("unit_scales", "blocks.0.fc2.weight"),
        ("query_key", "blocks.1.key.weight"),
    ],
)
def test_one_side_without_the_other_changes_them(part: Part, left_behind: str, generator: torch.Generator):
    u = trained(0)
    v = FullGroupElement.sample(SHAKESPEARE, generator=generator, parts=[part]).act(u)
    broken = with_tensor(v, left_behind, u[left_behind])
    assert change(logits(u, windows(), 1e-12), logits(broken, windows(), 1e-12)) > 1e-4


def test_a_vector_added_to_the_unembedding_moves_logits_and_no_log_probability(generator: torch.Generator):
    u = trained(0)
    v = FullGroupElement.sample(SHAKESPEARE, generator=generator, parts=["class_shifts"]).act(u)
    difference = v["unembedding.weight"] - u["unembedding.weight"]
    torch.testing.assert_close(difference, difference[:1].expand_as(difference))
    assert change(logits(u, windows()), logits(v, windows())) < 1e-12


def test_what_the_papers_group_is_on_a_stream(generator: torch.Generator):
    """Heads, M, N and the order of units; features keep their places."""
    u, g = trained(0), GroupElement.sample(SHAKESPEARE, generator=generator)
    assert torch.equal(g.features, torch.arange(32).expand(2, 32))
    v = g.act(u)
    assert change(logits(u, windows()), logits(v, windows())) < 1e-10
    inside = FullGroupElement.from_paper(SHAKESPEARE, g)
    torch.testing.assert_close(inside.act(u).flat(), v.flat())
    assert torch.equal(inside.rotations, FullGroupElement.identity(SHAKESPEARE).rotations)


def test_canonical_form_is_one_for_an_orbit_and_the_same_function(generator: torch.Generator):
    u = trained(0)
    g = FullGroupElement.sample(SHAKESPEARE, (4,), generator=generator)
    expected = canonicalize(u)
    torch.testing.assert_close(canonicalize(g.act(u)).flat(), expected.flat().expand(4, -1), rtol=0, atol=1e-8)
    torch.testing.assert_close(canonicalize(expected).flat(), expected.flat(), rtol=0, atol=1e-9)
    assert change(logits(u, windows()), logits(canonicalize(u, EXACT), windows())) < 1e-10
    assert change(logits(u, windows(), 1e-14), logits(expected, windows(), 1e-14)) < 1e-9
    assert (canonicalize(trained(1)).flat() - expected.flat()).norm() > 1


def test_degenerate_heads_units_and_tokens_are_decided(generator: torch.Generator):
    state = {name: tensor.clone() for name, tensor in trained(0).state_dict().items()}
    state["blocks.0.fc1.weight"][5] = 0
    state["blocks.0.fc2.weight"][:, 5:9] = 0
    state["blocks.1.query.weight"][:16] = 0
    state["blocks.0.output.weight"][:, 16:] = 0
    state["embedding.weight"][3:] = state["embedding.weight"][3]
    state["positions.weight"][:] = 0
    u = TransformerWeights.from_state_dict(SHAKESPEARE, state)
    v = FullGroupElement.sample(SHAKESPEARE, generator=generator).act(u)
    expected = canonicalize(u)
    torch.testing.assert_close(canonicalize(v).flat(), expected.flat(), rtol=0, atol=1e-8)
    assert change(logits(u, windows(), 1e-14), logits(expected, windows(), 1e-14)) < 1e-9
    match = match_weights(u, v)
    assert match.element is not None, match.reason
    assert change(logits(v, windows()), logits(match.element.act(u), windows())) < 1e-9


@pytest.mark.parametrize("double", [True, False])
def test_a_hidden_element_is_found(double: bool, generator: torch.Generator):
    u = trained(0) if double else TransformerWeights.from_flat(SHAKESPEARE, trained(0).flat().float())
    hidden = FullGroupElement.sample(SHAKESPEARE, generator=generator, scale_range=10.0)
    v = hidden.act(u)
    match = match_weights(u, v)
    assert match.element is not None, match.reason
    torch.testing.assert_close(match.element.act(u).flat(), v.flat(), rtol=0, atol=1e-7 if double else 1e-2)
    assert double is False or change(match.element.rotations, hidden.rotations) < 1e-6
    assert match_weights(u, v).element is not None
    assert not match_weights(u, TransformerWeights.from_flat(SHAKESPEARE, trained(1).flat().to(u.flat())))


@pytest.mark.parametrize(
    "name",
    [
        "embedding.weight",
        "positions.weight",
        "unembedding.weight",
        "blocks.0.value.weight",
        "blocks.1.fc1.bias",
        "blocks.1.fc2.bias",
    ],
)
def test_one_weight_off_by_a_thousandth_is_noticed(name: str, generator: torch.Generator):
    u = trained(0)
    v = FullGroupElement.sample(SHAKESPEARE, generator=generator).act(u)
    flat = v.flat().clone()
    part = flat[SHAKESPEARE.tensors[name].slice]
    part[int(part.abs().argmax())] *= 1.001
    match = match_weights(u, TransformerWeights.from_flat(SHAKESPEARE, flat))
    assert match.element is None
    assert match.reason


def test_scaled_logits_keep_the_likeliest_token_and_are_another_function(generator: torch.Generator):
    u = trained(0)
    g = FullGroupElement.sample(SHAKESPEARE, generator=generator, parts=["logits"])
    v = replace(g, logit_scale=torch.tensor(2.0, dtype=torch.float64)).act(u)
    before, after = logits(u, windows()), logits(v, windows())
    assert torch.equal(before.argmax(-1), after.argmax(-1))
    assert change(before, after) > 0.1
    assert not match_weights(u, v)
