"""What a language model has learned, in a few numbers that are measured with every checkpoint.

    early_loss         loss at the first eighth of the positions, where there is little context
    late_loss          loss at the second half of the positions: the less, the more context brings
    bigram_divergence  KL(model ‖ bigrams), in nats: how far its predictions are from a table of the successors of each
                       token in the training text, every count plus one
    induction_loss     loss at the second half of random sequences that repeat their first half: log V without copying

The first three are means over positions of the first windows of the test text.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.nn import functional as F

from zoo.device import fast_small_products
from zoo.format.schema import LANGUAGE_LABELS
from zoo.tasks.examples import TaskData
from zoo.transformer.population import fitting_examples, population_logits

_WINDOWS, _AT_ONCE = 256, 32  # of the test text
_SEQUENCES, _SEED = 64, 0  # that repeat themselves
_MODELS = 16


@torch.no_grad()
@fast_small_products()
def language_labels(task: TaskData, weights: Float[Tensor, "P d"]) -> dict[str, Float64[Tensor, " P"]]:
    """The labels of every checkpoint, in float32, by the names of their columns."""
    models = max(1, fitting_examples(task.spec, _MODELS * _SEQUENCES) // _SEQUENCES)
    pieces = [torch.stack(list(_labels(task, part))) for part in weights.split(models)]
    return dict(zip(LANGUAGE_LABELS, torch.cat(pieces, dim=1), strict=True))


def _labels(task: TaskData, weights: Float[Tensor, "p d"]) -> Iterator[Float64[Tensor, " p"]]:
    spec, windows, at_once = task.spec, task.test[slice(_WINDOWS)], fitting_examples(task.spec, _AT_ONCE)
    losses, divergences = [], []
    for part in (windows[slice(start, start + at_once)] for start in range(0, len(windows), at_once)):
        logits = population_logits(spec, weights, part.inputs, None)
        losses.append(_token_losses(logits, part.labels))
        seen = task.successors.index_select(0, part.inputs.flatten().long()).to_dense()
        expected = ((1 + seen) / (seen.sum(1, keepdim=True) + spec.classes)).log()
        divergence = F.kl_div(expected, torch.log_softmax(logits, -1).flatten(1, 2), log_target=True, reduction="none")
        divergences.append(divergence.sum(-1))
    by_position = torch.cat(losses, dim=1).double().mean(1)
    yield by_position[:, : max(1, spec.tokens // 8)].mean(1)
    yield by_position[:, spec.tokens // 2 :].mean(1)
    yield torch.cat(divergences, dim=1).double().mean(1)
    half = max(1, spec.tokens // 2)
    random = torch.randint(spec.classes, (_SEQUENCES, half), generator=torch.Generator().manual_seed(_SEED))
    repeated = torch.cat([random, random], dim=1).to(weights.device)
    losses = [
        _token_losses(population_logits(spec, weights, part[:, :-1], None), part[:, 1:])
        for part in repeated.split(fitting_examples(spec, _SEQUENCES))
    ]
    yield torch.cat(losses, dim=1)[..., half - 1 :].double().mean((1, 2))


def _token_losses(logits: Float[Tensor, "p b t V"], labels: Int[Tensor, "b t"]) -> Float[Tensor, "p b t"]:
    wide = labels.long().expand(len(logits), *labels.shape)
    return F.cross_entropy(logits.flatten(0, 2), wide.flatten(), reduction="none").view(wide.shape)
