"""Makes every table and plot of the documents again from the rows in benchmarks/results/, and checks their numbers.

python -m benchmarks.report                    writes the documents and benchmarks/results/plots/
python -m benchmarks.report --check            writes nothing; exits with 1 where a document is out of date

The documents are README.md, benchmarks/README.md and generation/README.md. A generated block stands between
<!-- generated: NAME --> and <!-- end: NAME --> and is replaced whole. Numbers typed into the prose around the blocks
must be those of the rows (benchmarks/documents/claims.py); both commands name each that is not, and then exit with 1.
"""

import os
import re
import sys
from pathlib import Path

import numpy as np

from benchmarks.documents.blocks import (
    CONFIGS,
    DOCUMENTS,
    HEADLINE_PICTURE,
    PLOTS,
    blocks,
    headline_zoos,
    kendall_rows,
    measured,
)
from benchmarks.documents.claims import problems
from benchmarks.documents.facts import Facts
from benchmarks.documents.generated_runs import final_runs
from benchmarks.models.registry import known_models
from benchmarks.plots import headline_plot, scatter, tau_by_rows, tau_by_threshold
from benchmarks.tables.result_index import ResultIndex, thresholds_of
from benchmarks.trial import Trial, TrialStore
from zoo.command import command, command_parser
from zoo.plots import plot_histograms
from zoo.storage.atomic import write_atomically

CLONE = Path(__file__).parent.parent
OPENING = re.compile(r"<!-- generated: (.*?) -->")
BLOCK = re.compile(r"(?P<open><!-- generated: (?P<name>[\w.]+) -->\n).*?(?P<close><!-- end: (?P=name) -->)", re.DOTALL)
OUT_OF_DATE = 1


def render(document: str, text: str, folder: Path, plots: Path) -> str:
    """The document with every block made anew; a block it should not have is an error, as is a missing one."""
    expected = DOCUMENTS[document]
    opened = OPENING.findall(text)
    closed = [match["name"] for match in BLOCK.finditer(text)]
    if sorted(closed) != sorted(expected) or opened != closed:
        raise ValueError(
            f"{document} must have each of these blocks once, from <!-- generated: NAME --> to <!-- end: NAME -->: "
            f"{', '.join(expected)}; it has {', '.join(opened) or 'none'}"
        )
    made = blocks(folder, plots)
    return BLOCK.sub(lambda match: f"{match['open']}{made[match['name']]()}\n{match['close']}", text)


def rendered(root: Path, document: str, rows: Path) -> tuple[str, str]:
    """A document of a clone as it is, and with every block made anew."""
    path = root / document
    before = path.read_text(encoding="utf-8")
    seen_from_document = Path(os.path.relpath((rows / PLOTS).resolve(), path.resolve().parent))
    return before, render(document, before, rows, seen_from_document)


def draw(folder: Path, plots: Path) -> list[Path]:
    """The plots of every config that has runs, and of every task that has rows and, for the scatter, trials."""
    drawn = []
    for config, runs in final_runs(folder).items():
        title, path = f"{config}, after the last epoch", plots / f"accuracy.{config}.png"
        drawn.append(plot_histograms({title: runs["test_accuracy"].to_numpy()}, path, counted="runs"))
    for config in CONFIGS:
        index = ResultIndex.latest(kendall_rows(folder), config)
        if not index:
            continue
        drawn.append(tau_by_threshold(index, config, plots / f"kendall.{config}.thresholds.png"))
        predictions = first_predictions(index, folder)
        if predictions:
            drawn.append(scatter(predictions, f"{config}, test split", plots / f"kendall.{config}.scatter.png"))
    by_rows = measured("rows", folder).items()
    drawn += [tau_by_rows(index, config, plots / f"rows.{config}.png") for config, index in by_rows]
    if zoos := headline_zoos(folder):
        drawn.append(headline_plot(zoos, plots / HEADLINE_PICTURE))
    return drawn


def first_predictions(index: ResultIndex, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What each model predicted of the test split at the first threshold with its first seed, and the truth."""
    store = TrialStore(folder)
    predictions = {}
    for name, benchmark_model in known_models().items():
        row = index.find("tau", name, threshold=thresholds_of(index)[0], recipe=benchmark_model.recipe)
        if row is not None:
            for outcome in store.find([Trial.of_row(row, seed=0)]).values():
                predictions[name] = (outcome.predicted, outcome.truth)
    return predictions


def find_clone() -> Path:
    """The clone that this code runs from, else the one where the user stands: an installed package has no documents."""
    for folder in (CLONE, Path.cwd()):
        if all((folder / document).is_file() for document in DOCUMENTS):
            return folder
    raise ValueError(
        "no README.md with its tables here: the report is of a clone of the repository, name it with --root"
    )


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.report", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit with 1 where a document is out of date"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="a clone of the repository (default: this one, or where you stand)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder of the rows (default: benchmarks/results of the clone)"
    )
    options = parser.parse_args(arguments)
    root = options.root or find_clone()
    rows = options.results or root / "benchmarks" / "results"
    plots = rows / PLOTS
    if not options.check:
        for path in draw(rows, plots):
            print(f"written: {path}")
    facts = Facts(rows)
    wrong = []
    for document in DOCUMENTS:
        path = root / document
        before, after = rendered(root, document, rows)
        wrong += problems(document, after, facts)
        if not options.check:
            write_atomically(path, after.encode())
            print(f"written: {path}")
        elif after != before:
            wrong.append(f"{document} is out of date: run python -m benchmarks.report")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(OUT_OF_DATE)
    print(f"{', '.join(DOCUMENTS)}: all say what the rows say")


if __name__ == "__main__":
    main()
