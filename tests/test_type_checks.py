"""Tests the tester: wrong types and shapes are found in every test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

from tests.type_checks import checked
from zoo import MNIST, TransformerWeights
from zoo.transformer.model import layer_norm


@checked
def product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    return transposed(transposed(a @ b))


@checked
def transposed(a: Float[Tensor, "n m"]) -> Float[Tensor, "m n"]:
    return a.T


@checked
def reflected(a: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    return a.T


@checked
def rows(a: Float[Tensor, "n m"], order: Int[Tensor, " n"]) -> Iterator[Float[Tensor, " m"]]:
    yield from a[order]


@checked
@dataclass
class Pair:
    a: Float[Tensor, " n"]
    b: Float[Tensor, " n"]


@checked
@dataclass
class Named:
    name: str


@checked
def length(text: "Nowhere", more: int) -> int:  # noqa: F821  # pyright: ignore
    return len(text) + more


def test_what_is_right_passes() -> None:
    assert product(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    assert reflected(torch.ones(3, 3)).shape == (3, 3)
    assert len(list(rows(torch.ones(2, 3), torch.tensor([1, 0])))) == 2
    assert Pair(torch.ones(2), torch.zeros(2)).a.sum() == 2
    assert length(Named("name").name, more=1) == 5


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (layer_norm, [torch.ones(2, 3, dtype=torch.int64)]),
        (TransformerWeights.from_flat, ["mnist", torch.zeros(MNIST.num_parameters)]),
        (product, [torch.ones(2, 3), torch.ones(3)]),
        (product, [torch.ones(2, 3), torch.ones(2, 4)]),
        (reflected, [torch.ones(2, 3)]),
        (rows, [torch.ones(2, 3), torch.tensor([0])]),
        (Pair, [torch.ones(2), torch.ones(3)]),
        (Named, [3]),
        (length, ["name", "more"]),
    ],
)
def test_what_is_wrong_is_found(function: Callable[..., Any], arguments: list[Any]) -> None:
    with pytest.raises((TypeError, TypeCheckError)):
        function(*arguments)
