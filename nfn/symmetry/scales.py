"""Invariants as numbers that a network can read: on logarithmic scales, sorted, each product once."""

import torch
from jaxtyping import Float
from torch import Tensor


def logarithmic(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """sign(x)·log(1 + 10·|x|)."""
    return x.sign() * torch.log1p(10 * x.abs())


def descending(x: Float[Tensor, "..."], dim: int = -1) -> Float[Tensor, "..."]:
    return x.sort(dim=dim, descending=True).values


def over_heads(x: Float[Tensor, "*batch h count"]) -> Float[Tensor, "*batch numbers"]:
    """Each number sorted over the heads."""
    return descending(x, -2).flatten(-2)


def lower_triangle(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch numbers"]:
    """The entries of a symmetric matrix, each once."""
    row, column = torch.tril_indices(x.shape[-2], x.shape[-1], device=x.device)
    return x[..., row, column]


def spectrum(x: Float[Tensor, "*batch n m"], count: int | None = None) -> Float[Tensor, "*batch numbers"]:
    """The ``count`` largest singular values of x/√(1 + ‖x‖²) as ½·log(1 + 10⁴·σ²), the largest first, then ‖x‖ so.

    From the eigenvalues of the smaller Gram matrix, whose gradients are finite also where some are equal or zero. Their
    rounding errors are relative to the largest; divided by the size, that is to 1.
    """
    squared_size = x.square().sum((-2, -1))[..., None]
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    values = torch.linalg.eigvalsh(gram / (1 + squared_size[..., None])).flip(-1)[..., :count]
    return 0.5 * torch.log1p(1e4 * torch.cat([values.clamp_min(0), squared_size], dim=-1))


def symmetric_spectrum(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """The eigenvalues of the symmetric part of x/√(1 + ‖x‖²), which have a sign."""
    symmetric = (x + x.mT) / 2
    return torch.linalg.eigvalsh(symmetric / (1 + x.square().sum((-2, -1), keepdim=True)).sqrt())
