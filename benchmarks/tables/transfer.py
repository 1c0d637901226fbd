"""Predictors fitted on one config and checkpoint, tested on others: one table per config that they were fitted on."""

from benchmarks.models.registry import known_models
from benchmarks.tables.markdown import number, table, tau_cell, tau_text
from benchmarks.tables.result_index import ResultIndex

TRANSFER_NOTE = (
    "Each predictor is fitted on the train split and chosen on the validation split named at the top left, and tested "
    "on the test splits named in the columns; the first column is its own. No run that it was fitted on is among them. "
    "Where a configuration was trained again with another seed, its first run may have been fitted on, and a predictor "
    "that knows the configuration knows much of the answer: the upper number counts only test rows whose configuration "
    "is not in the train split, the lower one, where there is one, all rows. Columns have different test rows and are "
    "not paired with each other. Brackets hold the middle 95 % of a bootstrap over test runs."
)


OWN: dict[str, str | None] = {"tested_config": None}


def transfer_table(index: ResultIndex, config: str) -> str:
    """One row per model, one column for each place it is tested in."""
    places = places_of(index)
    checkpoint = next((row.setting["checkpoint"] for row in index.rows if "checkpoint" in row.setting), None)
    rows = []
    for name, benchmark_model in known_models().items():
        recipe = benchmark_model.recipe
        if index.find("tau", name, recipe=recipe) is None:
            continue
        own = tau_cell(index, name, None, best=False, recipe=recipe, **OWN)
        rows.append([benchmark_model.title, own, *(cell(index, name, recipe, place) for place in places)])
    own_rows = number(index.value("test_rows", "data", **OWN))
    rows.append(["test rows", own_rows, *(row_text(index, place) for place in places)])
    titles = [
        tested_checkpoint if tested_config == config else f"{tested_config}, {tested_checkpoint}"
        for tested_config, tested_checkpoint in places
    ]
    heading = f"Kendall's τ, fitted on {index.title(config)}, {checkpoint}"
    return table([heading, "its own test split", *titles], rows)


def places_of(index: ResultIndex) -> list[tuple[str, str]]:
    """Config and checkpoint of each other test split, in the order they were tested."""
    settings = [row.setting for row in index.rows if "tested_config" in row.setting]
    return list(dict.fromkeys((str(one["tested_config"]), str(one["tested_checkpoint"])) for one in settings))


def at(place: tuple[str, str], unseen: bool) -> dict[str, str | bool]:
    return {"tested_config": place[0], "tested_checkpoint": place[1], "tested_unseen": unseen}


def cell(index: ResultIndex, name: str, recipe: str, place: tuple[str, str]) -> str:
    """τ on unseen configurations with its interval; below it τ on all rows where these are more."""
    text = tau_cell(index, name, None, best=False, recipe=recipe, **at(place, unseen=True))
    if not some_seen(index, place):
        return text
    return f"{text}<br>all {tau_text(index.find('tau', name, recipe=recipe, **at(place, unseen=False)))}"


def row_text(index: ResultIndex, place: tuple[str, str]) -> str:
    unseen, every = (index.value("test_rows", "data", **at(place, unseen)) for unseen in (True, False))
    return f"{number(unseen)}<br>all {number(every)}" if some_seen(index, place) else number(every)


def some_seen(index: ResultIndex, place: tuple[str, str]) -> bool:
    """Whether some test rows have a configuration that was fitted on."""
    unseen, every = (index.value("test_rows", "data", **at(place, unseen)) for unseen in (True, False))
    return unseen != every
