"""The loader benchmark runs end to end, on a few checkpoints."""

import pytest

from benchmarks.speed import loader


def test_every_way_of_reading_gets_its_rows(monkeypatch, tmp_path, capsys):
    stored = []
    monkeypatch.setattr(loader, "MIN_CHECKPOINTS", 128)
    monkeypatch.setattr(loader, "PASSES", 2)
    monkeypatch.setattr(loader.results, "append", lambda rows: stored.extend(rows) or [])
    # the benchmark sets the number of threads of its process, which here is that of all tests
    monkeypatch.setattr(loader.torch, "set_num_threads", lambda count: None)
    loader.main(["--repeats", "2", "--scratch", str(tmp_path)])
    rates = {row.variant: row.value for row in stored if row.metric == "checkpoints_per_second"}
    assert rates.keys() == {
        "bare memory read",
        "zoo.open",
        "zoo.open, shuffled",
        "datasets, memory-mapped",
        "datasets, streaming Arrow",
        "one .pt file each",
    }
    # 600 times faster on an idle machine, so this holds on a busy one too
    assert rates["zoo.open"] > 10 * rates["one .pt file each"]
    assert {row.metric for row in stored} == {
        "checkpoints_per_second",
        "share_of_bare_memory_read",
        "memory_growth_megabytes",
    }
    assert {row.setting["checkpoints"] for row in stored} == {128}
    assert "checkpoints per second" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [], "scratch files left behind"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "1"], "at least 2"),
        (["--zoo", "nowhere"], "no zoo called"),
        (["--config", "chess"], "unknown task"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loader.torch, "set_num_threads", lambda count: None)
    with pytest.raises(SystemExit) as ended:
        loader.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
