"""Makes every table and plot of the README again, from the rows in benchmarks/results/.

python -m benchmarks.report                    writes README.md and benchmarks/results/plots/
python -m benchmarks.report --check            writes nothing; exits with 1 where README.md is out of date

A generated block stands between <!-- generated: NAME --> and <!-- end: NAME --> and is replaced whole.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.experiments.trial import Trial
from benchmarks.experiments.trial_store import TrialStore
from benchmarks.models.registry import MODELS
from benchmarks.plots import accuracy_histogram, scatter, tau_by_threshold
from benchmarks.tables.ablation import components_table, width_table
from benchmarks.tables.accuracies import accuracies_table
from benchmarks.tables.augmentation import augmentation_table
from benchmarks.tables.census import census_table
from benchmarks.tables.fidelity import fidelity_table
from benchmarks.tables.kendall import kendall_tables, thresholds_of
from benchmarks.tables.result_index import ResultIndex
from benchmarks.tables.seeds import seeds_table
from benchmarks.tables.speed import speed_table
from zoo.command import command, command_parser
from zoo.format.published import RUNS_FILE
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.table_file import read_table
from zoo.storage.atomic import write_atomically

README = Path(__file__).parent.parent / "README.md"
CONFIGS = ("mnist", "agnews")
SEEDS = "mnist-seeds"
GOOD = "test_accuracy >= 0.8"  # the last threshold of the paper's tables
IN_BOTH = "train_fraction >= 0.8"  # of the MNIST grid: the shards that were trained with either seeds
BLOCK = re.compile(r"(?P<open><!-- generated: (?P<name>[\w.]+) -->\n).*?(?P<close><!-- end: (?P=name) -->)", re.DOTALL)
PLOTS = "plots"
GENERATED = "generated"
PICTURES = ("scatter", "thresholds")
OUT_OF_DATE = 1


def kendall_block(config: str, folder: Path, plots: Path) -> str:
    """The tables of one task and its plots, those that are drawn; ``plots`` is where the README finds them."""
    index = ResultIndex.latest(results.read("kendall", folder), config)
    if not index:
        return missing(f"python -m benchmarks.kendall --config {config}")
    pictures = shown([f"kendall.{config}.{name}.png" for name in PICTURES], folder, plots)
    return "\n\n".join(part for part in (kendall_tables(index, config), pictures) if part)


def seeds_block(folder: Path) -> str:
    """The table on the same configurations of both zoos side by side, then the whole of the second."""
    rows = results.read("kendall", folder)
    shared, distinct = ResultIndex.latest(rows, "mnist", IN_BOTH), ResultIndex.latest(rows, SEEDS, IN_BOTH)
    if not shared or not distinct:
        return missing(f"python -m benchmarks.kendall --config mnist {SEEDS} --where '{IN_BOTH}'")
    return "\n\n".join([seeds_table(shared, distinct), kendall_tables(distinct, SEEDS)])


def components_block(folder: Path) -> str:
    """The table of all rows, then that of the good ones, for the configs that have it."""
    rows = results.read("ablation_components", folder)
    whole = {config: ResultIndex.latest(rows, config) for config in CONFIGS}
    if not any(whole.values()):
        return missing("python -m benchmarks.ablation_components")
    good = {config: index for config in CONFIGS if (index := ResultIndex.latest(rows, config, GOOD))}
    return "\n\n".join(components_table(indexes) for indexes in (whole, good) if indexes)


def width_block(folder: Path) -> str:
    return one_table_a_config("ablation_width", width_table, folder)


def augmentation_block(folder: Path) -> str:
    return one_table_a_config("augmentation", augmentation_table, folder)


def one_table_a_config(benchmark: str, layout: Callable[[ResultIndex, str], str], folder: Path) -> str:
    """The tables of the configs that have rows, the paper's own first."""
    rows = results.read(benchmark, folder)
    indexes = {config: ResultIndex.latest(rows, config) for config in ("agnews", "mnist")}
    tables = [layout(index, config) for config, index in indexes.items() if index]
    return "\n\n".join(tables) or missing(f"python -m benchmarks.{benchmark}")


def fidelity_block(folder: Path) -> str:
    rows = results.read("fidelity", folder)
    return fidelity_table(rows) if rows else "No rows yet: `python -m benchmarks.fidelity` on a GPU produces them."


def census_block(folder: Path) -> str:
    rows = results.read("census", folder)
    return census_table(rows) if rows else "No rows yet: `python -m benchmarks.census runs` counts what was generated."


def accuracies_block(folder: Path, plots: Path) -> str:
    """The spread of the final accuracies and its pictures."""
    found = final_accuracies(folder)
    if not found:
        return f"No runs yet: `{GENERATED}` beside the rows is a published zoo without its weights."
    pictures = shown([f"accuracy.{config}.png" for config in found], folder, plots)
    return "\n\n".join(part for part in (accuracies_table(found), pictures) if part)


