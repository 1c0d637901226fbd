"""The parts of a transformer's whole symmetry group, by name, and the boundaries at which they act.

The paper's group leaves out most of the freedom of the zoo's transformers. Their LayerNorms have neither gain nor bias,
so that the basis of what a LayerNorm reads is free wherever nothing from outside pins it.

    heads            the order of the heads of each block
    query_key        W_Q and W_K of each head by GL(D_k)
    value_output     W_V and W_O of each head by GL(D_v)
    units            the order of the ReLU units of each MLP and of the classifier
    unit_scales      λ > 0 for each ReLU unit: its row and bias times λ, its column divided by λ
    rotations        R ∈ O(D) with R1 = 1, a copy of O(D−1), at every free boundary: RW and Rb for what writes into it,
                     FRᵀ for what reads from it
    writer_shifts    W + 1vᵀ and b + c1 for what writes into a boundary
    reader_shifts    F + u1ᵀ for what reads from one
    token_shifts     v added to every row of a learned embedding and taken from every row of its positions
    class_shifts     a vector added to every row of a language model's unembedding: logits move, log probabilities stay
    boundary_scales  c > 0 at every free boundary: writers and their bias times c. The function stays up to ε of the
                     LayerNorm
    logits           logits times c > 0, plus the same number for all classes: accuracy stays, the loss does not

A *boundary* is a space R^D with the tensors that write into it and those that read from it through a LayerNorm.
LN(x) = √D·Cx / √(‖Cx‖² + D·ε) with C = I − 11ᵀ/D: C takes out what writer shifts add, and readers are applied to
vectors of mean zero. ``boundaries`` lists them, and everything else follows from that list:

    no residual connections  2·blocks + 1 boundaries along the way: the input of block 0, inside block 0, between blocks
                             0 and 1, inside block 1, …, before the classifier
    residual connections     one boundary, the stream that every step adds to
    learned tokens           the input is weights: no basis is pinned. Sinusoidal positions, word vectors and patches
                             with such positions pin the basis and the scale of the boundary that they write into
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    "token_shifts",
    "class_shifts",
    "boundary_scales",
    "logits",
]
_PARTS: tuple[Part, ...] = get_args(Part)


def available_parts(spec: TransformerSpec) -> tuple[Part, ...]:
    """The parts that leave the accuracy of this transformer alone, in the order of ``_PARTS``.

    Gains and biases of LayerNorms, tensors with ``norm`` in their name, pin the basis and give LN's output a mean: no
    rotations and no reader shifts. Any other tensor without a rule is refused, since its symmetry is unknown.
    """
    all_boundaries = boundaries(spec)
    at_boundaries = {name for boundary in all_boundaries for name in (*boundary.writers, *boundary.readers)}
    missing: set[Part] = set() if free_boundaries(spec) else {"rotations", "boundary_scales"}
    missing |= set() if spec.causal else {"class_shifts"}
    missing |= set() if spec.vocabulary is not None else {"token_shifts"}
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
class Boundary:
    """Who writes into one space R^D and who reads from it, by the names of ``spec.tensors``.

    A frozen embedding writes too but has no name there. The basis of a ``pinned`` boundary is fixed from outside, by
    positions and word vectors that do not move with the weights.
    """

    writers: Mapping[str, int]  # matrices and biases, and which of their axes is D
    readers: tuple[str, ...]  # their last axis is D
    pinned: bool

    @property
    def named_writers(self) -> list[str]:
        """Learned tokens and positions, whose rows have names: no part of the group changes their order."""
        return [name for name, axis in self.writers.items() if axis == -1 and not name.endswith("bias")]


def owners(names: Iterable[str], tensor: str) -> list[str]:
    """The prefixes of the names that end so: of "blocks.0.fc2.weight" and "fc2.weight" it is "blocks.0"."""
    return [name.removesuffix(f".{tensor}") for name in names if name.endswith(f".{tensor}")]


@lru_cache
def boundaries(spec: TransformerSpec) -> tuple[Boundary, ...]:
    """All boundaries in order, the embedding's first. Residual connections join them to one."""
    learned = spec.vocabulary is not None
    inputs = [name for name in spec.tensors if name.startswith(("embedding.", "positions."))]
    written = [{name: -1 if learned else -len(spec.tensors[name].shape) for name in inputs}]
    read: list[tuple[str, ...]] = []
    for prefix in (f"blocks.{block}" for block in range(spec.blocks)):
        read.append(tuple(f"{prefix}.{name}.weight" for name in ("query", "key", "value")))
        written.append({f"{prefix}.output.weight": -2})
        read.append((f"{prefix}.fc1.weight",))
        written.append({f"{prefix}.fc2.weight": -2, f"{prefix}.fc2.bias": -1})
    read.append(("unembedding.weight" if spec.causal else "classifier.fc1.weight",))
    if spec.residual:
        writers = {name: axis for names in written for name, axis in names.items()}
        return (Boundary(writers, tuple(name for names in read for name in names), pinned=not learned),)
    return tuple(
        Boundary(writers, readers, pinned=index == 0 and not learned)
        for index, (writers, readers) in enumerate(zip(written, read, strict=True))
    )


def free_boundaries(spec: TransformerSpec) -> tuple[Boundary, ...]:
    """The boundaries with a basis and a scale that may change."""
    return tuple(boundary for boundary in boundaries(spec) if not boundary.pinned)


_SHIFTS: tuple[Part, ...] = ("writer_shifts", "reader_shifts", "token_shifts", "class_shifts")


def shift_component(weights: TransformerWeights, parts: Collection[str] = _SHIFTS) -> Float[Tensor, "*batch d"]:
    """The component of the weights along the shifts among ``parts``, a flat vector.

    It is the mean along the D axis of writers and of readers, which no LayerNorm lets through; the mean position, which
    the embedding can hold as well; the mean over the classes of the last layer, for ``class_shifts`` and for
    ``logits``; and zero in every other tensor. The map is a projection onto the shifts, so weights minus this are
    centered.
    """
    spec, flat = weights.spec, weights.flat()
    axes: dict[str, int] = {}
    for boundary in boundaries(spec):
        if "writer_shifts" in parts:
            axes |= boundary.writers
        if "reader_shifts" in parts:
            axes |= dict.fromkeys(boundary.readers, -1)
    if "logits" in parts and not spec.causal:
        axes |= {"classifier.fc2.weight": -2, "classifier.fc2.bias": -1}
    shifts = TransformerWeights.from_flat(spec, torch.zeros_like(flat), check_finite=False)
    for name, axis in axes.items():
        shifts[name].copy_(weights[name].mean(axis, keepdim=True))
    if "token_shifts" in parts and spec.vocabulary is not None:
        mean = (weights["positions.weight"] - shifts["positions.weight"]).mean(-2, keepdim=True)
        shifts["positions.weight"].add_(mean)
        shifts["embedding.weight"].sub_(mean)
    if spec.causal and not {"class_shifts", "logits"}.isdisjoint(parts):
        rest = weights["unembedding.weight"] - shifts["unembedding.weight"]
        shifts["unembedding.weight"].add_(rest.mean(-2, keepdim=True))
    return shifts.flat()


def centered(weights: TransformerWeights, parts: Collection[str] = _SHIFTS) -> TransformerWeights:
    """The weights without their shifts: the same function, and CW for writers, FC for readers."""
    flat = weights.flat() - shift_component(weights, parts)
    return TransformerWeights.from_flat(weights.spec, flat, check_finite=False)
