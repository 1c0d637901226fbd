"""What a checkpoint answers to inputs that nobody trained on, as a fixed number of features.

The inputs are synthetic and the same for all checkpoints of a spec: drawings of a few strokes where it reads images,
sequences of random word vectors or tokens where it reads texts. No example of any task is among them. Answers belong
to the function, so the whole group leaves them unchanged, but for the ε of LayerNorm and rounding. The features are

- the log probabilities of the classes for every input;
- quantiles over the inputs of their entropies and of the margins between the two best classes;
- after attention and after the MLP of each block, quantiles over the inputs of the mean log deviation of the rows,
  relative to the size of the weights that wrote them, and of the mean square of the pooled LayerNorm rows;
- of all inputs together, the mean probabilities, and the spectra of the centered logits and of their directions.

A language model answers at every position of a text: with its loss and its entropy there, and whether it is right. Read
are their means over each text, over each position, and after and before each token of the vocabulary. Texts of random
tokens are far from any language. ``written_texts`` are closer: the best of the training checkpoints write them.
"""

from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from nfn.predictors.probes import probe_shape
from nfn.symmetry.invariants import eigenvalues
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.circuits import without_mean
from zoo.transformer.population import Step, population_logits, prepare_inputs

_SEED = 1
_TOKENS, _LEAST_INPUTS, _MOST_INPUTS = 9_408, 64, 512  # 192 images of 49 patches; more inputs say more and cost more
_WORDS = 12  # of a sequence; more short ones say more than fewer long ones
_TEXTS, _CONTEXT = 96, 64  # for language models, and tokens of each
_MOST_CLASSES = 256  # of a language model's vocabulary, the first ones
_BEFORE = 32  # tokens of a written text before it is read, until nothing is left of its beginning
_TEMPERATURE = 0.8  # of writing: the mean of several predictions is too broad
_QUANTILES = 64
_STROKES, _POINTS = 2, 40  # curves of a drawing, and points on each
_MIDDLE = 0.9  # of the drawing's sides, where the curves' control points lie
_PEN = 1 / 28  # half the width of a stroke, as a share of the drawing's side
_LOWEST = -30.0  # of a log probability
_LEAST = 1e-6  # of what a logarithm is taken of


