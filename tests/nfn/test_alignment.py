"""Alignment: exact on moved copies, never farther, blind to how its inputs were moved, as close as a slow search."""

from dataclasses import replace
from itertools import permutations
from math import cos, pi, sin

import pytest
import torch

from nfn import FullGroupElement, align, interpolate, made_up_inputs, merge
from nfn.predictors.responses import synthetic_inputs
from nfn.symmetry.parts import check_parts
from nfn.symmetry.search import Moments, balancing_element
from tests.nfn.conftest import LEARNED_WORDS, LINES, ODD_SPECS, Bundled, change, inputs_of, logits, random_weights
from tests.nfn.language import trained, windows
from zoo import SHAKESPEARE, TransformerSpec, TransformerWeights

TINY = TransformerSpec(
    "tiny",
    4,
    3,
    dim=3,
    heads=2,
    key_dim=1,
    value_dim=1,
    hidden_dim=3,
    blocks=1,
    residual=True,
    vocabulary=4,
    causal=True,
)


@pytest.mark.parametrize("spec", [*ODD_SPECS[:3], *ODD_SPECS[4:]], ids=lambda spec: spec.task)
def test_a_moved_copy_is_brought_back(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (2,), generator)
    v = FullGroupElement.sample(spec, (2,), generator=generator, scale_range=10.0).act(u)
    found = align(u, v)
    torch.testing.assert_close(found.weights.flat(), v.flat(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.element.act(u).flat(), found.weights.flat())
    assert bool((found.after < 1e-6).all())
    assert bool((found.before > 1).all())


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_a_copy_moved_by_ill_conditioned_factors_is_brought_back(
    condition: float, bundled: Bundled, generator: torch.Generator
):
    identity = FullGroupElement.identity(bundled.spec, (4,))
    stretch = torch.logspace(-0.5, 0.5, identity.m.shape[-1], base=condition, dtype=torch.float64)

    def stretched() -> torch.Tensor:
        left, right = (torch.linalg.qr(torch.randn(identity.m.shape, generator=generator).double()).Q for _ in range(2))
        return left * stretch @ right

    u = bundled.weights
    found = align(replace(identity, m=stretched(), n=stretched()).act(u), u, parts=("query_key", "value_output"))
    assert change(found.weights.flat(), u.flat()) < 1e-8
    assert bool((found.after < 1e-8 * found.before).all())


def test_units_that_write_nothing_do_not_count(bundled: Bundled, generator: torch.Generator):
    """In a moved copy rounding may write something where the checkpoint wrote nothing."""
    u = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat().clone())
    u.blocks[1].weight_b[..., 5:20, :] = 0
    copy = FullGroupElement.sample(bundled.spec, (4,), generator=generator).act(u)
    copy.blocks[1].weight_b[..., 5:20, :] += 1e-17
    found = align(copy, u)
    assert bool((found.after < 1e-4 * found.before).all())
    for aligned, reference in zip(found.weights.flat(), u.flat(), strict=True):
        both = (TransformerWeights.from_flat(bundled.spec, flat) for flat in (aligned, reference))
        assert change(*(logits(each, bundled.inputs) for each in both)) < 1e-6


def test_independent_checkpoints_come_closer_and_stay_the_same_functions(bundled: Bundled):
    first = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat()[:2])
    second = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat()[2:])
    found = align(first, second)
    assert bool((found.after < found.before).all())
    for row in range(2):
        one = TransformerWeights.from_flat(bundled.spec, first.flat()[row])
        moved = TransformerWeights.from_flat(bundled.spec, found.weights.flat()[row])
        assert change(logits(one, bundled.inputs, 1e-14), logits(moved, bundled.inputs, 1e-14)) < 1e-6


@pytest.mark.long
def test_a_trained_checkpoint_stays_the_same_function_beside_a_collapsed_one(bundled: Bundled):
    u = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat()[0])
    collapsed = TransformerWeights.from_flat(bundled.spec, 1e-3 * bundled.weights.flat()[1])
    aligned = align(u, collapsed).weights
    assert change(logits(u, bundled.inputs), logits(aligned, bundled.inputs)) < 1e-3


