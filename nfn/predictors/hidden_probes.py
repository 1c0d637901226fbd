"""Probes that also read the hidden layers, after the idea of HiddenProbe; written from its description.

The basis of a hidden layer is arbitrary, so activations of two checkpoints cannot be compared number by number. How
similar a layer finds two inputs can: the Gram matrix of the layer's answers to the probes is the same in every basis.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.predictors.probes import ProbeNFN

_SMALLEST = 1e-8  # added to a mean square of activations of unit size: below this it is the rounding of float32


class HiddenProbeNFN(ProbeNFN):
    """``ProbeNFN`` that reads, besides the logits, the Gram matrix of the probes after every block.

    With X the rows [t, D] of a probe after a block and k probes,

        z_i = mean over tokens of LN(X_i)        c = z − mean over probes        G_ij = c_i·c_j        m = Σ_i G_ii / k

    and what is read of the block are the entries i ≥ j of G / (m + ε) and log(m + ε).

    A rotation of the boundary after a block, LN(X) → LN(X)·Rᵀ, keeps G, and writer shifts end at LN. So the prediction
    is unchanged by every symmetry that keeps the function, exactly but for ``boundary_scales``, which change it by the
    ε of LN.
    """

    kind = "hidden_probe_nfn"

    @property
    def feature_count(self) -> int:
        return super().feature_count + self.spec.blocks * (self.count * (self.count + 1) // 2 + 1)

    def read(
        self, answers: Float[Tensor, "b probes classes"], rows: list[Float[Tensor, "b probes t D"]]
    ) -> Float[Tensor, "b features"]:
        return torch.cat([super().read(answers, rows), *(_similarities(block) for block in rows)], dim=1)


def _similarities(rows: Float[Tensor, "b probes t D"]) -> Float[Tensor, "b features"]:
    """What is read of one block, from its LayerNorm rows."""
    pooled = rows.mean(-2)
    centered = pooled - pooled.mean(1, keepdim=True)
    gram = centered @ centered.mT
    size = gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + _SMALLEST
    probes = gram.shape[-1]
    i, j = torch.tril_indices(probes, probes, device=rows.device)
    return torch.cat([gram.flatten(1).index_select(1, i * probes + j) / size, size.log()], dim=1)
