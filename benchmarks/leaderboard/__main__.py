"""The leaderboard: checks and scores submissions, ranks them, and makes one from a predictor.

python -m benchmarks.leaderboard check FOLDER                      verifies a submission and prints its score
python -m benchmarks.leaderboard check FOLDER --predictor mlp      also fits the predictor again and measures how much
                                                                   its predictions change under the group
python -m benchmarks.leaderboard submit my_module:MyPredictor --config mnist --authors "Ada Lovelace" --out FOLDER
python -m benchmarks.leaderboard table                             ranks all submissions of a clone

A submission is a folder with card.toml and one CSV file of predictions for each set of test rows (CONTRIBUTING.md).
`table` ranks those in benchmarks/submissions/, writes benchmarks/results/leaderboard.json, and renders the documents.
"""

import argparse
import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.data import BenchmarkData, Outcome
from benchmarks.leaderboard.ranking import rank, read_ranking, write_ranking
from benchmarks.leaderboard.scoring import HeldOutRows, Score, tau_text
from benchmarks.leaderboard.submission import (
    READS,
    Card,
    PredictionSet,
    Reads,
    Submission,
    card_with,
    check_name,
    submissions_in,
    write_submission,
)
from benchmarks.models.registry import MODELS, BenchmarkModel, check_models, known_models, own_models
from benchmarks.report import find_clone, write_documents
from benchmarks.tables.markdown import number, threshold_title
from benchmarks.trial import Trial, average, fit_and_judge
from zoo.command import any_seed, command, command_parser, positive
from zoo.device import choose_device
from zoo.reading.locate import DEFAULT_NAME

_DOCUMENT = "benchmarks/README.md"
_SAME_CHANGE = 1e-3
"""By how much a second fit on another machine may differ."""
_OWN_AUTHORS = ("The Small Transformer Zoo authors",)
_PAPERS = {
    **dict.fromkeys(
        ("mlp", "xgboost", "lightgbm", "random_forest", "transformer_nfn"), "https://arxiv.org/abs/2410.04209"
    ),
    "statnn": "https://arxiv.org/abs/2002.11448",
}
"""Where the models that come with the benchmarks are described; those without an entry are new here."""


def _check(options: argparse.Namespace) -> None:
    submission = Submission.read(options.folder)
    predictor = check_models([options.predictor])[0] if options.predictor else None
    for predictions in submission.card.predictions:
        zoo, rows = submission.find_rows(options.zoo, predictions)
        print(f"{submission.name}: {rows.title}, {len(rows.keys):,} test rows {rows.sha256[:12]}…")
        _print_score(submission.score(predictions, rows))
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


def _print_score(score: Score) -> None:
    for tau in score["thresholds"]:
        print(f"  τ, {threshold_title(tau['threshold'])}: {tau_text(tau)} ({tau['count']:,} rows)")
    if within := score["within"]:
        print(f"  τ within a configuration: {tau_text(within)} ({within['count']:,} configurations)")
    print(f"  R²: {number(score['r2'], '.3f')}")


def _fit(model: str, zoo: str, predictions: PredictionSet, options: argparse.Namespace) -> Outcome:
    """Fits one of ``known_models`` on train, chooses on validation, by its own recipe; of an average, its parts."""
    models = known_models()
    for name in (model, *models[model].parts):
        if missing := models[name].missing():
            raise ValueError(missing)
    config, checkpoint = predictions.config, predictions.checkpoint
    data = BenchmarkData.from_zoo(zoo, config, checkpoint=checkpoint, device=choose_device(options.device))
    trial = Trial(
        "kendall",
        config,
        model,
        predictions.seed or 0,
        data.fingerprint,
        checkpoint=checkpoint,
        recipe=models[model].recipe,
    ).normalized()
    outcomes = [fit_and_judge([fit], data, options.jobs)[fit] for fit in trial.parts or (trial,)]
    return average(outcomes, data.train.truth()) if trial.parts else outcomes[0]


