"""The tables of Kendall's τ at accuracy thresholds: the paper's, the front page's, and that of one seed or many."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from benchmarks.data import MIN_ROWS
from benchmarks.models.registry import MODELS, known_models, weight_models
from benchmarks.options import SIX_MODELS
from benchmarks.results import ResultIndex
from benchmarks.tables import paper
from benchmarks.tables.markdown import (
    MISSING,
    interval_text,
    models_in,
    number,
    table,
    tau_cell,
    tau_text,
    threshold_title,
)
from zoo.format.splits import SPLITS

_ALL_RUNS = 0.0  # the threshold that every accuracy reaches
_ROW_COUNTS = f"rows: {' / '.join(SPLITS)}"
_CONVERGED = "trained until validation stops improving"


def main_setting(name: str, threshold: float = _ALL_RUNS) -> dict[str, float | str]:
    """The setting of a model's rows in the main columns: a threshold, and the recipe of that model."""
    return {"threshold": threshold, "recipe": known_models()[name].recipe}


def leader(index: ResultIndex, threshold: float) -> str | None:
    """The best of the models that read weights."""
    taus = {name: index.value("tau", name, **main_setting(name, threshold)) for name in weight_models()}
    known = {name: tau for name, tau in taus.items() if tau is not None}
    return max(known, key=lambda name: known[name]) if known else None


def count_runs(index: ResultIndex) -> str:
    """How many runs the three splits have together."""
    counts = [index.value(f"{split}_rows", "data", threshold=_ALL_RUNS) for split in SPLITS]
    return number(None if None in counts else sum(count or 0.0 for count in counts))


def headline_models(zoos: Mapping[str, ResultIndex]) -> list[str]:
    """The models that have a row in some zoo; the one that reads no weights is the one to beat, and comes first."""
    names = ("hyperparameters", *weight_models())
    return [name for name in names if any(index.find("tau", name, **main_setting(name)) for index in zoos.values())]


def headline_table(zoos: Mapping[str, ResultIndex]) -> str:
    """The table of the front page, from title of a zoo → its rows. Bold leads the predictors that read weights."""

    def cell(index: ResultIndex, name: str) -> str:
        setting = main_setting(name)
        text = number(index.value("tau", name, **setting), ".3f")
        bold = f"**{text}**" if name == leader(index, _ALL_RUNS) else text
        return f"{bold} {interval_text(index, 'tau', name, **setting)}".strip()

    lines = [
        [known_models()[name].title, *(cell(index, name) for index in zoos.values())] for name in headline_models(zoos)
    ]
    return table(["Kendall's τ", *(f"{title}, {count_runs(index)} runs" for title, index in zoos.items())], lines)


def kendall_tables(index: ResultIndex, config: str) -> str:
    """The paper's table with our numbers, the details of its first column, and notes on both."""
    parts = [_threshold_table(index, config), _detail_table(index), _converged_table(index), *_notes(index)]
    return "\n\n".join(filter(None, parts))


def _threshold_table(index: ResultIndex, config: str) -> str:
    """tab:mnist-transformer and tab:agnews-transformer."""
    thresholds = index.thresholds
    best = {threshold: leader(index, threshold) for threshold in thresholds}
    rows = []
    for name, model in models_in(index).items():
        printed = paper.KENDALL.get(config, {}).get(name, {}) if index.whole else {}
        cells = [
            tau_cell(index, name, printed.get(threshold), best=name == best[threshold], **main_setting(name, threshold))
            for threshold in thresholds
        ]
        rows.append([model.title, *cells])
    ceilings = [index.value("noise_ceiling", "data", threshold=threshold) for threshold in thresholds]
    rows.append(["noise ceiling", *(number(value, ".3f") for value in ceilings)])
    rows.append([_ROW_COUNTS, *(_row_counts(index, threshold) for threshold in thresholds)])
    return table([f"Kendall's τ, {index.title(config)}", *map(threshold_title, thresholds)], rows)


