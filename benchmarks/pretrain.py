"""Fits a predictor on the training split of a zoo and stores it in one small file with a card.

python -m benchmarks.pretrain --zoo DIR --config mnist --out nfn/pretrained/mnist.safetensors

Gauge-NFN by its own recipe, on the checkpoints of the training split, or one per run (--checkpoint); the epoch is
chosen and the interval is calibrated on validation, and the file as stored is tested once on the test split.
`nfn.load_pretrained` reads it, `python -m benchmarks.predict` ranks checkpoints with it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.options import EPOCHS, Epochs
from zoo.checked import Seed
from zoo.command import DEFAULT_NAME, Command, Device, Option, ZooName

_SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class _Options:
    zoo: ZooName = DEFAULT_NAME
    config: Annotated[str | None, Option("config of the zoo (default: its only one, else mnist)")] = None
    checkpoint: Annotated[str, Option("one of the config's, or all", "LABEL")] = "all"
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
from importlib import metadata
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.data import MIN_ROWS, BenchmarkData, Checkpoints, Fitted, Outcome, require_rows
from benchmarks.leaderboard.scoring import HeldOutRows
from benchmarks.models.registry import MODELS
from benchmarks.results import current_commit, describe_device
from benchmarks.statistics import kendall_tau, tau_with_interval
from benchmarks.trial import Trial, fit
from nfn import Pretrained, load_pretrained
from nfn.predictors.conformal import LEVEL, ConformalInterval
from nfn.predictors.storage import CARD_SUFFIX, save_pretrained
from nfn.training import READ_AT_ONCE
from zoo.device import choose_device
from zoo.format.splits import SPLITS
from zoo.storage.atomic import write_atomically
from zoo.tasks.toml_text import toml_text

_MODEL = "gauge_nfn"
_MAX_FILE = 3_000_000
_LIMITS = (
    "For transformers of exactly these dimensions, trained by the protocol of this zoo on its data: the weights of any "
    "other give a number that means nothing. It may have learned which configurations train well rather than how "
    "a network behaves, so it must not stand in for a measurement on test data, decide about a model in use, or "
    "compare transformers trained in other ways. The interval holds on average over runs like those of the zoo."
)


def _stored(pretrained: Pretrained) -> Fitted:
    """A stored predictor as a table's model, on the CPU, where most will use it; the rows may be on a GPU."""

    @torch.no_grad()
    def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return torch.cat([pretrained(weights.flat().cpu()) for weights in rows.pieces(READ_AT_ONCE)]).numpy()

    return Fitted(predict)


def _measured(outcome: Outcome, pretrained: Pretrained) -> dict[str, Any]:
    """The accuracy of the stored predictor on the test split."""
    tau, interval = tau_with_interval(outcome.predicted, outcome.truth, outcome.units)
    low, high = (end.numpy() for end in pretrained.interval(torch.from_numpy(outcome.predicted)))
    return {
        "tau": round(tau, 4),
        **({} if interval is None else {"tau_low": round(interval[0], 4), "tau_high": round(interval[1], 4)}),
        "mean_absolute_error": round(float(np.abs(outcome.predicted - outcome.truth).mean()), 4),
        "share_inside_interval": round(float(((low <= outcome.truth) & (outcome.truth <= high)).mean()), 4),
        "rows": len(outcome.truth),
        "runs": len(np.unique(outcome.runs)),
    }


def _card(options: _Options, data: BenchmarkData, test: HeldOutRows, fitted: Fitted, file: Path) -> dict[str, Any]:
    """Everything needed to use the file, or to make it again."""
    pretrained = load_pretrained(file)
    before, after = (data.judge(model, 0.0, _MODEL) for model in (fitted, _stored(pretrained)))
    stored_change = float(np.abs(before.predicted - after.predicted).max())
    return {
        "name": file.stem,
        "predictor": MODELS[_MODEL].title,
        "limits": _LIMITS,
        "data": {
            "zoo": Path(options.zoo).name,
            "config": data.config,
            "checkpoint": data.checkpoint,
            "trained_on": data.trained_on or "the whole data of its task",
            "train_rows": len(data.train),
            "train_runs": len(np.unique(data.train.runs)),
            "validation_rows": len(data.validation),
            "validation_runs": len(np.unique(data.validation.runs)),
            "fingerprint": data.fingerprint,
            "test_rows": test.sha256,
        },
        "recipe": {
            "text": "targets are ranks among the training accuracies; principal components of the invariants of the "
            "whole group; Adam with weight decay; the epoch with the best validation τ",
            "recipe": MODELS[_MODEL].recipe,
            "epochs": options.epochs,
            "best_epoch": fitted.epoch,
            "seed": options.seed,
            "parameters": fitted.parameters,
            "command": " ".join(["python", *sys.orig_argv[1:]]),
            "device": describe_device(data.train.weights.device),
            "torch": metadata.version("torch"),
            "commit": current_commit(),
        },
        "interval": {
            "level": LEVEL,
            "bins": len(pretrained.interval.half_widths),
            "text": "split-conformal: the quantile of the errors on the validation split, in bins of predicted value. "
            "Validation also chose the epoch, and the checkpoints of a run are alike, so the level is approximate.",
        },
        "test": _measured(after, pretrained),
        "storage": {
            "bytes": file.stat().st_size,
            "tau_before_storing": round(kendall_tau(before.predicted, before.truth), 4),
            "largest_change_by_storing": float(f"{stored_change:.2g}"),
        },
    }


def _check_replaceable(path: Path) -> None:
    """Refuses to replace anything but an older predictor and its card: NAME.toml may be a task file of the user's."""
    beside = path.with_suffix(CARD_SUFFIX)
    card = load_pretrained(path).card if path.exists() else {}
    if beside.exists() and "predictor" not in card:
        raise ValueError(f"{beside} exists and is not the card of a predictor: choose another --out")


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
    _check_replaceable(options.out)
    data = BenchmarkData.from_zoo(
        options.zoo, options.config, checkpoint=options.checkpoint, device=choose_device(options.device)
    )
    held_out = HeldOutRows.read(options.zoo, data.config, data.checkpoint)
    counts = (len(data.train), len(data.validation), len(held_out.keys))
    require_rows(data.config, dict(zip(SPLITS, counts, strict=True)), MIN_ROWS)
    trial = Trial.on(data, _MODEL, options.seed, recipe=MODELS[_MODEL].recipe, epochs=options.epochs)
    fitted = fit([trial], data)[trial]
    assert fitted.predictor is not None
    predicted, truth = fitted.predict(data.validation), data.validation.truth()
    interval = ConformalInterval.fit(torch.from_numpy(predicted), torch.from_numpy(truth))
    with tempfile.TemporaryDirectory(prefix="pretrain-") as scratch:
        file = Path(scratch) / options.out.name
        size = save_pretrained(fitted.predictor, interval, file)
        written = _card(options, data, held_out, fitted, file)
        _replace_pair(options.out, file.read_bytes(), toml_text(written).encode())
    if size > _MAX_FILE:
        print(f"note: {options.out} has {size:,} bytes; the package takes at most {_MAX_FILE:,}", file=sys.stderr)
    test = written["test"]
    print(
        f"{options.out}: τ {test['tau']:.3f} on {test['rows']:,} test rows, {test['share_inside_interval']:.0%} of "
        f"them inside the {LEVEL:.0%} interval; {size:,} bytes, storing moved no prediction by more than "
        f"{written['storage']['largest_change_by_storing']:.1g}"
    )


if __name__ == "__main__":
    main()
