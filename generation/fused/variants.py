"""Which transformers the fused kernels can train, and in which variant: by dimensions, GPU and shared memory.

Each variant is the same source with other constants (``model.cuh``), for another amount of shared memory per thread
block. All give a run the same weights on the same GPU, bit for bit. Only the large one uses instructions newer than
sm_80's.

Four warps with 16 token rows each train on one example, and logits are one tile of 16 columns. Other dimensions are
those that divide into tiles of 16, as far as registers hold a warp's 16 rows and shared memory an example.
More than four heads or four blocks were not tried.

``TrainMemory`` of ``train_epoch.cu`` and ``EvaluateMemory`` of ``evaluate.cu`` lay out the shared memory; the emulator
compares them with the sizes that are computed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from generation.protocol import RunConfig
from zoo.command import missing
from zoo.transformer.spec import TransformerSpec

_HALF, _FLOAT = 2, 4
TILE, ROWS = 16, 64  # token rows of a warp and of an example; also the classes there is room for
RECENT = 16  # examples that the classifier's gradients are made of at a time
_LINE = 128
_LOSS, _TOTALS, _FACTS = 16, 16, 64  # bytes of a loss, of the sums of losses, and of an example's facts
_WINDOW_LOSSES = 8 * ROWS // TILE  # of eight windows of a language model, one from each warp
_WARP = 32
_NARROW_DIM, _NARROW_HIDDEN = 32, 64  # rows of which leave registers for 16 warps
_OLDEST = (8, 0)  # compute capability: matrix units of this kind, copies beside the work
_NEWER = (9, 0)  # and stores of matrices, registers that move between warps
_BLOCKS_IN_REGISTERS, _SIDES_IN_REGISTERS = 2, (32, 32, 64)
"""Blocks whose ``dim``, heads together and ``hidden_dim`` are the paper's have their gradients in registers for a whole
step: eight squares of 32 × 32 weights, one in each of eight warps or two in each of four. Those of others are
spilled to device memory."""
_LARGEST_BATCH = 1 << 16
_LIMITS = {"tokens": 64, "classes": 16, "blocks": 4, "heads": 4}
_LARGEST_VOCABULARY = 256  # a byte per token
_TILED_LIMITS = {"dim": 64, "key_dim": 64, "hidden_dim": 128}
_LARGEST_PATCH = _LARGEST_INNER = 64  # numbers of a patch, and of a token's heads side by side


def features(spec: TransformerSpec) -> int:
    """Numbers per token: the pixels of a patch, or a word vector; a tile where tokens are numbers of a vocabulary."""
    if spec.causal:
        return TILE
    return spec.dim if spec.patch_size is None else spec.channels * spec.patch_size**2


def _pitch(columns: int) -> int:
    """Bytes from a row to the next: its halves, rounded up to a power of two."""
    return _HALF << (max(columns, TILE) - 1).bit_length()


def _matrix(rows: int, columns: int) -> int:
    return rows * _pitch(columns)


def _input(spec: TransformerSpec) -> int:
    """Bytes of an example's tokens: 16 bits for each of a language model, with the one that follows."""
    return ROWS * _HALF if spec.causal else _matrix(ROWS, features(spec))


