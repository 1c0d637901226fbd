"""How much of τ comes from the one initialisation that the paper's runs share: the same table on both zoos."""

from benchmarks.harness.contenders import CONTENDERS
from benchmarks.tables.book import Book
from benchmarks.tables.kendall import ROW_COUNTS, row_counts, thresholds_of
from benchmarks.tables.markdown import table, tau_text, threshold_title


def seeds_table(shared: Book, distinct: Book) -> str:
    """One line a model, a column a threshold: τ where all runs share a seed, and where each has its own."""
    books = (shared, distinct)
    thresholds = [threshold for threshold in thresholds_of(shared) if threshold in thresholds_of(distinct)]
    lines = []
    for name, contender in CONTENDERS.items():
        found = [[book.find("tau", name, threshold=one, recipe="paper") for book in books] for one in thresholds]
        lines.append([contender.title, *("<br>".join(tau_text(row, None, None) for row in pair) for pair in found)])
    lines.append([ROW_COUNTS, *("<br>".join(row_counts(book, one) for book in books) for one in thresholds)])
    return table(["τ: one seed for all runs, below it a seed a run", *map(threshold_title, thresholds)], lines)
