"""How much of the work a thread block does at a time, by the shared memory it may have.

Each variant is the same source with other constants (``model.cuh``). A run's bytes depend on the variant, as they depend
on the kind of GPU.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """Samples a block trains on at a time, tiles of 16 token rows in one warp, and samples it measures at a time."""

    name: str
    shared_kibibytes: int
    samples_at_once: int
    warp_tiles: int
    evaluated_at_once: int

    @property
    def shared_bytes(self) -> int:
        return 1024 * self.shared_kibibytes

    def macros(self) -> list[tuple[str, str]]:
        """As ``model.cuh`` asks for them."""
        numbers = {
            "SHARED_BYTES": self.shared_bytes,
            "SAMPLES_AT_ONCE": self.samples_at_once,
            "WARP_TILES": self.warp_tiles,
            "EVALUATED_AT_ONCE": self.evaluated_at_once,
        }
        return [(name, str(number)) for name, number in numbers.items()]


VARIANTS = (
    Variant("large", 227, samples_at_once=4, warp_tiles=2, evaluated_at_once=8),  # H100, H200, B200
    Variant("medium", 163, samples_at_once=2, warp_tiles=1, evaluated_at_once=4),  # A100
    Variant("small", 99, samples_at_once=1, warp_tiles=1, evaluated_at_once=3),  # RTX 3090, 4090 and 5090, A40, L40S
)
"""From the fastest to the one that needs least."""
LARGEST, SMALLEST = VARIANTS[0], VARIANTS[-1]


def best_variant(shared_bytes: int) -> Variant | None:
    """The first that fits into so much shared memory per block."""
    return next((variant for variant in VARIANTS if variant.shared_bytes <= shared_bytes), None)
