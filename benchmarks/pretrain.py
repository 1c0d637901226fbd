"""Fits a predictor on the training split of a zoo and stores it in one small file with a card.

python -m benchmarks.pretrain --zoo DIR --config mnist mnist-seeds --out nfn/pretrained/mnist.safetensors

Gauge-NFN by its own recipe; for language models, whose invariants would take a file of 70 MB, Response-NFN. Several
configs of one task are joined. The interval is calibrated by cross-validation: the configurations of train and
validation are divided into five folds, each predicted by a predictor fitted alike on the others. Only configs with a
seed for each run count, if there are any, since whoever uses the predictor has other seeds. The file as stored is
tested once on the test split of each config. `nfn.load_pretrained` and `benchmarks.predict` read it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from benchmarks.options import EPOCHS, Epochs
from zoo.checked import Seed
from zoo.command import DEFAULT_NAME, Command, Device, Option, ZooName

_SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class _Options:
    zoo: ZooName = DEFAULT_NAME
    config: Annotated[
        tuple[str, ...] | None, Option("of one task, to fit on together (default: the only one, else mnist)", "CONFIG")
    ] = None
    checkpoint: Annotated[str, Option("one of the configs', or all", "LABEL")] = "all"
    label: Annotated[str | None, Option("what it predicts (default: test_accuracy or test_loss)")] = None
    seed: Annotated[Seed, Option("seed of the fit")] = 0
    epochs: Epochs = EPOCHS
    device: Device = "auto"
    out: Annotated[Path, Option(f"file to write, NAME{_SUFFIX}; its card goes beside it", "FILE")]

    def __post_init__(self) -> None:
        if self.out.suffix != _SUFFIX:
            raise ValueError(f"--out must end in {_SUFFIX}, got {self.out}")


_command = Command(__name__, "benchmarks.pretrain", __doc__, _Options, lambda _: ("scipy",))

import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import reduce
from importlib import metadata

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.data import MIN_ROWS, BenchmarkData, Checkpoints, Fitted, Outcome, require_rows
from benchmarks.leaderboard.scoring import HeldOutRows
from benchmarks.models.registry import builder, known_models
from benchmarks.models.training import RECIPES, train_together
from benchmarks.results import current_commit, describe_device
from benchmarks.statistics import kendall_tau, tau_with_interval
from benchmarks.tables import environment
from nfn import Pretrained, load_pretrained
from nfn.predictors.conformal import LEVEL, ConformalInterval
from nfn.predictors.storage import CARD_SUFFIX, save_pretrained
from nfn.training import READ_AT_ONCE
from zoo.device import choose_device
from zoo.format.hyperparameters import SHARED_SEED
from zoo.format.published import PublishedZoo
from zoo.format.schema import direction_of
from zoo.format.splits import SPLITS
from zoo.reading.locate import choose_configs, find_folder
from zoo.storage.atomic import write_atomically
from zoo.transformer.spec import differences

_FOLDS = 5  # one is held out, one chooses the epoch, the others are fitted on


def _read(options: _Options, zoo: PublishedZoo) -> Iterator[tuple[BenchmarkData, HeldOutRows]]:
    """The configs; a ValueError where one predictor cannot read all of them."""
    names = tuple(dict.fromkeys(choose_configs(options.zoo, options.config)))
    for name in names:
        if unlike := differences(zoo.config(names[0]).spec, zoo.config(name).spec):
            raise ValueError(f"{names[0]} and {name} differ: {unlike}; a predictor reads one kind of transformer")
    chosen = {"checkpoint": options.checkpoint, "label": options.label, "device": choose_device(options.device)}
    for name in names:
        data = BenchmarkData.from_zoo(options.zoo, name, **chosen)
        held_out = HeldOutRows.read(options.zoo, name, data.checkpoint)
        counts = map(len, (data.train, data.validation, held_out.keys))
        require_rows(name, dict(zip(SPLITS, counts, strict=True)), MIN_ROWS)
        yield data, held_out


def _joined(parts: Sequence[BenchmarkData], tested: Sequence[str]) -> BenchmarkData:
    """All configs as one. A run that they have in several splits is kept in the last of them alone.

    ``tested`` are the runs of the test splits.
    """
    train, validation = (
        reduce(Checkpoints.with_rows_of, (getattr(part, split) for part in parts)).apart_from(tested)
        for split in ("train", "validation")
    )
    return replace(parts[0], train=train.apart_from(validation.runs), validation=validation)


def _stored(pretrained: Pretrained) -> Fitted:
    """A stored predictor as a table's model, on the CPU, where most will use it; the rows may be on a GPU."""

    @torch.no_grad()
    def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
        predicted = torch.cat([pretrained(weights.flat().cpu()) for weights in rows.pieces(READ_AT_ONCE)])
        return direction_of(pretrained.label) * predicted.numpy()

    return Fitted(predict)


