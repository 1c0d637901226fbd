"""What the baselines read from a checkpoint: its flattened weights, and seven statistics of each tensor."""

from collections.abc import Sequence
from math import ceil, floor

import torch
from jaxtyping import Float
from torch import Tensor

from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.spec import COMPONENTS, Component

STATISTICS = ("mean", "variance", "minimum", "quantile_25", "median", "quantile_75", "maximum")


def check_components(spec: TransformerSpec, components: Sequence[str] | None) -> tuple[Component, ...]:
    """The components in the order of the flat vector; for None all that the spec has."""
    if components is None:
        return tuple(spec.components)
    unknown = [name for name in components if name not in COMPONENTS]
    if unknown or not components:
        raise ValueError(
            f"components must be some of {', '.join(COMPONENTS)}, got {', '.join(unknown) if unknown else 'none'}"
        )
    absent = [name for name in components if name not in spec.components]
    if absent:
        raise ValueError(
            f"{spec.task} transformers have no trainable {absent[0]}: choose from {', '.join(spec.components)}"
        )
    return tuple(name for name in spec.components if name in components)


def flat_features(
    weights: TransformerWeights, components: Sequence[str] | None = None
) -> Float[Tensor, "*batch features"]:
    """The weights of some components side by side, as the tree models read them. A view where they are contiguous."""
    chosen = check_components(weights.spec, components)
    flat = weights.flat()
    if chosen == tuple(weights.spec.components):
        return flat
    parts = [flat[..., weights.spec.components[name]] for name in chosen]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def component_tensors(spec: TransformerSpec, component: Component) -> tuple[str, ...]:
    """The names of a component's tensors."""
    part = spec.components[component]
    return tuple(name for name, slot in spec.tensors.items() if part.start <= slot.offset < part.stop)


def statistics(weights: TransformerWeights, component: Component) -> Float[Tensor, "*batch features"]:
    """Mean, variance and the 0, 25, 50, 75, 100 % quantiles of each tensor of a component (STATNN)."""
    parts = []
    for name in component_tensors(weights.spec, component):
        tensor = weights.flat()[..., weights.spec.tensors[name].slice]
        variance = tensor.var(-1, correction=min(1, tensor.shape[-1] - 1))  # of a single number, 0
        parts += [tensor.mean(-1), variance, *quartiles(tensor)]
    return torch.stack(parts, dim=-1)


def quartiles(x: Float[Tensor, "*batch n"]) -> list[Float[Tensor, "*batch"]]:
    """The 0, 25, 50, 75, 100 % quantiles, linear between neighbors; unlike ``torch.quantile``, vmap can batch it."""
    ordered = x.sort(dim=-1).values
    quantiles = []
    for quarter in range(5):
        position = quarter * (x.shape[-1] - 1) / 4
        below, above = floor(position), ceil(position)
        quantiles.append(torch.lerp(ordered[..., below], ordered[..., above], position - below))
    return quantiles
