"""tab:mnist-transformer and tab:agnews-transformer, followed by details that the paper does not report."""

from dataclasses import replace

from benchmarks.data import MIN_ROWS
from benchmarks.models.registry import MODELS, known_models, weight_models
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_cell, tau_text, threshold_title, with_error
from benchmarks.tables.result_index import ResultIndex, Value, thresholds_of
from zoo.format.splits import SPLITS

ROW_COUNTS = f"rows: {' / '.join(SPLITS)}"
CONVERGED_TITLE = "trained until validation stops improving"


def kendall_tables(index: ResultIndex, config: str) -> str:
    """The paper's table with our numbers, the details of its first column, and notes on both."""
    parts = [threshold_table(index, config), detail_table(index), converged_table(index), *notes(index)]
    return "\n\n".join(part for part in parts if part)


def threshold_table(index: ResultIndex, config: str) -> str:
    thresholds = thresholds_of(index)
    best = {threshold: leader(index, threshold) for threshold in thresholds}
    rows = []
    for name, benchmark_model in known_models().items():
        recipe = benchmark_model.recipe
        if all(index.find("tau", name, threshold=threshold, recipe=recipe) is None for threshold in thresholds):
            continue
        cells = []
        for threshold in thresholds:
            setting = {"threshold": threshold, "recipe": recipe}
            reference = paper.KENDALL.get(config, {}).get(name, {}).get(threshold) if index.whole else None
            cells.append(tau_cell(index, name, reference, best=name == best[threshold], **setting))
        rows.append([benchmark_model.title, *cells])
    ceilings = [index.value("noise_ceiling", "data", threshold=threshold) for threshold in thresholds]
    rows.append(["noise ceiling", *(number(value, ".3f") for value in ceilings)])
    rows.append([ROW_COUNTS, *(row_counts(index, threshold) for threshold in thresholds)])
    return table([f"Kendall's τ, {index.title(config)}", *map(threshold_title, thresholds)], rows)


def row_counts(index: ResultIndex, threshold: float) -> str:
    """The number of rows in each split."""
    return " / ".join(number(index.value(f"{split}_rows", "data", threshold=threshold)) for split in SPLITS)


def leader(index: ResultIndex, threshold: float) -> str | None:
    """The best of the models that read weights."""
    models = known_models()
    taus = {name: index.value("tau", name, threshold=threshold, recipe=models[name].recipe) for name in weight_models()}
    known = {name: tau for name, tau in taus.items() if tau is not None}
    return max(known, key=lambda name: known[name]) if known else None


def detail_table(index: ResultIndex) -> str:
    """One row per model, at the first threshold: what a single τ does not show."""
    rows = []
    first = thresholds_of(index)[0]
    recipes = {"converged": f"τ, {CONVERGED_TITLE}", "scaled": "τ, weights brought to unit size"}
    if any(row.setting.get("recipe") == "place" for row in index.rows):
        recipes["place"] = "τ, place as target"
    within, above = has_repeats(index), has(index, "tau_above_hyperparameters")
    for name, benchmark_model in known_models().items():
        setting = {"threshold": first, "recipe": benchmark_model.recipe}
        if index.find("tau", name, **setting) is None:
            continue
        change = index.value("mean_change", name, **setting)
        rows.append(
            [
                benchmark_model.title,
                *([within_text(index, name, **setting)] if within else []),
                difference_text(index, "tau_behind_leader", name, **setting),
                *([difference_text(index, "tau_above_hyperparameters", name, **setting)] if above else []),
                *(recipe_text(index, name, first, recipe) for recipe in recipes),
                number(index.value("r2", name, **setting), ".3f"),
                number(change, ".1e") if change else number(change),
                number(index.value("parameters", name, **setting)),
                number(index.value("wall_seconds", name, **setting), ".1f"),
                number(index.value("peak_memory_megabytes", name, **setting)),
            ]
        )
    if not rows:
        return ""
    headings = (
        *(["τ within a configuration"] if within else []),
        "τ behind the leader (bold)",
        *(["τ above hyperparameters only"] if above else []),
        *recipes.values(),
        "R²",
        "change under the group",
        "parameters",
        "seconds per fit",
        "peak MB",
    )
    return table([threshold_title(first), *headings], rows)


def has_repeats(index: ResultIndex) -> bool:
    """Whether configurations were trained several times, so that runs can be ranked within one."""
    return has(index, "tau_within")


def has(index: ResultIndex, metric: str) -> bool:
    return any(row.metric == metric for row in index.rows)


def difference_text(index: ResultIndex, metric: str, name: str, **setting: Value) -> str:
    """A paired difference with its interval; that of the leader to itself has none."""
    difference, interval = index.value(metric, name, **setting), index.interval(metric, name, **setting)
    return number(difference, ".3f") + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval and difference else "")