def _measured(outcome: Outcome, pretrained: Pretrained) -> dict[str, Any]:
    """The accuracy of the stored predictor on test rows."""
    tau, interval = tau_with_interval(outcome.predicted, outcome.truth, outcome.units)
    predicted, truth = (direction_of(pretrained.label) * side for side in (outcome.predicted, outcome.truth))
    low, high = (end.numpy() for end in pretrained.interval(torch.from_numpy(predicted)))
    return {
        "tau": round(tau, 4),
        **({} if interval is None else {"tau_low": round(interval[0], 4), "tau_high": round(interval[1], 4)}),
        "mean_absolute_error": round(float(np.abs(outcome.predicted - outcome.truth).mean()), 4),
        "share_inside_interval": round(float(((low <= truth) & (truth <= high)).mean()), 4),
        "rows": len(outcome.truth),
        "runs": len(np.unique(outcome.runs)),
    }


def _tests(
    joined: BenchmarkData, data: BenchmarkData, held_out: HeldOutRows, fitted: Fitted, pretrained: Pretrained
) -> Iterator[dict[str, Any]]:
    """Tests the stored predictor on a config; and on its configurations that are not in train, if these are fewer."""
    name = type(pretrained.predictor).__name__
    unseen, every = map(joined.tested_on, joined.test_elsewhere(data))
    before, after = (every.judge(model, 0.0, name) for model in (fitted, _stored(pretrained)))
    yield {
        "config": data.config,
        "configurations": "all",
        **_measured(after, pretrained),
        "sha256": held_out.sha256,
        "tau_before_storing": round(kendall_tau(before.predicted, before.truth), 4),
        "largest_change_by_storing": float(f"{np.abs(before.predicted - after.predicted).max():.2g}"),
    }
    new = unseen.judge(_stored(pretrained), 0.0, name)
    if MIN_ROWS <= len(new.truth) < len(after.truth):
        yield {"config": data.config, "configurations": "unseen", **_measured(new, pretrained)}


def _replace_pair(path: Path, predictor: bytes, card: bytes) -> None:
    """Writes a predictor and its card. Two files cannot change at once: killed in between, there is no card.

    A predictor without a card is still of use; one with another's card would be believed.
    """
    beside = path.with_suffix(CARD_SUFFIX)
    beside.unlink(missing_ok=True)
    write_atomically(path, predictor)
    write_atomically(beside, card)


@_command
def main(options: _Options) -> None:
    # only an older predictor and its card are replaced: NAME.toml may be a task file of the user's
    beside, older = options.out.with_suffix(CARD_SUFFIX), load_pretrained(options.out) if options.out.exists() else None
    if beside.exists() and (older is None or "predictor" not in older.card):
        raise ValueError(f"{beside} exists and is not the card of a predictor: choose another --out")
    zoo = PublishedZoo.read(find_folder(options.zoo, only_manifest=True))
    configs = list(_read(options, zoo))
    parts = [data for data, _ in configs]
    joined = _joined(parts, [run for _, rows in configs for run, _ in rows.keys])
    train, validation = joined.train, joined.validation
    model = known_models()["response_nfn" if train.spec.causal else "gauge_nfn"]
    build = builder(model.name, train.spec, None, None)

    def fit(train: Checkpoints, validation: Checkpoints) -> Fitted:
        return train_together(build, (options.seed,), train, validation, RECIPES[model.recipe], options.epochs)[0]

    calibrated = [data for data in parts if zoo.config(data.config).seeds != SHARED_SEED] or parts
    runs = [run for data in calibrated for run in (*data.train.runs, *data.validation.runs)]
    every = train.with_rows_of(validation)
    held_out = []
    folds = max(3, min(_FOLDS, len(np.unique(every.configurations()))))
    for fold in range(folds):
        *others, rows = every.in_folds(fold, folds)
        own = rows.take(np.flatnonzero(np.isin(rows.runs, runs)))
        held_out.append((fit(*others).predict(own), own.truth()))
    sides = map(torch.from_numpy, map(np.concatenate, zip(*held_out, strict=True)))
    interval = ConformalInterval.fit(*(direction_of(train.label) * side for side in sides))
    fitted = fit(train, validation)
    assert fitted.predictor is not None
    with tempfile.TemporaryDirectory(prefix="pretrain-") as scratch:
        file = Path(scratch) / options.out.name
        size = save_pretrained(fitted.predictor, interval, file, train.label)
        pretrained = load_pretrained(file)
        tests = [test for config in configs for test in _tests(joined, *config, fitted, pretrained)]
        template = environment().get_template("predictor.toml.j2")
        card = template.render(
            name=file.stem,
            zoo=Path(options.zoo).name,
            configs=parts,
            calibrated=calibrated,
            held_out=held_out,
            train=train,
            validation=validation,
            model=model,
            fitted=fitted,
            options=options,
            interval=pretrained.interval,
            level=LEVEL,
            bytes=size,
            tests=tests,
            command=" ".join(["python", *sys.orig_argv[1:]]),
            device=describe_device(train.weights.device),
            torch=metadata.version("torch"),
            commit=current_commit(),
        )
        _replace_pair(options.out, file.read_bytes(), card.encode())
    for test in tests:
        print(
            f"{options.out}: {test['config']}, {test['configurations']} configurations: τ {test['tau']:.3f} on "
            f"{test['rows']:,} test rows, {test['share_inside_interval']:.0%} of them inside the {LEVEL:.0%} interval"
        )
