"""How much of the work a thread block does at a time, by the shared memory it may have.

Each variant is the same source with other constants (``model.cuh``). A run's bytes depend on the variant, as they depend
on the kind of GPU.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """Samples a block trains on at a time, and measures at a time; and whether it keeps all that their backward passes
    need in shared memory."""

    name: str
    shared_kibibytes: int
    samples_at_once: int
    evaluated_at_once: int
    keep_all: bool
    warp_tiles: int = 1

    @property
    def shared_bytes(self) -> int:
        return 1024 * self.shared_kibibytes

    def macros(self) -> list[tuple[str, str]]:
        """As ``model.cuh`` asks for them."""
        numbers = {
            "SHARED_BYTES": self.shared_bytes,
            "SAMPLES_AT_ONCE": self.samples_at_once,
            "EVALUATED_AT_ONCE": self.evaluated_at_once,
            "KEEP_ALL": int(self.keep_all),
            "WARP_TILES": self.warp_tiles,
        }
        return [(name, str(number)) for name, number in numbers.items()]


VARIANTS = (
    Variant("large", 227, samples_at_once=2, evaluated_at_once=4, keep_all=True),  # H100, H200, B200
    Variant("medium", 163, samples_at_once=2, evaluated_at_once=4, keep_all=False),  # A100
    Variant("small", 99, samples_at_once=1, evaluated_at_once=3, keep_all=False),  # RTX 3090, 4090 and 5090, A40, L40S
)
"""From the fastest to the one that needs least."""
LARGEST, SMALLEST = VARIANTS[0], VARIANTS[-1]


def best_variant(shared_bytes: int) -> Variant | None:
    """The first that fits into so much shared memory per block."""
    return next((variant for variant in VARIANTS if variant.shared_bytes <= shared_bytes), None)
