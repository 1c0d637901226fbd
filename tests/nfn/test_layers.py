"""The polynomial layers: equivariant, invariant, equal to the pseudocode, and no more symmetric than they should be."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from nfn import EquivariantLayer, GroupElement, InvariantLayer, TransformerNFN
from nfn.layers.polynomial import encoder_as_one_channel, relu_on_mlp
from nfn.layers.term_products import _CHUNK_ROWS, _product_in_chunks
from nfn.layers.terms import EQUIVARIANT_TERMS, INVARIANT_TERMS, TENSOR_NAMES, Term, sizes
from nfn.predictors.literal import _literal_targets, literal_twin
from nfn.testing import _random_block_weights, assert_equivariant, assert_invariant
from tests.nfn.conftest import ODD_SPECS, random_weights
from tests.nfn.pseudocode import pseudocode_equivariant, pseudocode_invariant
from zoo import MNIST, BlockWeights, TransformerSpec, TransformerWeights

SPEC = ODD_SPECS[0]
Layer = TypeVar("Layer", EquivariantLayer, InvariantLayer)
in_long = partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize(("d", "e"), [(1, 1), (2, 3), in_long(1, 3), in_long(3, 1)])
def test_equivariance(spec: TransformerSpec, d: int, e: int, generator: torch.Generator):
    layer = randomized(EquivariantLayer(spec, d, e), generator)
    assert_equivariant(layer, spec, channels=d)
    assert_equivariant(lambda u: relu_on_mlp(layer(u)), spec, channels=d, seed=1)


@pytest.mark.parametrize(("d", "e", "out"), [(1, 1, 1), (3, 2, 4), in_long(2, 3, 1)])
def test_invariance(spec: TransformerSpec, d: int, e: int, out: int, generator: torch.Generator):
    layer = randomized(InvariantLayer(spec, d, e, out), generator)
    for seed in range(2):
        assert_invariant(layer, spec, channels=d, seed=seed)


@pytest.mark.parametrize("channels", [(2,), (2, 1, 3), in_long((4,)), in_long((3, 2))])
def test_whole_network_is_invariant(spec: TransformerSpec, channels: tuple[int, ...]):
    model = TransformerNFN(spec, channels=channels, components=["encoder"])
    assert_invariant(model, spec, channels=None, tolerance=1e-9)


@pytest.mark.parametrize(("d", "e"), [(1, 2), (3, 2)])
def test_equivariant_layer_equals_the_pseudocode(spec: TransformerSpec, d: int, e: int, generator: torch.Generator):
    layer = randomized(EquivariantLayer(spec, d, e), generator)
    weights = _random_block_weights(spec, d, 3, generator)
    probe = _random_block_weights(spec, e, 3, generator)

    def score(module: Callable[[BlockWeights], BlockWeights], u: BlockWeights) -> Tensor:
        result = module(u)
        return torch.stack([(getattr(result, name) * getattr(probe, name)).sum() for name in TENSOR_NAMES])

    assert_twins(layer, partial(pseudocode_equivariant, layer), score, weights)
    torch.testing.assert_close(_literal_targets(layer, weights), vars(pseudocode_equivariant(layer, weights)))


@pytest.mark.parametrize(("d", "e", "out"), [(1, 2, 1), (3, 2, 4)])
def test_invariant_layer_equals_the_pseudocode(
    spec: TransformerSpec, d: int, e: int, out: int, generator: torch.Generator
):
    layer = randomized(InvariantLayer(spec, d, e, out), generator)
    weights = _random_block_weights(spec, d, 3, generator)
    assert_twins(layer, partial(pseudocode_invariant, layer), lambda module, u: module(u), weights)
    literal = _literal_targets(layer, weights)["invariant"].transpose(1, 2)
    torch.testing.assert_close(literal, pseudocode_invariant(layer, weights))


def assert_twins(
    layer: torch.nn.Module, twin: Callable[..., Any], score: Callable[..., Tensor], u: BlockWeights
) -> None:
    """The same outputs, the same gradients of parameters, the same gradients of inputs."""
    outcomes = []
    for module in (layer, twin):
        inputs = u.map(lambda tensor: tensor.clone().requires_grad_(True))
        layer.zero_grad()
        value = score(module, inputs)
        # Weighted, so that equal and opposite errors of two outputs do not cancel.
        (value * torch.arange(1, value.numel() + 1).view_as(value)).sum().backward()
        gradients = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
        assert len(gradients) == len(list(layer.parameters()))
        outcomes.append((value.detach(), gradients, [getattr(inputs, name).grad for name in TENSOR_NAMES]))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("channels", "dtype", "tolerance"),
    [
        ((3,), torch.float32, 1e-4),
        ((2, 1, 3), torch.float64, 1e-10),
        in_long((3,), torch.float64, 1e-10),
        in_long((3, 4), torch.float64, 1e-10),
        in_long((3, 4), torch.float32, 1e-4),
        in_long((2, 1, 3), torch.float32, 1e-4),
    ],
)
def test_network_equals_its_literal_twin(
    spec: TransformerSpec, channels: tuple[int, ...], dtype: torch.dtype, tolerance: float, generator: torch.Generator
):
    model = TransformerNFN(spec, channels=channels, generator=generator).to(dtype)
    weights = TransformerWeights.from_flat(spec, random_weights(spec, (4,), generator).flat().to(dtype))
    outcomes = []
    for module in (model, literal_twin(model)):
        model.zero_grad()
        logits = module.logits(weights)
        (logits * torch.arange(1, 5)).sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        assert gradients.keys() == dict(model.named_parameters()).keys()
        outcomes.append((logits.detach(), gradients))
    (fast, fast_gradients), (slow, slow_gradients) = outcomes
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    largest = max(float(gradient.abs().max()) for gradient in slow_gradients.values())
    torch.testing.assert_close(fast_gradients, slow_gradients, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("term", EQUIVARIANT_TERMS, ids=lambda term: term.name)
def test_each_equivariant_term_alone_reaches_its_target_and_no_other(term: Term, generator: torch.Generator):
    layer = EquivariantLayer(SPEC, 2, 3).double()
    only(layer, term, generator)
    u, v = (_random_block_weights(SPEC, 2, 2, generator) for _ in range(2))
    first, second = layer(u), layer(v)
    for name in TENSOR_NAMES:
        tensor = getattr(first, name)
        if name != term.target:
            assert not bool(tensor.any()), name
            continue
        assert bool((tensor != 0).any())
        assert torch.equal(tensor, getattr(second, name)) == (term.source == "one")
    assert_equivariant(layer, SPEC, channels=2)


@pytest.mark.parametrize("term", INVARIANT_TERMS, ids=lambda term: term.name)
def test_each_invariant_term_alone_changes_the_output(term: Term, generator: torch.Generator):
    layer = InvariantLayer(SPEC, 2, 3, 2).double()
    only(layer, term, generator)
    first, second = (layer(_random_block_weights(SPEC, 2, 2, generator)) for _ in range(2))
    assert bool((first != 0).all())
    assert torch.equal(first, second) == (term.source == "one")


@pytest.mark.parametrize("term", [*EQUIVARIANT_TERMS, *INVARIANT_TERMS], ids=lambda term: term.name)
def test_each_term_of_each_block_reads_and_writes_its_own_block(term: Term, generator: torch.Generator):
    spec = ODD_SPECS[1]
    make = InvariantLayer if term.target == "invariant" else EquivariantLayer
    layer = make(spec, 1, 2).double()
    only(layer, term, generator, block=1)
    result = layer(_random_block_weights(spec, 1, 2, generator))
    tensor = result if isinstance(result, Tensor) else getattr(result, term.target).movedim(2, 1)
    assert bool(tensor[:, 1].any())
    assert not bool(tensor[:, [0, 2]].any())


# The tensors that each part of g must move together; the layers must notice when one is left behind.
COUPLINGS = {
    "m": ("query", "key"),
    "n": ("value", "output"),
    "features": ("output", "weight_a"),
    "neurons": ("weight_a", "weight_b", "bias_a"),
    "heads_of_queries": ("query", "key"),
    "heads_of_values": ("value", "output"),
}


@pytest.mark.parametrize(
    ("factor", "left_behind"), [(factor, name) for factor, names in COUPLINGS.items() for name in names]
)
def test_broken_coupling_is_noticed(factor: str, left_behind: str, generator: torch.Generator):
    """g moves all but one of the tensors it couples: neither E(gU) = gE(U) nor the network's invariance may survive."""
    spec = ODD_SPECS[2]
    g, identity = GroupElement.sample(spec, generator=generator), GroupElement.identity(spec)
    part = factor.split("_")[0]
    # A cycle, so that no head, feature or neuron stays where it was.
    moved = getattr(g, part) if part in "mn" else getattr(identity, part).roll(1, -1)
    g = GroupElement(**{**vars(identity), part: moved})
    checkpoints = random_weights(spec, (2,), generator)
    before = encoder_as_one_channel(checkpoints)
    after = g.act_on_blocks(before)
    broken = BlockWeights(**{**vars(after), left_behind: getattr(before, left_behind)})
    layer = randomized(EquivariantLayer(spec, 1, 2), generator)
    actual, expected = layer(broken), g.act_on_blocks(layer(before))
    names = [name for name in TENSOR_NAMES if name in ("weight_a", "weight_b", "bias_a", "bias_b")]
    assert max(relative_error(getattr(actual, name), getattr(expected, name)) for name in names) > 1e-3

    model = TransformerNFN(spec, channels=(3,), components=["encoder"]).double()
    encoder = broken.map(lambda tensor: tensor.squeeze(1))
    assert relative_error(model.logits(checkpoints.with_encoder(encoder)), model.logits(checkpoints)) > 1e-6


