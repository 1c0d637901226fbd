"""canonicalize: one representative of each orbit, the same function, and defined results for degenerate weights."""

from collections.abc import Callable

import pytest
import torch

from nfn import FullGroupElement, canonicalize, invariant_features, invariants, match_weights
from nfn.symmetry.parts import _PARTS, Part, available_parts
from tests.nfn.conftest import ODD_SPECS, Bundled, change, logits, random_weights
from zoo import MNIST, TransformerSpec, TransformerWeights

EXACT = tuple(part for part in available_parts(MNIST) if part not in ("boundary_scales", "logits"))


def assert_canonical(
    u: TransformerWeights,
    generator: torch.Generator,
    parts: tuple[str, ...] | None = None,
    count: int = 5,
    tolerance: float = 1e-8,
) -> TransformerWeights:
    g = FullGroupElement.sample(u.spec, (count, *u.batch_shape), generator=generator, parts=parts)
    expected = canonicalize(u, parts)
    assert expected.flat().shape == u.flat().shape
    assert bool(expected.flat().isfinite().all())
    error = (canonicalize(g.act(u), parts).flat() - expected.flat()).abs().max()
    assert error <= tolerance, f"moved by {error:.1e}"
    return expected


@pytest.mark.long
def test_a_thousand_elements_lead_to_one_representative(bundled: Bundled, generator: torch.Generator):
    """500 for each task, over four checkpoints."""
    for _ in range(5):
        assert_canonical(bundled.weights, generator, count=25)


def test_representative_computes_the_same_function(bundled: Bundled):
    for row in (0, 3):
        u = bundled.checkpoint(row)
        exact, full = canonicalize(u, EXACT), canonicalize(u)
        assert change(logits(u, bundled.inputs), logits(exact, bundled.inputs)) < 1e-11
        assert change(logits(u, bundled.inputs, 1e-14), logits(full, bundled.inputs, 1e-14)) < 1e-9
        assert change(logits(u, bundled.inputs), logits(full, bundled.inputs)) < 0.05


def test_representative_represents_itself_and_no_other_checkpoint(bundled: Bundled):
    once = canonicalize(bundled.weights)
    torch.testing.assert_close(canonicalize(once).flat(), once.flat(), rtol=0, atol=1e-9)
    apart = (once.flat()[:, None] - once.flat()).norm(dim=-1)
    assert float(apart[~torch.eye(4, dtype=torch.bool)].min()) > 1


