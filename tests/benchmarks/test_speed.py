"""The speed benchmark runs, measures both variants, keeps every row at once, and says clearly when it cannot."""

from collections.abc import Callable

import pytest
import torch

from benchmarks import results
from benchmarks.results import Result
from benchmarks.speed import training
from benchmarks.speed.__main__ import main


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    rows: list[Result] = []
    monkeypatch.setattr(results, "append", rows.extend)
    return rows


def cut_off_at(call: int, original: Callable) -> Callable:
    """The function, until it is interrupted."""
    calls = 0

    def interrupted(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    return interrupted


@pytest.mark.long
def test_rows_hold_both_variants(monkeypatch: pytest.MonkeyPatch, stored: list[Result]):
    monkeypatch.setattr(training, "_BATCHES", (2,))
    main(["nfn", "--device", "cpu", "--config", "agnews", "--repeats", "2"])
    assert {(row.metric, row.variant, row.setting["seeds"]) for row in stored} == {
        ("forward_backward_ms", "merged", 1),
        ("forward_backward_ms", "literal", 1),
        ("training_step_ms", "merged", 1),
        ("training_step_ms", "literal", 1),
        ("training_step_ms", "merged", 5),
    }
    assert all(row.value > 0 and row.config == "agnews" and row.n == 2 for row in stored)


@pytest.mark.long
def test_what_was_measured_before_an_interruption_is_printed_and_stored(
    monkeypatch: pytest.MonkeyPatch, stored: list[Result], capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(training, "_BATCHES", (2,))
    monkeypatch.setattr(training, "measure", cut_off_at(2, training.measure))
    with pytest.raises(SystemExit) as ended:
        main(["nfn", "--device", "cpu", "--config", "agnews", "--repeats", "2"])
    assert ended.value.code == 130
    assert [(row.metric, row.variant) for row in stored] == [
        ("forward_backward_ms", "merged"),
        ("forward_backward_ms", "literal"),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["agnews", row.variant, row.metric] for row in stored]


def test_a_population_that_is_cut_off_keeps_its_epochs(
    monkeypatch: pytest.MonkeyPatch, stored: list[Result], capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(training, "_SINGLE_STEPS", 1)
    monkeypatch.setattr(training, "measure", cut_off_at(3, training.measure))
    words = ["--config", "mnist", "--device", "cpu", "--models", "1", "--steps", "1", "--repeats", "1"]
    with pytest.raises(SystemExit):
        main(["generation", *words])
    assert [row.metric for row in stored] == ["us_per_model_step", "us_per_model_step_with_evaluation"]
    assert capsys.readouterr().err.splitlines()[:1] == ["mnist: one model by itself"]


def test_another_transformer_is_timed_under_its_own_name(monkeypatch: pytest.MonkeyPatch, stored: list[Result]):
    monkeypatch.setattr(training, "_SINGLE_STEPS", 1)
    words = ["--config", "mnist", "--device", "cpu", "--models", "2", "--steps", "1", "--repeats", "1"]
    main(["generation", *words, "--dim", "32", "--heads", "1", "--blocks", "1"])
    assert [row.variant for row in stored] == ["single, dim 32, heads 1, blocks 1"] + 3 * [
        "population, dim 32, heads 1, blocks 1"
    ]
    assert all((row.setting["dim"], row.setting["heads"], row.setting["blocks"]) == (32, 1, 1) for row in stored)


@pytest.mark.long
def test_more_epochs_are_timed_than_the_protocol_has(monkeypatch: pytest.MonkeyPatch, stored: list[Result]):
    monkeypatch.setattr(training, "_SINGLE_STEPS", 1)
    words = ["--config", "shakespeare", "--device", "cpu", "--models", "1", "--steps", "1", "--repeats", "20"]
    main(["generation", *words])
    assert [row.n for row in stored] == [20] * 4


def test_a_variant_that_cannot_run_here_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, stored: list[Result], capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(training, "_SINGLE_STEPS", 1)
    words = ["--config", "mnist", "--device", "cpu", "--models", "1", "--steps", "1", "--repeats", "1"]
    with pytest.raises(SystemExit) as exit_:
        main(["generation", *words, "--engines", "fused", "--variant", "small"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("it needs a CUDA device, got cpu; use --engine torch")


def test_long_samples_are_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for seconds in (2.0, 130.0):
        monkeypatch.setattr(training, "timeit", lambda *_, seconds=seconds: seconds)
        training.measure({"call": lambda: None}, repeats=2)
    assert capsys.readouterr().err == "  about 2 min more\n"


@pytest.mark.long
def test_gauge_nfn_is_timed_reading_and_learning(monkeypatch: pytest.MonkeyPatch, stored: list[Result]):
    for name, count in (("_READ", 2), ("_TRAIN", 20), ("_VALIDATION", 5), ("EPOCHS", 2)):
        monkeypatch.setattr(training, name, count)
    main(["gauge", "--device", "cpu", "--config", "agnews", "--repeats", "2"])
    assert [row.metric for row in stored] == [
        "invariants_of_1000_seconds",
        "responses_of_1000_seconds",
        "first_fit_of_1400_seconds",
        "fit_of_1400_seconds",
    ]
    assert all(row.value > 0 and row.variant == "gauge_nfn" and row.n == 2 for row in stored)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gauge", "--repeats", "1"], "--repeats: must be a whole number of at least 2, got '1'"),
        (["nfn", "--repeats", "1"], "--repeats: must be a whole number of at least 2, got '1'"),
        (["nfn", "--config", "cifar"], "invalid choice"),
        (["nfn", "--threads", "0"], "--threads: must be a whole number of at least 1, got '0'"),
        (["loader", "--threads", "0"], "--threads: must be a whole number of at least 1, got '0'"),
        (["generation", "--models", "0"], "--models: each value must be a whole number of at least 1, got '0'"),
        (["generation", "--steps", "0"], "--steps: must be a whole number of at least 1, got '0'"),
        (["generation", "--repeats", "0"], "--repeats: must be a whole number of at least 1, got '0'"),
        (["nfn", "--device", "cuda"], "torch sees 0 CUDA devices here, try cpu"),
    ],
)
def test_bad_options_exit_with_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        main(["gpu"])
    assert exit_.value.code == 2
    assert "invalid choice: 'gpu' (choose from 'nfn', 'gauge', 'generation', 'loader'" in capsys.readouterr().err
