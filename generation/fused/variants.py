"""How much of the work a thread block does at a time, by the shared memory it may have.

Each variant is the same source with other constants (``model.cuh``). All give a run the same weights on the same GPU,
bit for bit. Only the large one uses an instruction newer than sm_80's.
"""

from dataclasses import dataclass

OLDEST = (8, 0)  # compute capability: matrix units of this kind, copies beside the work


@dataclass(frozen=True)
class Variant:
    """Samples that a block trains on at a time, whether shared memory keeps all that their backward passes need,
    and the least compute capability."""

    name: str
    shared_kibibytes: int
    samples_at_once: int
    keep_all: bool
    capability: tuple[int, int]

    @property
    def shared_bytes(self) -> int:
        return 1024 * self.shared_kibibytes

    def macros(self) -> list[tuple[str, str]]:
        """As ``model.cuh`` asks for them."""
        numbers = {
            "SHARED_BYTES": self.shared_bytes,
            "SAMPLES_AT_ONCE": self.samples_at_once,
            "KEEP_ALL": int(self.keep_all),
            "STORE_MATRICES": int(self.capability >= (9, 0)),
        }
        return [(name, str(number)) for name, number in numbers.items()]


VARIANTS = (
    Variant("large", 227, samples_at_once=2, keep_all=True, capability=(9, 0)),
    Variant("medium", 163, samples_at_once=2, keep_all=False, capability=OLDEST),
    Variant("small", 99, samples_at_once=1, keep_all=False, capability=OLDEST),
)
"""From the fastest to the one that needs least: H100, H200 and B200; A100; RTX 3090, 4090 and 5090, A40, L40S."""
LARGEST, SMALLEST = VARIANTS[0], VARIANTS[-1]


def best_variant(shared_bytes: int, capability: tuple[int, int]) -> Variant | None:
    """The first that fits into so much shared memory per block and needs no newer GPU."""
    fitting = (v for v in VARIANTS if v.shared_bytes <= shared_bytes and v.capability <= capability)
    return next(fitting, None)


def variant_named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)
