"""How τ grows with the number of training rows: a curve through some sizes, and where it leads.

    τ(n) = τ∞ − a·n^(−b)     τ∞ ≤ 1,  a ≥ 0,  0.05 ≤ b ≤ 3

For a given b the curve is linear in τ∞ and a, so the least squares over them have a closed form, and b is the best of a
fine grid: no starting point, no step that fails, and the thousand curves of a bootstrap at once. A small b is close to
a logarithm; the bounds keep it from leading beyond the τ that a ranking can have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

LEAST_SIZES = 3  # as many as the curve has parameters
EXPONENTS = np.geomspace(0.05, 3.0, 800)


@dataclass(frozen=True)
class LearningCurves:
    """One curve per line of τ that it was fitted to."""

    limit: Float[np.ndarray, " m"]
    scale: Float[np.ndarray, " m"]
    exponent: Float[np.ndarray, " m"]

    @classmethod
    def fit(cls, sizes: Sequence[int], taus: Float[np.ndarray, "m s"]) -> "LearningCurves":
        """The least squares of each line; every size counts alike."""
        if len(set(sizes)) < LEAST_SIZES:
            raise ValueError(f"a learning curve needs {LEAST_SIZES} different numbers of rows, got {sorted(sizes)}")
        n = np.asarray(sizes, dtype=np.float64)
        unit = n.min()  # so that the powers of any b are near one
        x = (n[None, :] / unit) ** -EXPONENTS[:, None]
        mean_x, mean_tau = x.mean(1)[:, None], taus.mean(1)[None, :]
        slope = (x - mean_x) @ (taus - taus.mean(1, keepdims=True)).T / np.square(x - mean_x).sum(1)[:, None]
        scale = np.maximum(0.0, -slope)
        limit = mean_tau + scale * mean_x
        below_one = (x @ (1 - taus).T) / np.square(x).sum(1)[:, None]  # the best a where τ∞ is held at 1
        held = limit > 1
        scale, limit = np.where(held, np.maximum(0.0, below_one), scale), np.minimum(limit, 1.0)
        residual = limit[:, :, None] - scale[:, :, None] * x[:, None, :] - taus[None, :, :]
        best = np.square(residual).sum(2).argmin(0)
        lines = np.arange(len(taus))
        exponent = EXPONENTS[best]
        return cls(limit[best, lines], scale[best, lines] * unit**exponent, exponent)

    def at(self, size: int) -> Float[np.ndarray, " m"]:
        return self.limit - self.scale * size**-self.exponent
