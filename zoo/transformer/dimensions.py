"""Options of the commands that measure transformers with other dimensions than the paper's: --dim 64 --blocks 4."""

from dataclasses import dataclass, fields, replace
from typing import Annotated

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

    def chosen(self) -> dict[str, int]:
        """The given dimensions, by name; residual connections if they were asked for."""
        values = {field.name: getattr(self, field.name) for field in fields(DimensionOptions)}
        return {name: value for name, value in values.items() if value}

    def applied_to(self, spec: TransformerSpec) -> TransformerSpec:
        """The spec with these dimensions; values are as long as keys."""
        return replace(spec, **self.chosen(), value_dim=self.key_dim or spec.value_dim)
