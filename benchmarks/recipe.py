"""Which recipe made these weights: optimizer, learning rate, weight decay, initial deviation, dropout, share of the
training data and epoch, read from the weights by every kind of features.

python -m benchmarks.recipe                                    MNIST, on the zoo in this repository
python -m benchmarks.recipe --models mlp gauge_nfn my_module:MyPredictor --where "checkpoint == 'epoch_75'"

The same network reads what each predictor does of a checkpoint, scaled by the train split: two hidden layers and one
head per hyperparameter, whose classes are the values of the grid; of more than 16 values, eight intervals with equally
many rows. The epoch is chosen on validation, the test split is read once. A hyperparameter that all runs share is left
out. Writes OUT/recipe.jsonl and OUT/recipe.CONFIG.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.options import EPOCHS, Configs, Epochs, Models
from zoo.checked import Count
from zoo.command import DEFAULT_NAME, Command, Device, Option, ZooName

_ALL = "checkpoint != 'best'"


@dataclass(frozen=True, kw_only=True)
class _Options:
    zoo: ZooName = DEFAULT_NAME
    config: Configs = None
    models: Models = ("mlp", "statnn", "raw_moments", "response_nfn", "gauge_nfn")
    seeds: Annotated[Count, Option("seeds per model")] = 3
    epochs: Epochs = EPOCHS
    where: Annotated[str, Option("rows of each split; best is an epoch of any number", "EXPRESSION")] = _ALL
    device: Device = "auto"
    out: Annotated[Path, Option("folder to write to", "DIR")] = Path("results")


_command = Command(__name__, "benchmarks.recipe", __doc__, _Options, lambda _: ("scipy",))

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import results
from benchmarks.data import MIN_ROWS, BenchmarkData, Checkpoints, require_rows
from benchmarks.models.registry import builder, check_models, known_models, own_models
from benchmarks.results import Result, ResultIndex
from benchmarks.statistics import bootstrap_taus, resample_runs, tau_or_zero
from benchmarks.tables import render_table, write_table
from nfn import GaugeNFN, Predictor
from nfn.predictors.component_predictor import ComponentPredictor, ComponentReader
from nfn.predictors.predictor import linear, normalized_network
from nfn.predictors.scaling import Standardization
from nfn.training import READ_AT_ONCE
from zoo import TransformerWeights
from zoo.device import choose_device, one_thread
from zoo.format.hyperparameters import CONFIGURATION, OPTIMIZERS
from zoo.reading.locate import choose_configs
from zoo.reading.selection import Selection

_MOST_CLASSES, _INTERVALS = 16, 8
_WIDTH, _BATCH_SIZE, _RATE, _DECAY = 128, 64, 1e-3, 1e-2


def _values(rows: pd.DataFrame, name: str) -> Float[np.ndarray, " n"]:
    """A hyperparameter, or the epoch, as numbers: an optimizer is its place among the known ones."""
    values = rows[name].map(OPTIMIZERS.index) if name == "optimizer" else rows[name]
    return values.to_numpy(dtype=np.float64)


def _edges(rows: pd.DataFrame, name: str) -> Float[np.ndarray, " edges"]:
    """What lies between the classes of a hyperparameter, or of the epoch."""
    values = _values(rows, name)
    grid = np.arange(len(OPTIMIZERS)) if name == "optimizer" else np.unique(values)
    if len(grid) > _MOST_CLASSES:
        return np.unique(np.quantile(values, np.arange(1, _INTERVALS) / _INTERVALS))
    return (grid[1:] + grid[:-1]) / 2


def _answers(asked: Mapping[str, Float[np.ndarray, " edges"]], rows: Checkpoints) -> Integer[Tensor, "n questions"]:
    """The class of each row by every name that is asked for."""
    found = [np.searchsorted(edges, _values(rows.metadata, name)) for name, edges in asked.items()]
    return torch.from_numpy(np.stack(found, axis=1)).to(rows.weights.device, torch.long)


def _features(predictor: Predictor, weights: TransformerWeights) -> Float[Tensor, "n inputs"]:
    """What a predictor reads of each checkpoint, before its first parameter."""
    readers = predictor.parts.values() if isinstance(predictor, ComponentPredictor) else ()
    found = [part for part in readers if isinstance(part, ComponentReader)]
    if not found or len(found) < len(readers):
        return predictor.inputs(weights)
    scaled = predictor.get_submodule("scale")(weights)
    return torch.cat([part.features(scaled) for part in found], dim=-1)


def _prepared(model: str, train: Checkpoints) -> Callable[[Checkpoints], Float[Tensor, "n inputs"]]:
    """The scaled features of a model; principal components are of the right size already."""
    predictor = builder(model, train.spec, None, None)(torch.Generator().manual_seed(0)).to(train.weights.device)
    predictor.fit_inputs(train.readable, train.goodness)
    predictor.fit_scale(train.readable)

    @torch.no_grad()
    def read(rows: Checkpoints) -> Float[Tensor, "n inputs"]:
        return torch.cat([_features(predictor, weights) for weights in rows.pieces(READ_AT_ONCE)])

    if isinstance(predictor, GaugeNFN):
        return read
    features = read(train)
    scale = Standardization(features.shape[1]).to(features)
    scale.fit(features)
    return lambda rows: scale(read(rows))


@one_thread()
def _fit(
    features: Sequence[Float[Tensor, "_ inputs"]],
    answers: Sequence[Integer[Tensor, "_ questions"]],
    present: Bool[Tensor, "questions classes"],
    seed: int,
    epochs: int,
) -> Callable[[Tensor], Float[Tensor, "n questions classes"]]:
    """The network at the epoch with the lowest loss on validation; train and validation are given, in this order.

    It has as many logits for every question as the one with the most classes; those of absent classes are −∞.
    """
    generator = torch.Generator().manual_seed(seed)
    *hidden, _ = normalized_network([features[0].shape[1], _WIDTH, _WIDTH], generator)
    network = nn.Sequential(*hidden, linear(_WIDTH, present.numel(), generator)).to(features[0])
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    def heads(inputs: Tensor) -> Tensor:
        return network(inputs).unflatten(-1, present.shape).masked_fill(~present, -math.inf)

    def loss(inputs: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(heads(inputs).flatten(0, 1), wanted.flatten())

    lowest, best = float("inf"), network.state_dict()
    for _ in range(epochs):
        order = torch.randperm(len(features[0]), generator=generator).to(features[0].device)
        for batch in order.split(_BATCH_SIZE):
            optimizer.zero_grad()
            loss(features[0][batch], answers[0][batch]).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            measured = float(loss(features[1], answers[1]))
        if measured < lowest:
            lowest, best = measured, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(best)
    return torch.no_grad()(heads)


def _measure(options: _Options, config: str, models: Sequence[str]) -> list[Result]:
    """All rows of a config. Every network is fitted before the test split is opened."""
    device, where = choose_device(options.device), Selection.parse(options.where)
    data = BenchmarkData.from_zoo(options.zoo, config, checkpoint="all", where=where, device=device)
    seen = (data.train, data.validation)
    require_rows(config, {"validation": len(data.validation)}, MIN_ROWS)
    recipes = data.train.metadata
    asked = {name: _edges(recipes, name) for name in (*CONFIGURATION, "epoch") if len(set(recipes[name])) > 1}
    classes, answers = [len(edges) + 1 for edges in asked.values()], [_answers(asked, rows) for rows in seen]
    present = torch.arange(max(classes), device=device) < torch.tensor(classes, device=device)[:, None]
    fitted = {}
    for model in models:
        read = _prepared(model, data.train)
        features = [read(rows) for rows in seen]
        fitted[model] = read, [_fit(features, answers, present, seed, options.epochs) for seed in range(options.seeds)]
    test = data.open_test()
    units = test.units(repeats=data.repeats)
    truths, counts = _answers(asked, test).cpu().numpy(), resample_runs(units)
    setting = {"zoo": data.fingerprint, "epochs": options.epochs}
    setting |= {} if options.where == _ALL else {"where": options.where}
    measured: list[Result] = []

    def add(name: str, metric: str, values: Sequence[float], resampled: Any = None, **who: str) -> None:
        what = {"setting": setting | {"hyperparameter": name}, "device": device, **who}
        measured.extend(Result.estimated("recipe", config, metric, values, resampled, **what))

    for number, (name, count) in enumerate(zip(asked, classes, strict=True)):
        most = torch.bincount(answers[0][:, number]).argmax()
        add(name, "chance", [1 / count], variant="data")
        add(name, "majority", [float((truths[:, number] == int(most)).mean())], variant="data")
    for model, (read, networks) in fitted.items():
        features = read(test)
        per_seed = torch.stack([network(features) for network in networks]).double().cpu()
        for number, name in enumerate(asked):
            heads = per_seed[:, :, number]
            right = [(head.argmax(-1).numpy() == truths[:, number]).astype(np.float64) for head in heads]
            resampled = counts @ np.mean(right, axis=0) / counts.sum(1)
            add(name, "accuracy", [float(each.mean()) for each in right], resampled, model=model)
            if name != "optimizer":  # whose values have no order
                values = _values(test.metadata, name)
                places = torch.arange(max(classes), dtype=torch.float64)
                expected = [(head.softmax(-1) @ places).numpy() for head in heads]
                taus = [tau_or_zero(each, values) for each in expected]
                resampled = bootstrap_taus(expected, values, counts, units=units)
                add(name, "tau", taus, resampled, model=model)
    return measured


@_command
@own_models()
def main(options: _Options) -> None:
    models = check_models(options.models)
    for name in models:
        if not known_models()[name].stacked:
            raise ValueError(f"{name} has no features to read: choose models that derive from nfn.Predictor")
    for config in choose_configs(options.zoo, options.config, ("mnist",)):
        rows = _measure(options, config, models)
        results.append(rows, options.out)
        where = None if options.where == _ALL else options.where
        index = ResultIndex.latest(rows, config, where, label="test_accuracy")  # these rows have no label
        write_table(render_table("recipe", {config: index}), options.out / f"recipe.{config}.md")
