"""Renders the documents from their templates and the rows in benchmarks/results/, and draws the plots.

python -m benchmarks.report                    writes the documents and benchmarks/results/plots/
python -m benchmarks.report --check            writes nothing; exits with 1 where a document is out of date

The documents are README.md, benchmarks/README.md, benchmarks/RESULTS.md and generation/README.md. To change one, edit
its template in benchmarks/templates/ (benchmarks/documents.py lists what it can call) and run the first command.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.documents import (
    CONFIGS,
    DOCUMENTS,
    PLOTS,
    TEMPLATES,
    all_configs,
    final_runs,
    headline_zoos,
    render,
)
from benchmarks.models.registry import known_models
from benchmarks.plots import headline_plot, scatter, tau_by_rows, tau_by_threshold
from benchmarks.results import ResultIndex
from benchmarks.tables import main_setting, without_variants
from benchmarks.trial import Trial, TrialStore
from zoo.command import command, command_parser
from zoo.plots import plot_histograms
from zoo.storage.atomic import write_atomically

_CLONE = Path(__file__).parent.parent
_OUT_OF_DATE = 1


def write_documents(root: Path, rows: Path) -> Iterator[Path]:
    """Writes every document of a clone anew. All are rendered before the first is written."""
    for document, text in render(root, rows).items():
        write_atomically(root / document, text.encode())
        yield root / document


def _first_difference(path: Path, text: str) -> int | None:
    """The number of the first line of a document that is not what it should be; None if there is none."""
    written = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    lines = itertools.zip_longest(written, text.split("\n"))
    return next((number for number, (before, after) in enumerate(lines, start=1) if before != after), None)


def _draw(folder: Path) -> Iterator[Path]:
    """Draws the plots of every config that has runs or rows. The scatter plots need trials, too."""
    plots = folder / PLOTS
    for config, runs in final_runs(folder).items():
        title, path = f"{config}, after the last epoch", plots / f"accuracy.{config}.png"
        yield plot_histograms({title: runs["test_accuracy"].to_numpy()}, path, counted="runs")
    of_tasks = {config: index for config, index in all_configs("kendall", folder).items() if config in CONFIGS}
    for config, index in of_tasks.items():
        yield tau_by_threshold(without_variants(index), config, plots / f"kendall.{config}.thresholds.png")
        if predictions := first_predictions(without_variants(index), folder):
            yield scatter(predictions, f"{config}, test split", plots / f"kendall.{config}.scatter.png")
    for config, index in all_configs("rows", folder).items():
        yield tau_by_rows(index, config, plots / f"rows.{config}.png")
    if zoos := headline_zoos(folder):
        yield headline_plot(zoos, plots / "headline.png")


def first_predictions(index: ResultIndex, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The predictions of each model for the test split, at the first threshold, with its first seed; and the truth."""
    store = TrialStore(folder)
    predictions = {}
    for name in known_models():
        row = index.find("tau", name, **main_setting(name, index.thresholds[0]))
        if row is not None:
            for outcome in store.find([Trial.of_row(row, seed=0)]).values():
                predictions[name] = (outcome.predicted, outcome.truth)
    return predictions


def find_clone(named: Path | None = None) -> Path:
    """The clone that was named, or that this code runs from, or the current folder: a wheel has no templates."""
    for folder in (named,) if named else (_CLONE, Path.cwd()):
        if all((folder / TEMPLATES / template).is_file() for template in DOCUMENTS.values()):
            return folder
    where = named or "this folder"
    raise ValueError(f"no {TEMPLATES} in {where}: the report is of a clone of the repository, name it with --root")


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.report", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit with 1 where a document is out of date"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="a clone of the repository (default: this one, or the current folder)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder of the rows (default: benchmarks/results of the clone)"
    )
    options = parser.parse_args(arguments)
    root = find_clone(options.root)
    rows = options.results or root / "benchmarks" / "results"
    if options.check:
        lines = {document: _first_difference(root / document, text) for document, text in render(root, rows).items()}
        stale = {document: line for document, line in lines.items() if line is not None}
        for document, line in stale.items():
            remedy = f"edit {TEMPLATES}/{DOCUMENTS[document]}, then run python -m benchmarks.report"
            print(f"{document}, line {line} is out of date: {remedy}", file=sys.stderr)
        if stale:
            sys.exit(_OUT_OF_DATE)
        print(f"{', '.join(DOCUMENTS)}: up to date")
    else:
        for path in itertools.chain(_draw(rows), write_documents(root, rows)):
            print(f"written: {path}")


if __name__ == "__main__":
    main()