def test_blocks_do_not_share_coefficients_or_inputs(generator: torch.Generator):
    spec = ODD_SPECS[1]
    layer = randomized(InvariantLayer(spec, 1, 1), generator)
    u = _random_block_weights(spec, 1, 1, generator)
    same = u.map(lambda tensor: tensor[:, :, :1].expand_as(tensor))
    result = layer(same)[0, :, 0, 0]
    assert len(set(result.tolist())) == spec.blocks


@pytest.mark.parametrize("spec", [MNIST, ODD_SPECS[2]], ids=lambda spec: spec.task)
@pytest.mark.parametrize(("d", "e"), [(1, 10), (3, 3)])
def test_initial_outputs_are_of_order_one(spec: TransformerSpec, d: int, e: int, generator: torch.Generator):
    u = _random_block_weights(spec, d, 8, generator)
    with torch.no_grad():
        hidden = EquivariantLayer(spec, d, e, generator=generator).double()(u)
        invariants = InvariantLayer(spec, d, e, generator=generator).double()(u)
    for name in TENSOR_NAMES:
        assert 0.4 < float(getattr(hidden, name).std()) < 2.5, name
    assert 0.4 < float(invariants.std()) < 2.5


@pytest.mark.parametrize("terms", [EQUIVARIANT_TERMS, INVARIANT_TERMS], ids=["equivariant", "invariant"])
def test_table_of_terms_is_consistent(terms: tuple[Term, ...]):
    assert len({term.name for term in terms}) == len({term.label for term in terms}) == len(terms)
    size = sizes(SPEC, 2)
    make = InvariantLayer(SPEC, 3, 4, 2) if terms is INVARIANT_TERMS else EquivariantLayer(SPEC, 3, 4)
    for term in terms:
        channels = (4,) if term.source == "one" else (4, 3)  # e and d; a constant has no input
        axes = [size[term.axis[letter]] for letter in term.coefficient_letters]
        assert make.coefficient(term).shape == (SPEC.blocks, *channels, *axes), term.name
    counted = sum(make.coefficient(term).numel() for term in terms)
    assert counted == sum(parameter.numel() for parameter in make.parameters())


