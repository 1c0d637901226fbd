"""match_weights: finds a hidden element of the whole group, refuses near misses, and gives the reason."""

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nfn import FullGroupElement, GroupElement, match_paper_group, match_weights
from nfn.symmetry import full_matching
from nfn.symmetry.parts import available_parts
from tests.nfn.conftest import ODD_SPECS, Bundled, change, logits, random_weights
from zoo import MNIST, TransformerSpec, TransformerWeights


@pytest.mark.parametrize("row", range(4))
def test_finds_a_hidden_element_on_a_real_checkpoint(bundled: Bundled, row: int, generator: torch.Generator):
    u = bundled.checkpoint(row)
    hidden = FullGroupElement.sample(bundled.spec, generator=generator, scale_range=30.0)
    v = hidden.act(u)
    match = match_weights(u, v)
    assert match.element is not None, match.reason
    torch.testing.assert_close(match.element.act(u).flat(), v.flat(), rtol=0, atol=1e-7)
    # The scale of units that write nothing is open; all else is determined.
    for name in ("heads", "m", "n", "rotations", "boundary_scales", "logit_scale"):
        torch.testing.assert_close(
            match.element.tensors()[name], hidden.tensors()[name], rtol=1e-5, atol=1e-5, msg=name
        )


def test_finds_it_from_weights_rounded_to_float32(bundled: Bundled, generator: torch.Generator):
    u = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat()[0].float())
    v = FullGroupElement.sample(bundled.spec, generator=generator).act(u)
    match = match_weights(u, v)
    assert match.element is not None, match.reason
    torch.testing.assert_close(match.element.act(u).flat(), v.flat(), rtol=0, atol=1e-2)


def test_finds_elements_of_the_papers_group(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(0)
    v = GroupElement.sample(bundled.spec, generator=generator, entry_range=10.0).act(u)
    element = match_weights(u, v).element
    assert element is not None
    assert change(v.flat(), element.act(u).flat()) < 1e-7


@pytest.mark.long
@pytest.mark.parametrize("spec", [*ODD_SPECS[:3], *ODD_SPECS[4:]], ids=lambda spec: spec.task)
def test_finds_the_element_for_other_dimensions(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (), generator)
    v = FullGroupElement.sample(spec, generator=generator).act(u)
    match = match_weights(u, v)
    assert match.element is not None, match.reason
    torch.testing.assert_close(match.element.act(u).flat(), v.flat(), rtol=1e-7, atol=1e-7)


def test_independent_checkpoints_do_not_match(bundled: Bundled):
    assert match_weights(bundled.checkpoint(0), bundled.checkpoint(0))
    for other in (1, 2):
        match = match_weights(bundled.checkpoint(0), bundled.checkpoint(other))
        assert match.element is None
        assert match.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("embedding.weight", "embedding.weight differs by more than a shift"),
        ("blocks.0.query.weight", "block 0: W_Qᵀ·W_K of head"),
        ("blocks.1.value.weight", "block 1: W_O·W_V of head"),
        ("blocks.0.fc1.weight", "unit"),
        ("blocks.1.fc1.bias", "unit"),
        ("blocks.1.fc2.weight", "unit"),
        ("blocks.0.fc2.bias", "bias"),
        ("classifier.fc1.weight", "unit"),
        ("classifier.fc2.bias", "classifier: the bias of what it writes differs"),
    ],
)
def test_one_weight_off_by_a_thousandth_is_noticed(
    bundled: Bundled, name: str, reason: str, generator: torch.Generator
):
    if name not in bundled.spec.tensors:
        pytest.skip("this task has no trainable embedding")
    u = bundled.checkpoint(3)
    v = FullGroupElement.sample(bundled.spec, generator=generator).act(u)
    flat = v.flat().clone()
    part = flat[bundled.spec.tensors[name].slice]
    part[int(part.abs().argmax())] *= 1.001
    match = match_weights(u, TransformerWeights.from_flat(bundled.spec, flat))
    assert match.element is None
    assert match.reason is not None
    assert reason in match.reason or "has no partner" in match.reason


