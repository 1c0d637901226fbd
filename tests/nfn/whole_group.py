"""Random elements of the whole group, acting on float64 weights, part by part, written from the table of the group."""

from collections.abc import Callable

import torch
from torch import Tensor

from nfn import GroupElement
from nfn.symmetry.group import well_conditioned
from zoo import TransformerSpec, TransformerWeights

PARTS = ("attention", "units", "unit scales", "rotations", "shifts", "boundary scales", "last layer")


def move(weights: TransformerWeights, seed: int, parts: tuple[str, ...] = PARTS) -> TransformerWeights:
    """One random element for all checkpoints of a batch."""
    generator = torch.Generator().manual_seed(seed)
    spec = weights.spec
    if "attention" in parts:
        weights = GroupElement.sample(spec, generator=generator).act(weights)
    state = {name: tensor.clone() for name, tensor in weights.state_dict().items()}

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mlps = [(f"blocks.{number}.", spec.hidden_dim) for number in range(spec.blocks)] + [("classifier.", spec.dim)]
    for prefix, count in mlps:
        order = torch.randperm(count, generator=generator) if "units" in parts else torch.arange(count)
        scale = torch.exp(draw(count)) if "unit scales" in parts else torch.ones(count, dtype=torch.float64)
        state[f"{prefix}fc1.weight"] = (scale[:, None] * state[f"{prefix}fc1.weight"])[..., order, :]
        state[f"{prefix}fc1.bias"] = (scale * state[f"{prefix}fc1.bias"])[..., order]
        state[f"{prefix}fc2.weight"] = (state[f"{prefix}fc2.weight"] / scale)[..., order]
    for number, (writers, bias, readers) in enumerate(boundaries(spec)):
        pinned = number == 0
        if "rotations" in parts and not pinned:
            rotation = fixing_ones(spec.dim, generator, determinant=(-1) ** number)
            apply(state, writers, lambda w, r=rotation: torch.einsum("ij,...jk->...ik", r, w))
            apply(state, bias, lambda b, r=rotation: b @ r.T)
            apply(state, readers, lambda w, r=rotation: w @ r.T)
        if "shifts" in parts:
            for name in (*writers, *bias):
                state[name] = state[name] + draw(*spec.tensors[name].shape[1:])
            apply(state, readers, lambda w: w + draw(w.shape[-2], 1))
        if "boundary scales" in parts and not pinned:
            factor = torch.exp(draw())
            apply(state, (*writers, *bias), lambda w, c=factor: w * c)
    if "last layer" in parts:
        factor = torch.exp(draw())
        apply(state, ("classifier.fc2.weight",), lambda w: factor * (w + draw(w.shape[-1])))
        apply(state, ("classifier.fc2.bias",), lambda b: factor * (b + draw(1)))
    return TransformerWeights.from_state_dict(spec, state)


def boundaries(spec: TransformerSpec) -> list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    """Writers, their bias, and readers of every boundary, in the order of the network."""
    embedded = spec.patch_size is not None
    writers: tuple[str, ...] = ("embedding.weight",) if embedded else ()
    bias: tuple[str, ...] = ("embedding.bias",) if embedded else ()
    all_boundaries = []
    for number in range(spec.blocks):
        block = f"blocks.{number}."
        all_boundaries.append((writers, bias, tuple(f"{block}{name}.weight" for name in ("query", "key", "value"))))
        all_boundaries.append(((f"{block}output.weight",), (), (f"{block}fc1.weight",)))
        writers, bias = (f"{block}fc2.weight",), (f"{block}fc2.bias",)
    return [*all_boundaries, (writers, bias, ("classifier.fc1.weight",))]


def fixing_ones(dim: int, generator: torch.Generator, determinant: int) -> Tensor:
    """A random R ∈ O(D) with R·1 = 1 and the given determinant."""
    first = torch.eye(dim, dtype=torch.float64)
    first[:, 0] = 1
    basis = torch.linalg.qr(first).Q
    inner = torch.linalg.qr(well_conditioned((dim - 1, dim - 1), generator)).Q
    if dim > 1 and torch.linalg.det(inner).sign() != determinant:
        inner = torch.cat([-inner[:, :1], inner[:, 1:]], dim=1)
    whole = torch.eye(dim, dtype=torch.float64)
    whole[1:, 1:] = inner
    return basis @ whole @ basis.T


def apply(state: dict[str, Tensor], names: tuple[str, ...], function: Callable[[Tensor], Tensor]) -> None:
    for name in names:
        state[name] = function(state[name])