@pytest.mark.long
def test_language_models_come_closer_by_every_part_of_the_group():
    u, v = trained(0), trained(1)
    distances = [
        float(align(u, v, parts=parts).after)
        for parts in ((), ("heads", "units"), ("heads", "units", "query_key", "value_output"))
    ]
    whole = align(u, v)
    assert distances[0] > distances[1] > distances[2]
    assert float(whole.after) < 0.8 * float(whole.before)
    assert change(logits(u, windows(), 1e-14), logits(whole.weights, windows(), 1e-14)) < 1e-8


@pytest.mark.parametrize("spec", [ODD_SPECS[0], LINES, LEARNED_WORDS], ids=lambda spec: spec.task)
def test_it_does_not_matter_how_the_inputs_were_moved(spec: TransformerSpec, generator: torch.Generator):
    u, v = random_weights(spec, (3,), generator), random_weights(spec, (3,), generator)
    plain = align(u, v)
    g, h = (FullGroupElement.sample(spec, (3,), generator=generator, scale_range=10.0) for _ in range(2))
    moved = align(g.act(u), h.act(v))
    torch.testing.assert_close(moved.after, plain.after, rtol=1e-6, atol=1e-6)
    # the line between them passes through the same functions
    middle = interpolate(plain.weights, v, 0.5), interpolate(moved.weights, h.act(v), 0.5)
    inputs = inputs_of(spec, generator)
    for row in range(3):
        one, other = (logits(TransformerWeights.from_flat(spec, w.flat()[row]), inputs, 1e-14) for w in middle)
        assert change(one, other) < 1e-5


def slow_distance(u: TransformerWeights, v: TransformerWeights, steps: int) -> float:
    """The smallest distance of balanced forms of ``TINY``: every rotation of a fine grid, every order, every sign."""
    spec, parts = u.spec, check_parts(u.spec, None)
    first, second = (
        balancing_element(w, parts).act(w) for w in (TransformerWeights.from_flat(spec, w.flat()[None]) for w in (u, v))
    )
    basis = torch.tensor([[1, -1, 0], [1, 1, -2]], dtype=torch.float64)
    basis = basis / basis.norm(dim=1, keepdim=True)
    a, b, closest = first.blocks[0], second.blocks[0], torch.inf
    named = ("embedding.weight", "positions.weight", "unembedding.weight")
    fixed = sum(float(w.flat().square().sum()) for w in (first, second))
    for step in range(steps):
        for sign in (1, -1):
            angle = 2 * pi * step / steps
            inner = torch.tensor([[cos(angle), -sign * sin(angle)], [sin(angle), sign * cos(angle)]]).double()
            turn = basis.T @ inner @ basis + 1 / 3
            gain = sum(float(((first[name] @ turn.T) * second[name]).sum()) for name in named)
            gain += float(((turn @ a.bias_b[0]) * b.bias_b[0]).sum())
            heads = [
                sum(
                    abs(sum(float(((turn @ x[0, s]) * y[0, i]).sum()) for x, y in ((a.query, b.query), (a.key, b.key))))
                    + abs(
                        float(((turn @ a.value[0, s]) * b.value[0, i]).sum())
                        + float(((a.output[0, s] @ turn.T) * b.output[0, i]).sum())
                    )
                    for i, s in enumerate(order)
                )
                for order in permutations(range(2))
            ]
            units = [
                sum(
                    float(((turn @ a.weight_a[0][:, s]) * b.weight_a[0][:, i]).sum())
                    + float(a.bias_a[0, s] * b.bias_a[0, i])
                    + float(((turn @ a.weight_b[0, s]) * b.weight_b[0, i]).sum())
                    for i, s in enumerate(order)
                )
                for order in permutations(range(3))
            ]
            closest = min(closest, fixed - 2 * (gain + max(heads) + max(units)))
    return max(0.0, closest) ** 0.5


