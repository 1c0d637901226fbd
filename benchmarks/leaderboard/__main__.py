"""The leaderboard: checks and scores submissions, ranks them, and makes one from a predictor.

python -m benchmarks.leaderboard check FOLDER                      verifies a submission and prints its score
python -m benchmarks.leaderboard check FOLDER --predictor mlp      also fits the predictor again and measures how much
                                                                   its predictions change under the group
python -m benchmarks.leaderboard submit my_module:MyPredictor --config mnist --authors "Ada Lovelace" --out FOLDER
python -m benchmarks.leaderboard table                             ranks all submissions of a clone

A submission is a folder with card.toml and one CSV file of predictions for each set of test rows (CONTRIBUTING.md).
`table` writes benchmarks/results/leaderboard.json and the table in benchmarks/README.md.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.models.registry import MODELS, check_models, known_models, own_models
from benchmarks.report import find_clone, rendered
from benchmarks.submissions.card import NAME, READS, Card, PredictionSet
from benchmarks.submissions.fitting import OWN_AUTHORS, PAPERS, code_of, fit_predictions, reads_of
from benchmarks.submissions.held_out import HeldOutRows
from benchmarks.submissions.ranking import rank, read_ranking, submissions_in, write_ranking
from benchmarks.submissions.submission import Submission, card_with, write_submission
from benchmarks.tables.leaderboard import score_lines
from zoo.command import any_seed, command, command_parser, positive
from zoo.device import choose_device
from zoo.reading.locate import DEFAULT_NAME
from zoo.storage.atomic import write_atomically

LEADERBOARD = "benchmarks/leaderboard"
DOCUMENT = "benchmarks/README.md"
SAME_CHANGE = 1e-3
"""What a second fit on another machine may differ by."""


def check(options: argparse.Namespace) -> None:
    submission = Submission.read(options.folder)
    predictor = check_models([options.predictor])[0] if options.predictor else None
    for predictions in submission.card.predictions:
        zoo, rows = submission.zoo_among(options.zoo, predictions)
        print(f"{submission.name}: {rows.title}, {len(rows.keys):,} test rows {rows.sha256[:12]}…")
        for line in score_lines(submission.score(predictions, rows)):
            print(f"  {line}")
        if predictor is not None:
            print(f"  {fitted_again(submission, predictions, rows, predictor, zoo, options)}")


def fitted_again(
    submission: Submission,
    predictions: PredictionSet,
    rows: HeldOutRows,
    predictor: str,
    zoo: str,
    options: argparse.Namespace,
) -> str:
    """How much the predictor changes under the group, measured; a card that says something else is a ValueError."""
    fitted = fit_predictions(
        predictor,
        zoo,
        predictions.config,
        predictions.checkpoint,
        seed=predictions.seed or 0,
        device=choose_device(options.device),
        jobs=options.jobs,
    )
    said, measured = predictions.change_under_group, fitted.change_under_group
    if said is not None and measured is not None and abs(said - measured) > SAME_CHANGE:
        raise ValueError(
            f"{submission.folder}: on {predictions.config} it changes by {measured:.2g} under the group, "
            f"its card says {said:.2g}"
        )
    apart = np.abs(fitted.predicted - submission.predicted(predictions, rows)).mean()
    changes = "" if measured is None else f"changes by {measured:.2g} under the group, "
    return f"fitted again: {changes}{apart:.2g} from what was submitted on average"


def submit(options: argparse.Namespace) -> None:
    (model,) = check_models([options.model])
    benchmark_model = known_models()[model]
    if not options.authors and model not in MODELS:
        raise ValueError("a submission has authors: name them with --authors")
    if not NAME.fullmatch(options.out.resolve().name):
        raise ValueError(f"{options.out}: its name must be lower-case letters, digits, - and _, 48 at most")
    rows = HeldOutRows.read(options.zoo, options.config, options.checkpoint)
    predictions = PredictionSet(
        zoo=Path(options.zoo).name,
        config=rows.config,
        checkpoint=rows.checkpoint,
        test_rows=rows.sha256,
        file=f"{rows.config}.{rows.checkpoint}.{rows.sha256[:8]}.csv",
        seed=options.seed if benchmark_model.seeded else None,
    )
    card = Card(
        name=options.name or benchmark_model.title,
        authors=tuple(options.authors or OWN_AUTHORS),
        paper=options.paper or PAPERS.get(model),
        code=options.code or code_of(benchmark_model),
        reads=tuple(options.reads or reads_of(benchmark_model)),
        predictions=(),
    )
    card_with(options.out, card, predictions)  # what is wrong is said before the fit
    fitted = fit_predictions(
        model,
        options.zoo,
        options.config,
        options.checkpoint,
        seed=options.seed,
        device=choose_device(options.device),
        jobs=options.jobs,
    )
    change = fitted.change_under_group
    measured = replace(
        predictions,
        parameters=fitted.parameters,
        change_under_group=None if change is None else float(f"{change:.3g}"),
    )
    write_submission(options.out, card, measured, rows, fitted.predicted)
    print(f"written: {options.out}; look at its card.toml, then: python -m benchmarks.leaderboard check {options.out}")


def table(options: argparse.Namespace) -> None:
    root = options.root or find_clone()
    if not (root / DOCUMENT).is_file():
        raise ValueError(f"{root} has no {DOCUMENT}: --root names a clone of the repository")
    results = root / "benchmarks" / "results"
    rankings = rank(submissions_in(root / LEADERBOARD), options.zoo, read_ranking(results))
    print(f"written: {write_ranking(results, rankings)}")
    write_atomically(root / DOCUMENT, rendered(root, DOCUMENT, results)[1].encode())
    print(f"written: {root / DOCUMENT}")


def parser() -> argparse.ArgumentParser:
    options = command_parser("benchmarks.leaderboard", __doc__)
    verbs = options.add_subparsers(dest="verb", required=True, metavar="VERB", help="check, submit or table")

    def verb(name: str, what: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=what, description=what, formatter_class=options.formatter_class)

    def several_zoos(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--zoo", nargs="+", default=[DEFAULT_NAME], metavar="DIR", help="folders of zoos with the test rows"
        )

    def fitting(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
        parser.add_argument("--jobs", type=positive, default=torch.get_num_threads(), help="threads of the tree models")

    checking = verb("check", "verifies a submission and prints its score")
    checking.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the submission")
    several_zoos(checking)
    checking.add_argument("--predictor", metavar="MODEL", help="also fit this again: a model's name or module:Class")
    fitting(checking)

    submitting = verb("submit", "fits a predictor and writes its submission")
    submitting.add_argument("model", metavar="MODEL", help="a model of benchmarks.kendall, or module:Class")
    submitting.add_argument("--zoo", default=DEFAULT_NAME, metavar="DIR", help="folder of the zoo, or its hub name")
    submitting.add_argument("--config", default="mnist", help="config of the zoo")
    submitting.add_argument("--checkpoint", default="all", metavar="LABEL", help="one of the config's, or all")
    submitting.add_argument("--seed", type=any_seed, default=0, help="seed of the fit")
    submitting.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    submitting.add_argument("--name", help="of the predictor (default: the model's title)")
    submitting.add_argument("--authors", nargs="+", metavar="AUTHOR", help="who made it")
    submitting.add_argument("--paper", metavar="URL", help="where it is described")
    submitting.add_argument("--code", metavar="URL", help="where its code is")
    submitting.add_argument("--reads", nargs="+", choices=READS, help="what it reads of a run (default: weights)")
    fitting(submitting)

    ranking = verb("table", "ranks all submissions of a clone")
    several_zoos(ranking)
    ranking.add_argument("--root", type=Path, metavar="DIR", help="a clone of the repository (default: this one)")
    return options


@command
@own_models()
def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    {"check": check, "submit": submit, "table": table}[options.verb](options)


if __name__ == "__main__":
    main()
