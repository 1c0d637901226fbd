"""How early a learning curve tells where a run will end.

python -m benchmarks.curves                                    MNIST, on the zoo in this repository
python -m benchmarks.curves --config mnist agnews --zoo DIR --epochs 1 5 20 --out results

After some epochs, the test runs are ranked by what they will have after the last one: by the value of that epoch, by
boosted trees on the curves so far, by the same on curves and hyperparameters, and by hyperparameters alone. Trees are
fitted to ranks on the train split, and validation chooses the round. Needs no weights: a zoo's runs are enough. Writes
OUT/curves.jsonl, OUT/curves.CONFIG.md and OUT/curves.CONFIG.png.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.options import Configs
from zoo.checked import Count
from zoo.command import DEFAULT_NAME, Command, Option, ZooName


@dataclass(frozen=True, kw_only=True)
class _Options:
    zoo: ZooName = DEFAULT_NAME
    config: Configs = None
    epochs: Annotated[tuple[Count, ...], Option("after how many epochs, fewer than all", "N")] = (1, 2, 5, 10, 20, 50)
    out: Annotated[Path, Option("folder to write to", "DIR")] = Path("results")


_command = Command(__name__, "benchmarks.curves", __doc__, _Options, lambda _: ("matplotlib", "scipy", "sklearn"))

from collections.abc import Iterator

import numpy as np
import pandas as pd
from jaxtyping import Float

from benchmarks import results
from benchmarks.data import MIN_ROWS, require_rows
from benchmarks.models.trees import fit_ranks, hyperparameter_table
from benchmarks.results import Result, Setting, named_label
from benchmarks.statistics import bootstrap_taus, resample_runs, tau_or_zero
from benchmarks.tables import render_table, write_table
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.published import RUNS_FILE, ConfigDetails, PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, direction_of, usual_label
from zoo.format.splits import SPLITS
from zoo.format.table_file import read_table
from zoo.plots import new_figure, save
from zoo.reading.locate import choose_configs, find_folder

_CURVES = ("test_accuracy", "test_loss", "train_loss")
READS = {
    "value": "value at that epoch",
    "curves": "curves so far",
    "both": "curves and hyperparameters",
    "hyperparameters": "hyperparameters alone",
}


def _ranked(config: str, details: ConfigDetails, runs: pd.DataFrame, options: _Options) -> Iterator[Result]:
    """τ of every way to rank after every number of epochs."""
    label = usual_label(details.spec)[0]
    splits = np.array(details.splits_of(lambda name: runs[name].tolist()))
    places = {split: np.flatnonzero(splits == split) for split in SPLITS}
    require_rows(config, {split: len(rows) for split, rows in places.items()}, MIN_ROWS)
    train, validation, test = places.values()
    curves = np.stack([np.stack(runs[name].to_list()) for name in _CURVES], axis=2, dtype=np.float64)
    truth = direction_of(label) * curves[:, -1, _CURVES.index(label)]
    configurations = runs.groupby(list(CONFIGURATION)).ngroup().to_numpy()
    counts, recipe = resample_runs(configurations[test]), hyperparameter_table(runs)
    optimizer = CONFIGURATION.index("optimizer")

    def row(reads: str, epochs: int | None, predicted: Float[np.ndarray, " n"]) -> list[Result]:
        resampled = bootstrap_taus([predicted], truth[test], counts, units=configurations[test])
        setting: Setting = {"runs": len(runs), "test_runs": len(test), "epochs": curves.shape[1]}
        setting |= {} if named_label(label) is None else {"label": label}
        setting |= {} if epochs is None else {"after": epochs}
        what = {"device": "cpu", "variant": reads, "setting": setting}
        return Result.estimated("curves", config, "tau", [tau_or_zero(predicted, truth[test])], resampled, **what)

    def fitted(table: Float[np.ndarray, "n columns"], *categories: int) -> Float[np.ndarray, " k"]:
        read, _, _ = fit_ranks(table[train], table[validation], truth[train], truth[validation], categories)
        return read(table[test])

    yield from row("hyperparameters", None, fitted(recipe, optimizer))
    for epochs in sorted({count for count in options.epochs if count < curves.shape[1]}):
        yield from row("value", epochs, direction_of(label) * curves[test, epochs - 1, _CURVES.index(label)])
        # the last value, what the last epochs added, and the epochs before at growing distances
        seen = sorted({0, epochs - 1, *(epochs - 1 - distance for distance in (1, 2, 5, 10, 20) if distance < epochs)})
        so_far = curves[:, seen].reshape(len(curves), -1)
        yield from row("curves", epochs, fitted(so_far))
        yield from row("both", epochs, fitted(np.hstack([recipe, so_far]), optimizer))


def _plot(config: str, rows: list[Result], path: Path) -> Path:
    """τ over the number of epochs, one line per way to rank."""
    figure = new_figure(6.0, 4.0)
    axis = figure.subplots()
    for reads, title in READS.items():
        found = [row for row in rows if row.variant == reads and row.metric == "tau"]
        if reads == "hyperparameters":
            axis.axhline(found[0].value, linestyle="--", color="gray", label=title)
        else:
            axis.plot([row.setting["after"] for row in found], [row.value for row in found], marker="o", label=title)
    axis.set(xscale="log", xlabel="epochs seen", ylabel="Kendall's τ with the end", title=config)
    axis.legend(fontsize=8)
    return save(figure, path)


@_command
def main(options: _Options) -> None:
    for config in choose_configs(options.zoo, options.config):
        zoo = PublishedZoo.read(find_folder(options.zoo, config))  # with the runs, where it is downloaded
        details = zoo.config(config)
        table = read_table(zoo.folder / config / RUNS_FILE, PUBLISHED_RUN_SCHEMA).to_pandas()
        rows = list(_ranked(config, details, table[table["status"] == "completed"], options))
        results.append(rows, options.out)
        write_table(render_table("curves", rows=rows, reads=READS), options.out / f"curves.{config}.md")
        print(f"drawn: {_plot(config, rows, options.out / f'curves.{config}.png')}")
