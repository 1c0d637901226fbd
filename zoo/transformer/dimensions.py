"""Options of the commands that measure transformers with other dimensions than the paper's: --dim 64 --blocks 4."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from zoo.checked import Count
from zoo.command import Option
from zoo.transformer.spec import TransformerSpec

_Dimension = Annotated[Count | None, Option("instead of the paper's")]


@dataclass(frozen=True, kw_only=True)
class DimensionOptions:
    dim: _Dimension = None
    heads: _Dimension = None
    key_dim: _Dimension = None
    hidden_dim: _Dimension = None
    blocks: _Dimension = None
    residual: Annotated[bool, Option("with residual connections")] = False


_DIMENSIONS = tuple(field.name for field in fields(DimensionOptions))


def chosen_dimensions(options: dict[str, Any]) -> dict[str, int]:
    """The given dimensions, by name; residual connections if they were asked for."""
    return {name: options[name] for name in _DIMENSIONS if options[name] is not None and options[name] is not False}


def with_dimensions(spec: TransformerSpec, dimensions: dict[str, int]) -> TransformerSpec:
    """The spec with these dimensions; values are as long as keys."""
    return replace(spec, **dimensions, value_dim=dimensions.get("key_dim", spec.value_dim))
