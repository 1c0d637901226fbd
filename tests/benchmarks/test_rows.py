"""τ against the number of training rows: nested parts, the curve through them, its continuation, the table."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import report, results, rows
from benchmarks import trial as trial_module
from benchmarks.data import Outcome
from benchmarks.models import trees
from benchmarks.report import _Contents
from benchmarks.results import ResultIndex
from benchmarks.rows import _curve_rows, _LearningCurves
from benchmarks.trial import Trial
from tests.benchmarks.synthetic import invent_data, random_label
from tests.benchmarks.test_experiments import outcome
from tests.benchmarks.test_report import write_templates

SIZES = [250, 500, 1000, 2000, 8000]


@pytest.mark.parametrize(("limit", "scale", "exponent"), [(0.91, 3.0, 0.5), (0.95, 40.0, 1.0), (0.88, 1.2, 0.25)])
def test_the_curve_recovers_known_parameters(limit: float, scale: float, exponent: float) -> None:
    taus = limit - scale * np.array(SIZES, dtype=np.float64) ** -exponent
    curve = _LearningCurves.fit(SIZES, taus[None])
    assert curve.limit[0] == pytest.approx(limit, abs=2e-3)
    assert curve.exponent[0] == pytest.approx(exponent, rel=0.01)
    assert curve.scale[0] == pytest.approx(scale, rel=0.05)
    assert curve.at(11_200)[0] == pytest.approx(limit - scale * 11_200**-exponent, abs=1e-4)


def test_a_curve_neither_falls_nor_leads_beyond_one() -> None:
    falling, steep = np.linspace(0.9, 0.5, 5), 0.2 * np.log10(SIZES) + 0.1
    curves = _LearningCurves.fit(SIZES, np.stack([falling, steep]))
    assert curves.at(11_200)[0] == pytest.approx(falling.mean())
    assert curves.limit[1] == 1
    assert steep.mean() < curves.at(11_200)[1] < 1
    with pytest.raises(ValueError, match="needs 3 different numbers of rows"):
        _LearningCurves.fit([10, 20, 20], np.zeros((1, 3)))


def test_a_smaller_part_lies_in_a_larger_and_only_train_shrinks() -> None:
    data = invent_data(80, 20, 30, random_label)
    parts = [data.with_train_rows(count) for count in (10, 30, 80, 200)]
    runs = [set(part.train.runs) for part in parts]
    assert [len(part.train) for part in parts] == [10, 30, 80, 80]
    assert runs[0] < runs[1] < runs[2] == set(data.train.runs)
    assert list(parts[0].train.runs) == [run for run in data.train.runs if run in runs[0]], "in their order"
    assert set(list(data.train.runs)[:10]) != runs[0]
    for part in parts:
        assert part.validation is data.validation
        assert part.fingerprint == data.fingerprint
        assert part.tested_on(None) is part


def invented(noise: float, size: int | None, seed: int, truth: np.ndarray) -> tuple[Trial, Outcome]:
    draw = np.random.default_rng([seed, size or 0])
    made = outcome((truth + noise * draw.normal(size=len(truth))).tolist(), truth.tolist())
    return Trial("rows", "mnist", "mlp", seed, "z", rows=size), made


def test_the_interval_of_the_continuation_holds_the_point_and_widens_with_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = np.random.default_rng(0).uniform(size=150)
    widths = []
    for noise in (1.0, 4.0):
        outcomes = dict(
            invented(noise * (size or 4000) ** -0.3, size, seed, truth)
            for size in (250, 500, 1000, 2000, None)
            for seed in (0, 1, 2)
        )
        index = ResultIndex.latest(_curve_rows(outcomes, 4000, 11_200), "mnist")
        tau = index.value("tau_extrapolated", "mlp", rows=11_200)
        interval = index.interval("tau_extrapolated", "mlp", rows=11_200)
        assert tau is not None
        assert interval is not None
        assert interval[0] <= tau <= interval[1] <= 1
        widths.append(interval[1] - interval[0])
        assert index.value("curve_limit", "mlp", rows=11_200) is not None
    assert widths[0] < widths[1]
    undefined = np.where(np.arange(1000) % 10 < 6, np.nan, 0.5)
    monkeypatch.setattr(rows, "_resampled_means", lambda entry: undefined)
    index = ResultIndex.latest(_curve_rows(outcomes, 4000, 11_200), "mnist")
    assert index.interval("tau_extrapolated", "mlp", rows=11_200) is None, "most resamples cannot be ranked"
    few = {trial: made for trial, made in outcomes.items() if trial.rows in (250, None)}
    assert not list(_curve_rows(few, 4000, 11_200)), "two sizes make no curve"


@pytest.mark.long
def test_the_command_writes_rows_table_and_plot_and_shares_trials_on_all_rows(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_ROUNDS", 20)
    options = ["--zoo", str(tiny_zoo), "--out", str(tmp_path), "--quick", "--jobs", "1", "--models", "hyperparameters"]
    rows.main([*options, "--sizes", "30", "12", "20", "5000"])
    index = ResultIndex.latest(results.read("rows", tmp_path), "mnist")
    every = index.value("train_rows", "data", rows=None)
    assert [index.value("train_rows", "data", rows=size) for size in (12, 20, 30, 5000)] == [12, 20, 30, None]
    table = (tmp_path / "rows.mnist.md").read_text()
    assert f"by training rows | 12 | 20 | 30 | all {every:.0f} | 11,200 (the curve) | curve |" in table
    assert "·n^(−" in table
    assert (tmp_path / "rows.mnist.png").read_bytes().startswith(b"\x89PNG")
    assert "by training rows | 12 |" in _Contents(tmp_path).table("rows")
    document = write_templates(tmp_path / "clone", "{{ plots }}/rows.mnist.png")["benchmarks/README.md"]
    report.main(["--root", str(tmp_path / "clone"), "--results", str(tmp_path)])
    assert (document.parent / document.read_text()).resolve() == tmp_path.resolve() / "plots" / "rows.mnist.png"
    assert (tmp_path / "plots" / "rows.mnist.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(trial_module, "_fit_and_judge", None)
    rows.main([*options, "--sizes", "12"])
    assert "all " in (tmp_path / "rows.mnist.md").read_text()
    assert "curve" not in (tmp_path / "rows.mnist.md").read_text().splitlines()[0], "two sizes"
    assert Trial("rows", "mnist", "mlp", 0, "z").key == Trial("kendall", "mnist", "mlp", 0, "z").key


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "0"], "argument --sizes: each value must be a whole number of at least 2, got '0'"),
        (["--towards", "-3"], "argument --towards: must be a whole number of at least 2, got '-3'"),
        (["--config", "chess"], "has no config 'chess'"),
    ],
)
def test_bad_input_is_one_clear_line(
    tiny_zoo: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        rows.main(["--zoo", str(tiny_zoo), "--out", str(tmp_path), *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