def _row_counts(index: ResultIndex, threshold: float) -> str:
    """The number of rows in each split."""
    return " / ".join(number(index.value(f"{split}_rows", "data", threshold=threshold)) for split in SPLITS)


def _detail_table(index: ResultIndex) -> str:
    """One row per model, at the first threshold: what τ alone does not show. A column is a function of the model."""
    first = index.thresholds[0]

    def value(metric: str, form: str, name: str) -> str:
        return number(index.value(metric, name, **main_setting(name, first)), form)

    def within(name: str) -> str:
        setting = main_setting(name, first)
        interval = interval_text(index, "tau_within", name, **setting)
        return f"{tau_text(index.find('tau_within', name, **setting))} {interval}".strip()

    def difference(metric: str, name: str) -> str:
        """Paired, with its interval; the leader's difference to itself has none."""
        setting = main_setting(name, first)
        interval = interval_text(index, metric, name, **setting) if index.value(metric, name, **setting) else ""
        return f"{value(metric, '.3f', name)} {interval}".strip()

    def change(name: str) -> str:
        zero = index.value("mean_change", name, **main_setting(name, first)) == 0
        return value("mean_change", ".0f" if zero else ".1e", name)

    def by_recipe(recipe: str, name: str) -> str:
        return tau_text(index.find("tau", name, threshold=first, recipe=recipe))

    columns: dict[str, Callable[[str], str]] = {}
    if _has(index, "tau_within"):
        columns["τ within a configuration"] = within
    columns["τ behind the leader (bold)"] = partial(difference, "tau_behind_leader")
    if _has(index, "tau_above_hyperparameters"):
        columns["τ above hyperparameters only"] = partial(difference, "tau_above_hyperparameters")
    columns[f"τ, {_CONVERGED}"] = lambda name: _converged_text(index, name, first)
    columns["τ, weights brought to unit size"] = partial(by_recipe, "scaled")
    if any(row.setting.get("recipe") == "place" for row in index.rows):
        columns["τ, place as target"] = partial(by_recipe, "place")
    columns |= {
        "R²": partial(value, "r2", ".3f"),
        "change under the group": change,
        "parameters": partial(value, "parameters", ",.0f"),
        "seconds per fit": partial(value, "wall_seconds", ".1f"),
        "peak MB": partial(value, "peak_memory_megabytes", ",.0f"),
    }
    models = models_in(index, threshold=first)
    rows = [[model.title, *(cell(name) for cell in columns.values())] for name, model in models.items()]
    return table([threshold_title(first), *columns], rows) if rows else ""


def _has(index: ResultIndex, metric: str) -> bool:
    return any(row.metric == metric for row in index.rows)


def _converged_table(index: ResultIndex) -> str:
    """The neural predictors trained until validation stops improving, if that was done at more than one threshold."""
    converged = replace(index, rows=tuple(row for row in index.rows if row.setting.get("recipe") == "converged"))
    if len(converged.thresholds) < 2:
        return ""
    rows = [
        [model.title, *(_converged_text(index, name, threshold) for threshold in converged.thresholds)]
        for name, model in known_models().items()
        if any(row.model == name for row in converged.rows)
    ]
    return table([f"τ, {_CONVERGED}", *map(threshold_title, converged.thresholds)], rows)


def _converged_text(index: ResultIndex, name: str, threshold: float) -> str:
    setting = {"threshold": threshold, "recipe": "converged"}
    row, epochs = index.find("tau", name, **setting), index.value("epochs", name, **setting)
    return MISSING if row is None else f"{tau_text(row)} ({number(epochs)} epochs)"


