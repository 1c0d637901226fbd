"""How early a curve tells the end: the plain value by hand, the ways to rank, one clear line for too few runs."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

import zoo
from benchmarks import results
from benchmarks.curves import main
from tests.refusal import refusal


@pytest.mark.parametrize("config", ["mnist", "agnews"])
def test_runs_are_ranked_by_what_is_known_after_some_epochs(config: str, tmp_path: Path):
    main(["--config", config, "--epochs", "10", "200", "--out", str(tmp_path)])
    rows = {row.variant: row for row in results.read("curves", tmp_path) if row.metric == "tau"}
    assert rows.keys() == {"value", "curves", "both", "hyperparameters"}
    runs = zoo.open("small-transformer-zoo", config, split="test").runs
    tested = zoo.open("small-transformer-zoo", config, split="test").metadata["run_id"].unique()
    curves = np.stack(runs[runs["run_id"].isin(tested)]["test_accuracy"].to_list())
    assert rows["value"].value == pytest.approx(kendalltau(curves[:, 9], curves[:, -1])[0], abs=1e-9)
    assert rows["value"].setting["test_runs"] == len(tested)
    assert rows["value"].setting["after"] == 10
    assert all(0.2 < row.value <= 1 for name, row in rows.items() if name != "hyperparameters")
    assert "| value at that epoch |" in (tmp_path / f"curves.{config}.md").read_text()
    assert (tmp_path / f"curves.{config}.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_config_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "digits" in refusal(main, ["--config", "digits", "--out", str(tmp_path)], capsys)
