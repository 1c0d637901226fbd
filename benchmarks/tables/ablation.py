"""The paper's other tables: tab:ablation-components, tab:ablation-hidden-dim and tab:augmented_agnews."""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.models.registry import MODELS, known_models
from benchmarks.options import SIX_MODELS
from benchmarks.results import ResultIndex
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_cell, threshold_title
from zoo.format.record import task_of
from zoo.transformer.spec import COMPONENTS

MODEL = "transformer_nfn"
_TITLES = {"mnist": "MNIST-Transformers", "agnews": "AGNews-Transformers"}


def components_table(indexes: Mapping[str, ResultIndex]) -> str:
    """One row per choice of components that has results, one column per config."""
    rows = []
    for components in sorted(paper.COMPONENTS["mnist"], key=len):
        title = " + ".join(name.capitalize() for name in components)
        cells = [_component_cell(index, name, components) for name, index in indexes.items()]
        if any(cell != MISSING for cell in cells):
            rows.append([str(len(components)), title, *cells])
    titles = [index.title(_TITLES.get(name, name)) for name, index in indexes.items()]
    return table(["components", "which", *titles], rows)


def _component_cell(index: ResultIndex, config: str, components: tuple[str, ...]) -> str:
    """One cell. Result rows of all components together have no ``components`` in their setting."""
    chosen = None if components == _all_components(index, config) else components
    reference = paper.COMPONENTS.get(config, {}).get(components) if index.whole else None
    return tau_cell(index, MODEL, reference, components=chosen)


def _all_components(index: ResultIndex, config: str) -> tuple[str, ...]:
    """All components of a task: known for the paper's tasks, taken from the rows for another."""
    if task_of(config) in paper.COMPONENTS:
        return max(paper.COMPONENTS[task_of(config)], key=len)
    settings = [row.setting.get("components") for row in index.rows]
    tried = {name for names in settings if isinstance(names, list | tuple) for name in names}
    return tuple(name for name in COMPONENTS if name in tried)


def variants_table(index: ResultIndex, config: str) -> str:
    """Transformer-NFN and its variants, and how far each is above it, paired.

    The variants' command names Transformer-NFN and no other model, so the leader they are behind is Transformer-NFN.
    """
    variants = [name for name, model in MODELS.items() if model.variant_of == MODEL]
    of_variants = replace(index, rows=tuple(row for row in index.rows if row.model in variants))
    if not of_variants:
        raise ValueError(f"there are no rows of a variant of {MODEL} on {config}: name some with --models")
    thresholds = of_variants.thresholds

    def above(name: str) -> str:
        setting = {"threshold": thresholds[0], "recipe": "paper"}
        behind = index.value("tau_behind_leader", name, **setting)
        interval = index.interval("tau_behind_leader", name, **setting)
        if name == MODEL or behind is None or interval is None:
            return MISSING
        return f"{-behind:.3f} [{-interval[1]:.3f}, {-interval[0]:.3f}]"

    rows = []
    for name in (MODEL, *variants):
        cells = [tau_cell(index, name, threshold=threshold, recipe="paper") for threshold in thresholds]
        rows.append([MODELS[name].title, *cells, above(name)])
    return table([index.title(config), *map(threshold_title, thresholds), f"τ above {MODELS[MODEL].title}"], rows)


def width_table(index: ResultIndex, config: str) -> str:
    """One row per choice of channels. The parameters are those of the part that reads the encoder, as in the paper."""
    rows = []
    for channels, printed in paper.WIDTHS.items():
        cell = tau_cell(index, MODEL, printed if config == "agnews" and index.whole else None, channels=channels)
        parameters, seconds = (
            index.value(name, MODEL, channels=channels) for name in ("encoder_parameters", "wall_seconds")
        )
        rows.append([str(list(channels)), cell, number(parameters), number(seconds, ".1f")])
    return table(
        [f"channels, {index.title(config)}", "Kendall's τ", "parameters that read the encoder", "seconds per fit"], rows
    )


def augmentation_table(index: ResultIndex, config: str) -> str:
    """Every split doubled by random group elements: one row per model, one column per range of the entries of M and N.

    At the end the lead of Transformer-NFN over the best of the paper's others.
    """
    in_paper = config == "agnews" and index.whole
    measured = [row.setting.get("entry_range") for row in index.rows]
    wanted = (*measured, *paper.RANGES) if in_paper else measured
    ranges = (None, *sorted({float(size) for size in wanted if isinstance(size, int | float)}))
    others = [name for name in known_models() if name not in SIX_MODELS and index.find("tau", name) is not None]
    rows = []
    for name in (*SIX_MODELS, *others):
        printed = paper.AUGMENTATION.get(name, {}) if in_paper else {}
        cells = [tau_cell(index, name, printed.get(size), entry_range=size) for size in ranges]
        rows.append([known_models()[name].title, *cells])

    def gap(size: float | None) -> str:
        taus = {name: index.value("tau", name, entry_range=size) for name in SIX_MODELS}
        ours = taus.pop(MODEL)
        known = [tau for tau in taus.values() if tau is not None]
        return MISSING if ours is None or not known else f"{ours - max(known):.3f}"

    rows.append(["gap", *map(gap, ranges)])
    titles = ["original" if size is None else f"±{size:g}" for size in ranges]
    return table([f"Kendall's τ, {index.title(config)}", *titles], rows)
