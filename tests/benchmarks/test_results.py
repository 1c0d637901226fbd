"""The rows that tables are made from: they are read back as written, and malformed ones are refused."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import Result, ResultIndex
from benchmarks.speed.training import measure, speed_row


@pytest.fixture
def row() -> Result:
    return Result.measured(
        "speed.nfn", "mnist", "seconds", 0.5, n=3, stderr=0.1, device="cpu", variant="fast", setting={"batch": 16}
    )


def test_rows_are_read_back_as_they_were_written(row: Result, tmp_path: Path):
    other = replace(row, benchmark="kendall", variant=None, model="statnn", stderr=None)
    again = replace(row, value=0.7)
    for measured in ([row, other], [again], [again, other], [row]):
        results.append(measured, tmp_path)
    assert results.read("speed.nfn", tmp_path) == [row, again, row], "the last one counts, and is there once"
    assert results.read("kendall", tmp_path) == [other]
    assert results.read("augmentation", tmp_path) == []


def test_concurrent_writers_lose_no_row(row: Result, tmp_path: Path):
    rows = [replace(row, value=float(i)) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda new: results.append([new], tmp_path), rows))
    assert {stored.value for stored in results.read("speed.nfn", tmp_path)} == {float(i) for i in range(40)}


def test_the_rows_beside_a_model_are_those_of_its_last_zoo(row: Result):
    """Trees are fitted for no number of epochs: the others beside them are those with the last one of that zoo."""

    def tau(model: str, zoo: str, **epochs: int) -> Result:
        setting = {"zoo": zoo, "checkpoint": "epoch_75", **epochs}
        return replace(row, benchmark="rows", metric="tau", variant=None, model=model, setting=setting)

    of_first = [tau("mlp", "first", epochs=50), tau("xgboost", "first")]
    other = tau("mlp", "first", epochs=20)
    of_second = [tau("mlp", "second", epochs=50)]
    rows = [other, *of_first, *of_second]
    assert ResultIndex.latest(rows, "mnist").rows == tuple(of_second)
    assert ResultIndex.latest(rows, "mnist", beside="mlp").rows == tuple(of_second)
    assert ResultIndex.latest(rows, "mnist", beside="xgboost").rows == tuple(of_first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": "speed"}, "benchmark must be one of ablation_components, .* got 'speed'"),
        ({"value": float("nan")}, "value must be a number, got nan"),
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"model": "mlp"}, "a row has a model or a variant"),
        ({"variant": None}, "a row has a model or a variant"),
        ({"device": ""}, "device must be text in quotes, got ''"),
    ],
)
def test_a_malformed_row_is_refused(row: Result, change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        replace(row, **change)


def test_reading_names_the_bad_line(row: Result, tmp_path: Path):
    results.append([row], tmp_path)
    file = tmp_path / "speed.nfn.jsonl"
    broken = row.to_dict()
    del broken["command"]
    file.write_text(file.read_text() + json.dumps(broken) + "\n")
    with pytest.raises(ValueError, match=r"speed\.nfn\.jsonl, line 2: command is missing"):
        results.read("speed.nfn", tmp_path)


def test_timing_counts_calls_and_takes_the_median():
    calls = {"a": 0, "b": 0}

    def count(name: str) -> None:
        calls[name] += 1

    times = measure({"a": lambda: count("a"), "b": lambda: count("b")}, repeats=5, warmup=2, calls_per_sample=3)
    assert calls == {"a": 17, "b": 17}
    assert len(times["a"]) == 5
    row = speed_row("nfn", "mnist", "a", "seconds", times["a"], setting={})
    assert min(times["a"]) <= row.value <= max(times["a"])
    assert speed_row("nfn", "mnist", "a", "seconds", times["a"][:1], setting={}).stderr is None
