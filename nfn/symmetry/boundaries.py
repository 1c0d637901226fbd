"""The boundaries of a transformer: its LayerNorms, with the tensors that write into each and those that read from it.

LN(x) = √D·Cx / √(‖Cx‖² + D·ε) with C = I − 11ᵀ/D, and its output has mean zero. So nothing changes when

    writers   W + 1·vᵀ and b + c·1        read through C, which takes multiples of 1 out
    readers   F + u·1ᵀ                    applied to vectors of mean zero

There are 2·blocks + 1 boundaries, numbered along the way: 0 is the input of block 0, 1 lies inside block 0, 2 between
blocks 0 and 1, 3 inside block 1, and the last one before the classifier.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from zoo import TransformerSpec, TransformerWeights


@dataclass(frozen=True)
class Boundary:
    """One LayerNorm. Names are those of ``spec.tensors``; a frozen embedding writes too but has no name there.

    Writers have the D axis first, readers last, as torch stores them. The basis of a ``pinned`` boundary is fixed from
    outside, by positions and word vectors that do not move with the weights.
    """

    index: int
    writers: tuple[str, ...]  # matrices and biases
    readers: tuple[str, ...]
    pinned: bool


def boundaries(spec: TransformerSpec) -> tuple[Boundary, ...]:
    """All boundaries in order. With residual connections whatever was written before is read at every later one."""
    embedding = tuple(name for name in spec.tensors if name.startswith("embedding."))
    written: list[tuple[str, ...]] = [embedding]
    read: list[tuple[str, ...]] = []
    for block in range(spec.blocks):
        prefix = f"blocks.{block}"
        read.append(tuple(f"{prefix}.{name}.weight" for name in ("query", "key", "value")))
        written.append((f"{prefix}.output.weight",))
        read.append((f"{prefix}.fc1.weight",))
        written.append((f"{prefix}.fc2.weight", f"{prefix}.fc2.bias"))
    read.append(("classifier.fc1.weight",))
    return tuple(
        Boundary(
            index=index,
            writers=sum(written[: index + 1], ()) if spec.residual else written[index],
            readers=readers,
            pinned=spec.residual or index == 0,
        )
        for index, readers in enumerate(read)
    )


def writer_names(spec: TransformerSpec) -> tuple[str, ...]:
    """Every tensor that writes into some boundary, D axis first."""
    return tuple(dict.fromkeys(name for boundary in boundaries(spec) for name in boundary.writers))


def reader_names(spec: TransformerSpec) -> tuple[str, ...]:
    """Every tensor that reads from some boundary, D axis last."""
    return tuple(name for boundary in boundaries(spec) for name in boundary.readers)


def shift_component(
    weights: TransformerWeights, *, writers: bool = True, readers: bool = True, logits: bool = False
) -> Float[Tensor, "*batch d"]:
    """The part of the weights that no LayerNorm lets through: the mean along the D axis of writers and of readers.

    A flat vector, zero in every tensor that is neither. With ``logits`` also the mean over classes of the last layer,
    which changes no argmax. The map is the orthogonal projection onto the shifts, so weights minus this are centered.
    """
    spec, flat = weights.spec, weights.flat()
    axes: dict[str, int] = {}
    if writers:
        axes |= {name: -len(spec.tensors[name].shape) for name in writer_names(spec)}
    if readers:
        axes |= dict.fromkeys(reader_names(spec), -1)
    if logits:
        axes |= {"classifier.fc2.weight": -2, "classifier.fc2.bias": -1}
    parts = []
    for name, slot in spec.tensors.items():
        if name in axes:
            tensor = weights[name]
            part = tensor.mean(axes[name], keepdim=True).expand_as(tensor).flatten(flat.ndim - 1)
        else:
            part = torch.zeros_like(flat[..., slot.slice])
        parts.append(part)
    return torch.cat(parts, dim=-1)


def centered(
    weights: TransformerWeights, *, writers: bool = True, readers: bool = True, logits: bool = False
) -> TransformerWeights:
    """The weights without their shifts: the same function, and CW for writers, FC for readers."""
    shifts = shift_component(weights, writers=writers, readers=readers, logits=logits)
    return TransformerWeights.from_flat(weights.spec, weights.flat() - shifts, check_finite=False)
