"""tab:ablation-components and tab:ablation-hidden-dim."""

from collections.abc import Mapping

from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_text
from benchmarks.tables.result_index import Book

MODEL = "transformer_nfn"
TITLES = {"mnist": "MNIST-Transformers", "agnews": "AGNews-Transformers"}


def components_table(books: Mapping[str, Book]) -> str:
    """One row a choice of components that there is anything of, one column a config."""
    rows = []
    for components in paper.COMPONENTS["mnist"]:
        title = " + ".join(name.capitalize() for name in components)
        cells = [component_cell(book, name, components) for name, book in books.items()]
        if any(cell != MISSING for cell in cells):
            rows.append([str(len(components)), title, *cells])
    rows.sort(key=lambda row: int(row[0]))
    titles = [book.title(TITLES.get(name, name)) for name, book in books.items()]
    return table(["components", "which", *titles], rows)


def component_cell(book: Book, config: str, components: tuple[str, ...]) -> str:
    """Rows of all components together name none."""
    everything = max(paper.COMPONENTS["agnews" if config.startswith("agnews") else "mnist"], key=len)
    chosen = None if components == everything else components
    row, interval = book.find("tau", MODEL, components=chosen), book.interval("tau", MODEL, components=chosen)
    return tau_text(row, interval, paper.COMPONENTS.get(config, {}).get(components) if book.whole else None)


def width_table(book: Book, config: str) -> str:
    """One row a choice of channels. The parameters are those of the part that reads the encoder, as in the paper."""
    rows = []
    for channels, reference in paper.WIDTHS.items():
        row, interval = book.find("tau", MODEL, channels=channels), book.interval("tau", MODEL, channels=channels)
        cell = tau_text(row, interval, reference if config == "agnews" and book.whole else None)
        parameters, seconds = (
            book.value(name, MODEL, channels=channels) for name in ("encoder_parameters", "wall_seconds")
        )
        rows.append([str(list(channels)), cell, number(parameters), number(seconds, ".1f")])
    return table(
        [f"channels, {book.title(config)}", "Kendall's τ", "parameters of the encoder's part", "seconds a fit"], rows
    )
