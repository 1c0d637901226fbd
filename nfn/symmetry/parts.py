"""The parts of a transformer's whole symmetry group, by name, and the boundaries at which they act.

The paper's group leaves out most of the freedom of the zoo's transformers. They have no residual connections, and their
LayerNorms have neither gain nor bias, so that the basis is free at every LayerNorm but the first.

    heads            the order of the heads of each block
    query_key        W_Q and W_K of each head by GL(D_k)
    value_output     W_V and W_O of each head by GL(D_v)
    units            the order of the ReLU units of each MLP and of the classifier
    unit_scales      λ > 0 for each ReLU unit: its row and bias times λ, its column divided by λ
    rotations        R ∈ O(D) with R1 = 1, a copy of O(D−1), at every boundary but 0: RW and Rb for what writes into it,
                     FRᵀ for what reads from it
    writer_shifts    W + 1vᵀ and b + c1 for what writes into a boundary
    reader_shifts    F + u1ᵀ for what reads from one
    boundary_scales  c > 0 at every boundary but 0: writers and their bias times c. The function stays up to ε of the
                     LayerNorm
    logits           logits times c > 0, plus the same number for all classes: accuracy stays, the loss does not

A *boundary* is a LayerNorm with the tensors that write into it and those that read from it. LN(x) =
√D·Cx / √(‖Cx‖² + D·ε) with C = I − 11ᵀ/D: C takes out what writer shifts add, and readers are applied to vectors of
mean zero. There are 2·blocks + 1 boundaries, numbered along the way: 0 is the input of block 0, 1 lies inside block 0,
2 between blocks 0 and 1, 3 inside block 1, and the last one before the classifier. At boundary 0 the basis is pinned,
by the sinusoidal positions and by the word vectors.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from zoo import TransformerSpec, TransformerWeights

Part = Literal[
    "heads",
    "query_key",
    "value_output",
    "units",
    "unit_scales",
    "rotations",
    "writer_shifts",
    "reader_shifts",
    "boundary_scales",
    "logits",
]
_PARTS: tuple[Part, ...] = get_args(Part)


def available_parts(spec: TransformerSpec) -> tuple[Part, ...]:
    """The parts that leave the accuracy of this transformer alone, in the order of ``_PARTS``.

    Residual connections x + f(LN(x)) join all boundaries to the first, whose basis and scale are pinned: no rotations
    and no boundary scales. Gains and biases of LayerNorms, tensors with ``norm`` in their name, pin the basis and give
    LN's output a mean: no rotations and no reader shifts. Any other tensor is refused, since its symmetry is unknown.
    """
    all_boundaries = _boundaries(spec)
    at_boundaries = {name for boundary in all_boundaries for name in (*boundary.writers, *boundary.readers)}
    pinned = all(boundary.pinned for boundary in all_boundaries)
    missing: set[Part] = {"rotations", "boundary_scales"} if pinned else set()
    for name in spec.tensors:
        if "norm" in name:
            missing |= {"rotations", "reader_shifts"}
        elif name not in at_boundaries and not name.endswith("fc1.bias") and not name.startswith("classifier.fc2."):
            raise ValueError(
                f"the symmetry of a transformer of {spec.task} is not known: no rule covers its tensor {name}"
            )
    return tuple(part for part in _PARTS if part not in missing)


def check_parts(spec: TransformerSpec, parts: Iterable[str] | None) -> tuple[Part, ...]:
    """The parts in the order of ``_PARTS``; for None all that leave the function alone, which is all but ``logits``."""
    available = available_parts(spec)
    if parts is None:
        return tuple(part for part in available if part != "logits")
    wanted = {parts} if isinstance(parts, str) else set(parts)
    if unknown := sorted(wanted - set(_PARTS)):
        raise ValueError(f"the group has no part {unknown[0]!r}: its parts are {', '.join(_PARTS)}")
    if absent := sorted(wanted - set(available)):
        raise ValueError(f"a transformer of {spec.task} has no {absent[0]}: it has {', '.join(available)}")
    return tuple(part for part in available if part in wanted)


@dataclass(frozen=True)
class _Boundary:
    """One LayerNorm. Names are those of ``spec.tensors``; a frozen embedding writes too but has no name there.

    Writers have the D axis first, readers last, as torch stores them. The basis of a ``pinned`` boundary is fixed from
    outside, by positions and word vectors that do not move with the weights.
    """

    writers: tuple[str, ...]  # matrices and biases
    readers: tuple[str, ...]
    pinned: bool


def _boundaries(spec: TransformerSpec) -> tuple[_Boundary, ...]:
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
        _Boundary(
            writers=sum(written[: index + 1], ()) if spec.residual else written[index],
            readers=readers,
            pinned=spec.residual or index == 0,
        )
        for index, readers in enumerate(read)
    )


def shift_component(
    weights: TransformerWeights, parts: Collection[str] = ("writer_shifts", "reader_shifts")
) -> Float[Tensor, "*batch d"]:
    """The component of the weights along the shifts among ``parts``, a flat vector.

    It is the mean along the D axis of writers and of readers, which no LayerNorm lets through, for ``logits`` the mean
    over classes of the last layer, which changes no argmax, and zero in every other tensor. The map is the orthogonal
    projection onto the shifts, so weights minus this are centered.
    """
    spec, flat = weights.spec, weights.flat()
    axes: dict[str, int] = {}
    for boundary in _boundaries(spec):
        if "writer_shifts" in parts:
            axes |= {name: -len(spec.tensors[name].shape) for name in boundary.writers}
        if "reader_shifts" in parts:
            axes |= dict.fromkeys(boundary.readers, -1)
    if "logits" in parts:
        axes |= {"classifier.fc2.weight": -2, "classifier.fc2.bias": -1}
    shifts = TransformerWeights.from_flat(spec, torch.zeros_like(flat), check_finite=False)
    for name, axis in axes.items():
        shifts[name].copy_(weights[name].mean(axis, keepdim=True))
    return shifts.flat()


def centered(
    weights: TransformerWeights, parts: Collection[str] = ("writer_shifts", "reader_shifts")
) -> TransformerWeights:
    """The weights without their shifts: the same function, and CW for writers, FC for readers."""
    flat = weights.flat() - shift_component(weights, parts)
    return TransformerWeights.from_flat(weights.spec, flat, check_finite=False)
