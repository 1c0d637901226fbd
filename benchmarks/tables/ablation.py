"""tab:ablation-components and tab:ablation-hidden-dim."""

from collections.abc import Mapping

from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_text
from benchmarks.tables.result_index import ResultIndex

MODEL = "transformer_nfn"
TITLES = {"mnist": "MNIST-Transformers", "agnews": "AGNews-Transformers"}


def components_table(indexes: Mapping[str, ResultIndex]) -> str:
    """One row a choice of components that there is anything of, one column a config."""
    rows = []
    for components in paper.COMPONENTS["mnist"]:
        title = " + ".join(name.capitalize() for name in components)
        cells = [component_cell(index, name, components) for name, index in indexes.items()]
        if any(cell != MISSING for cell in cells):
            rows.append([str(len(components)), title, *cells])
    rows.sort(key=lambda row: int(row[0]))
    titles = [index.title(TITLES.get(name, name)) for name, index in indexes.items()]
    return table(["components", "which", *titles], rows)


def component_cell(index: ResultIndex, config: str, components: tuple[str, ...]) -> str:
    """Rows of all components together name none."""
    everything = max(paper.COMPONENTS["agnews" if config.startswith("agnews") else "mnist"], key=len)
    chosen = None if components == everything else components
    row, interval = index.find("tau", MODEL, components=chosen), index.interval("tau", MODEL, components=chosen)
    return tau_text(row, interval, paper.COMPONENTS.get(config, {}).get(components) if index.whole else None)


def width_table(index: ResultIndex, config: str) -> str:
    """One row a choice of channels. The parameters are those of the part that reads the encoder, as in the paper."""
    rows = []
    for channels, reference in paper.WIDTHS.items():
        row, interval = index.find("tau", MODEL, channels=channels), index.interval("tau", MODEL, channels=channels)
        cell = tau_text(row, interval, reference if config == "agnews" and index.whole else None)
        parameters, seconds = (
            index.value(name, MODEL, channels=channels) for name in ("encoder_parameters", "wall_seconds")
        )
        rows.append([str(list(channels)), cell, number(parameters), number(seconds, ".1f")])
    return table(
        [f"channels, {index.title(config)}", "Kendall's τ", "parameters of the encoder's part", "seconds a fit"], rows
    )