def test_representative_of_blocks_that_write_into_few_directions_represents_itself(bundled: Bundled):
    u = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat().clone())
    for block in u.blocks:
        for tensor in (block.weight_a.mT, block.bias_a, block.weight_b):
            (tensor[..., 10:, :] if tensor.ndim > 2 else tensor[..., 10:]).zero_()
    once = canonicalize(u)
    torch.testing.assert_close(canonicalize(once).flat(), once.flat(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("part", _PARTS)
def test_each_part_can_be_fixed_alone(part: Part, generator: torch.Generator):
    for spec in (*ODD_SPECS[:3], *ODD_SPECS[-2:]):
        if part in available_parts(spec):
            assert_canonical(random_weights(spec, (2,), generator), generator, (part,))


def test_any_dimensions(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (3,), generator)
    assert_canonical(u, generator)
    assert_canonical(u, generator, available_parts(spec))


def test_broken_coupling_leads_elsewhere(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(0)
    v = FullGroupElement.sample(bundled.spec, generator=generator).act(u)
    expected = canonicalize(u).flat()
    for name in ("blocks.0.fc1.weight", "blocks.1.query.weight", "blocks.1.output.weight", "classifier.fc2.weight"):
        state = v.state_dict()
        state[name] = state[name].clone()
        # The first unit, or the first row of a head, on one side only.
        state[name][0] *= 1.1
        broken = TransformerWeights.from_state_dict(bundled.spec, state)
        assert (canonicalize(broken).flat() - expected).abs().max() > 1e-3


def with_state(u: TransformerWeights, **changes: torch.Tensor) -> TransformerWeights:
    state = u.state_dict() | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return TransformerWeights.from_state_dict(u.spec, state)


def test_equal_singular_values_are_decided(generator: torch.Generator):
    """Heads whose W_QᵀW_K and W_O W_V have all their singular values equal."""
    orthonormal = torch.linalg.qr(torch.randn(4, 32, 32, generator=generator, dtype=torch.float64)).Q
    names = ("query", "key", "value", "output")
    heads = {f"blocks__0__{name}__weight": matrix for name, matrix in zip(names, orthonormal, strict=True)}
    u = with_state(random_weights(MNIST, (), generator), **heads)
    scores = u.blocks[0].query @ u.blocks[0].key.mT
    torch.testing.assert_close(torch.linalg.svdvals(scores)[:, :16], torch.ones(2, 16, dtype=torch.float64))
    parts = tuple(part for part in available_parts(MNIST) if part != "heads" and "shifts" not in part)
    assert_canonical(u, generator, parts)


def test_zero_units_and_zero_heads_are_decided(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(1)
    rows, columns = u["blocks.0.fc1.weight"].clone(), u["blocks.0.fc2.weight"].clone()
    rows[5], columns[:, 5:9] = 0, 0
    queries, outputs = u["blocks.1.query.weight"].clone(), u["blocks.1.output.weight"].clone()
    queries[:16], outputs[:, 16:] = 0, 0
    degenerate = with_state(
        u,
        blocks__0__fc1__weight=rows,
        blocks__0__fc2__weight=columns,
        blocks__1__query__weight=queries,
        blocks__1__output__weight=outputs,
    )
    result = assert_canonical(degenerate, generator)
    assert bool((result["blocks.0.fc1.weight"][-4:] == 0).all())
    assert change(logits(degenerate, bundled.inputs, 1e-14), logits(result, bundled.inputs, 1e-14)) < 1e-9


def test_few_living_units_leave_directions_nothing_is_written_into(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(2)
    columns = u["blocks.0.fc2.weight"].clone()
    columns[:, 10:] = 0
    few = with_state(u, blocks__0__fc2__weight=columns)
    result = assert_canonical(few, generator)
    assert change(logits(few, bundled.inputs, 1e-14), logits(result, bundled.inputs, 1e-14)) < 1e-9


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_collapsed_and_exploded_weights_give_numbers(size: float, generator: torch.Generator):
    flat = torch.randn(2, MNIST.num_parameters, generator=generator) * size
    result = canonicalize(TransformerWeights.from_flat(MNIST, flat))
    assert result.flat().dtype == torch.float32
    assert bool(result.flat().isfinite().all())


@pytest.mark.parametrize("of", [canonicalize, invariant_features, invariants, lambda u: match_weights(u, u)])
def test_numbers_beyond_float32_are_refused(of: Callable[[TransformerWeights], object], generator: torch.Generator):
    flat = 1e100 * torch.randn(MNIST.num_parameters, generator=generator, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"numbers beyond float32, first in embedding\.weight"):
        of(TransformerWeights.from_flat(MNIST, flat, check_finite=False))


def test_diverged_weights_are_refused(generator: torch.Generator):
    flat = torch.randn(MNIST.num_parameters, generator=generator)
    flat[-1] = float("nan")
    with pytest.raises(ValueError, match=r"NaN or infinity, first in classifier\.fc2\.bias: such a run has diverged"):
        canonicalize(TransformerWeights.from_flat(MNIST, flat, check_finite=False))


def test_float32_weights_lead_to_the_same_representative_up_to_their_rounding(
    bundled: Bundled, generator: torch.Generator
):
    u = TransformerWeights.from_flat(bundled.spec, bundled.weights.flat().float())
    copy = u.flat().clone()
    g = FullGroupElement.sample(bundled.spec, (4,), generator=generator)
    torch.testing.assert_close(canonicalize(g.act(u)).flat(), canonicalize(u).flat(), rtol=0, atol=1e-2)
    assert torch.equal(u.flat(), copy)
