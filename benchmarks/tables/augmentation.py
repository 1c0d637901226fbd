"""tab:augmented_agnews: every split doubled by random group elements."""

from benchmarks.models.registry import CONTENDERS, SIX_MODELS
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_text
from benchmarks.tables.result_index import Book


def augmentation_table(book: Book, config: str) -> str:
    """One row a model, one column a range of the entries of M and N; last the gap to the second best."""
    rows = []
    as_in_the_paper = config == "agnews" and book.whole
    measured = [row.setting.get("entry_range") for row in book.rows]
    wanted = (*measured, *paper.RANGES) if as_in_the_paper else measured
    ranges = (None, *sorted({float(size) for size in wanted if isinstance(size, int | float)}))
    for name in SIX_MODELS:
        cells = []
        for size in ranges:
            row, interval = book.find("tau", name, entry_range=size), book.interval("tau", name, entry_range=size)
            cells.append(tau_text(row, interval, paper.AUGMENTATION[name].get(size) if as_in_the_paper else None))
        rows.append([CONTENDERS[name].title, *cells])
    rows.append(["gap", *(gap(book, size) for size in ranges)])
    titles = ["original" if size is None else f"±{size:g}" for size in ranges]
    return table([f"Kendall's τ, {book.title(config)}", *titles], rows)


def gap(book: Book, size: float | None) -> str:
    """Transformer-NFN minus the best of the others."""
    ours = book.value("tau", "transformer_nfn", entry_range=size)
    others = [book.value("tau", name, entry_range=size) for name in SIX_MODELS if name != "transformer_nfn"]
    known = [tau for tau in others if tau is not None]
    return MISSING if ours is None or not known else number(ours - max(known), ".3f")