def within_text(index: ResultIndex, name: str, **setting: Value) -> str:
    interval = index.interval("tau_within", name, **setting)
    text = tau_text(index.find("tau_within", name, **setting))
    return text if interval is None else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def converged_table(index: ResultIndex) -> str:
    """The neural predictors trained until validation stops improving, if that was done at more than one threshold."""
    converged = replace(index, rows=tuple(row for row in index.rows if row.setting.get("recipe") == "converged"))
    thresholds = thresholds_of(converged)
    if len(thresholds) < 2:
        return ""
    rows = [
        [benchmark_model.title, *(converged_text(index, name, threshold) for threshold in thresholds)]
        for name, benchmark_model in known_models().items()
        if any(row.model == name for row in converged.rows)
    ]
    return table([f"τ, {CONVERGED_TITLE}", *map(threshold_title, thresholds)], rows)


def recipe_text(index: ResultIndex, name: str, threshold: float, recipe: str) -> str:
    """τ of a model trained by another recipe than that of its main column."""
    if recipe == "converged":
        return converged_text(index, name, threshold)
    row = index.find("tau", name, threshold=threshold, recipe=recipe)
    return MISSING if row is None else with_error(row.value, row.stderr)


def converged_text(index: ResultIndex, name: str, threshold: float) -> str:
    row = index.find("tau", name, threshold=threshold, recipe="converged")
    epochs = index.value("epochs", name, threshold=threshold, recipe="converged")
    return MISSING if row is None else f"{with_error(row.value, row.stderr)} ({number(epochs)} epochs)"


def notes(index: ResultIndex) -> list[str]:
    """What a reader must know about these numbers."""
    general = (
        "Mean ± standard error over seeds, below it the middle 95 % of a bootstrap over test runs. Bold is the best "
        "model that reads weights. XGBoost, LightGBM and boosting on hyperparameters have no randomness, so they have "
        "no error over seeds. Fits that share a GPU share its time equally, and their peak memory is that of all of "
        "them together. The noise ceiling assumes that each run is tested on its own examples; all runs share them, so "
        "a model can rank better than the ceiling."
    )
    return [general, *average_note(index), *within_note(index), *constant_note(index), *too_few_note(index)]


def average_note(index: ResultIndex) -> list[str]:
    """What an average is, where there is one."""
    models = known_models()
    shown = [model for name, model in models.items() if model.parts and index.find("tau", name) is not None]
    return [
        f"{model.title}: the mean of the places that both predict among the training accuracies. It reads weights and "
        "hyperparameters, so it is not compared with those that read weights alone."
        for model in shown
    ]


def within_note(index: ResultIndex) -> list[str]:
    """What τ within a configuration is, where there is one."""
    if not has_repeats(index):
        return []
    first = thresholds_of(index)[0]
    count = number(index.value("configurations_within", "data", threshold=first))
    ceiling = number(index.value("noise_ceiling_within", "data", threshold=first), ".3f")
    return [
        "Each configuration was trained several times, with other seeds, and all its runs are in one split. τ within a "
        f"configuration ranks these runs among themselves: the mean over {count} configurations of the test split that "
        "have two runs or more, and the middle 95 % of a bootstrap over configurations. Hyperparameters score 0 there "
        f"by construction; the noise ceiling there is {ceiling}. The other bootstraps too draw configurations, with "
        "all their runs."
    ]


def constant_note(index: ResultIndex) -> list[str]:
    """Which models predict a constant, at which thresholds. Trees do if two leaves of 50 rows cannot be made."""
    models = known_models()
    thresholds = {
        name: [
            threshold_title(threshold)
            for threshold in thresholds_of(index)
            if index.value("constant_seeds", name, threshold=threshold, recipe=models[name].recipe)
        ]
        for name in models
    }
    constant = [name for name in models if thresholds[name]]
    if not constant:
        return []
    listed = "; ".join(f"{models[name].title} ({', '.join(thresholds[name])})" for name in constant)
    trees = (
        " Trees have at least 50 training rows in every leaf."
        if any(name in MODELS and not models[name].neural for name in constant)
        else ""
    )
    return [f"A constant, which ranks nothing and counts as 0, is predicted by {listed}.{trees}"]


def too_few_note(index: ResultIndex) -> list[str]:
    """Where no model has τ because of the rows: they were too few to fit, or those of the test split too few to rank.

    Otherwise no model could be computed, and that is said elsewhere.
    """
    too_few = []
    for threshold in thresholds_of(index):
        counts = [index.value(f"{split}_rows", "data", threshold=threshold) for split in SPLITS]
        known = [count for count in counts if count is not None]
        enough = not known or (len(known) < len(SPLITS) and min(known) >= MIN_ROWS)
        if not enough and all(index.value("tau", name, threshold=threshold) is None for name in known_models()):
            too_few.append(f"{threshold_title(threshold)} ({' / '.join(map(number, counts))})")
    return [f"Too few rows to rank: {'; '.join(too_few)}."] if too_few else []