def test_same_generator_makes_the_same_layer_and_none_touches_the_global_one():
    before = torch.random.get_rng_state()
    first, second, other = (
        EquivariantLayer(SPEC, 1, 2, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_unbatched_and_doubly_batched_weights(generator: torch.Generator):
    layer, invariant = EquivariantLayer(SPEC, 2, 3).double(), InvariantLayer(SPEC, 2, 3).double()
    u = _random_block_weights(SPEC, 2, 6, generator)
    single, double = u.select(0, 4), u.map(lambda tensor: tensor.unflatten(0, (2, 3)))
    for name in TENSOR_NAMES:
        whole = getattr(layer(u), name)
        torch.testing.assert_close(getattr(layer(single), name), whole[4])
        torch.testing.assert_close(getattr(layer(double), name).flatten(0, 1), whole)
    torch.testing.assert_close(invariant(single), invariant(u)[4])
    torch.testing.assert_close(invariant(double).flatten(0, 1), invariant(u))


def test_wrong_channels_dimensions_and_dtype_are_refused_in_one_clear_line(generator: torch.Generator):
    layer = EquivariantLayer(SPEC, 2, 3).double()
    with pytest.raises(ValueError, match=r"query must be \[\*batch, 2, 1, 3, 7, 2\].*got \[2, 1, 1, 3, 7, 2\]"):
        layer(_random_block_weights(SPEC, 1, 2, generator))
    with pytest.raises(ValueError, match="query must be"):
        layer(_random_block_weights(ODD_SPECS[1], 2, 2, generator))
    u = _random_block_weights(SPEC, 2, 2, generator)
    with pytest.raises(ValueError, match=r"query is torch.float32 but the layer is torch.float64: convert"):
        layer(u.map(Tensor.float))
    mixed = BlockWeights(**{**vars(u), "bias_b": u.bias_b.float()})
    with pytest.raises(ValueError, match=r"bias_b is torch.float32 but the layer is torch.float64"):
        InvariantLayer(SPEC, 2, 3).double()(mixed)
    with pytest.raises(ValueError, match="positive number of channels, got 0"):
        EquivariantLayer(SPEC, 0, 3)


def randomized(layer: Layer, generator: torch.Generator) -> Layer:
    """In float64, with every coefficient of order one: constants too, which start at zero."""
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def only(
    layer: EquivariantLayer | InvariantLayer, term: Term, generator: torch.Generator, block: int | None = None
) -> None:
    """All coefficients zero but one term's, or that of one block."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        coefficient = layer.coefficient(term) if block is None else layer.coefficient(term)[block]
        coefficient.copy_(torch.randn(coefficient.shape, generator=generator))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((torch.linalg.norm(actual - expected) / torch.linalg.norm(expected)).detach())


def test_product_in_chunks_equals_the_plain_product_and_its_gradients(generator: torch.Generator):
    """The GPU's way of multiplying many rows by a small matrix."""
    shapes = ((2, 3 * _CHUNK_ROWS, 34), (2, 34, 10))
    factors = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    plain, chunked = torch.bmm(*factors), _product_in_chunks(*factors)
    torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad(product, factors, upstream) for product in (chunked, plain)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-11, atol=1e-11)