@pytest.mark.parametrize("seed", range(3))
def test_it_is_as_close_as_a_slow_search_over_the_whole_group(seed: int):
    generator = torch.Generator().manual_seed(seed)
    u, v = random_weights(TINY, (), generator), random_weights(TINY, (), generator)
    found, slow = align(u, v, restarts=12), slow_distance(u, v, 120)
    assert float(found.after) <= slow + 1e-9
    assert float(found.after) > slow - 1e-2
    once = align(u, v)
    assert float(found.after) <= float(once.after) <= float(once.before)


@pytest.mark.parametrize("spec", [ODD_SPECS[0], LINES, LEARNED_WORDS], ids=lambda spec: spec.task)
def test_made_up_inputs_bring_a_moved_copy_back(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (2,), generator)
    parts = [part for part in check_parts(spec, None) if part != "boundary_scales"]  # LayerNorm's ε sees these
    v = FullGroupElement.sample(spec, (2,), generator=generator, parts=parts).act(u)
    found = align(u, v, parts=parts, inputs=made_up_inputs(u), steps=0)
    torch.testing.assert_close(found.weights.flat(), v.flat(), rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_what_networks_do_brings_them_closer_than_weights_do():
    u, v = trained(0), trained(1)
    both = TransformerWeights.from_flat(SHAKESPEARE, torch.stack([u.flat(), v.flat()]))
    inputs = made_up_inputs(both, 32)

    others = (made_up_inputs(both, 32, seed=9),)

    def loss(weights: TransformerWeights) -> float:
        """Beside the mean of both networks' answers, on texts that the steps have not seen."""
        wanted = (logits(u, others, 1e-5).softmax(-1) + logits(v, others, 1e-5).softmax(-1)) / 2
        return -float((wanted * logits(weights, others, 1e-5).log_softmax(-1)).sum(-1).mean())

    by_weights, by_answers, after_steps = (
        loss(interpolate(align(u, v, **how).weights, v, 0.5))
        for how in ({}, {"inputs": inputs, "steps": 0}, {"inputs": inputs, "steps": 20})
    )
    assert after_steps < by_answers < by_weights
    moved = align(u, v, inputs=inputs, steps=5).weights
    assert change(logits(u, windows(), 1e-14), logits(moved, windows(), 1e-14)) < 1e-8


def test_moments_are_means_over_the_rows_that_are_read(generator: torch.Generator):
    """Row by row and unit by unit, beside the products of matrices."""
    u, v = random_weights(LINES, (1,), generator), random_weights(LINES, (1,), generator)
    inputs, sizes = made_up_inputs(u, 4), LINES.dim
    moments = Moments.of(u, v, inputs)

    def first_rows(w: TransformerWeights) -> torch.Tensor:
        x = w["embedding.weight"][0][inputs] + w["positions.weight"][0][: inputs.shape[1]]
        return torch.nn.functional.layer_norm(x, x.shape[-1:])

    x, y = (first_rows(w).reshape(-1, sizes) for w in (u, v))
    slow = torch.stack([torch.outer(y[row], x[row]) for row in range(len(x))]).mean(0)
    torch.testing.assert_close(moments.rows["blocks.0.query.weight"][0], slow)
    assert set(moments.units) == {f"blocks.{block}" for block in range(LINES.blocks)}
    for correlations in moments.units.values():
        assert float(correlations.abs().max()) <= 1 + 1e-12
    with_itself = Moments.of(u, u, inputs).units["blocks.0"][0].diagonal()
    assert bool((((with_itself - 1).abs() < 1e-12) | (with_itself == 0)).all())  # zero for a unit that is never active


def test_made_up_inputs_are_written_by_the_models_or_drawn():
    inputs = made_up_inputs(trained(0), 8)
    assert inputs.shape == (8, SHAKESPEARE.tokens)
    assert torch.equal(inputs, made_up_inputs(trained(0), 8))
    assert not torch.equal(inputs, made_up_inputs(trained(0), 8, seed=1))
    answers = torch.log_softmax(logits(trained(0), (inputs,), 1e-5), dim=-1)
    written = float(answers[:, :-1].gather(-1, inputs[:, 1:, None]).mean())
    assert written > float(answers.mean()) + 0.5  # more likely than any text of random tokens
    spec = ODD_SPECS[0]
    drawn = made_up_inputs(random_weights(spec, (), torch.Generator().manual_seed(0)), 5)
    assert torch.equal(drawn, synthetic_inputs(spec)[:5])


def test_the_balanced_form_is_unchanged_by_scales_up_to_an_isometry(generator: torch.Generator):
    u = random_weights(LINES, (2,), generator)
    parts = check_parts(LINES, None)
    v = FullGroupElement.sample(LINES, (2,), generator=generator).act(u)
    for weights in (u, v):
        result = balancing_element(weights, parts).act(weights)
        block = result.encoder
        torch.testing.assert_close(block.query.mT @ block.query, block.key.mT @ block.key, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(block.value.mT @ block.value, block.output @ block.output.mT, rtol=1e-6, atol=1e-6)
    sizes = [torch.linalg.vector_norm(balancing_element(w, parts).act(w).flat(), dim=-1) for w in (u, v)]
    torch.testing.assert_close(*sizes, rtol=1e-8, atol=1e-8)


def test_merging_copies_gives_the_function_of_each(generator: torch.Generator):
    u = random_weights(LINES, (), generator)
    copies = [FullGroupElement.sample(LINES, generator=generator).act(u) for _ in range(3)]
    merged, inputs = merge(copies), inputs_of(LINES, generator)
    assert change(logits(u, inputs, 1e-14), logits(merged, inputs, 1e-14)) < 1e-6


def test_merging_by_some_parts_takes_what_alignment_takes(generator: torch.Generator):
    u, v = (random_weights(LINES, (), generator) for _ in range(2))
    mean = (u.flat() + align(v, u, parts="heads").weights.flat()) / 2
    torch.testing.assert_close(merge([u, v], parts="heads").flat(), mean)
    with pytest.raises(ValueError, match="no part"):
        merge([u], parts=["feet"])


@pytest.mark.long
def test_two_are_merged_by_their_answers_in_the_middle_of_the_line(generator: torch.Generator):
    u, v = (random_weights(LINES, (), generator) for _ in range(2))
    inputs = made_up_inputs(v, 8)
    by_answers = interpolate(align(v, u, inputs=inputs).weights, u, 0.5)
    torch.testing.assert_close(merge([u, v], inputs=inputs).flat(), by_answers.flat())
    assert not torch.allclose(merge([u, v]).flat(), by_answers.flat())


def test_bad_input_is_refused_in_one_clear_line(generator: torch.Generator):
    u, other = random_weights(LINES, (), generator), random_weights(LEARNED_WORDS, (), generator)
    for function in (lambda: align(u, other), lambda: interpolate(u, other, 0.5)):
        with pytest.raises(ValueError, match="only transformers of the same dimensions"):
            function()
    with pytest.raises(ValueError, match="restarts are at least 0, got -1"):
        align(u, u, restarts=-1)
    with pytest.raises(ValueError, match="there is nothing to merge"):
        merge([])


@pytest.mark.parametrize("parts", [("units",), ("heads", "boundary_scales"), ()])
def test_parts_without_anything_smooth_take_no_gradient_steps(parts: tuple[str, ...], generator: torch.Generator):
    u, v = (random_weights(TINY, (1,), generator) for _ in range(2))
    inputs = made_up_inputs(u, 4)
    found = align(u, v, parts=parts, inputs=inputs)
    assert torch.equal(found.weights.flat(), align(u, v, parts=parts, inputs=inputs, steps=0).weights.flat())
