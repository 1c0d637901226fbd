"""How much of τ comes from the one initialisation that the paper's runs share: the same table on both zoos."""

from benchmarks.harness.contenders import CONTENDERS
from benchmarks.tables.book import Book
from benchmarks.tables.kendall import thresholds_of
from benchmarks.tables.markdown import MISSING, number, table, threshold_title, with_error
from zoo.splits import SPLITS


def seeds_table(shared: Book, distinct: Book) -> str:
    """One line a model, a column a threshold: τ where all runs share a seed, and where each has its own."""
    thresholds = [threshold for threshold in thresholds_of(shared) if threshold in thresholds_of(distinct)]
    lines = []
    for name, contender in CONTENDERS.items():
        cells = []
        for threshold in thresholds:
            found = [book.find("tau", name, threshold=threshold, length="paper") for book in (shared, distinct)]
            texts = [MISSING if row is None else with_error(row.value, row.stderr) for row in found]
            cells.append("<br>".join(texts))
        lines.append([contender.title, *cells])
    counts = [
        "<br>".join(
            " / ".join(number(book.value(f"{split}_rows", "data", threshold=threshold)) for split in SPLITS)
            for book in (shared, distinct)
        )
        for threshold in thresholds
    ]
    lines.append(["rows: train / validation / test", *counts])
    return table(["τ: one seed for all runs, below it a seed a run", *map(threshold_title, thresholds)], lines)