def seeds_table(shared: ResultIndex, distinct: ResultIndex, config: str) -> str:
    """How much of τ comes from the initialization that all runs of the paper share.

    One line per model, one column per threshold: τ of the zoo whose runs share a seed, then of the zoo with a seed for
    each run. In the last column there is no threshold and neural predictors are trained until validation stops
    improving.
    """
    thresholds = [threshold for threshold in shared.thresholds if threshold in distinct.thresholds]
    first = thresholds[:1]

    def both(cell: Callable[[ResultIndex], str]) -> str:
        return f"{cell(shared)}<br>{cell(distinct)}"

    def tau(name: str, threshold: float, index: ResultIndex) -> str:
        return tau_text(index.find("tau", name, **main_setting(name, threshold)))

    lines = []
    for name, model in known_models().items():
        cells = [both(partial(tau, name, threshold)) for threshold in thresholds]
        if name in SIX_MODELS or any(cell != f"{MISSING}<br>{MISSING}" for cell in cells):
            cells += [both(partial(_converged_text, name=name, threshold=threshold)) for threshold in first]
            lines.append([model.title, *cells])
    lines.append([_ROW_COUNTS, *(both(partial(_row_counts, threshold=each)) for each in (*thresholds, *first))])
    title = f"τ, {config}: one seed for all runs, below it a seed for each run"
    last = [f"{threshold_title(threshold)}, {_CONVERGED}" for threshold in first]
    return table([title, *map(threshold_title, thresholds), *last], lines)


def _notes(index: ResultIndex) -> list[str]:
    """The text below the tables: how to read these numbers."""
    general = (
        "Mean ± standard error over seeds, below it the middle 95 % of a bootstrap over test runs. Bold is the best "
        "model that reads weights. XGBoost, LightGBM and boosting on hyperparameters have no randomness, so they have "
        "no error over seeds. Fits that share a GPU share its time equally, and their peak memory is that of all of "
        "them together. The noise ceiling assumes that each run is tested on its own examples; all runs share them, so "
        "a model can rank better than the ceiling."
    )
    averages = [
        f"{model.title}: the mean of the places that both predict among the training accuracies. It reads weights and "
        "hyperparameters, so it is not compared with those that read weights alone."
        for name, model in known_models().items()
        if model.parts and index.find("tau", name) is not None
    ]
    within = [_within_note(index)] if _has(index, "tau_within") else []
    return [general, *averages, *within, _constant_note(index), _too_few_note(index)]


def _within_note(index: ResultIndex) -> str:
    first = index.thresholds[0]
    count = number(index.value("configurations_within", "data", threshold=first))
    ceiling = number(index.value("noise_ceiling_within", "data", threshold=first), ".3f")
    return (
        "Each configuration was trained several times, with other seeds, and all its runs are in one split. τ within a "
        f"configuration ranks these runs among themselves: the mean over {count} configurations of the test split that "
        "have two runs or more, and the middle 95 % of a bootstrap over configurations. Hyperparameters score 0 there "
        f"by construction; the noise ceiling there is {ceiling}. The other bootstraps too draw configurations, with "
        "all their runs."
    )


def _constant_note(index: ResultIndex) -> str:
    """Which models predict a constant, at which thresholds. Trees do if two leaves of 50 rows cannot be made."""
    listed, trees = [], ""
    for name, model in known_models().items():
        constant = [at for at in index.thresholds if index.value("constant_seeds", name, **main_setting(name, at))]
        if constant:
            listed.append(f"{model.title} ({', '.join(map(threshold_title, constant))})")
            if name in MODELS and not model.neural:
                trees = " Trees have at least 50 training rows in every leaf."
    note = f"A constant, which ranks nothing and counts as 0, is predicted by {'; '.join(listed)}.{trees}"
    return note if listed else ""


def _too_few_note(index: ResultIndex) -> str:
    """Where no model has τ because of the rows: they were too few to fit, or those of the test split too few to rank.

    Otherwise no model could be computed, which is reported elsewhere.
    """
    too_few = []
    for threshold in index.thresholds:
        counts = [index.value(f"{split}_rows", "data", threshold=threshold) for split in SPLITS]
        known = [count for count in counts if count is not None]
        enough = not known or (len(known) < len(SPLITS) and min(known) >= MIN_ROWS)
        if not enough and all(index.value("tau", name, threshold=threshold) is None for name in known_models()):
            too_few.append(f"{threshold_title(threshold)} ({_row_counts(index, threshold)})")
    return f"Too few rows to rank: {'; '.join(too_few)}." if too_few else ""
