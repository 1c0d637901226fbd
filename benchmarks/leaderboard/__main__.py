"""The leaderboard: checks and scores submissions, ranks them, and makes one from a predictor.

python -m benchmarks.leaderboard check FOLDER                      verifies a submission and prints its score
python -m benchmarks.leaderboard check FOLDER --predictor mlp      also fits the predictor again and measures how much
                                                                   its predictions change under the group
python -m benchmarks.leaderboard submit my_module:MyPredictor --config mnist --authors "Ada Lovelace" --out FOLDER
python -m benchmarks.leaderboard table                             ranks all submissions of a clone

A submission is a folder with card.toml and one CSV file of predicted test accuracies for each set of test rows
(CONTRIBUTING.md). `table` scores those in benchmarks/submissions/ and renders the documents.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from benchmarks.options import Checkpoint, Clone, Jobs, Reads
from zoo.checked import Seed
from zoo.command import DEFAULT_NAME, Argument, Command, Device, Option, ZooName


@dataclass(frozen=True, kw_only=True)
class _FitOptions:
    device: Device = "auto"
    jobs: Jobs = None


@dataclass(frozen=True, kw_only=True)
class _Check(_FitOptions):
    folder: Annotated[Path, Argument("folder of the submission", "FOLDER")]
    predictor: Annotated[str | None, Option("also fit this again: a model's name or module:Class", "MODEL")] = None
    zoo: Annotated[tuple[str, ...], Option("folders of zoos with the test rows", "DIR")] = (DEFAULT_NAME,)


@dataclass(frozen=True, kw_only=True)
class _Submit(_FitOptions):
    model: Annotated[str, Argument("a model of benchmarks.kendall, or module:Class", "MODEL")]
    out: Annotated[Path, Option("folder to write", "FOLDER")]
    zoo: ZooName = DEFAULT_NAME
    config: Annotated[str | None, Option("config of the zoo (default: its only one, else mnist)")] = None
    checkpoint: Checkpoint = None
    seed: Annotated[Seed, Option("seed of the fit")] = 0
    name: Annotated[str | None, Option("name of the predictor (default: the model's title)")] = None
    authors: Annotated[tuple[str, ...] | None, Option("who made it", "AUTHOR")] = None
    paper: Annotated[str | None, Option("where it is described", "URL")] = None
    code: Annotated[str | None, Option("where its code is", "URL")] = None
    reads: Annotated[tuple[Reads, ...] | None, Option("what it reads of a run (default: weights)")] = None


@dataclass(frozen=True, kw_only=True)
class _Table:
    root: Clone = None


_command = Command(
    __name__,
    "benchmarks.leaderboard",
    __doc__,
    {
        "check": (_Check, "verifies a submission and prints its score"),
        "submit": (_Submit, "fits a predictor and writes its submission"),
        "table": (_Table, "ranks all submissions of a clone"),
    },
    lambda _: ("scipy",),
)

import inspect
import sys
import tempfile

import numpy as np
import torch

from benchmarks.data import MIN_ROWS, BenchmarkData, Outcome, require_rows
from benchmarks.leaderboard.scoring import HeldOutRows
from benchmarks.leaderboard.submission import (
    Card,
    PredictionSet,
    Submission,
    card_with,
    refuse_copies,
    submissions_in,
    write_submission,
)
from benchmarks.models.registry import MODELS, check_models, known_models, own_models
from benchmarks.report import find_clone, rankings_of, write_documents
from benchmarks.tables import for_terminal, render_table
from benchmarks.trial import Trial, TrialStore, compute
from zoo.device import choose_device
from zoo.format.splits import SPLITS

_SAME_CHANGE = 1e-3
"""By how much a second fit on another machine may differ."""
_OWN_AUTHORS = ("The Small Transformer Zoo authors",)


def _check(options: _Check) -> None:
    submission = Submission.read(options.folder)
    others = submissions_in(Path(__file__).parents[1] / "submissions")
    own = (submission.name, submission.card.authors)
    refuse_copies([*(other for other in others if (other.name, other.card.authors) != own), submission])
    predictor = check_models([options.predictor])[0] if options.predictor else None
    for predictions in submission.card.predictions:
        zoo, rows = submission.find_rows(options.zoo, predictions)
        score = submission.score(predictions, rows)
        print(for_terminal(render_table("score", name=submission.name, rows=rows, score=score)))
        if predictor is None:
            continue
        fitted = _fit(predictor, zoo, predictions, options)
        claimed, measured = predictions.change_under_group, fitted.notes["mean_change"]
        if claimed is not None and measured is not None and abs(claimed - float(measured)) > _SAME_CHANGE:
            raise ValueError(
                f"{submission.folder}: on {predictions.config} it changes by {measured:.2g} under the group, "
                f"its card says {claimed:.2g}"
            )
        apart = np.abs(fitted.predicted - submission.predicted(predictions, rows)).mean()
        changes = "" if measured is None else f"changes by {measured:.2g} under the group, "
        print(f"  fitted again: {changes}{apart:.2g} from what was submitted on average")


def _fit(model: str, zoo: str, predictions: PredictionSet, options: _FitOptions) -> Outcome:
    """Fits one of ``known_models`` anew on train, chooses on validation, by its own recipe."""
    models = known_models()
    for name in (model, *models[model].parts):
        if missing := models[name].missing():
            raise ValueError(missing)
    config, checkpoint = predictions.config, predictions.checkpoint
    chosen = {"checkpoint": checkpoint, "label": "test_accuracy", "device": choose_device(options.device)}
    data = BenchmarkData.from_zoo(zoo, config, **chosen)
    require_rows(config, dict(zip(SPLITS, data.rows_at_least(0.0), strict=False)), MIN_ROWS)
    trial = Trial.on(data, model, predictions.seed or 0, recipe=models[model].recipe)
    jobs = options.jobs or torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="leaderboard-") as scratch:
        outcomes, skipped = compute([trial], data, TrialStore(Path(scratch)), jobs=jobs)
    if skipped:
        raise ValueError("; ".join(skipped.values()))
    return outcomes[trial]


def _submit(options: _Submit) -> None:
    (name,) = check_models([options.model])
    model = known_models()[name]
    if not options.authors and name not in MODELS:
        raise ValueError("a submission has authors: name them with --authors")
    rows = HeldOutRows.read(options.zoo, options.config, options.checkpoint)
    predictions = PredictionSet(
        zoo=Path(options.zoo).name,
        config=rows.config,
        checkpoint=rows.checkpoint,
        test_rows=rows.sha256,
        file=f"{rows.config}.{rows.checkpoint}.{rows.sha256[:8]}.csv",
        seed=options.seed if model.seeded else None,
    )
    code = options.code
    if code is None and name in MODELS and (own := model.kind or model.fit):
        # the file of this repository that it is in
        code = Path(inspect.getfile(own)).resolve().relative_to(Path(__file__).parents[2]).as_posix()
    card = Card(
        name=options.name or model.title,
        authors=options.authors or _OWN_AUTHORS,
        paper=options.paper or model.paper,
        code=code,
        reads=options.reads or tuple(word for word in model.reads if word != "label"),
        predictions=(),
    )
    card_with(options.out, card, predictions)  # a fault is reported before the fit
    fitted = _fit(name, options.zoo, predictions, options)
    parameters, change = fitted.notes["parameters"], fitted.notes["mean_change"]
    measured = replace(
        predictions,
        parameters=None if parameters is None else int(parameters),
        change_under_group=None if change is None else float(f"{change:.3g}"),
    )
    write_submission(options.out, card, measured, rows, fitted.predicted)
    print(f"written: {options.out}; look at its card.toml, then: python -m benchmarks.leaderboard check {options.out}")


def _table(options: _Table) -> None:
    root = find_clone(options.root)
    for path in write_documents(root, root / "benchmarks" / "results"):
        print(f"written: {path}", file=sys.stderr)
    print(for_terminal(render_table("leaderboard", rankings=rankings_of(root))))


_VERBS: dict[type, Callable[..., None]] = {_Check: _check, _Submit: _submit, _Table: _table}


@_command
@own_models()
def main(options: _Check | _Submit | _Table) -> None:
    _VERBS[type(options)](options)
