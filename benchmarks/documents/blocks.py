"""The generated parts of the documents: which file has which, and how each is made from the rows."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.documents.generated_runs import GENERATED, final_runs, trained_on
from benchmarks.leaderboard.ranking import leaderboard_tables, read_ranking
from benchmarks.models.registry import MODELS
from benchmarks.results import Result
from benchmarks.speed.measurements import speed_table
from benchmarks.tables.ablation import components_table, variants_table, width_table
from benchmarks.tables.accuracies import accuracies_table
from benchmarks.tables.augmentation import augmentation_table
from benchmarks.tables.census import census_table
from benchmarks.tables.data_note import with_data_notes
from benchmarks.tables.fidelity import fidelity_table
from benchmarks.tables.headline import headline_table
from benchmarks.tables.kendall import kendall_tables
from benchmarks.tables.result_index import ResultIndex
from benchmarks.tables.rows import ROWS_NOTE, rows_table
from benchmarks.tables.seeds import seeds_table
from benchmarks.tables.transfer import TRANSFER_NOTE, transfer_table
from zoo.format.record import DISTINCT_SEEDS, config_name, task_of
from zoo.tasks.identity import KNOWN

CONFIGS = ("mnist", "agnews")
GOOD = "test_accuracy >= 0.8"  # the last threshold of the paper's tables
IN_BOTH = {"mnist": "train_fraction >= 0.8", "agnews": "train_fraction >= 0.9"}
"""Config → the part of its grid that was trained with either kind of seeds: three and two of its first four shards."""
REPEATS = "mnist-repeats"
PLOTS = "plots"
PICTURES = ("scatter", "thresholds")
HEADLINE_PICTURE = "headline.png"

DOCUMENTS = {
    "README.md": ("picture", "headline"),
    "benchmarks/README.md": (
        "kendall.mnist",
        "kendall.agnews",
        "seeds",
        "repeats",
        "ablation_components",
        "ablation_width",
        "augmentation",
        "leaderboard",
        "transfer",
        "rows",
    ),
    "generation/README.md": ("census", "accuracies", "speed", "fidelity"),
}
"""File → the blocks it must have, each once."""


def blocks(folder: Path, plots: Path) -> dict[str, Callable[[], str]]:
    """Name of a block → its text, from the rows in ``folder``; ``plots`` is where the document finds the pictures."""
    return {
        "picture": lambda: picture_block(folder, plots),
        "headline": lambda: headline_block(folder),
        "kendall.mnist": lambda: kendall_block("mnist", folder, plots),
        "kendall.agnews": lambda: kendall_block("agnews", folder, plots),
        "seeds": lambda: seeds_block(folder),
        "repeats": lambda: kendall_block(REPEATS, folder, plots),
        "ablation_components": lambda: components_block(folder),
        "ablation_width": lambda: one_table_per_config("ablation_width", width_table, folder),
        "augmentation": lambda: one_table_per_config("augmentation", augmentation_table, folder),
        "leaderboard": lambda: leaderboard_block(folder),
        "transfer": lambda: transfer_block(folder),
        "rows": lambda: rows_block(folder, plots),
        "census": lambda: census_block(folder),
        "accuracies": lambda: accuracies_block(folder, plots),
        "speed": lambda: speed_block(folder),
        "fidelity": lambda: fidelity_block(folder),
    }


def headline_zoos(folder: Path) -> dict[str, ResultIndex]:
    """Title → the rows of a zoo, for those of the front page's four that were measured."""
    rows = kendall_rows(folder)
    zoos = {KNOWN[config].title: ResultIndex.latest(rows, config) for config in CONFIGS}
    zoos |= {
        f"{KNOWN[config].title}, a seed for each run": ResultIndex.latest(rows, with_own_seeds(config), part)
        for config, part in IN_BOTH.items()
    }
    return {title: index for title, index in zoos.items() if index}


def kendall_rows(folder: Path) -> list[Result]:
    """All but those of variants, which are shown beside the model that they change."""
    variants = {name for name, model in MODELS.items() if model.variant_of}
    return [row for row in results.read("kendall", folder) if row.model not in variants]


def picture_block(folder: Path, plots: Path) -> str:
    if not (folder / PLOTS / HEADLINE_PICTURE).exists():
        return missing("python -m benchmarks.kendall")
    return f"![Kendall's τ of every predictor, one panel per zoo]({(plots / HEADLINE_PICTURE).as_posix()})"


def headline_block(folder: Path) -> str:
    zoos = headline_zoos(folder)
    if not zoos:
        return missing("python -m benchmarks.kendall")
    return noted(headline_table(zoos), folder, *CONFIGS, *map(with_own_seeds, CONFIGS))


def kendall_block(config: str, folder: Path, plots: Path) -> str:
    """The tables of one task, and its plots where they were drawn."""
    index = ResultIndex.latest(kendall_rows(folder), config)
    if not index:
        return missing(f"python -m benchmarks.kendall --config {config}")
    pictures = shown([f"kendall.{config}.{name}.png" for name in PICTURES], folder, plots)
    return "\n\n".join(part for part in (noted(kendall_tables(index, config), folder, config), pictures) if part)


def with_own_seeds(config: str) -> str:
    return config_name(config, DISTINCT_SEEDS)