def rescaled(u: TransformerWeights, generator: torch.Generator) -> TransformerWeights:
    """Another function: each head's query, key and value, each unit's row and column by scales from 1e-3 to 1e3."""
    encoder = u.encoder.map(torch.clone)

    def scales(*shape: int) -> torch.Tensor:
        return torch.exp((2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * log(1e3)).to(u.flat())

    for tensor in (encoder.query, encoder.key, encoder.value):
        tensor *= scales(*tensor.shape[:-2], 1, 1)
    rows = scales(*encoder.bias_a.shape)
    encoder.weight_a.mul_(rows[:, None])
    encoder.bias_a.mul_(rows)
    encoder.weight_b.mul_(scales(*rows.shape, 1))
    return u.with_encoder(encoder)


def with_negated_query(u: TransformerWeights, block: int, head: int) -> TransformerWeights:
    encoder = u.encoder.map(torch.clone)
    encoder.query[block, head] *= -1
    return u.with_encoder(encoder)


@pytest.mark.long
@settings(max_examples=5)
@given(
    seed=st.integers(0, 999),
    double=st.booleans(),
    forward=st.booleans(),
    block=st.integers(0, 1),
    head=st.integers(0, 1),
)
def test_heads_and_units_of_any_size_are_found_and_a_negated_query_of_one_is_not(
    bundled: Bundled, seed: int, double: bool, forward: bool, block: int, head: int
):
    generator = torch.Generator().manual_seed(seed)
    flat = bundled.weights.flat()[seed % 4]
    u = rescaled(TransformerWeights.from_flat(bundled.spec, flat if double else flat.float()), generator)
    # In float32 a shift of 1 would round weights of 1e-6 away.
    parts = [part for part in available_parts(bundled.spec) if part != "logits" and (double or "shifts" not in part)]
    v = FullGroupElement.sample(bundled.spec, generator=generator, parts=parts).act(u)
    first, second = (u, v) if forward else (v, u)
    match = match_weights(first, second)
    assert match.element is not None, match.reason
    assert not match_weights(first, with_negated_query(second, block, head))


@pytest.mark.long
@settings(max_examples=5)
@given(seed=st.integers(0, 999), double=st.booleans(), block=st.integers(0, 1), head=st.integers(0, 1))
def test_the_papers_group_is_found_for_heads_and_units_of_any_size(
    bundled: Bundled, seed: int, double: bool, block: int, head: int
):
    generator = torch.Generator().manual_seed(seed)
    flat = bundled.weights.flat()[seed % 4]
    u = rescaled(TransformerWeights.from_flat(bundled.spec, flat if double else flat.float()), generator)
    v = GroupElement.sample(bundled.spec, generator=generator).act(u)
    for compare in (match_weights, match_paper_group):
        match = compare(u, v)
        assert match.element is not None, match.reason
        assert not compare(u, with_negated_query(v, block, head))


def test_a_large_head_does_not_hide_that_another_one_is_negated(bundled: Bundled):
    encoder = bundled.checkpoint(0).encoder.map(lambda tensor: tensor.float().clone())
    encoder.query[0, 0] *= 100
    encoder.key[0, 0] *= 100
    u = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat()[0].float()).with_encoder(encoder)
    v = with_negated_query(u, 0, 1)
    answers = [logits(TransformerWeights.from_flat(u.spec, w.flat().double()), bundled.inputs) for w in (u, v)]
    assert change(*answers) > 0.05
    assert match_weights(u, u)
    assert match_weights(u, v).reason == "block 0: W_Qᵀ·W_K of head 1 has no partner"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("embedding.weight", 1e6),
        ("blocks.0.fc1.weight", 1e6),
        ("blocks.1.fc2.bias", 1e4),
        ("classifier.fc2.weight", 1e6),
        ("classifier.fc2.bias", 1e6),
    ],
)
def test_a_large_neighbor_does_not_hide_a_change(bundled: Bundled, name: str, times: float):
    """The first filter, unit or class is large; the second one is negated, in float32."""
    if name not in bundled.spec.tensors:
        pytest.skip("this task has no trainable embedding")
    state = {key: tensor.float().clone() for key, tensor in bundled.checkpoint(0).state_dict().items()}
    state[name][0] *= times
    u = TransformerWeights.from_state_dict(bundled.spec, state)
    state[name] = state[name].clone()
    state[name][1] *= -1
    v = TransformerWeights.from_state_dict(bundled.spec, state)
    assert match_weights(u, u)
    assert not match_weights(u, v)


def test_a_match_is_checked_by_the_function_itself(bundled: Bundled, monkeypatch: pytest.MonkeyPatch):
    u = bundled.checkpoint(0)
    monkeypatch.setattr(full_matching, "_check_agreement", lambda *_: None)
    assert match_weights(u, u)
    assert "the functions differ: logits" in (match_weights(u, with_negated_query(u, 0, 1)).reason or "")


def test_scaled_logits_are_another_function(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(0)
    v = FullGroupElement.sample(bundled.spec, generator=generator, parts=["logits"]).act(u)
    assert not match_weights(u, v)


def test_dead_units_and_dead_heads_do_not_prevent_a_match(bundled: Bundled, generator: torch.Generator):
    state = {name: tensor.clone() for name, tensor in bundled.checkpoint(1).state_dict().items()}
    state["blocks.0.fc1.weight"][5] = 0
    state["blocks.0.fc2.weight"][:, 7:9] = 0
    state["blocks.1.query.weight"][:16] = 0
    u = TransformerWeights.from_state_dict(bundled.spec, state)
    v = FullGroupElement.sample(bundled.spec, generator=generator).act(u)
    match = match_weights(u, v)
    assert match.element is not None, match.reason
    moved = match.element.act(u)
    assert bool(moved.flat().isfinite().all())
    assert change(logits(v, bundled.inputs), logits(moved, bundled.inputs)) < 1e-9


def test_zero_weights_match_themselves_and_diverged_ones_are_refused():
    zero = TransformerWeights.from_flat(MNIST, torch.zeros(MNIST.num_parameters))
    element = match_weights(zero, zero).element
    assert element is not None
    assert all(bool(tensor.isfinite().all()) for tensor in element.tensors().values())
    nan = TransformerWeights.from_flat(MNIST, torch.full((MNIST.num_parameters,), torch.nan), check_finite=False)
    with pytest.raises(ValueError, match="NaN or infinity"):
        match_weights(zero, nan)


def test_bad_input_is_refused_in_one_clear_line(bundled: Bundled, generator: torch.Generator):
    with pytest.raises(ValueError, match=r"single checkpoints are compared, got a batch of shape \(4,\)"):
        match_weights(bundled.weights, bundled.weights)
    with pytest.raises(ValueError, match="same dimensions"):
        match_weights(bundled.checkpoint(0), random_weights(ODD_SPECS[0], (), generator))
