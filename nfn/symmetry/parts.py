"""The parts of a transformer's whole symmetry group, by name, and which of them a given transformer has.

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

At boundary 0 the basis is pinned, by the sinusoidal positions and by the word vectors.
"""

from collections.abc import Iterable
from typing import Literal, get_args

from zoo import TransformerSpec

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
PARTS: tuple[Part, ...] = get_args(Part)

BLOCK_TENSORS = {f"{name}.weight" for name in ("query", "key", "value", "output", "fc1", "fc2")} | {
    "fc1.bias",
    "fc2.bias",
}
OTHER_TENSORS = {"embedding.weight", "embedding.bias"} | {
    f"classifier.{layer}.{kind}" for layer in ("fc1", "fc2") for kind in ("weight", "bias")
}


def available_parts(spec: TransformerSpec) -> tuple[Part, ...]:
    """The parts that leave the accuracy of such a transformer alone, in the order of ``PARTS``.

    Residual connections x + f(LN(x)) join all boundaries to the first, whose basis and scale are pinned: no rotations
    and no boundary scales. Gains and biases of LayerNorms, tensors with ``norm`` in their name, pin the basis and give
    LN's output a mean: no rotations and no reader shifts. Any other tensor is refused, since nothing is known of it.
    """
    missing: set[Part] = set()
    if spec.residual:
        missing |= {"rotations", "boundary_scales"}
    for name in spec.tensors:
        if "norm" in name:
            missing |= {"rotations", "reader_shifts"}
        elif name not in OTHER_TENSORS and not (
            name.startswith("blocks.") and name.split(".", maxsplit=2)[2] in BLOCK_TENSORS
        ):
            raise ValueError(
                f"the symmetry of a transformer of {spec.task} is not known: nothing is written about {name} here"
            )
    return tuple(part for part in PARTS if part not in missing)


def check_parts(spec: TransformerSpec, parts: Iterable[str] | None) -> tuple[Part, ...]:
    """The parts in the order of ``PARTS``; for None all that leave the function alone, which is all but ``logits``."""
    available = available_parts(spec)
    if parts is None:
        return tuple(part for part in available if part != "logits")
    wanted = {parts} if isinstance(parts, str) else set(parts)
    if unknown := sorted(wanted - set(PARTS)):
        raise ValueError(f"the group has no part {unknown[0]!r}: its parts are {', '.join(PARTS)}")
    if absent := sorted(wanted - set(available)):
        raise ValueError(f"a transformer of {spec.task} has no {absent[0]}: it has {', '.join(available)}")
    return tuple(part for part in available if part in wanted)
