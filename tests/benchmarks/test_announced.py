"""Before the first fit, a table command prints how many trials it will fit and how many of them --quick fits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import ablation_components, ablation_width, augmentation, kendall, rows, transfer
from benchmarks import trial as trial_module


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fit is interrupted."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_module, "_fit_and_judge", interrupted)


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize(
    ("command", "words", "line"),
    [
        (
            kendall.main,
            ["--models", "mlp", "xgboost", "--config", "mnist", "agnews"],
            "mnist: 45 trials to fit; --quick fits 2 of them",
        ),
        (
            kendall.main,
            ["--models", "gauge_nfn_hyperparameters", "--thresholds", "none", "--seeds", "2"],
            "mnist: 3 trials to fit; --quick fits 2 of them",
        ),
        (
            ablation_components.main,
            ["--config", "agnews", "--seeds", "2"],
            "agnews: 6 trials to fit; --quick fits 3 of them",
        ),
        (
            ablation_width.main,
            ["--widths", "2", "3", "--seeds", "2"],
            "agnews: 4 trials to fit; --quick fits 2 of them",
        ),
        (
            augmentation.main,
            ["--models", "mlp", "gauge_nfn", "--ranges", "1"],
            "agnews: 10 trials to fit; --quick fits 2 of them",
        ),
        (
            rows.main,
            ["--models", "mlp", "--seeds", "2", "--sizes", "12", "20", "9000"],
            "mnist: 2 trials to fit; --quick fits 1 of them",
        ),
        (
            transfer.main,
            ["--models", "mlp", "--seeds", "2", "--config", "mnist"],
            "mnist: 2 trials to fit; --quick fits 1 of them",
        ),
    ],
)
def test_a_table_announces_its_trials_before_the_first_fit(
    command: Callable[[list[str]], None],
    words: list[str],
    line: str,
    tiny_zoo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        command([*words, "--zoo", str(tiny_zoo), "--out", str(tmp_path)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == f"{line}\ninterrupted\n"


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize("words", [["--quick"], ["--seeds", "1", "--thresholds", "none", "--recipes", "paper"]])
def test_nothing_is_announced_where_quick_fits_as_many(
    words: list[str], tiny_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        kendall.main([*words, "--models", "mlp", "gauge_nfn", "--zoo", str(tiny_zoo), "--out", str(tmp_path)])
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.long
def test_only_unfinished_trials_are_announced(
    tiny_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", "mlp", "--epochs", "1", "--thresholds", "none", "--recipes", "paper"]

    def announced(seeds: int) -> list[str]:
        kendall.main([*words, "--seeds", str(seeds), "--zoo", str(tiny_zoo), "--out", str(tmp_path)])
        return [line for line in capsys.readouterr().err.splitlines() if "to fit" in line]

    assert announced(2) == ["mnist: 2 trials to fit; --quick fits 1 of them"]
    assert announced(2) == []
    assert announced(4) == ["mnist: 2 trials to fit; --quick fits 0 of them"]
