"""Which synthetic inputs say most about a checkpoint: predictors that read the responses to others, or a part of them.

python -m benchmarks.kendall --config mnist-seeds --zoo DIR --folds 4 --split train+validation --quick --models \\
    response_nfn benchmarks.inputs:Noise benchmarks.inputs:Dots benchmarks.inputs:Half benchmarks.inputs:Quarter \\
    benchmarks.inputs:Logits benchmarks.inputs:Hidden

Each differs in one thing from ``response_nfn``, which reads drawings of strokes or sequences of normal word vectors.
With these options it is a cross-validation that leaves out the test split: what is chosen by it has seen no test row.
"""

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from nfn import ResponseNFN
from nfn.predictors.gauge_nfn import Source
from nfn.predictors.input_cache import InputCache
from nfn.predictors.responses import response_layout, responses, synthetic_inputs
from zoo import TransformerSpec, TransformerWeights

_SHARE = 0.1  # of the numbers of sparse inputs
_OF_HIDDEN_ROWS = ("deviation", "pooled size")  # how the names of their responses begin
_Inputs = Callable[[TransformerSpec, Tensor, Generator], Tensor]
"""Makes other inputs in place of the usual ones."""


def _ablation(
    name: str, inputs: _Inputs = lambda _, usual, __: usual, reads: Callable[[str], bool] = lambda _: True
) -> type[ResponseNFN]:
    """Reads the responses to ``inputs``, and of them those whose names ``reads`` accepts."""

    @cache
    def chosen(spec: TransformerSpec) -> Tensor:
        with torch.device("cpu"):
            return inputs(spec, synthetic_inputs(spec), Generator().manual_seed(1))

    def layout(spec: TransformerSpec) -> dict[str, int]:
        sizes = response_layout(spec, len(chosen(spec)))
        return {name: size for name, size in sizes.items() if reads(name)}

    def features(weights: TransformerWeights) -> Float[Tensor, "n features"]:
        spec = weights.spec
        sizes = response_layout(spec, len(chosen(spec)))
        groups = responses(weights, chosen(spec)).split(list(sizes.values()), dim=-1)
        return torch.cat([group for name, group in zip(sizes, groups, strict=True) if reads(name)], dim=-1)

    known = {"responses": Source("responses", layout, InputCache(features, dtype=None))}
    return type(name, (ResponseNFN,), {"kind": name.lower(), "recipe": "gauge", "known": known})


def _refuse_tokens(spec: TransformerSpec, name: str) -> None:
    if spec.vocabulary is not None:
        raise ValueError(
            f"{name} is images or word vectors, but {spec.task} transformers read tokens: take Half or Short"
        )


def _noise(spec: TransformerSpec, usual: Tensor, generator: Generator) -> Tensor:
    _refuse_tokens(spec, "Noise")
    uniform = 2 * torch.rand(usual.shape, generator=generator) - 1
    return uniform if spec.patch_size else 3**0.5 * uniform


def _dots(spec: TransformerSpec, usual: Tensor, generator: Generator) -> Tensor:
    _refuse_tokens(spec, "Dots")
    dots = (torch.rand(usual.shape, generator=generator) < _SHARE).float()
    return 2 * dots - 1 if spec.patch_size else dots * usual / _SHARE**0.5


def _short(spec: TransformerSpec, usual: Tensor, _: Generator) -> Tensor:
    if spec.patch_size:
        raise ValueError(f"Short reads shorter texts, but {spec.task} transformers read images: take Half or Quarter")
    return usual[:, : usual.shape[1] // 2]


Noise = _ablation("Noise", inputs=_noise)
"""Uniform numbers: pixels from −1 to 1, or word vectors of the usual size."""
Dots = _ablation("Dots", inputs=_dots)
"""Images with one pixel in ten at 1 and the others at −1; word vectors with one number in ten and the others 0."""
Half = _ablation("Half", inputs=lambda _, usual, __: usual[: len(usual) // 2])
"""The first half of the usual inputs."""
Quarter = _ablation("Quarter", inputs=lambda _, usual, __: usual[: len(usual) // 4])
"""The first quarter of the usual inputs."""
Short = _ablation("Short", inputs=_short)
"""As many sequences as usual, of half as many words."""
Logits = _ablation("Logits", reads=lambda name: not name.startswith(_OF_HIDDEN_ROWS))
"""Of the responses, what follows from the logits."""
Hidden = _ablation("Hidden", reads=lambda name: name.startswith(_OF_HIDDEN_ROWS))
"""Of the responses, the statistics of hidden rows."""
