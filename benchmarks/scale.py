"""Tables at the scale of the paper's whole grid, from a few numbers of every run instead of its weights.

    python -m benchmarks.scale read RUNS                    of every finished shard below RUNS, into OUT/features
    python -m benchmarks.scale table --config mnist agnews  τ of each predictor by its number of training rows

Kept of each run at 75 % of its epochs: the principal components of invariants and responses that the Gauge-NFN of this
package reads, which were found on a part of the training runs, and the seven statistics of STATNN, here of the
embedding too, both to six significant bits; raw moments in half precision. The table needs no weights, and its splits
are the zoo's. Writes OUT/scale.jsonl and OUT/scale.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.options import EPOCHS, Epochs, Sizes
from zoo.checked import Count, printable
from zoo.command import Argument, Command, Device, Option

_Out = Annotated[Path, Option("folder to write to", "DIR")]


@dataclass(frozen=True, kw_only=True)
class _Read:
    runs: Annotated[Path, Argument("folder that generation wrote its shards to", "RUNS")]
    device: Device = "auto"
    out: _Out = Path("results")


@dataclass(frozen=True, kw_only=True)
class _Table:
    config: Annotated[tuple[str, ...], Option("configs whose features are there", "CONFIG")] = ("mnist", "agnews")
    sizes: Sizes = (500, 1000, 2000, 4000)
    seeds: Annotated[Count, Option("seeds per model")] = 5
    epochs: Epochs = EPOCHS
    device: Device = "auto"
    out: _Out = Path("results")


_command = Command(
    __name__,
    "benchmarks.scale",
    __doc__,
    {
        "read": (_Read, "what is kept of every run in finished shards"),
        "table": (_Table, "τ of predictors on what was kept"),
    },
    lambda _: ("scipy", "sklearn"),
)

import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from torch import Tensor, nn

import nfn
from benchmarks import results
from benchmarks.data import MIN_ROWS, BenchmarkData, Checkpoints, require_rows
from benchmarks.models.registry import MODELS
from benchmarks.models.training import RECIPES, train_together
from benchmarks.results import Result
from benchmarks.statistics import bootstrap_taus, resample_runs, tau_or_zero
from benchmarks.tables import render_table, write_table
from nfn.predictors.baselines import tensor_statistics
from nfn.predictors.predictor import dense
from zoo import TransformerWeights
from zoo.device import choose_device
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.record import task_of
from zoo.format.shard import CHECKPOINTS_FILE, Shard, find_shards
from zoo.format.splits import SPLITS, splits_of
from zoo.reading.reader import MappedCheckpoints
from zoo.storage.atomic import atomic_file
from zoo.transformer.spec import SPECS, Component

_FEATURES = "features"
_AT_ONCE = 128


def _statistics(weights: TransformerWeights) -> Float[Tensor, "n numbers"]:
    return torch.cat([tensor_statistics(weights, component) for component in weights.spec.components], dim=-1)


def _read_shard(shard: Shard, device: torch.device) -> pa.Table:
    """One row per completed run: configuration, accuracy, the fitted predictor, what it and others read of weights."""
    spec, rows = shard.record.spec, MappedCheckpoints([shard.folder / CHECKPOINTS_FILE], shard.record.spec)
    facts = rows.table.to_pandas()
    chosen = np.flatnonzero(facts["checkpoint"] == shard.record.usual_checkpoint)
    fitted = nfn.load_pretrained(shard.record.task).predictor
    predictor = hashlib.sha256(b"".join(each.numpy().tobytes() for each in fitted.state_dict().values())).hexdigest()
    readers: dict[str, Callable[[TransformerWeights], Tensor]] = {
        "gauge_nfn": fitted.to(device).inputs,
        "raw_moments": nfn.RawMomentsPredictor(spec).to(device).inputs,
        "statnn": _statistics,
    }
    kept = facts.iloc[chosen][["run_id", "task", "test_accuracy", *CONFIGURATION]]
    table = pa.Table.from_pandas(kept.assign(predictor=predictor), preserve_index=False)
    flat = torch.from_numpy(rows.gather(chosen)).to(device)
    for name, read in readers.items():
        pieces = [read(TransformerWeights.from_flat(spec, part)) for part in flat.split(_AT_ONCE)]
        numbers = torch.cat(pieces).half()
        if name != "raw_moments":  # six bits would cost these a τ of 0.006 on AG News, and the others nothing
            mantissa, exponent = torch.frexp(numbers.float())
            numbers = torch.ldexp((mantissa * 2**6).round() / 2**6, exponent).half()
        column = pa.FixedSizeListArray.from_arrays(pa.array(numbers.flatten().cpu().numpy()), numbers.shape[1])
        table = table.append_column(name, column)
    return table


def _keep(options: _Read) -> None:
    """Reads the shards that have not been read before."""
    device = choose_device(options.device)
    for config, shards in find_shards(options.runs)[0].items():
        for shard in shards:
            path = options.out / _FEATURES / config / f"{shard.folder.name}.parquet"
            if path.exists():
                continue
            if shard.record.all_checkpoints is not None:
                raise ValueError(f"{shard.folder} is thinned: not all of its runs have weights to read")
            table = _read_shard(shard, device)
            with atomic_file(path) as file:
                columns: dict[str, Any] = {"use_byte_stream_split": [f"{name}.list.element" for name in _STORED]}
                pq.write_table(table, file, compression="zstd", use_dictionary=False, **columns)
            print(f"{printable(path)}: {len(table):,} runs")


class _Stored(nfn.Predictor):
    """A predictor of what was kept in place of weights."""

    def inputs(self, weights: Any) -> Any:
        return weights


class _StoredGauge(_Stored, nfn.GaugeNFN):
    """Gauge-NFN's networks on stored components."""

    def fit_scale(self, weights: Any) -> None:
        """The components have their size already."""


