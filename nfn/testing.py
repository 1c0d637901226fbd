"""Checks for your own layers: are they equivariant or invariant under the symmetries of a transformer's blocks?

    nfn.testing.assert_equivariant(layer, spec, channels=4)
    nfn.testing.assert_invariant(layer, spec, channels=4)
    nfn.testing.assert_invariant(predictor, spec, channels=None)
    nfn.testing.assert_invariant(predictor, spec, channels=None, parts=("rotations", "unit_scales"))

With ``parts`` it is the whole symmetry group of the transformer, or some of its parts, instead of the paper's.
Everything is measured in float64, with random weights and with M and N that are well conditioned but not orthogonal:
orthogonal ones would hide a mix-up of transpose and inverse. Each factor of the group is tried on its own first, so
that a failure names the symmetry that is broken.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from nfn.layers.terms import AXES, TENSOR_NAMES, sizes
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.group import GroupElement
from nfn.symmetry.parts import check_parts
from zoo import BlockWeights, TransformerSpec, TransformerWeights

_TOLERANCE = 1e-9
_Moving = tuple[str, FullGroupElement]
_FACTORS = {
    "heads": "the order of the heads, τ",
    "m": "M on queries and keys",
    "n": "N on values and outputs",
    "features": "the permutation π_O of features",
    "neurons": "the permutation π_A of hidden neurons",
}


@torch.no_grad()
def assert_equivariant(
    layer: Callable[[BlockWeights], BlockWeights],
    spec: TransformerSpec,
    *,
    channels: int = 1,
    batch: int = 2,
    seed: int = 0,
    tolerance: float = _TOLERANCE,
) -> None:
    """Raises AssertionError unless ‖E(gU) − gE(U)‖ ≤ tolerance·‖gE(U)‖ for every tensor and every kind of g.

    ``layer`` maps weights in U^d, ``BlockWeights`` of tensors [batch, d, blocks, …], to weights in U^e. A module is
    tested as a float64 copy of itself.
    """
    layer = _in_double(layer)
    generator = torch.Generator().manual_seed(seed)
    weights = _random_block_weights(spec, channels, batch, generator)
    result = layer(weights)
    for symmetry, element in _of_each_factor(spec, generator):
        moved_before, moved_after = layer(element.act_on_blocks(weights)), element.act_on_blocks(result)
        for name in TENSOR_NAMES:
            pair = getattr(moved_before, name), getattr(moved_after, name)
            _check_close(*pair, tolerance, f"not equivariant under {symmetry}: {name} of E(gU) and gE(U) differ")


@torch.no_grad()
def assert_invariant(
    function: Callable[[Any], Tensor],
    spec: TransformerSpec,
    *,
    channels: int | None = 1,
    batch: int = 2,
    seed: int = 0,
    tolerance: float = _TOLERANCE,
    parts: Iterable[str] | None = None,
) -> None:
    """Raises AssertionError unless ‖I(gU) − I(U)‖ ≤ tolerance·‖I(U)‖ for every kind of g.

    ``function`` takes weights in U^d as in ``assert_equivariant``; with ``channels=None`` it takes
    ``TransformerWeights`` of shape [batch], as predictors do. With ``parts``, names of ``nfn.symmetry.parts``, g is a
    ``FullGroupElement`` of these parts; that group acts on whole transformers, so ``channels`` must be None.
    """
    if parts is not None and channels is not None:
        raise ValueError("the whole group acts on whole transformers: with parts, channels must be None")
    function = _in_double(function)
    generator = torch.Generator().manual_seed(seed)
    if channels is None:
        flat = torch.randn(batch, spec.num_parameters, generator=generator, dtype=torch.float64)
        weights = TransformerWeights.from_flat(spec, flat)
    else:
        weights = _random_block_weights(spec, channels, batch, generator)
    result = function(weights)
    elements = _of_each_factor(spec, generator) if parts is None else _of_each_part(spec, generator, parts)
    for symmetry, element in elements:
        if isinstance(weights, TransformerWeights):
            moved = element.act(weights)
        else:
            assert isinstance(element, GroupElement)
            moved = element.act_on_blocks(weights)
        _check_close(function(moved), result, tolerance, f"not invariant under {symmetry}: I(gU) and I(U) differ")


def _of_each_factor(spec: TransformerSpec, generator: torch.Generator) -> Iterator[tuple[str, GroupElement]]:
    """Group elements that move one factor each, then one that moves all, with the name of what they move."""
    everything, nothing = GroupElement.sample(spec, generator=generator), GroupElement.identity(spec)
    for field in fields(GroupElement):
        yield _FACTORS[field.name], replace(nothing, **{field.name: getattr(everything, field.name)})
    yield "the whole group", everything


def _of_each_part(spec: TransformerSpec, generator: torch.Generator, parts: Iterable[str]) -> Iterator[_Moving]:
    """The same for the whole group: elements of one part each, then one of all these parts."""
    chosen = check_parts(spec, parts)
    for moved in (*([part] for part in chosen), chosen):
        yield " and ".join(moved), FullGroupElement.sample(spec, generator=generator, parts=moved)


def _random_block_weights(spec: TransformerSpec, channels: int, batch: int, generator: torch.Generator) -> BlockWeights:
    """Random weights in U^channels in float64, entries standard normal."""
    size, lead = sizes(spec), (batch, channels, spec.blocks)
    shapes = {name: (*lead, *(size[axis] for axis in AXES[name])) for name in TENSOR_NAMES}
    drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return BlockWeights(**drawn)


def _check_close(actual: Tensor, expected: Tensor, tolerance: float, message: str) -> None:
    if actual.shape != expected.shape:
        raise AssertionError(f"{message} in shape, {tuple(actual.shape)} and {tuple(expected.shape)}")
    error, size = float(torch.linalg.norm(actual - expected)), float(torch.linalg.norm(expected))
    # Written so that NaN fails.
    if not error <= tolerance * size:
        raise AssertionError(f"{message} by {error / size if size else error:.1e}, allowed {tolerance:.0e}")


def _in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """A float64 copy of a module; anything else as it is."""
    return copy.deepcopy(function).double() if isinstance(function, nn.Module) else function
