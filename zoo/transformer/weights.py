"""Weights of zoo transformers as tensors: views of the flat vector, never copies of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from zoo.transformer.spec import TransformerSpec

FlatLike = Tensor | np.ndarray | Sequence[float]
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class BlockWeights:
    """An element U of the paper's weight space (eq:U_element), with any leading dimensions.

    Matrices stand in the paper's orientation, acting on row vectors from the right: X·W. As attributes of a
    ``TransformerWeights`` they are views of the flat vector.
    """

    query: Float[Tensor, "*batch h D D_k"]
    key: Float[Tensor, "*batch h D D_k"]
    value: Float[Tensor, "*batch h D D_v"]
    output: Float[Tensor, "*batch h D_v D"]
    weight_a: Float[Tensor, "*batch D D_A"]
    weight_b: Float[Tensor, "*batch D_A D"]
    bias_a: Float[Tensor, "*batch D_A"]
    bias_b: Float[Tensor, "*batch D"]

    def select(self, dim: int, index: int) -> "BlockWeights":
        """The same weights at one index of a leading dimension."""
        return self.map(lambda tensor: tensor.select(dim, index))

    def map(self, function) -> "BlockWeights":
        """``function`` applied to each of the eight tensors."""
        return type(self)(**{field.name: function(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True, repr=False)
class TransformerWeights:
    """The weights of one transformer, or of a batch of them over leading dimensions, as one flat tensor [..., d].

    Immutable: no method writes to the tensor, which may be a read-only memory map, and no other code should.
    """

    spec: TransformerSpec
    _flat: Float[Tensor, "*batch d"]

    def __repr__(self) -> str:
        return f"<weights of {self.spec.task} {list(self._flat.shape)}, {self._flat.dtype}>"

    @classmethod
    def from_flat(cls, spec: TransformerSpec, flat: FlatLike, *, check_finite: bool = True) -> "TransformerWeights":
        """Wraps a flat vector [..., d] without copying it; only a list of Python floats, which has no such memory, is.

        Numbers beyond float32 are refused like infinity: their squares exceed float64. ``check_finite=False`` skips the
        one pass over the data, for vectors that were verified before.
        """
        if not isinstance(flat, Tensor):
            flat = torch.from_numpy(flat) if isinstance(flat, np.ndarray) else torch.tensor(flat, dtype=torch.float32)
        if flat.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"weights must be float32 or float64, got {flat.dtype}")
        if flat.ndim == 0 or flat.shape[-1] != spec.num_parameters:
            raise ValueError(
                f"transformers of {spec.task} have {spec.num_parameters:,} weights along the last dimension, "
                f"got shape {tuple(flat.shape)}"
            )
        weights = cls(spec, flat)
        if check_finite and not bool((flat.abs() <= _LARGEST).all()):
            bad = next(name for name in spec.tensors if not bool((weights[name].abs() <= _LARGEST).all()))
            what = "numbers beyond float32" if bool(torch.isfinite(flat).all()) else "NaN or infinity"
            raise ValueError(f"weights hold {what}, first in {bad}: such a run has diverged")
        return weights

    @classmethod
    def from_state_dict(cls, spec: TransformerSpec, state: Mapping[str, Tensor]) -> "TransformerWeights":
        """Gathers the tensors of a ``state_dict``, batched or not, into one flat vector."""
        missing, surplus = spec.tensors.keys() - state.keys(), state.keys() - spec.tensors.keys()
        if missing or surplus:
            raise ValueError(f"state_dict does not fit: missing {sorted(missing)}, unexpected {sorted(surplus)}")
        parts = []
        for name, slot in spec.tensors.items():
            if tuple(state[name].shape[-len(slot.shape) :]) != slot.shape:
                raise ValueError(f"{name} must end in shape {slot.shape}, got {tuple(state[name].shape)}")
            parts.append(state[name].detach().flatten(-len(slot.shape)))
        if len({(part.dtype, part.shape[:-1]) for part in parts}) > 1:
            raise ValueError("the tensors of a state_dict must share one dtype and the same leading dimensions")
        return cls.from_flat(spec, torch.cat(parts, dim=-1))

    def flat(self) -> Float[Tensor, "*batch d"]:
        """The flat tensor itself, not a copy."""
        return self._flat

    def state_dict(self) -> dict[str, Tensor]:
        """Name → view of the flat tensor, in torch's orientation."""
        return {name: self[name] for name in self.spec.tensors}

    def __getitem__(self, name: str) -> Tensor:
        """One tensor by its name in ``spec.tensors``, as a view [..., *shape]."""
        if name not in self.spec.tensors:
            raise KeyError(f"no tensor {name!r}: transformers of {self.spec.task} have {', '.join(self.spec.tensors)}")
        slot = self.spec.tensors[name]
        return self._flat[..., slot.slice].unflatten(-1, slot.shape)

    @property
    def batch_shape(self) -> torch.Size:
        return self._flat.shape[:-1]

    @property
    def encoder(self) -> BlockWeights:
        """All blocks at once, stacked along a new last leading dimension: query is [..., blocks, h, D, D_k]. Views."""
        return BlockWeights(
            query=self._per_head("query.weight"),
            key=self._per_head("key.weight"),
            value=self._per_head("value.weight"),
            output=self._of_all_blocks("output.weight").mT.unflatten(-2, (self.spec.heads, -1)),
            weight_a=self._of_all_blocks("fc1.weight").mT,
            weight_b=self._of_all_blocks("fc2.weight").mT,
            bias_a=self._of_all_blocks("fc1.bias"),
            bias_b=self._of_all_blocks("fc2.bias"),
        )

    def _of_all_blocks(self, name: str) -> Tensor:
        """A tensor of every block, [..., blocks, *shape]."""
        encoder, slot = self.spec.components["encoder"], self.spec.tensors[f"blocks.0.{name}"]
        stacked = self._flat[..., encoder].unflatten(-1, (self.spec.blocks, self.spec.block_size))
        start = slot.offset - encoder.start
        return stacked[..., start : start + slot.size].unflatten(-1, slot.shape)

    def _per_head(self, name: str) -> Tensor:
        """[h·D_k, D] → [h, D, D_k]"""
        return self._of_all_blocks(name).unflatten(-2, (self.spec.heads, -1)).mT

    @property
    def blocks(self) -> tuple[BlockWeights, ...]:
        """Each block on its own: ``weights.blocks[i].query`` is [..., h, D, D_k]. Views."""
        encoder, dim = self.encoder, len(self.batch_shape)
        return tuple(encoder.select(dim, i) for i in range(self.spec.blocks))

    def with_encoder(self, encoder: BlockWeights) -> "TransformerWeights":
        """A copy of these weights whose blocks are ``encoder`` (stacked as in ``.encoder``); the rest is unchanged."""
        projections = (encoder.query.mT, encoder.key.mT, encoder.value.mT)
        tensors = [
            *(projection.flatten(-3) for projection in projections),
            encoder.output.flatten(-3, -2).mT.flatten(-2),
            encoder.weight_a.mT.flatten(-2),
            encoder.bias_a,
            encoder.weight_b.mT.flatten(-2),
            encoder.bias_b,
        ]
        owned = self.spec.components["encoder"]
        parts = [self._flat[..., : owned.start], torch.cat(tensors, dim=-1).flatten(-2), self._flat[..., owned.stop :]]
        return type(self).from_flat(self.spec, torch.cat(parts, dim=-1), check_finite=False)
