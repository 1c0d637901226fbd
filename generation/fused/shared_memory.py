"""The bytes of shared memory that the kernels take for a transformer, as their sources lay it out.

``TrainMemory`` of ``train_epoch.cu`` and ``EvaluateMemory`` of ``evaluate.cu`` are the layouts themselves; the emulator
compares both with what is computed here.
"""

from dataclasses import dataclass

from zoo.transformer.spec import TransformerSpec

HALF, FLOAT = 2, 4
TILE, ROWS = 16, 64  # token rows of a warp and of a sample; also the classes and recent samples there is room for
LINE = 128
LOSS, TOTALS, FACTS = 16, 16, 64  # bytes of a sample's loss, of the sums of losses, and of a sample's facts
WARP = 32
TWO_SAMPLES, THREE_SAMPLES = 2, 3
NARROW_DIM, NARROW_HIDDEN = 32, 64  # rows of which leave registers for 16 warps


def features(spec: TransformerSpec) -> int:
    """Numbers per token: the pixels of a patch, or a word vector."""
    return spec.dim if spec.patch_size is None else spec.channels * spec.patch_size**2


def pitch(columns: int) -> int:
    """Bytes from a row to the next: its halves, rounded up to a power of two."""
    return HALF << (max(columns, TILE) - 1).bit_length()


def matrix(rows: int, columns: int) -> int:
    return rows * pitch(columns)


def aligned(size: int, line: int = LINE) -> int:
    return -(-size // line) * line


def evaluate_groups(spec: TransformerSpec) -> int:
    """Samples that a thread block measures at a time, with four warps each."""
    narrow = max(spec.dim, inner(spec)) <= NARROW_DIM and spec.hidden_dim <= NARROW_HIDDEN
    return 4 if narrow else 2


def inner(spec: TransformerSpec) -> int:
    """Columns of queries, keys and values: all heads side by side."""
    return spec.heads * spec.key_dim


@dataclass(frozen=True)
class SharedMemory:
    """What a thread block has in shared memory, and so how it works."""

    samples_at_once: int
    all_weights: bool
    take_turns: bool = False  # a block's MLP and attention, in their backward passes

    @property
    def roles(self) -> bool:
        """Whether three samples leave the gradients to other warps."""
        return self.samples_at_once == THREE_SAMPLES

    def training(self, spec: TransformerSpec) -> int:
        buffers = 1 if spec.patch_size is None else 2
        recent = 3 * matrix(TILE, spec.dim) + matrix(TILE, TILE)
        group = token_sums(spec) + buffers * matrix(ROWS, features(spec))
        losses = self.samples_at_once * ROWS // TILE
        if self.roles:
            recent, losses = 2 * recent, 2 * TILE
            group += handouts(spec)
        before = self.weights(spec) + recent + aligned(losses * LOSS + TOTALS) + self.samples_at_once * group
        line = max(LINE, pitch(spec.hidden_dim))
        return aligned(before, line) + self.samples_at_once * self.sample(spec)

    def evaluation(self, spec: TransformerSpec) -> int:
        """With one place for the keys and values of all blocks; where there is room they lie apart."""
        group = token_sums(spec) + matrix(ROWS, features(spec)) + keys_and_values(spec)
        return self.weights(spec) + evaluate_groups(spec) * group

    def weights(self, spec: TransformerSpec) -> int:
        blocks = spec.blocks if self.all_weights else 1
        attention = 3 * matrix(inner(spec), spec.dim) + matrix(spec.dim, inner(spec))
        block = attention + matrix(spec.hidden_dim, spec.dim) + matrix(spec.dim, spec.hidden_dim)
        embedding = 0 if spec.patch_size is None else matrix(spec.dim, features(spec))
        classifier = matrix(spec.dim, spec.dim) + matrix(TILE, spec.dim)
        biases = 2 * spec.dim + blocks * (spec.hidden_dim + spec.dim) + TILE
        return aligned(blocks * block + embedding + classifier + biases * FLOAT)

    def sample(self, spec: TransformerSpec) -> int:
        """Token rows that a block keeps for its backward pass, and its gradients. A head's probabilities and their
        gradients have places where hidden rows are at other times; so have keys and values of the block before."""
        rows, heads, hidden = (matrix(ROWS, columns) for columns in (spec.dim, inner(spec), spec.hidden_dim))
        scores = matrix(ROWS, ROWS)
        kept = 2 * rows + heads
        gradients = 3 * heads + 2 * rows + max(heads, rows)
        if self.take_turns:
            attention = 3 * heads + rows + max(heads, rows) + 2 * scores
            return rows + heads + max(2 * rows + 2 * hidden, attention)
        before = max(scores, 2 * heads if spec.blocks > 1 else 0)
        return kept + max(hidden, scores) + gradients + max(hidden, before)


def keys_and_values(spec: TransformerSpec) -> int:
    return 2 * matrix(ROWS, inner(spec))


def handouts(spec: TransformerSpec) -> int:
    """What the warps of a sample are told of it and of the next, and what they remember of a block."""
    turn = FACTS + (1 + spec.blocks) * WARP * ROWS // TILE * FLOAT
    return 2 * turn + (2 + spec.heads) * ROWS * FLOAT


def token_sums(spec: TransformerSpec) -> int:
    return ROWS // TILE * spec.dim * FLOAT
