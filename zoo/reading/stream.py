"""A reader's batches for ``torch.utils.data.DataLoader``: divided among ranks and workers, every row exactly once.

    stream = zoo.CheckpointStream(z, batch_size=64, shuffle=True, where="checkpoint == 'epoch_75'")
    for epoch in range(50):
        stream.set_epoch(epoch)
        for weights, metadata in DataLoader(stream, num_workers=4):
            ...

One process reads as fast as memory is; workers only help where each batch is worked on, as by augmentation.
"""

from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from zoo.reading.reader import Batch, ZooReader, cut_batches, shuffled
from zoo.reading.selection import Where
from zoo.transformer.weights import TransformerWeights


class CheckpointStream(IterableDataset):
    """A dataset for ``DataLoader``: the batches of a reader, divided among ranks and workers.

    All of them draw the same permutation from ``(seed, epoch)`` and take every n-th batch of it.

    ``rank`` and ``world_size`` default to those of ``torch.distributed`` where it runs. With ``drop_last`` every rank
    gets the same number of batches, all of them full, as DistributedDataParallel needs; without it each row comes once.
    """

    def __init__(
        self,
        reader: ZooReader,
        batch_size: int = 64,
        shuffle: bool = False,
        seed: int = 0,
        where: Where = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__()
        among = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
        self.rank = rank if rank is not None else among.get_rank() if among else 0
        self.world_size = world_size if world_size is not None else among.get_world_size() if among else 1
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in 0 … world_size − 1, got {self.rank} of {self.world_size}")
        self.reader, self.shuffle, self.seed = reader, shuffle, seed
        # chosen here, so that a function given as ``where`` need not travel to the workers
        self.rows = reader.rows(where)
        cuts = cut_batches(len(self.rows), batch_size, drop_last)
        self.cuts = cuts[: len(cuts) // self.world_size * self.world_size] if drop_last else cuts
        # shared memory, so that workers that outlive an epoch see the next one
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Another epoch, another permutation."""
        self.epoch.fill_(epoch)

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self.cuts[self.rank :: self.world_size])

    def __iter__(self) -> Iterator[Batch]:
        rows = shuffled(self.rows, [self.seed, int(self.epoch)]) if self.shuffle else self.rows
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self.reader.read_batches(rows, self.cuts[self.rank :: self.world_size][first::step])


def _join_batches(batches: Sequence[Batch], *, collate_fn_map: object = None) -> Batch:
    """Joins the stream's batches in a ``DataLoader``: one stays as it is (its default), several are concatenated."""
    if len(batches) == 1:
        return batches[0]
    weights = [batch.weights for batch in batches]
    flat = torch.cat([part.flat() for part in weights])
    joined = TransformerWeights.from_flat(weights[0].spec, flat, check_finite=False)
    return Batch(joined, pd.concat([batch.metadata for batch in batches]))


default_collate_fn_map[Batch] = _join_batches  # torch's own way to register a type
