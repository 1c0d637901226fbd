"""The speed benchmark runs, measures both variants, and says clearly when it cannot."""

import pytest
import torch

from benchmarks import results
from benchmarks.speed import gauge as speed_gauge
from benchmarks.speed import nfn as speed_nfn
from benchmarks.speed.__main__ import main


def test_rows_hold_both_variants(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speed_nfn, "BATCHES", (2,))
    stored = []
    monkeypatch.setattr(results, "append", stored.extend)
    main(["nfn", "--device", "cpu", "--config", "agnews", "--repeats", "2"])
    assert {(row.metric, row.variant, row.setting["seeds"]) for row in stored} == {
        ("forward_backward_ms", "merged", 1),
        ("forward_backward_ms", "literal", 1),
        ("training_step_ms", "merged", 1),
        ("training_step_ms", "literal", 1),
        ("training_step_ms", "merged", 5),
    }
    assert all(row.value > 0 and row.config == "agnews" and row.n == 2 for row in stored)


def test_gauge_nfn_is_timed_reading_and_learning(monkeypatch: pytest.MonkeyPatch):
    for name, count in (("READ", 2), ("TRAIN", 20), ("VALIDATION", 5), ("EPOCHS", 2)):
        monkeypatch.setattr(speed_gauge, name, count)
    stored = []
    monkeypatch.setattr(results, "append", stored.extend)
    main(["gauge", "--device", "cpu", "--config", "agnews", "--repeats", "2"])
    assert [row.metric for row in stored] == [
        "invariants_of_1000_seconds",
        "first_fit_of_1400_seconds",
        "fit_of_1400_seconds",
    ]
    assert all(row.value > 0 and row.variant == "gauge_nfn" and row.n == 2 for row in stored)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gauge", "--repeats", "1"], "--repeats must be at least 2"),
        (["nfn", "--repeats", "1"], "--repeats must be at least 2"),
        (["nfn", "--config", "cifar"], "invalid choice"),
        (["nfn", "--device", "cuda"], "torch finds no CUDA device on this machine"),
    ],
)
def test_bad_options_exit_with_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_unknown_benchmark_is_refused():
    with pytest.raises(SystemExit, match="unknown speed benchmark 'gpu': one of nfn, gauge, generation, loader"):
        main(["gpu"])
