"""The loader benchmark runs end to end, on a few checkpoints."""

import pytest
import torch

from benchmarks import results
from benchmarks.speed import __main__ as speed
from benchmarks.speed.__main__ import main


@pytest.mark.long
def test_every_way_of_reading_gets_its_rows(monkeypatch, tmp_path, capsys):
    stored = []
    monkeypatch.setattr(speed, "_MIN_CHECKPOINTS", 128)
    monkeypatch.setattr(results, "append", stored.extend)
    # the benchmark sets the number of threads of its process, which here is that of all tests
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    main(["loader", "--repeats", "2", "--scratch", str(tmp_path)])
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
    assert {row.metric for row in stored} == {"checkpoints_per_second", "share_of_bare_memory_read"}
    assert {row.setting["checkpoints"] for row in stored} == {128}
    assert capsys.readouterr().out.count(" checkpoints_per_second ") == 6
    assert list(tmp_path.iterdir()) == [], "scratch files left behind"


@pytest.mark.long
def test_the_slowest_way_comes_last_and_the_others_are_kept_before_it(monkeypatch, tmp_path):
    stored = []

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "_MIN_CHECKPOINTS", 128)
    monkeypatch.setattr(speed, "export_checkpoints", interrupted)
    monkeypatch.setattr(results, "append", stored.extend)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    with pytest.raises(SystemExit) as ended:
        main(["loader", "--repeats", "2", "--scratch", str(tmp_path)])
    assert ended.value.code == 130
    assert [row.metric for row in stored].count("checkpoints_per_second") == 5
    assert list(tmp_path.iterdir()) == []


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
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    with pytest.raises(SystemExit) as ended:
        main(["loader", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
