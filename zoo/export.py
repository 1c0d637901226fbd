"""Checkpoints in other forms: safetensors files, torch state_dicts, Parquet.

    python -m zoo.export small-transformer-zoo mnist one.safetensors --where "run_id == '…' and epoch == 75"
    python -m zoo.export small-transformer-zoo mnist good/ --format torch --where "test_accuracy >= 0.9"
    python -m zoo.export small-transformer-zoo agnews parquet/ --format parquet

OUT is a file for a single checkpoint and a folder, with one file per checkpoint, for more. Parquet makes one file per
split, with every column. Each file is whole, and a new folder appears when all its files are there. A safetensors file
carries its row's metadata in its header.
"""

import io
import json
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from zoo.command import DEFAULT_NAME, Advance, Argument, Command, Option, how_many, progress_bar


@dataclass(frozen=True, kw_only=True)
class _Options:
    zoo: Annotated[str, Argument(f"folder of the zoo, or its name on the hub, e.g. {DEFAULT_NAME}", "DIR")]
    config: Annotated[str | None, Argument("mnist, agnews, … (default: the zoo's only one)", "CONFIG")] = None
    out: Annotated[Path, Argument("file or folder to write", "OUT")]
    format: Annotated[
        Literal["safetensors", "torch", "parquet"] | None,
        Option("what to write (default: by OUT's name, else safetensors)"),
    ] = None
    split: Annotated[str, Option("train, validation, test, joined by +, or all")] = "all"
    where: Annotated[str | None, Option("only these rows, e.g. \"optimizer == 'adam'\"", "EXPRESSION")] = None


_command = Command(__name__, "zoo.export", __doc__, _Options)

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from jaxtyping import Integer

from zoo.format.schema import CHECKPOINT, checkpoint_schema
from zoo.format.table_file import ROWS_PER_BATCH
from zoo.reading.reader import ZooReader, open_zoo
from zoo.reading.selection import Where
from zoo.storage.atomic import atomic_file, remove_unfinished, write_atomically
from zoo.storage.swap import replacing_folder
from zoo.transformer.weights import TransformerWeights

_SUFFIXES = {"safetensors": ".safetensors", "torch": ".pt"}
_PARQUET_SUFFIX = ".parquet"
_LENGTH_BYTES = 8


def export_checkpoints(
    reader: ZooReader, out: Path, form: str, where: Where = None, advance: Advance = lambda rows: None
) -> list[Path]:
    """Writes the chosen checkpoints one file each, as safetensors or torch state_dicts, and returns the files.

    A single one goes to the file ``out`` where that name has a suffix; several go into the folder ``out``.
    """
    suffix = _SUFFIXES[form]
    if out.suffix in _SUFFIXES.values() and out.suffix != suffix:
        raise ValueError(f"{out} would be a {form} file: name it *{suffix}, or choose another --format")
    rows = reader.rows(where)
    single = len(rows) == 1 and out.suffix != "" and not out.is_dir()
    if not single and (out.suffix in _SUFFIXES.values() or out.is_file()):
        raise ValueError(f"{len(rows):,} checkpoints do not fit in the one file {out}: name a folder")
    if single:
        remove_unfinished(out.parent, re.escape(out.name))
        write_atomically(out, _state_file(reader, int(rows[0]), form))
        advance(1)
        return [out]
    remove_unfinished(out, rf"[0-9a-f]{{16}}-{CHECKPOINT}{re.escape(suffix)}")
    names = [f"{run}-{label}{suffix}" for run, label in reader.metadata[["run_id", "checkpoint"]].to_numpy()[rows]]
    with _filled_folder(out) as folder:
        for row, name in zip(rows.tolist(), names, strict=True):
            write_atomically(folder / name, _state_file(reader, row, form))
            advance(1)
    return [out / name for name in names]


def _filled_folder(out: Path) -> AbstractContextManager[Path]:
    """The folder to write several files to. A new one takes its name when all are there; else they are added."""
    return nullcontext(out) if out.exists() else replacing_folder(out, lambda folder: None, wait=True)


def _state_file(reader: ZooReader, row: int, form: str) -> bytes:
    # a copy of each tensor: the views of one flat vector would each be stored with the whole of it
    weights = TransformerWeights.from_flat(reader.spec, reader.weights(row))
    state = {name: tensor.clone() for name, tensor in weights.state_dict().items()}
    if form == "torch":  # for torch.load(path, weights_only=True)
        torch.save(state, buffer := io.BytesIO())
        return buffer.getvalue()
    metadata = {str(name): str(value) for name, value in reader.metadata.iloc[row].items()}
    return _to_safetensors(state, metadata | ({"characters": reader.characters} if reader.characters else {}))


def _to_safetensors(state: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """The same bytes every time: the library writes the metadata in an order that changes, so it is sorted after it.

    A safetensors file is the length of its header as eight bytes, the header as JSON, and the tensors.
    """
    data = safetensors.torch.save(state, metadata=metadata)
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(data[_LENGTH_BYTES:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # the tensors begin at a multiple of eight
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + data[end:]


def _export_parquet(reader: ZooReader, rows: Integer[np.ndarray, " n"], path: Path, advance: Advance) -> None:
    """Writes rows with all columns to one Parquet file."""
    import pyarrow.parquet as pq

    schema = checkpoint_schema(reader.spec)
    remove_unfinished(path.parent, re.escape(path.name))
    with atomic_file(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        # row groups of some batches: a reader fetches a group at a time
        for start in range(0, len(rows), 8 * ROWS_PER_BATCH):
            part = rows[start : start + 8 * ROWS_PER_BATCH]
            writer.write_table(reader.table(part))
            advance(len(part))


def _form_of(out: Path) -> str:
    """The format by the name of the output; safetensors for a folder or a name without a suffix."""
    for form, suffix in _SUFFIXES.items():
        if out.suffix == suffix:
            return form
    if out.suffix and not out.is_dir():
        endings = " or ".join(_SUFFIXES.values())
        raise ValueError(f"the name {out} does not show the format: end it in {endings}, or choose a --format")
    return "safetensors"


@_command
def main(options: _Options) -> None:
    form = options.format or _form_of(options.out)
    reader = open_zoo(options.zoo, options.config, options.split)
    rows = reader.rows(options.where)
    with progress_bar() as bar:
        advance = partial(bar.advance, bar.add_task("exporting", total=len(rows)))
        if form != "parquet":
            export_checkpoints(reader, options.out, form, options.where, advance)
        else:
            if options.out.is_file() or options.out.suffix == _PARQUET_SUFFIX:
                raise ValueError(f"{options.out} names a file: Parquet goes into a folder, one file per split")
            splits = np.array(reader.details.splits_of(reader.metadata.iloc[rows].__getitem__), dtype=str)
            with _filled_folder(options.out) as folder:
                for split, part in pd.Series(rows).groupby(splits):
                    path = folder / f"{reader.config}-{split}{_PARQUET_SUFFIX}"
                    _export_parquet(reader, part.to_numpy(), path, advance)
    print(f"{how_many(len(rows), 'checkpoint')} in {options.out}")