def final_accuracies(folder: Path) -> dict[str, np.ndarray]:
    """Config → the test accuracy of each completed run after its last epoch, from the tables of runs that came home."""
    found = {}
    for path in sorted((folder / GENERATED).glob(f"*/{RUNS_FILE}")):
        runs = read_table(path, PUBLISHED_RUN_SCHEMA).select(["status", "test_accuracy"]).to_pylist()
        curves = [run["test_accuracy"] for run in runs if run["status"] == "completed"]
        found[path.parent.name] = np.array([curve[-1] for curve in curves])
    return found


def shown(files: Sequence[str], folder: Path, plots: Path) -> str:
    """The pictures that are drawn, as the README shows them; ``plots`` is where it finds them."""
    drawn = [file for file in files if (folder / PLOTS / file).exists()]
    return " ".join(f"![{file.removesuffix('.png')}]({(plots / file).as_posix()})" for file in drawn)


def speed_block(folder: Path) -> str:
    return speed_table(
        [row for name in ("generation", "nfn", "loader") for row in results.read(f"speed.{name}", folder)]
    )


def missing(command_line: str) -> str:
    return f"No rows yet: `{command_line} --out benchmarks/results` on a whole zoo produces them."


def blocks(folder: Path, plots: Path) -> dict[str, Callable[[], str]]:
    """Name of a block → its text."""
    return {
        "kendall.mnist": lambda: kendall_block("mnist", folder, plots),
        "kendall.agnews": lambda: kendall_block("agnews", folder, plots),
        "seeds": lambda: seeds_block(folder),
        "ablation_components": lambda: components_block(folder),
        "ablation_width": lambda: width_block(folder),
        "augmentation": lambda: augmentation_block(folder),
        "speed": lambda: speed_block(folder),
        "fidelity": lambda: fidelity_block(folder),
        "census": lambda: census_block(folder),
        "accuracies": lambda: accuracies_block(folder, plots),
    }


def render(text: str, folder: Path, plots: Path) -> str:
    """The README with every block made anew; a block this command does not know is an error, as is a missing one."""
    known = blocks(folder, plots)
    found = [match["name"] for match in BLOCK.finditer(text)]
    if sorted(found) != sorted(known):
        raise ValueError(
            f"the README must have each block once: {', '.join(known)}; it has {', '.join(found) or 'none'}"
        )
    return BLOCK.sub(lambda match: f"{match['open']}{known[match['name']]()}\n{match['close']}", text)


def draw(folder: Path, plots: Path) -> list[Path]:
    """The plots of every task that has rows and, for the scatter, trials; of every config that has runs."""
    drawn = [
        accuracy_histogram(found, f"{config}, after the last epoch", plots / f"accuracy.{config}.png", counted="runs")
        for config, found in final_accuracies(folder).items()
    ]
    for config in CONFIGS:
        index = ResultIndex.latest(results.read("kendall", folder), config)
        if not index:
            continue
        drawn.append(tau_by_threshold(index, config, plots / f"kendall.{config}.thresholds.png"))
        shown = first_cells(index, config, folder)
        if shown:
            drawn.append(scatter(shown, f"{config}, test split", plots / f"kendall.{config}.scatter.png"))
    return drawn


def first_cells(index: ResultIndex, config: str, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What each model predicted of the test split at the first threshold, at its first seed."""
    store = TrialStore(folder)
    shown = {}
    for name in MODELS:
        row = index.find("tau", name, threshold=thresholds_of(index)[0], recipe="paper")
        if row is not None:
            for outcome in store.find([Trial.of_row(row, seed=0)]).values():
                shown[name] = (outcome.predicted, outcome.truth)
    return shown


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.report", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit with 1 where README.md is out of date"
    )
    parser.add_argument("--readme", type=Path, default=README, metavar="FILE", help="default: this repository's")
    parser.add_argument(
        "--results", type=Path, default=results.FOLDER, metavar="DIR", help="default: the committed rows"
    )
    options = parser.parse_args(arguments)
    plots = options.results / PLOTS
    before = options.readme.read_text(encoding="utf-8")
    if not options.check:
        for path in draw(options.results, plots):
            print(f"written: {path}")
    after = render(before, options.results, Path(os.path.relpath(plots.resolve(), options.readme.resolve().parent)))
    if options.check:
        if after != before:
            print(f"{options.readme} is out of date: run python -m benchmarks.report", file=sys.stderr)
            sys.exit(OUT_OF_DATE)
        print(f"{options.readme} says what the rows say")
        return
    write_atomically(options.readme, after.encode())
    print(f"written: {options.readme}")


if __name__ == "__main__":
    main()
