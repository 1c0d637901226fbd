"""tab:ablation-components and tab:ablation-hidden-dim."""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.models.registry import MODELS
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_cell, threshold_title
from benchmarks.tables.result_index import ResultIndex, thresholds_of
from zoo.format.record import task_of
from zoo.transformer.spec import COMPONENTS

MODEL, BEHIND = "transformer_nfn", "tau_behind_leader"
TITLES = {"mnist": "MNIST-Transformers", "agnews": "AGNews-Transformers"}


def components_table(indexes: Mapping[str, ResultIndex]) -> str:
    """One row per choice of components that has results, one column per config."""
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
    """One cell. Result rows of all components together have no ``components`` in their setting."""
    chosen = None if components == all_components(index, config) else components
    reference = paper.COMPONENTS.get(config, {}).get(components) if index.whole else None
    return tau_cell(index, MODEL, reference, components=chosen)


def all_components(index: ResultIndex, config: str) -> tuple[str, ...]:
    """Those of the paper's tasks are known; of another task, those that its rows are about."""
    if task_of(config) in paper.COMPONENTS:
        return max(paper.COMPONENTS[task_of(config)], key=len)
    settings = [row.setting.get("components") for row in index.rows]
    tried = {name for names in settings if isinstance(names, list | tuple) for name in names}
    return tuple(name for name in COMPONENTS if name in tried)


def variants_table(index: ResultIndex, config: str) -> list[str]:
    """Transformer-NFN and its variants, and how far each is above it, paired; nothing where no variant has rows.

    The variants' command names Transformer-NFN and no other model, so the leader they are behind is Transformer-NFN.
    """
    variants = [name for name, model in MODELS.items() if model.variant_of == MODEL]
    of_variants = replace(index, rows=tuple(row for row in index.rows if row.model in variants))
    if not of_variants.rows:
        return []
    thresholds = thresholds_of(of_variants)
    rows = []
    for name in (MODEL, *variants):
        cells = [tau_cell(index, name, None, threshold=threshold, recipe="paper") for threshold in thresholds]
        rows.append([MODELS[name].title, *cells, MISSING if name == MODEL else above_text(index, name, thresholds[0])])
    titles = map(threshold_title, thresholds)
    return [table([index.title(config), *titles, f"τ above {MODELS[MODEL].title}"], rows)]


def above_text(index: ResultIndex, name: str, threshold: float) -> str:
    setting = {"threshold": threshold, "recipe": "paper"}
    behind, interval = index.value(BEHIND, name, **setting), index.interval(BEHIND, name, **setting)
    if behind is None or interval is None:
        return MISSING
    low, high = interval
    return f"{-behind:.3f} [{-high:.3f}, {-low:.3f}]"


def width_table(index: ResultIndex, config: str) -> str:
    """One row per choice of channels. The parameters are those of the part that reads the encoder, as in the paper."""
    rows = []
    for channels, reference in paper.WIDTHS.items():
        in_paper = config == "agnews" and index.whole
        cell = tau_cell(index, MODEL, reference if in_paper else None, channels=channels)
        parameters, seconds = (
            index.value(name, MODEL, channels=channels) for name in ("encoder_parameters", "wall_seconds")
        )
        rows.append([str(list(channels)), cell, number(parameters), number(seconds, ".1f")])
    return table(
        [f"channels, {index.title(config)}", "Kendall's τ", "parameters that read the encoder", "seconds per fit"], rows
    )
