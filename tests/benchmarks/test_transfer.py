"""Fitted on one config or checkpoint, tested on another: what counts, what is fitted once, and the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import results, statistics, transfer
from benchmarks import trial as trial_module
from benchmarks.data import BenchmarkData, Checkpoints, Fitted
from benchmarks.models import trees
from benchmarks.report import _Contents
from benchmarks.results import ResultIndex
from benchmarks.tables import render_table
from tests.benchmarks.synthetic import invent, random_label
from tests.benchmarks.test_report import row
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.published import PublishedZoo
from zoo.reading.locate import find_folder


@pytest.fixture(scope="module")
def two_zoos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same configurations with one seed for all runs, and with a seed for each."""
    root = tmp_path_factory.mktemp("transfer")
    for seeds in ("shared", "distinct"):
        fabricate_shard(root / "runs", TINY_MNIST, count=50, seeds=seeds)
    publish(root / "runs", root / "zoo")
    return root / "zoo"


def numbered(runs: range, seed: int) -> BenchmarkData:
    """Configurations are numbered by their learning rate: 0 to 9 are in train, the runs of ``runs`` in test."""

    def rows(configurations: range) -> Checkpoints:
        made = invent(len(configurations), seed, random_label)
        fixed = dict.fromkeys(CONFIGURATION, 0.1) | {"optimizer": "adam"}
        own = {
            "run_id": [f"{seed}-{number}" for number in configurations],
            "learning_rate": np.array(configurations, float),
        }
        return replace(made, metadata=made.metadata.assign(**fixed | own))

    train, test = rows(range(10)), rows(runs)
    return BenchmarkData(train, train, lambda: test, config=f"seed-{seed}", fingerprint=f"of {seed}", test_examples=100)


class Reader:
    """Remembers the learning rates it is shown."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def predict(self, rows: Checkpoints) -> np.ndarray:
        self.seen = rows.hyperparameters["learning_rate"].tolist()
        return np.arange(len(rows), dtype=np.float32)


def test_rows_whose_configuration_was_fitted_on_do_not_count_and_those_of_its_runs_never_do() -> None:
    data, other = numbered(range(10, 14), seed=0), numbered(range(8, 12), seed=1)
    unseen, every = data.test_elsewhere(other)
    assert (unseen.tested_config, unseen.tested_zoo, unseen.tested_unseen) == ("seed-1", "of 1", True)
    for place, shown in ((unseen, [10.0, 11.0]), (every, [8.0, 9.0, 10.0, 11.0])):
        reader = Reader()
        data.tested_on(place).judge(Fitted(reader.predict), 0.0, "reader")
        assert reader.seen == shown
    same_runs = numbered(range(8, 12), seed=0)
    reader = Reader()
    data.tested_on(data.test_elsewhere(same_runs)[1]).judge(Fitted(reader.predict), 0.0, "reader")
    assert reader.seen == [10.0, 11.0], "runs 8 and 9 were fitted on"


@pytest.mark.long
def test_every_predictor_is_fitted_once_and_tested_everywhere(
    two_zoos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trees, "_ROUNDS", 20)
    monkeypatch.setattr(statistics, "_CEILING_DRAWS", 2)
    fits = []
    original = trial_module._fit
    monkeypatch.setattr(trial_module, "_fit", lambda trials, *rest: fits.extend(trials) or original(trials, *rest))
    options = ["--zoo", str(two_zoos), "--out", str(tmp_path), "--quick", "--jobs", "1", "--models", "hyperparameters"]
    transfer.main(options)
    assert [(fit.config, fit.checkpoint, fit.elsewhere) for fit in fits] == [
        ("mnist", "epoch_75", None),
        ("mnist-seeds", "epoch_75", None),
    ]
    index = ResultIndex.latest(results.read("transfer", tmp_path), "mnist")
    places = {(row.setting.get("tested_config"), row.setting.get("tested_checkpoint")) for row in index.rows}
    others = {("mnist", label) for label in ("epoch_50", "epoch_100", "best")}
    assert places == {(None, None), ("mnist-seeds", "epoch_75"), *others}
    there = {"tested_config": "mnist-seeds", "tested_checkpoint": "epoch_75"}
    unseen, every = (index.value("test_rows", "data", tested_unseen=flag, **there) for flag in (True, False))
    mnist, seeds = (BenchmarkData.from_zoo(two_zoos, config) for config in ("mnist", "mnist-seeds"))
    assert every is not None
    assert unseen is not None
    assert unseen < every < len(seeds.train)
    table = (tmp_path / "transfer.mnist.md").read_text()
    assert "| Kendall's τ, fitted on mnist, epoch_75 | its own test split | epoch_50 | epoch_100 | best |" in table
    assert f"{unseen:.0f}<br>all {every:.0f} |" in table
    assert "is not in the train split" in table
    assert mnist.fingerprint != seeds.fingerprint
    monkeypatch.setattr(trial_module, "_fit_and_judge", None)
    transfer.main(options)
    assert (tmp_path / "transfer.mnist.md").read_text() == table, "nothing was fitted again"
    block = _Contents(tmp_path).table("transfer")
    assert "fitted on mnist-seeds, epoch_75" in block
    assert block.count("is not in the train split") == 1
    capsys.readouterr()


def test_other_checkpoints_or_other_configs_alone(two_zoos: Path) -> None:
    zoo, configs = PublishedZoo.read(two_zoos), ("mnist", "mnist-seeds")
    others = [("mnist", label) for label in ("epoch_50", "epoch_100", "best")]
    assert transfer._targets(zoo, "mnist", "epoch_75", configs, ["checkpoints"]) == others
    assert transfer._targets(zoo, "mnist", "epoch_75", configs, ["configs"]) == [("mnist-seeds", "epoch_75")]
    assert transfer._targets(zoo, "mnist", "epoch_75", configs) == [*others, ("mnist-seeds", "epoch_75")]


def test_a_place_without_seen_configurations_has_one_number() -> None:
    there = {"recipe": "paper", "tested_config": "mnist", "tested_checkpoint": "best"}
    rows = [row("tau", 0.5, checkpoint="epoch_75", recipe="paper")]
    for unseen, tau in ((True, 0.4), (False, 0.6)):
        rows.append(row("tau", tau, checkpoint="epoch_75", tested_unseen=unseen, **there))
    text = render_table("transfer", {"mnist": ResultIndex.latest(rows, "mnist")})
    assert "| MLP | 0.500 ± 0.010 | 0.400 ± 0.010 |" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "chess"], "has no config 'chess'"),
        (["--checkpoint", "epoch_3"], "unknown checkpoint 'epoch_3'"),
        (["--models", "oracle"], "unknown model 'oracle'"),
        (["--config", "mnist", "--tested-on", "configs"], "mnist: no other config alike, so nothing to test on"),
    ],
)
def test_bad_input_is_one_clear_line(
    two_zoos: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        transfer.main(["--zoo", str(two_zoos), "--out", str(tmp_path), *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_checkpoints_that_few_runs_of_a_thinned_zoo_have_are_not_tested_on() -> None:
    zoo = PublishedZoo.read(find_folder("small-transformer-zoo", "mnist"))
    configs = tuple(zoo.configs)
    assert transfer._targets(zoo, "mnist", "epoch_75", configs) == [("mnist-seeds", "epoch_75")]
    assert transfer._targets(zoo, "agnews", "epoch_75", configs) == []