def _aligned(size: int, line: int = _LINE) -> int:
    return -(-size // line) * line


def _evaluate_groups(spec: TransformerSpec) -> int:
    """Examples that a thread block measures at a time, with four warps each."""
    narrow = max(spec.dim, _inner(spec)) <= _NARROW_DIM and spec.hidden_dim <= _NARROW_HIDDEN
    return 4 if narrow else 2


def _inner(spec: TransformerSpec) -> int:
    """Columns of queries, keys and values: all heads side by side."""
    return spec.heads * spec.key_dim


@dataclass(frozen=True)
class _SharedMemory:
    """The contents of a thread block's shared memory, which decide how it works."""

    examples_at_once: int
    all_weights: bool
    take_turns: bool = False  # a block's MLP and attention, in their backward passes

    @property
    def warp_specialized(self) -> bool:
        """Whether there are three examples, whose warps leave the gradients to consumer warps."""
        return self.examples_at_once == 3

    def training(self, spec: TransformerSpec) -> int:
        buffers = 1 if spec.patch_size is None and not spec.causal else 2
        recent = 0 if spec.causal else 3 * _matrix(TILE, spec.dim) + _matrix(TILE, TILE)
        group = (0 if spec.causal else _token_sums(spec)) + buffers * _input(spec)
        losses = self.examples_at_once * ROWS // TILE
        if self.warp_specialized:
            recent, losses = 2 * recent, 2 * TILE
            group += _producer_storage(spec)
        if spec.causal:
            losses = _WINDOW_LOSSES
        before = self.weights(spec) + recent + _aligned(losses * _LOSS + _TOTALS) + self.examples_at_once * group
        line = max(_LINE, _pitch(spec.hidden_dim))
        return _aligned(before, line) + self.examples_at_once * self.example(spec)

    def evaluation(self, spec: TransformerSpec) -> int:
        """With room for the keys and values of one block; where there is more, those of all blocks lie apart."""
        group = _token_sums(spec) + _input(spec) + 2 * _matrix(ROWS, _inner(spec))
        return self.weights(spec) + _evaluate_groups(spec) * group

    def weights(self, spec: TransformerSpec) -> int:
        blocks = spec.blocks if self.all_weights else 1
        attention = 3 * _matrix(_inner(spec), spec.dim) + _matrix(spec.dim, _inner(spec))
        block = attention + _matrix(spec.hidden_dim, spec.dim) + _matrix(spec.dim, spec.hidden_dim)
        embedding = 0 if spec.patch_size is None else _matrix(spec.dim, features(spec))
        classifier = _matrix(spec.dim, spec.dim) + _matrix(TILE, spec.dim)
        if spec.causal:
            classifier = _matrix(_vocabulary_rows(spec), spec.dim)
        biases = 2 * spec.dim + blocks * (spec.hidden_dim + spec.dim) + TILE
        return _aligned(blocks * block + embedding + classifier + biases * _FLOAT)

    def example(self, spec: TransformerSpec) -> int:
        """Token rows that a block keeps for its backward pass, and its gradients. A head's probabilities and their
        gradients share their memory with hidden rows; so do keys and values of the block before."""
        rows, heads, hidden = (_matrix(ROWS, columns) for columns in (spec.dim, _inner(spec), spec.hidden_dim))
        scores = _matrix(ROWS, ROWS)
        kept = 2 * rows + heads
        if self.take_turns:
            attention = 3 * heads + rows + max(heads, rows) + 2 * scores
            return rows + heads + max(2 * rows + 2 * hidden, attention)
        before = max(scores, 2 * heads if spec.blocks > 1 else 0)
        gradients, last = 2 * rows + max(heads, rows), max(hidden, before)
        logits = rows + _vocabulary_rows(spec) // TILE * _matrix(ROWS, TILE) if spec.causal else 0
        if self.warp_specialized:  # the logits' rows are there beside the last MLP's
            gradients, logits = max(gradients, rows + logits), 0
        return kept + max(hidden, scores) + 3 * heads + max(gradients + last, logits)


def _vocabulary_rows(spec: TransformerSpec) -> int:
    return -(-spec.classes // TILE) * TILE


def _producer_storage(spec: TransformerSpec) -> int:
    """Facts and dropout masks of an example and of the next one, and what its warps keep of a block."""
    turn = _FACTS + (1 + spec.blocks) * _WARP * ROWS // TILE * _FLOAT
    return 2 * turn + (2 + spec.heads) * ROWS * _FLOAT


def _token_sums(spec: TransformerSpec) -> int:
    return ROWS // TILE * spec.dim * _FLOAT


@dataclass(frozen=True)
class Variant:
    """A name for an amount of shared memory per thread block, and the least compute capability."""

    name: str
    shared_kibibytes: int
    capability: tuple[int, int]

    @property
    def shared_bytes(self) -> int:
        return 1024 * self.shared_kibibytes

    def use(self, spec: TransformerSpec) -> _SharedMemory | None:
        """The fastest way to use this much for this transformer; None if it is too little."""
        runs = (use for use in _ways(spec) if self.capability >= _NEWER or not use.warp_specialized)  # registers move
        return next((use for use in runs if max(use.training(spec), use.evaluation(spec)) <= self.shared_bytes), None)

    def shared_memory(self, spec: TransformerSpec) -> _SharedMemory:
        """The same for a transformer that is known to fit."""
        use = self.use(spec)
        assert use is not None, "obstacle() was checked first"
        return use

    @property
    def suffix(self) -> str:
        """The end of the architecture's name: registers that move between warps are not promised for later ones."""
        return "a" if self.capability >= _NEWER else ""

    def fits(self, spec: TransformerSpec, shared_bytes: int, capability: tuple[int, int]) -> bool:
        """Whether a GPU with this much shared memory per thread block can run it, and it fits this transformer."""
        runs = self.shared_bytes <= shared_bytes and self.capability <= capability
        return runs and self.use(spec) is not None

    def macros(self, spec: TransformerSpec) -> list[tuple[str, str]]:
        """The macros that ``model.cuh`` describes."""
        use = self.shared_memory(spec)
        numbers = {
            "EVALUATE_GROUPS": _evaluate_groups(spec),
            "SHARED_BYTES": self.shared_bytes,
            "EXAMPLES_AT_ONCE": use.examples_at_once,
            "ALL_WEIGHTS": int(use.all_weights),
            "TAKE_TURNS": int(use.take_turns),
            "SPILL_GRADIENTS": int(_spill_gradients(spec)),
            "HAS_STMATRIX": int(self.capability >= _NEWER),
        }
        return [(name, str(number)) for name, number in numbers.items()]


_VARIANTS = (
    Variant("large", 227, capability=_NEWER),
    Variant("medium", 163, capability=_OLDEST),
    Variant("small", 99, capability=_OLDEST),
)
"""From the fastest to the one that needs least: H100, H200 and B200; A100; RTX 3090, 4090 and 5090, A40, L40S."""
_LARGEST, _SMALLEST = _VARIANTS[0], _VARIANTS[-1]


def _spill_gradients(spec: TransformerSpec) -> bool:
    """Whether weight gradients are spilled to device memory between examples, instead of staying in registers."""
    sides = spec.dim, _inner(spec), spec.hidden_dim
    patches = spec.patch_size is not None and features(spec) != TILE
    return spec.blocks > _BLOCKS_IN_REGISTERS or sides != _SIDES_IN_REGISTERS or patches


def _ways(spec: TransformerSpec) -> list[_SharedMemory]:
    """From the fastest: more examples at a time are worth more than keeping the weights of all blocks at hand; where
    attention and MLP take turns, some warps have no gradients to add."""
    if not _spill_gradients(spec):
        return [_SharedMemory(examples, all_weights=True) for examples in (3, 2, 1)]
    whole = [_SharedMemory(examples, all_weights) for examples in (2, 1) for all_weights in (True, False)]
    return whole if spec.causal else [*whole, replace(whole[-1], take_turns=True)]


def _smallest_variant(spec: TransformerSpec) -> Variant | None:
    """The one that needs least of a GPU and has room for this transformer."""
    return next((variant for variant in reversed(_VARIANTS) if variant.use(spec)), None)


def best_variant(spec: TransformerSpec, shared_bytes: int, capability: tuple[int, int]) -> Variant | None:
    """The fastest that fits."""
    return next((variant for variant in _VARIANTS if variant.fits(spec, shared_bytes, capability)), None)


def variant_named(name: str) -> Variant:
    return next(variant for variant in _VARIANTS if variant.name == name)


def obstacle(
    spec: TransformerSpec, configs: Sequence[RunConfig], device: torch.device, variant: Variant | None = None
) -> str | None:
    """Why the kernels cannot train these runs of this transformer on this device, in one line; None if they can.

    In the best variant, unless one is given.
    """
    batch = configs[0].protocol.batch_size
    if found := misfits(spec):
        return "; ".join(found)
    if batch % RECENT or batch >= _LARGEST_BATCH:
        return f"it needs a batch size that is a multiple of {RECENT} below {_LARGEST_BATCH}, got {batch}"
    if device.type != "cuda":
        return f"it needs a CUDA device, got {device}"
    properties = torch.cuda.get_device_properties(device)
    capability, shared_bytes = (properties.major, properties.minor), properties.shared_memory_per_block_optin
    if capability < _OLDEST:
        needed = ".".join(map(str, _OLDEST))
        return f"it needs compute capability {needed}, {properties.name} has {properties.major}.{properties.minor}"
    if best_variant(spec, shared_bytes, capability) is None:
        least = _smallest_variant(spec)
        assert least is not None, "whatever is within the limits fits the largest"
        return (
            f"it needs {least.shared_kibibytes} KiB of shared memory per thread block for this transformer, "
            f"{properties.name} has {shared_bytes // 1024} KiB"
        )
    if variant is not None and not variant.fits(spec, shared_bytes, capability):
        return f"its {variant.name} variant does not fit this transformer or {properties.name}"
    return missing("it", ["cuda.core", "cuda.bindings"])  # NVIDIA's runtime compiler


def misfits(spec: TransformerSpec) -> list[str]:
    """Dimensions of a transformer that the kernels cannot take, e.g. "it takes at most 4 blocks, this one has 6"."""
    limits = _LIMITS | ({"classes": _LARGEST_VOCABULARY} if spec.causal else {})
    sizes = [(name, limit, getattr(spec, name)) for name, limit in limits.items()]
    found = [f"it takes at most {limit} {name}, this one has {size}" for name, limit, size in sizes if size > limit]
    tiled = [(f"a {name} that is", limit, getattr(spec, name)) for name, limit in _TILED_LIMITS.items()]
    if spec.patch_size is not None:
        tiled.append(("patches whose channels × pixels are", _LARGEST_PATCH, features(spec)))
    found += [
        f"it takes {what} a multiple of {TILE} up to {limit}, this one has {size}"
        for what, limit, size in tiled
        if size % TILE or size > limit
    ]
    if spec.value_dim != spec.key_dim:
        found.append(f"it takes a value_dim that is the key_dim, this one has {spec.value_dim} and {spec.key_dim}")
    elif _inner(spec) > _LARGEST_INNER and not found:
        found.append(
            f"it takes heads of {_LARGEST_INNER} together at most, this one has {spec.heads} of {spec.key_dim}"
        )
    if spec.vocabulary is not None and not spec.causal:
        found.append("it takes learned word vectors in language models only, this one classifies texts")
    return found
