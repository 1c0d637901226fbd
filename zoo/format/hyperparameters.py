"""The hyperparameters of a run: the one table that schema, grids, checks, card and command line read.

To add one, give it a field with a default below ``seed``, and use it where a run is trained: in
``generation/single.py``, in ``generation/population``, and in the kernels or ``obstacle`` of
``generation/fused/variants.py``, which names what they cannot train.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from msgspec import Meta

from zoo.checked import NotNegative, Positive, Seed, check_fields
from zoo.command import Option

if TYPE_CHECKING:
    Optimizer = str
else:
    Optimizer = Literal["sgd", "sgd_momentum", "adam", "rmsprop"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The settings that may differ between the runs of a config.

    A field's type has its range, and its ``Option`` the meaning. A grid may leave out what has a default here.
    """

    optimizer: Annotated[Optimizer, Option("sgd, sgd_momentum, adam or rmsprop", default="adam")]
    learning_rate: Annotated[Positive, Option("peak learning rate", default=1e-3)]
    weight_decay: Annotated[NotNegative, Option("L2 coefficient", default=1e-6)] = 0.0
    init_std: Annotated[
        Positive, Option("standard deviation of the truncated normal the weights start from", default=0.1)
    ]
    dropout: Annotated[float, Meta(ge=0, le=0.99), Option("dropout probability", default=0.1)] = 0.0
    train_fraction: Annotated[float, Meta(gt=0, le=1), Option("share of the training set used")] = 1.0
    seed: Annotated[
        Seed, Option("seed of initialization and dropout; subsets, batches and crops are the same for all runs")
    ] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def hyperparameters(self) -> dict[str, Any]:
        """The columns of the zoo that distinguish runs."""
        return {name: getattr(self, name) for name in HYPERPARAMETERS}


TYPES: dict[str, Any] = {
    field.name: get_type_hints(Hyperparameters, include_extras=True)[field.name] for field in fields(Hyperparameters)
}
"""Annotated types by name, in the order of the columns."""
HYPERPARAMETERS = tuple(TYPES)
CONFIGURATION = tuple(name for name in HYPERPARAMETERS if name != "seed")
"""The hyperparameters that repeats of one configuration share; they differ in the seed."""
LATER = {name: getattr(Hyperparameters, name) for name in HYPERPARAMETERS[HYPERPARAMETERS.index("seed") + 1 :]}
"""Hyperparameters that the first zoos did not have, and their defaults, which all rows of a table without them have."""
SHARED_SEED, DISTINCT_SEEDS = "shared", "distinct"
SEED_POLICIES = (SHARED_SEED, DISTINCT_SEEDS)
"""The policies that have a name. A number of repeats is a policy too."""
MIN_REPEATS, MAX_REPEATS = 2, 1000


def meaning_of(name: str) -> str:
    """The meaning of a hyperparameter, as the card of a zoo and ``--help`` show it."""
    return next(each.help for each in get_args(TYPES[name]) if isinstance(each, Option))


def repeats_of(seeds: str) -> int | None:
    """How often each configuration is trained, each time with another seed; None where it is trained once."""
    if seeds in SEED_POLICIES:
        return None
    # few digits: a manifest may hold any text
    number = int(seeds) if seeds.isascii() and seeds.isdecimal() and len(seeds) <= len(str(MAX_REPEATS)) else 0
    if not MIN_REPEATS <= number <= MAX_REPEATS or str(number) != seeds:
        raise ValueError(
            f"unknown seeds {seeds[:80]!r}: {', '.join(SEED_POLICIES)}, or how often to train each configuration, "
            f"{MIN_REPEATS} to {MAX_REPEATS}"
        )
    return number