def _submit(options: argparse.Namespace) -> None:
    (name,) = check_models([options.model])
    model = known_models()[name]
    if not options.authors and name not in MODELS:
        raise ValueError("a submission has authors: name them with --authors")
    check_name(options.out)
    rows = HeldOutRows.read(options.zoo, options.config, options.checkpoint)
    predictions = PredictionSet(
        zoo=Path(options.zoo).name,
        config=rows.config,
        checkpoint=rows.checkpoint,
        test_rows=rows.sha256,
        file=f"{rows.config}.{rows.checkpoint}.{rows.sha256[:8]}.csv",
        seed=options.seed if model.seeded else None,
    )
    card = Card(
        name=options.name or model.title,
        authors=tuple(options.authors or _OWN_AUTHORS),
        paper=options.paper or _PAPERS.get(name),
        code=options.code or _code_of(model),
        reads=tuple(options.reads or _reads_of(model)),
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


def _reads_of(model: BenchmarkModel) -> list[Reads]:
    """What a model reads of a checkpoint, in the words of a card."""
    reads = (model.reads_weights, model.reads_hyperparameters, model.name == "probes")
    return [word for word, read in zip(READS, reads, strict=False) if read]


def _code_of(model: BenchmarkModel) -> str | None:
    """The file of this repository that a model of the benchmarks is in."""
    code = model.kind or model.fit
    if model.name not in MODELS or code is None or (file := inspect.getsourcefile(code)) is None:
        return None
    return Path(file).resolve().relative_to(Path(__file__).parents[2]).as_posix()


def _table(options: argparse.Namespace) -> None:
    root = options.root or find_clone()
    if not (root / _DOCUMENT).is_file():
        raise ValueError(f"{root} has no {_DOCUMENT}: --root names a clone of the repository")
    results = root / "benchmarks" / "results"
    rankings = rank(submissions_in(root / "benchmarks" / "submissions"), options.zoo, read_ranking(results))
    print(f"written: {write_ranking(results, rankings)}")
    for path in write_documents(root, results):
        print(f"written: {path}")


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.leaderboard", __doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", help="check, submit or table")

    def verb(name: str, what: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=what, description=what, formatter_class=parser.formatter_class)

    check = verb("check", "verifies a submission and prints its score")
    check.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the submission")
    check.add_argument("--predictor", metavar="MODEL", help="also fit this again: a model's name or module:Class")

    submit = verb("submit", "fits a predictor and writes its submission")
    submit.add_argument("model", metavar="MODEL", help="a model of benchmarks.kendall, or module:Class")
    submit.add_argument("--zoo", default=DEFAULT_NAME, metavar="DIR", help="folder of the zoo, or its hub name")
    submit.add_argument("--config", default="mnist", help="config of the zoo")
    submit.add_argument("--checkpoint", default="all", metavar="LABEL", help="one of the config's, or all")
    submit.add_argument("--seed", type=any_seed, default=0, help="seed of the fit")
    submit.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    submit.add_argument("--name", help="name of the predictor (default: the model's title)")
    submit.add_argument("--authors", nargs="+", metavar="AUTHOR", help="who made it")
    submit.add_argument("--paper", metavar="URL", help="where it is described")
    submit.add_argument("--code", metavar="URL", help="where its code is")
    submit.add_argument("--reads", nargs="+", choices=READS, help="what it reads of a run (default: weights)")

    table = verb("table", "ranks all submissions of a clone")
    table.add_argument("--root", type=Path, metavar="DIR", help="a clone of the repository (default: this one)")
    for each in (check, table):
        each.add_argument(
            "--zoo", nargs="+", default=[DEFAULT_NAME], metavar="DIR", help="folders of zoos with the test rows"
        )
    for each in (check, submit):
        each.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
        each.add_argument("--jobs", type=positive, default=torch.get_num_threads(), help="threads of the tree models")
    return parser


@command
@own_models()
def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    {"check": _check, "submit": _submit, "table": _table}[options.verb](options)


if __name__ == "__main__":
    main()
