"""A zoo transformer: its dimensions and the layout of its flat weight vector.

The flat vector concatenates, row-major, the tensors of ``TransformerSpec.tensors`` in torch's own orientation
(``[out, in]``). Head ``s`` owns rows ``s·D_k`` to ``(s+1)·D_k − 1`` of query and key; with ``D_v`` likewise of
value and the columns of output. The blocks follow each other with a constant stride: one strided view.
"""

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from zoo.checked import Count, check_fields

Component = Literal["embedding", "encoder", "classifier"]
_MAX_BLOCKS, _MAX_TOKENS, _MAX_PARAMETERS = 1 << 10, 1 << 12, 1 << 28
"""Far above any zoo; a spec that came with a file cannot exceed them."""
_LATER = {"channels": 1, "residual": False, "vocabulary": None, "causal": False}
"""Fields that the first files do not have, and what they are there."""
COMPONENTS: tuple[Component, ...] = ("embedding", "encoder", "classifier")


class _TensorSlot(NamedTuple):
    """The slot of one tensor in the flat vector."""

    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class TransformerSpec:
    """Dimensions of a zoo transformer, in the paper's letters where it has one.

    A spec with a ``patch_size`` reads images of any sides that cut into ``tokens`` patches through a trainable
    convolution. One with a ``vocabulary`` reads numbers of tokens through a trainable embedding, with trainable
    positions. One with neither reads word vectors of a frozen embedding, with a mask. A ``causal`` transformer is a
    language model: no token attends to a later one, and the classes are those of the next token, at every position.
    """

    task: str
    classes: Count
    tokens: Count
    patch_size: Count | None = None
    dim: Count = 32  # D
    heads: Count = 2  # h
    key_dim: Count = 16  # D_k
    value_dim: Count = 16  # D_v
    hidden_dim: Count = 64  # D_A
    blocks: Count = 2
    channels: Count = 1  # of the images
    residual: bool = False  # x + f(LN(x)) instead of f(LN(x))
    vocabulary: Count | None = None  # V
    causal: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.patch_size is None and self.channels != 1:
            raise ValueError(f"channels are those of images, which need a patch_size: got {self.channels} without one")
        if self.patch_size is not None and self.vocabulary is not None:
            raise ValueError(f"patches are those of images, which have no vocabulary: got one of {self.vocabulary:,}")
        if self.causal and self.vocabulary != self.classes:
            raise ValueError(
                "a causal transformer predicts the next token: its classes are its vocabulary, "
                f"got {self.classes:,} and {self.vocabulary}"
            )
        if self.blocks > _MAX_BLOCKS or self.tokens > _MAX_TOKENS or self.num_parameters > _MAX_PARAMETERS:
            raise ValueError(
                f"a transformer of {self.blocks:,} blocks, {self.tokens:,} tokens and {self.num_parameters:,} weights "
                f"is not a small one: at most {_MAX_BLOCKS:,}, {_MAX_TOKENS:,} and {_MAX_PARAMETERS:,}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Cached properties cannot be copied or pickled; the dimensions determine them.
        return type(self), tuple(asdict(self).values())

    @cached_property
    def tensors(self) -> MappingProxyType[str, _TensorSlot]:
        """Name → shape and offset, in the order of the flat vector."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.patch_size is not None:
            shapes["embedding.weight"] = (self.dim, self.channels, self.patch_size, self.patch_size)
            shapes["embedding.bias"] = (self.dim,)
        if self.vocabulary is not None:
            shapes["embedding.weight"] = (self.vocabulary, self.dim)
            shapes["positions.weight"] = (self.tokens, self.dim)
        for i in range(self.blocks):
            shapes |= {f"blocks.{i}.{name}": shape for name, shape in self._block_shapes.items()}
        if self.causal:
            shapes["unembedding.weight"] = (self.classes, self.dim)
        else:
            shapes["classifier.fc1.weight"] = (self.dim, self.dim)
            shapes["classifier.fc1.bias"] = (self.dim,)
            shapes["classifier.fc2.weight"] = (self.classes, self.dim)
            shapes["classifier.fc2.bias"] = (self.classes,)
        offsets = accumulate(map(prod, shapes.values()), initial=0)
        return MappingProxyType(dict(zip(shapes, map(_TensorSlot, shapes.values(), offsets), strict=True)))

    @property
    def _block_shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "query.weight": (self.heads * self.key_dim, self.dim),
            "key.weight": (self.heads * self.key_dim, self.dim),
            "value.weight": (self.heads * self.value_dim, self.dim),
            "output.weight": (self.dim, self.heads * self.value_dim),
            "fc1.weight": (self.hidden_dim, self.dim),
            "fc1.bias": (self.hidden_dim,),
            "fc2.weight": (self.dim, self.hidden_dim),
            "fc2.bias": (self.dim,),
        }

    @cached_property
    def num_parameters(self) -> int:
        """Length d of the flat vector: every trainable parameter.

        Counted without the list of tensors, which a forged spec could make too long to write.
        """
        embedding = self.dim * (self.channels * self.patch_size**2 + 1) if self.patch_size else 0
        embedding += self.dim * (self.vocabulary + self.tokens) if self.vocabulary else 0
        head = self.classes * self.dim if self.causal else (self.dim + 1) * (self.dim + self.classes)
        return embedding + self.blocks * self.block_size + head

    @cached_property
    def block_size(self) -> int:
        """Parameters of one block: the stride between blocks in the flat vector."""
        return sum(prod(shape) for shape in self._block_shapes.values())

    @cached_property
    def components(self) -> MappingProxyType[Component, slice]:
        """The slices of the flat vector that each component owns; one without weights is absent.

        The unembedding of a language model is its classifier.
        """
        start = self.tensors["blocks.0.query.weight"].offset
        stop = start + self.blocks * self.block_size
        ends = ((0, start), (start, stop), (stop, self.num_parameters))
        return MappingProxyType(
            {name: slice(*both) for name, both in zip(COMPONENTS, ends, strict=True) if both != (0, 0)}
        )

    @property
    def unit_layers(self) -> tuple[str, ...]:
        """The prefixes of the layers with ReLU units: the MLP of every block, and the classifier where there is one."""
        return (*(f"blocks.{block}" for block in range(self.blocks)), *(() if self.causal else ("classifier",)))

    def to_dict(self) -> dict[str, Any]:
        """The dimensions as plain JSON-ready data; ``TransformerSpec(**spec.to_dict())`` is the same spec.

        Fields that older files do not have are left out where they are as in those.
        """
        return {name: value for name, value in asdict(self).items() if (name, value) not in _LATER.items()}


def differences(expected: TransformerSpec, actual: TransformerSpec) -> str:
    """In what two specs differ, e.g. "classes 10 and 4"."""
    pairs = [(field.name, getattr(expected, field.name), getattr(actual, field.name)) for field in fields(expected)]
    return ", ".join(f"{name} {a} and {b}" for name, a, b in pairs if a != b)


MNIST = TransformerSpec(task="mnist", classes=10, tokens=49, patch_size=4)
AGNEWS = TransformerSpec(task="agnews", classes=4, tokens=64)
SHAKESPEARE = TransformerSpec(task="shakespeare", classes=65, tokens=64, residual=True, vocabulary=65, causal=True)
PAPER_SPECS: MappingProxyType[str, TransformerSpec] = MappingProxyType({spec.task: spec for spec in (MNIST, AGNEWS)})
SPECS: MappingProxyType[str, TransformerSpec] = MappingProxyType({**PAPER_SPECS, SHAKESPEARE.task: SHAKESPEARE})


def spec_for(task: str) -> TransformerSpec:
    """The spec of a task by name."""
    if task not in SPECS:
        raise ValueError(f"unknown task {task!r}: the zoo has {' and '.join(SPECS)}")
    return SPECS[task]
