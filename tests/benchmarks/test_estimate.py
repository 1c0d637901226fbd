"""The time of a table is said before it starts, from fits on this machine; a short one says nothing."""

import re
from pathlib import Path

import pytest

from benchmarks import ablation_width, augmentation, experiment, kendall, rows, transfer
from benchmarks import trial as trial_module
from benchmarks.experiment import _CONVERGED_EPOCHS, _row_epochs, _seconds_of
from benchmarks.models import hyperparameters
from benchmarks.models.registry import MODELS
from benchmarks.trial import Trial
from tests.benchmarks.synthetic import invent_data, random_label
from zoo.command import Main

DATA = invent_data(120, 30, 40, random_label)


def trial(model: str, seed: int = 0, threshold: float = 0.0, epochs: int = 10, recipe: str = "paper") -> Trial:
    return Trial("kendall", "mnist", model, seed, "z", threshold=threshold, epochs=epochs, recipe=recipe).normalized()


@pytest.mark.parametrize("model", [name for name, benchmark_model in MODELS.items() if not benchmark_model.parts])
def test_every_model_is_measured_once_and_its_time_grows_with_the_work(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1000, 0, -1))
    monkeypatch.setattr(experiment, "_seconds", lambda *_: float(next(ticks)))
    measured = {}

    def seconds_of(*trials: Trial) -> float:
        return _seconds_of(trials, DATA, 1, measured)

    once = seconds_of(trial(model))
    probes = next(ticks)
    assert seconds_of(trial(model, seed=1)) == once
    half = seconds_of(trial(model, threshold=0.5))
    if MODELS[model].kind is not None:
        assert seconds_of(trial(model, epochs=30)) == pytest.approx(3 * once)
        assert seconds_of(trial(model, recipe="converged")) == pytest.approx(once * _CONVERGED_EPOCHS / 10)
    assert half / once == pytest.approx(sum(DATA.rows_at_least(0.5)) / (120 + 30))
    assert next(ticks) == probes - 1, "it was measured again"
    assert seconds_of(trial(model, threshold=0.9999)) == 0.0, "too few rows to fit"
    assert seconds_of(trial(model), trial(model, threshold=0.5)) == pytest.approx(once + half)


def test_the_size_of_the_work_needs_no_measurement() -> None:
    assert _row_epochs([trial("mlp"), trial("mlp", recipe="converged")], DATA) == 120 * (10 + _CONVERGED_EPOCHS)


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fit is interrupted."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_module, "fit_and_judge", interrupted)
    monkeypatch.setattr(hyperparameters, "_ROUNDS", 20)


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (
            kendall.main,
            ["--models", "mlp", "xgboost", "--config", "mnist", "agnews"],
            r"mnist: 45 trials to fit, about \d+ (s|min) on this machine; --quick fits 2 of them, about \d+ s",
        ),
        (
            kendall.main,
            ["--models", "mlp", "--quick"],
            r"mnist: 1 trial to fit, about \d+ s on this machine",
        ),
        (
            ablation_width.main,
            ["--widths", "2", "3", "--seeds", "2"],
            r"agnews: 4 trials to fit, about \d+ (s|min) on this machine; --quick fits 2 of them, about \d+ s",
        ),
        (
            augmentation.main,
            ["--models", "mlp", "--ranges", "1"],
            r"agnews: 5 trials to fit, .*; --quick fits 1 of them, about \d+ s",
        ),
        (
            rows.main,
            ["--models", "mlp", "--seeds", "2", "--sizes", "12", "20", "9000"],
            r"mnist: 2 trials to fit, .*; --quick fits 1 of them, about \d+ s",
        ),
        (
            transfer.main,
            ["--models", "mlp", "--seeds", "2", "--config", "mnist"],
            r"mnist: 2 trials to fit, about \d+ s on this machine; --quick fits 1 of them, about \d+ s",
        ),
        (
            kendall.main,
            ["--models", "gauge_nfn_hyperparameters", "--quick"],
            r"mnist: 2 trials to fit, about \d+ s on this machine",
        ),
    ],
)
def test_a_table_says_how_long_it_takes_before_the_first_fit(
    command: Main,
    words: list[str],
    said: str,
    tiny_zoo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(experiment, "_WORTH_A_PROBE", 0)
    with pytest.raises(SystemExit) as ended:
        command([*words, "--zoo", str(tiny_zoo), "--out", str(tmp_path)])
    assert ended.value.code == 130
    first, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(said, first), first


@pytest.mark.usefixtures("cut_off")
def test_a_short_table_is_not_probed(tiny_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kendall.main(["--quick", "--zoo", str(tiny_zoo), "--out", str(tmp_path)])
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.usefixtures("cut_off")
def test_a_table_begins_at_once_where_no_estimate_is_wanted(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment, "_WORTH_A_PROBE", 0)
    with pytest.raises(SystemExit):
        kendall.main(["--quick", "--no-estimate", "--zoo", str(tiny_zoo), "--out", str(tmp_path)])
    assert capsys.readouterr().err == "interrupted\n"