def seeds_block(folder: Path) -> str:
    """For each task the table on the same configurations of both its zoos, then the whole of the second."""
    rows = kendall_rows(folder)
    tables, shown_configs = [], []
    for config, part in IN_BOTH.items():
        distinct_config = with_own_seeds(config)
        shared, distinct = (ResultIndex.latest(rows, name, part) for name in (config, distinct_config))
        if shared and distinct:
            tables += [seeds_table(shared, distinct, config), kendall_tables(distinct, distinct_config)]
            shown_configs += [config, distinct_config]
    if not tables:
        config, part = next(iter(IN_BOTH.items()))
        return missing(f"python -m benchmarks.kendall --config {config} {with_own_seeds(config)} --where '{part}'")
    return noted("\n\n".join(tables), folder, *shown_configs)


def components_block(folder: Path) -> str:
    """The table of all rows, then that of the good ones, for the configs that have it."""
    rows = results.read("ablation_components", folder)
    whole = {config: ResultIndex.latest(rows, config) for config in CONFIGS}
    if not any(whole.values()):
        return missing("python -m benchmarks.ablation_components")
    good = {config: index for config in CONFIGS if (index := ResultIndex.latest(rows, config, GOOD))}
    tables = [components_table(indexes) for indexes in (whole, good) if indexes]
    kendall = results.read("kendall", folder)
    for config in CONFIGS:
        tables += variants_table(ResultIndex.latest(kendall, config), config)
    return noted("\n\n".join(tables), folder, *CONFIGS)


def transfer_block(folder: Path) -> str:
    return tables_of_all_configs("transfer", transfer_table, TRANSFER_NOTE, folder)


def rows_block(folder: Path, plots: Path) -> str:
    """The tables, and the pictures where they were drawn."""
    pictures = shown([f"rows.{config}.png" for config in measured("rows", folder)], folder, plots)
    tables = tables_of_all_configs("rows", rows_table, ROWS_NOTE, folder)
    return "\n\n".join(part for part in (tables, pictures) if part)


def measured(benchmark: str, folder: Path) -> dict[str, ResultIndex]:
    """Config → its rows, for every config that has some."""
    rows = results.read(benchmark, folder)
    indexes = {config: ResultIndex.latest(rows, config) for config in dict.fromkeys(row.config for row in rows)}
    return {config: index for config, index in indexes.items() if index}


def tables_of_all_configs(benchmark: str, layout: Callable[[ResultIndex, str], str], note: str, folder: Path) -> str:
    """The tables of every config that has rows, then the note that they share."""
    indexes = measured(benchmark, folder)
    if not indexes:
        return missing(f"python -m benchmarks.{benchmark}")
    tables = [layout(index, config) for config, index in indexes.items()]
    return noted("\n\n".join([*tables, note]), folder, *indexes)


def one_table_per_config(benchmark: str, layout: Callable[[ResultIndex, str], str], folder: Path) -> str:
    """The tables of the configs that have rows, the paper's own first."""
    rows = results.read(benchmark, folder)
    indexes = {config: ResultIndex.latest(rows, config) for config in ("agnews", "mnist")}
    tables = [noted(layout(index, config), folder, config) for config, index in indexes.items() if index]
    return "\n\n".join(tables) or missing(f"python -m benchmarks.{benchmark}")


def leaderboard_block(folder: Path) -> str:
    rankings = read_ranking(folder)
    return leaderboard_tables(rankings) if rankings else "No ranking yet: `python -m benchmarks.leaderboard table`."


def census_block(folder: Path) -> str:
    rows = results.read("census", folder)
    return census_table(rows) if rows else "No rows yet: `python -m benchmarks.census runs` counts what was generated."


def accuracies_block(folder: Path, plots: Path) -> str:
    """The spread of the final accuracies and its pictures."""
    accuracies = {config: runs["test_accuracy"].to_numpy() for config, runs in final_runs(folder).items()}
    if not accuracies:
        return f"No runs yet: `{GENERATED}` beside the rows is a published zoo without its weights."
    pictures = shown([f"accuracy.{config}.png" for config in accuracies], folder, plots)
    return "\n\n".join(part for part in (accuracies_table(accuracies), pictures) if part)


def speed_block(folder: Path) -> str:
    return speed_table(
        [row for name in ("generation", "nfn", "loader") for row in results.read(f"speed.{name}", folder)]
    )


def fidelity_block(folder: Path) -> str:
    rows = results.read("fidelity", folder)
    return fidelity_table(rows) if rows else "No rows yet: `python -m benchmarks.fidelity` on a GPU produces them."


def noted(table: str, folder: Path, *configs: str) -> str:
    """A table, and what its reader must know about the data of its configs."""
    notes = trained_on(folder)  # of tasks rather than configs: those with other seeds have the same data
    return with_data_notes(table, {config: notes.get(task_of(config)) for config in configs})


def shown(files: Sequence[str], folder: Path, plots: Path) -> str:
    """The pictures that were drawn, as the document shows them."""
    drawn = [file for file in files if (folder / PLOTS / file).exists()]
    return " ".join(f"![{file.removesuffix('.png')}]({(plots / file).as_posix()})" for file in drawn)


def missing(command_line: str) -> str:
    return f"No rows yet: `{command_line} --out benchmarks/results` on a whole zoo produces them."