class _StoredMoments(_Stored, nfn.RawMomentsPredictor):
    """The network of raw moments on stored ones."""


class _StoredStatNN(_Stored, nfn.StatNN):
    """STATNN on stored statistics, those of the embedding like those of the rest."""

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        zeros = TransformerWeights.from_flat(self.spec, torch.zeros(1, self.spec.num_parameters))
        count = tensor_statistics(zeros, component).shape[-1]
        return dense([count, self.width, self.width], generator), self.width

    def read_components(self, inputs: Float[Tensor, "b inputs"]) -> list[Float[Tensor, "b outputs"]]:
        counts = [next(reader.parameters()).shape[1] for reader in self.parts.values()]
        parts = inputs.split(counts, dim=-1)
        return [reader(part) for reader, part in zip(self.parts.values(), parts, strict=True)]


_STORED: Mapping[str, type[_Stored]] = {
    "statnn": _StoredStatNN,
    "raw_moments": _StoredMoments,
    "gauge_nfn": _StoredGauge,
}


class _KeptRows(Checkpoints):
    """Rows that have what was kept for a model in place of their weights."""

    @property
    def readable(self) -> Tensor:
        return self.weights


def _kept(config: str, options: _Table) -> dict[str, BenchmarkData]:
    """What was kept of a config for each model, in the splits of a zoo."""
    folder = options.out / _FEATURES / config
    if not folder.is_dir():
        raise ValueError(f"{folder} holds no features: run `python -m benchmarks.scale read RUNS`")
    rows, device = pq.read_table(folder).to_pandas(), choose_device(options.device)
    if absent := {"run_id", "task", "test_accuracy", "predictor", *CONFIGURATION, *_STORED}.difference(rows):
        raise ValueError(f"{folder} was not written by `benchmarks.scale read`: it has no {', '.join(sorted(absent))}")
    if rows["predictor"].nunique() > 1:
        raise ValueError(f"{folder} was read by several fitted predictors: read all its shards again with one")
    metadata = rows[["run_id", *CONFIGURATION]].assign(goodness=rows["test_accuracy"])
    splits = np.array(splits_of(rows.__getitem__, repeats=False))
    places = {name: np.flatnonzero(splits == name) for name in SPLITS}
    require_rows(config, {name: len(chosen) for name, chosen in places.items()}, MIN_ROWS)

    def data_of(numbers: np.ndarray) -> BenchmarkData:
        kept = _KeptRows(SPECS[task_of(config)], torch.from_numpy(numbers.astype(np.float32)).to(device), metadata)
        train, validation, test = (kept.take(chosen) for chosen in places.values())
        return BenchmarkData(train, validation, lambda: test, config, fingerprint="", test_examples=0)

    stored = {name: data_of(np.stack(rows[name].to_list())) for name in _STORED}
    return {"hyperparameters": data_of(np.empty((len(rows), 0)))} | stored


def _judge(
    model: str, data: BenchmarkData, options: _Table
) -> tuple[list[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]:
    """What a fitted model predicts for the test rows, for each seed, and their accuracies.

    Predictions are accuracies or, as good for a ranking, logits.
    """
    train, validation = data.train, data.validation
    if (fit := MODELS[model].fit) is not None:
        (fitted,) = fit(train, validation, (0,), 1)
        test = data.open_test()
        return [fitted.predict(test)], test.truth()
    kind, recipe, seeds = _STORED[model], RECIPES[MODELS[model].recipe], range(options.seeds)
    all_fitted = train_together(
        lambda generator: kind(train.spec, generator=generator), seeds, train, validation, recipe, options.epochs
    )
    networks: list[Any] = [fitted.predictor for fitted in all_fitted]
    test = data.open_test()
    with torch.no_grad():
        return [network.logits_of(test.weights).cpu().numpy() for network in networks], test.truth()


def _measured(config: str, options: _Table) -> Iterator[Result]:
    """τ of every model at every number of training rows, and how far it is ahead of the hyperparameters."""
    kept, device = _kept(config, options), choose_device(options.device)
    everything = len(kept["hyperparameters"].train)
    for size in (*sorted({size for size in options.sizes if size < everything}), everything):
        first = None
        for model, data in kept.items():
            predicted, truth = _judge(model, data.with_train_rows(size), options)
            resampled = bootstrap_taus(predicted, truth, resample_runs(np.arange(len(truth))))
            taus = [tau_or_zero(each, truth) for each in predicted]
            setting = {"rows": size, "test_runs": len(truth), "epochs": options.epochs}
            what = {"model": model, "setting": setting, "device": device}
            yield from Result.estimated("scale", config, "tau", taus, resampled, **what)
            if first is None:
                first = float(np.mean(taus)), resampled
            else:
                lead = [float(np.mean(taus)) - first[0]], resampled - first[1]
                yield from Result.estimated("scale", config, "tau_above_hyperparameters", *lead, **what)


@_command
def main(options: _Read | _Table) -> None:
    if isinstance(options, _Read):
        _keep(options)
        return
    rows: list[Result] = []
    for config in options.config:
        measured = list(_measured(config, options))
        results.append(measured, options.out)
        rows += measured
    write_table(render_table("scale", rows=rows, models=MODELS), options.out / "scale.md")
