"""The bytes of shared memory that the kernels take for a transformer, as their sources lay it out.

``TrainMemory`` of ``train_epoch.cu`` and ``EvaluateMemory`` of ``evaluate.cu`` are the layouts themselves; the emulator
compares both with what is computed here.
"""

from dataclasses import dataclass

from zoo.transformer.spec import TransformerSpec

HALF, FLOAT = 2, 4
TILE, ROWS = 16, 64  # token rows of a warp and of a sample; also the classes and recent samples there is room for
LINE = 128
EVALUATE_GROUPS = 4


def features(spec: TransformerSpec) -> int:
    """Numbers per token: the pixels of a patch, or a word vector."""
    return spec.dim if spec.patch_size is None else spec.channels * spec.patch_size**2


def matrix(rows: int, columns: int) -> int:
    return rows * columns * HALF


def aligned(size: int) -> int:
    return -(-size // LINE) * LINE


@dataclass(frozen=True)
class SharedMemory:
    """What a thread block has in shared memory, and so how it works."""

    samples_at_once: int
    keep_all: bool
    all_weights: bool

    def training(self, spec: TransformerSpec) -> int:
        buffers = 1 if spec.patch_size is None else 2
        recent = 3 * matrix(TILE, spec.dim) + matrix(TILE, TILE)
        group = token_sums(spec) + buffers * matrix(ROWS, features(spec))
        before = self.weights(spec) + recent + self.samples_at_once * group
        return aligned(before) + self.samples_at_once * self.sample(spec)

    def evaluation(self, spec: TransformerSpec) -> int:
        """With one place for the keys and values of all blocks; where there is room they lie apart."""
        group = token_sums(spec) + matrix(ROWS, features(spec)) + keys_and_values(spec)
        return self.weights(spec) + EVALUATE_GROUPS * group

    def weights(self, spec: TransformerSpec) -> int:
        blocks = spec.blocks if self.all_weights else 1
        block = 4 * matrix(spec.dim, spec.dim) + 2 * matrix(spec.hidden_dim, spec.dim)
        embedding = 0 if spec.patch_size is None else matrix(spec.dim, features(spec))
        classifier = matrix(spec.dim, spec.dim) + matrix(TILE, spec.dim)
        biases = 2 * spec.dim + blocks * (spec.hidden_dim + spec.dim) + TILE
        return aligned(blocks * block + embedding + classifier + biases * FLOAT)

    def sample(self, spec: TransformerSpec) -> int:
        """Nine places of token rows, two of hidden ones, and with ``keep_all`` more for each block and for a head's
        probabilities and their gradients."""
        narrow, wide = matrix(ROWS, spec.dim), matrix(ROWS, spec.hidden_dim)
        kept = 3 * narrow + wide
        size = kept + 6 * narrow + wide
        return size + (spec.blocks - 1) * kept + 2 * matrix(ROWS, ROWS) if self.keep_all else size


def keys_and_values(spec: TransformerSpec) -> int:
    return 2 * matrix(ROWS, spec.dim)


def token_sums(spec: TransformerSpec) -> int:
    return ROWS // TILE * spec.dim * FLOAT
