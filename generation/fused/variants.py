"""How much of the work a thread block does at a time, by the shared memory it may have.

Each variant is the same source with other constants (``model.cuh``). All give a run the same weights on the same GPU,
bit for bit. Only the large one uses instructions newer than sm_80's.
"""

from dataclasses import dataclass, replace

from generation.fused.shared_memory import TILE, SharedMemory, evaluate_groups, features, inner
from zoo.transformer.spec import TransformerSpec

OLDEST = (8, 0)  # compute capability: matrix units of this kind, copies beside the work
NEWER = (9, 0)  # and stores of matrices, registers that move between warps
BLOCKS_IN_REGISTERS, SIDES_IN_REGISTERS = 2, (32, 32, 64)
"""Blocks whose ``dim``, heads together and ``hidden_dim`` are the paper's have their gradients in registers for a whole
step: eight squares of 32 × 32 weights, one in each of eight warps or two in each of four. Those of others wait in
device memory."""


@dataclass(frozen=True)
class Variant:
    """A name for an amount of shared memory per thread block, and the least compute capability."""

    name: str
    shared_kibibytes: int
    capability: tuple[int, int]

    @property
    def shared_bytes(self) -> int:
        return 1024 * self.shared_kibibytes

    def use(self, spec: TransformerSpec) -> SharedMemory | None:
        """The fastest way to use so much for this transformer; None if it is too little."""
        runs = (use for use in ways(spec) if self.capability >= NEWER or not use.roles)  # roles: registers move
        return next((use for use in runs if needed_bytes(use, spec) <= self.shared_bytes), None)

    def shared_memory(self, spec: TransformerSpec) -> SharedMemory:
        """The same for a transformer that is known to fit."""
        use = self.use(spec)
        assert use is not None, "fit.obstacle says so"
        return use

    @property
    def suffix(self) -> str:
        """Of the architecture to compile for: registers that move between warps are not promised for later ones."""
        return "a" if self.capability >= NEWER else ""

    def fits(self, spec: TransformerSpec, shared_bytes: int, capability: tuple[int, int]) -> bool:
        """Whether a GPU with so much shared memory per block can run it and it has room for this transformer."""
        runs = self.shared_bytes <= shared_bytes and self.capability <= capability
        return runs and self.use(spec) is not None

    def macros(self, spec: TransformerSpec) -> list[tuple[str, str]]:
        """As ``model.cuh`` asks for them."""
        use = self.shared_memory(spec)
        numbers = {
            "EVALUATE_GROUPS": evaluate_groups(spec),
            "SHARED_BYTES": self.shared_bytes,
            "SAMPLES_AT_ONCE": use.samples_at_once,
            "ALL_WEIGHTS": int(use.all_weights),
            "TAKE_TURNS": int(use.take_turns),
            "GRADIENTS_WAIT": int(gradients_wait(spec)),
            "STORE_MATRICES": int(self.capability >= NEWER),
        }
        return [(name, str(number)) for name, number in numbers.items()]


VARIANTS = (
    Variant("large", 227, capability=NEWER),
    Variant("medium", 163, capability=OLDEST),
    Variant("small", 99, capability=OLDEST),
)
"""From the fastest to the one that needs least: H100, H200 and B200; A100; RTX 3090, 4090 and 5090, A40, L40S."""
LARGEST, SMALLEST = VARIANTS[0], VARIANTS[-1]


def gradients_wait(spec: TransformerSpec) -> bool:
    """Whether weight gradients wait in device memory between samples, instead of staying in registers."""
    sides = spec.dim, inner(spec), spec.hidden_dim
    patches = spec.patch_size is not None and features(spec) != TILE
    return spec.blocks > BLOCKS_IN_REGISTERS or sides != SIDES_IN_REGISTERS or patches


def ways(spec: TransformerSpec) -> list[SharedMemory]:
    """From the fastest: more samples at a time are worth more than keeping the weights of all blocks at hand, and where
    parts of a block take turns some warps have no gradients to add."""
    if not gradients_wait(spec):
        return [SharedMemory(samples, all_weights=True) for samples in (3, 2, 1)]
    whole = [SharedMemory(samples, all_weights) for samples in (2, 1) for all_weights in (True, False)]
    return [*whole, replace(whole[-1], take_turns=True)]


def needed_bytes(use: SharedMemory, spec: TransformerSpec) -> int:
    return max(use.training(spec), use.evaluation(spec))


def smallest_variant(spec: TransformerSpec) -> Variant | None:
    """The one that needs least of a GPU and has room for this transformer."""
    return next((variant for variant in reversed(VARIANTS) if variant.use(spec)), None)


def best_variant(spec: TransformerSpec, shared_bytes: int, capability: tuple[int, int]) -> Variant | None:
    """The fastest that fits."""
    return next((variant for variant in VARIANTS if variant.fits(spec, shared_bytes, capability)), None)


def variant_named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)
