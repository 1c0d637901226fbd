"""What comparing two checkpoints gives, for either group."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from zoo import TransformerWeights

Element = TypeVar("Element")


@dataclass(frozen=True)
class Match(Generic[Element]):
    """The element g with g·u = v, or the reason why there is none."""

    element: Element | None
    reason: str | None

    def __bool__(self) -> bool:
        return self.element is not None


class NoMatch(Exception):
    """A condition that fails; its text is the reason a ``Match`` gives."""


def check_pair(u: TransformerWeights, v: TransformerWeights) -> None:
    """Refuses what is not two single checkpoints of finite weights and the same dimensions."""
    if u.spec != v.spec:
        raise ValueError("only transformers of the same dimensions can be compared: the two specs differ")
    for weights in (u, v):
        if weights.batch_shape:
            raise ValueError(
                f"two single checkpoints are compared, got a batch of shape {tuple(weights.batch_shape)}: "
                "compare its rows one at a time"
            )
        TransformerWeights.from_flat(weights.spec, weights.flat())