def _input_shape(spec: TransformerSpec) -> tuple[int, int]:
    """How many inputs there are, and how many tokens each has."""
    if spec.causal:
        return _TEXTS, min(_CONTEXT, spec.tokens)
    tokens = spec.tokens if spec.patch_size else min(_WORDS, spec.tokens)
    return min(_MOST_INPUTS, max(_LEAST_INPUTS, _TOKENS // tokens)), tokens


@lru_cache
def response_layout(spec: TransformerSpec, inputs: int | None = None) -> MappingProxyType[str, int]:
    """The names of the responses and how many numbers each has; ``inputs`` is how many inputs there are, if not the
    usual ones."""
    (usual, tokens), classes = _input_shape(spec), spec.classes
    answers = usual if inputs is None else inputs
    if spec.causal:
        known = min(classes, _MOST_CLASSES)
        groups = {"text": answers, "position": tokens - 1, "token": known, "successor": known}
        measured = ("losses", "entropies", "hits")
        return MappingProxyType({f"{what} by {each}": size for what in measured for each, size in groups.items()})
    steps = [f"{step} {block}" for block in range(spec.blocks) for step in ("attention", "MLP")]
    counts = {
        "log probabilities": answers * classes,
        "entropies": _QUANTILES,
        "margins": _QUANTILES,
        "mean probabilities": classes,
        "spectrum of logits": classes,
        "spectrum of directions": classes,
        **{f"{what} after {step}": _QUANTILES for step in steps for what in ("deviation", "pooled size")},
    }
    return MappingProxyType(counts)


def responses(
    weights: TransformerWeights, inputs: Shaped[Tensor, "k t *numbers"] | None = None
) -> Float[Tensor, "n features"]:
    """The numbers of ``response_layout`` side by side, in the dtype of the weights; ``inputs`` replace the usual ones.

    They are NaN for a checkpoint with a weight that is not finite.
    """
    spec, flat = weights.spec, weights.flat()
    inputs = (synthetic_inputs(spec) if inputs is None else inputs).to(flat.device)
    if spec.causal:
        logits = population_logits(spec, flat, inputs[:, :-1], None)
        return torch.cat(list(_answers_to_texts(logits, inputs)), dim=-1)
    steps: list[Step] = []
    logits = population_logits(spec, flat, inputs, None, steps=steps)
    log_probabilities = torch.log_softmax(logits, dim=-1).clamp_min(_LOWEST)
    probabilities = log_probabilities.exp()
    entropies = -(probabilities * log_probabilities).sum(-1)
    best = logits.topk(min(2, spec.classes), dim=-1).values
    centered = without_mean(logits, -1, -2)
    groups = [
        log_probabilities.flatten(1),
        _quantiles(entropies),
        _quantiles(torch.log1p(best[..., 0] - best[..., -1])),
        probabilities.mean(-2),
        _log_spectrum(centered),
        _log_spectrum(F.normalize(centered, dim=-1)),
        *(_quantiles(size) for sizes in map(_sizes, steps[1:], _written_sizes(weights).mT) for size in sizes),
    ]
    return torch.cat(groups, dim=-1)


def _answers_to_texts(logits: Float[Tensor, "n k t V"], texts: Int[Tensor, "k _"]) -> Iterator[Float[Tensor, "n _"]]:
    """Means of a language model's losses, entropies and hits: over texts, over positions, and by token."""
    token, successor = texts[:, :-1].flatten(), texts[:, 1:].flatten()
    known = min(logits.shape[-1], _MOST_CLASSES)
    by_token, by_successor = (_mean_over(each, known).to(logits) for each in (token, successor))
    total = logits.logsumexp(-1)
    chosen = logits.gather(-1, texts[:, 1:, None].expand(*logits.shape[:-1], 1)).squeeze(-1)
    probabilities = (logits - total[..., None]).exp_()
    entropies = total - probabilities.mul_(logits).sum(-1)
    hits = (chosen >= logits.amax(-1)).to(logits)
    for values in (total - chosen, entropies, hits):
        flat = values.flatten(1)
        yield from (values.mean(2), values.mean(1), flat @ by_token, flat @ by_successor)


def _mean_over(tokens: Int[Tensor, " n"], count: int) -> Float[Tensor, "n count"]:
    """The matrix that takes the mean over the places of each of the first tokens; 0 for a token that has none."""
    places = (tokens[:, None] == torch.arange(count, device=tokens.device)).double()
    return places / places.sum(0).clamp_min(1)


@torch.no_grad()
def written_texts(
    writers: TransformerWeights, count: int, tokens: int, seed: int = _SEED
) -> Int[Tensor, "count tokens"]:
    """Texts that language models [n, d] write together: the next token is drawn from the mean of their predictions.

    They begin with the tokens of the vocabulary in turn, and the first tokens are left out again.
    """
    spec, flat = writers.spec, writers.flat()
    assert spec.vocabulary is not None, "only language models write"
    generator = torch.Generator().manual_seed(seed)
    texts = (torch.arange(count, device=flat.device) % spec.vocabulary)[:, None]
    for _ in range(_BEFORE + tokens - 1):
        logits = population_logits(spec, flat, texts[:, -spec.tokens :], None)[:, :, -1]
        shares = (logits / _TEMPERATURE).softmax(-1).mean(0)
        texts = torch.cat([texts, torch.multinomial(shares.cpu(), 1, generator=generator).to(texts.device)], dim=1)
    return texts[:, -tokens:]


def _sizes(step: Step, written: Float[Tensor, " n"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """log √(variance + ε), averaged over the rows of each input, − log written; the mean square of its pooled rows."""
    deviation = -step.inverse_deviation.log().mean(-1)
    return deviation - written.log()[:, None], step.rows.mean(-2).square().mean(-1)


def _written_sizes(weights: TransformerWeights) -> Float[Tensor, "n steps"]:
    """The size of what attention and MLP of each block can write.

    √Σ_s ‖W_V·W_O‖² over heads s, and √(Σ_j ‖row_j‖²·‖column_j‖² + ‖b‖²) over units j, whose biases are part of their
    rows. Without the means along D, which LayerNorm takes out.
    """
    encoder = weights.encoder
    attention = (without_mean(encoder.value, -2) @ without_mean(encoder.output, -1)).square().sum((-1, -2, -3))
    rows = without_mean(encoder.weight_a, -2).square().sum(-2) + encoder.bias_a.square()
    columns = without_mean(encoder.weight_b, -1).square().sum(-1)
    mlp = (rows * columns).sum(-1) + without_mean(encoder.bias_b, -1).square().sum(-1)
    return torch.stack([attention, mlp], dim=-1).flatten(1).clamp_min(_LEAST**2).sqrt()


def _quantiles(x: Float[Tensor, "n k"]) -> Float[Tensor, "n q"]:
    """From the smallest to the largest, at equal distances in the order."""
    chosen = torch.linspace(0, x.shape[-1] - 1, _QUANTILES, device=x.device).round().long()
    return x.sort(dim=-1).values[:, chosen]


def _log_spectrum(rows: Float[Tensor, "n k c"]) -> Float[Tensor, "n c"]:
    """The logarithms of the eigenvalues of rowsᵀ·rows. NaN for rows that are not finite, which eigvalsh refuses."""
    finite = rows.isfinite().all(-1).all(-1)[:, None, None]
    products = torch.where(finite, rows, 0.0).double()
    spectrum = eigenvalues(products.mT @ products).clamp_min(_LEAST).log()
    return torch.where(finite[..., 0], spectrum, torch.nan).to(rows)


@lru_cache(maxsize=8)
def synthetic_inputs(spec: TransformerSpec) -> Shaped[Tensor, "k t *numbers"]:
    """The inputs of all checkpoints of a spec: patches of drawings, word vectors, or tokens, in turn the first ones."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.device("cpu"):
        if (words := spec.vocabulary) is not None:
            tokens = torch.randint(words, _input_shape(spec), generator=generator)
            tokens[:, 0] = torch.arange(len(tokens)) % words
            return tokens
        if spec.patch_size is None:
            return torch.randn(*_input_shape(spec), spec.dim, generator=generator)
        return prepare_inputs(spec, _drawings(spec, generator))


def _drawings(spec: TransformerSpec, generator: torch.Generator) -> Float[Tensor, "k c height width"]:
    """Cubic Bézier curves between random points, drawn with a soft pen in a random color.

    Pixels are −1 where the pen was not, and up to 1 elsewhere, the range of the zoo's images.
    """
    count, (_, height, width) = _input_shape(spec)[0], probe_shape(spec)
    sides = torch.tensor([height - 1.0, width - 1.0])
    corners = ((torch.rand(count, _STROKES, 4, 2, generator=generator) - 0.5) * _MIDDLE + 0.5) * sides
    at = torch.linspace(0, 1, _POINTS)
    blend = torch.stack([(1 - at) ** 3, 3 * at * (1 - at) ** 2, 3 * at**2 * (1 - at), at**3], dim=1)
    paths = torch.einsum("pq,ksqd->kspd", blend, corners).flatten(1, 2)
    pixels = torch.cartesian_prod(torch.arange(float(height)), torch.arange(float(width)))
    distance = torch.cdist(pixels, paths).amin(-1).view(count, 1, height, width)
    ink = (1 + _PEN * min(height, width) - distance).clamp(0, 1)
    color = torch.rand(count, spec.channels, 1, 1, generator=generator) if spec.channels > 1 else torch.ones(1)
    return 2 * ink * color - 1
