"""A cache of values computed from checkpoints, by their content: a benchmark fits the same rows many times."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from zoo import TransformerWeights
from zoo.device import fast_small_products, single_threaded_workers

_ON_CPU, _ON_GPU = 8, 128  # checkpoints that are read at once
_MAX_BYTES = 1 << 31  # invariants of 6,000 language models, or of 100,000 classifiers
_Read = Callable[[Tensor], Tensor]


class InputCache:
    """A function of checkpoints that keeps its results by the bytes of each; beyond ``max_bytes`` the oldest go.

    ``function`` is called with a few checkpoints at a time, as weights of ``dtype``, for None as they are, and with
    whatever else the call has; its results are rounded once, to the dtype of the weights. On a CPU each of torch's
    threads reads checkpoints of its own.
    """

    def __init__(
        self, function: Callable[..., Tensor], dtype: torch.dtype | None = torch.float64, max_bytes: int = _MAX_BYTES
    ) -> None:
        self.function, self.dtype, self.max_bytes = function, dtype, max_bytes
        self._rows: OrderedDict[Hashable, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows.clear()

    def __call__(self, weights: TransformerWeights, *others: Tensor) -> Float[Tensor, "*batch inputs"]:
        """The results, computed only for checkpoints that are not cached, or for all where a gradient is needed."""
        spec, flat = weights.spec, weights.flat()

        def read(rows: Float[Tensor, "k d"]) -> Float[Tensor, "k inputs"]:
            few = TransformerWeights.from_flat(spec, rows.to(self.dtype or rows.dtype), check_finite=False)
            return self.function(few, *others).to(rows.dtype)

        rows = flat.reshape(-1, spec.num_parameters)
        if (flat.requires_grad and torch.is_grad_enabled()) or not len(rows):
            results = read(rows)
        else:
            shared = (spec, rows.dtype, *map(_digest, others))
            results = self._known([(*shared, _digest(row)) for row in rows.cpu()], rows.detach(), read)
        return results.reshape(*flat.shape[:-1], results.shape[-1])

    def _known(self, keys: list[Hashable], rows: Float[Tensor, "n d"], read: _Read) -> Float[Tensor, "n inputs"]:
        known = {key: self._rows[key] for key in keys if key in self._rows}
        new = {key: number for number, key in enumerate(keys) if key not in known}
        if new:
            computed = _compute(rows[list(new.values())], read)
            # each row by itself: a view would keep all that were computed with it
            known |= {key: row.clone() for key, row in zip(new, computed.cpu(), strict=True)}
        result = torch.stack([known[key] for key in keys]).to(rows.device)
        for key in keys:
            self._rows[key] = known[key]
            self._rows.move_to_end(key)
        held = sum(row.nbytes for row in self._rows.values())
        while held > self.max_bytes:
            held -= self._rows.popitem(last=False)[1].nbytes
        return result


@fast_small_products()
def _compute(rows: Float[Tensor, "n d"], read: _Read) -> Float[Tensor, "n inputs"]:
    """The results of all rows without gradients."""
    read = torch.no_grad()(read)  # inside, because every thread has a mode of its own
    if rows.device.type != "cpu":
        return torch.cat([read(piece) for piece in rows.split(_ON_GPU)])
    with single_threaded_workers(torch.get_num_threads()) as pool:
        return torch.cat(list(pool.map(read, rows.split(_ON_CPU))))


def _digest(numbers: Tensor) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(numbers.cpu().numpy()).data, digest_size=16).digest()
