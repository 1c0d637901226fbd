"""tab:augmented_agnews: every split doubled by random group elements."""

from benchmarks.harness.contenders import SIX_MODELS, CONTENDERS
from benchmarks.tables import paper
from benchmarks.tables.book import Book
from benchmarks.tables.markdown import MISSING, number, table, tau_text


def augmentation_table(book: Book, config: str) -> str:
    """One row a model, one column a range of the entries of M and N; last the gap to the second best."""
    rows = []
    for name in SIX_MODELS:
        cells = []
        for size in paper.RANGES:
            row, interval = book.find("tau", name, entry_range=size), book.interval("tau", name, entry_range=size)
            reference = paper.AUGMENTATION[name][size] if config == "agnews" else None
            cells.append(tau_text(row, interval, reference))
        rows.append([CONTENDERS[name].title, *cells])
    rows.append(["gap", *(gap(book, size) for size in paper.RANGES)])
    titles = ["original" if size is None else f"±{size:g}" for size in paper.RANGES]
    return table([f"Kendall's τ, {config}", *titles], rows)


def gap(book: Book, size: float | None) -> str:
    """Transformer-NFN minus the best of the others."""
    ours = book.value("tau", "transformer_nfn", entry_range=size)
    others = [book.value("tau", name, entry_range=size) for name in SIX_MODELS if name != "transformer_nfn"]
    known = [tau for tau in others if tau is not None]
    return MISSING if ours is None or not known else number(ours - max(known), ".3f")
