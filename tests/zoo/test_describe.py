"""describe: counts that add up, a histogram on a logarithmic scale, marginals."""

import numpy as np
import pytest

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.refusal import refusal
from zoo.describe import _histogram_lines, _sparkline, main


@pytest.mark.long
def test_all_of_it_for_every_config(zoo_folder, tmp_path, capsys):
    main([str(zoo_folder), "--details", "--png", str(tmp_path / "figures" / "histogram.png")])
    text = capsys.readouterr().out
    for line in (
        "mnist: 308 checkpoints of 77 runs",
        "77 runs completed, 3 runs diverged",
        "agnews-seeds: 80 checkpoints of 20 runs",
        "optimizer",
        "train_fraction",
    ):
        assert line in text
    assert (tmp_path / "figures" / "histogram.png").read_bytes().startswith(b"\x89PNG")


def test_a_selection_is_described_alone(zoo_folder, capsys):
    main([str(zoo_folder), "--config", "mnist", "--where", "checkpoint == 'epoch_75' and test_accuracy >= 0.5"])
    reader = zoo.open(zoo_folder, "mnist", split="all")
    rows = reader.rows("checkpoint == 'epoch_75' and test_accuracy >= 0.5")
    assert f"mnist: {len(rows)} checkpoints of {len(rows)} runs" in capsys.readouterr().out


def test_a_selection_of_nothing_lists_what_there_is(zoo_folder, capsys):
    with pytest.raises(SystemExit):
        main([str(zoo_folder), "--config", "mnist", "--where", "test_accuracy > 2"])
    printed = capsys.readouterr().err
    assert "no checkpoint of mnist, all splits, fits 'test_accuracy > 2': test_accuracy lies between" in printed


def test_a_selection_from_one_config_leaves_the_others_empty(zoo_folder, capsys):
    task = zoo.open(zoo_folder, "mnist").metadata["task"][0]
    main([str(zoo_folder), "--where", f"task == '{task}'"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {line[0]: line[1] for line in lines if line and line[0] in ("mnist", "agnews")} == {
        "mnist": "77",
        "agnews": "0",
    }
    line = refusal(main, [str(zoo_folder), "--where", "test_accuracy > 2"], capsys)
    assert "fits 'test_accuracy > 2': test_accuracy lies between" in line


def test_bars_grow_with_the_logarithm_of_the_count():
    counts = np.histogram([0.0, *[0.11] * 9, *[0.51] * 99, 1.0], 10, (0.0, 1.0))[0]
    assert counts.tolist() == [1, 9, 0, 0, 0, 99, 0, 0, 0, 1]
    lines = _histogram_lines(counts)
    lengths = [line.count("█") for line in lines]
    assert lengths[5] == 50
    assert lengths[1] == 25
    assert lengths[2] == 0
    assert lines[5].endswith(" 99")


def test_an_unknown_config_is_one_clear_line(zoo_folder, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(zoo_folder), "--config", "chess"])
    assert ended.value.code == 2
    assert "has no config 'chess': it has agnews, agnews-seeds, mnist" in capsys.readouterr().err


@pytest.mark.long
def test_the_overview_is_one_screen_with_a_line_for_every_config(zoo_folder, tmp_path, capsys):
    main([str(zoo_folder), "--plots", str(tmp_path / "plots")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 25
    (mnist,) = [line for line in lines if line.strip().startswith("mnist ")]
    reader = zoo.open(zoo_folder, "mnist", split="all")
    accuracy = reader.metadata["test_accuracy"]
    for cell in ("77", "232 / 44 / 32", f"{accuracy.median():.3f}", f"{accuracy.max():.3f}"):
        assert f" {cell} " in mnist
    configs = ("agnews", "agnews-seeds", "mnist")
    names = {"accuracy.png"} | {f"{plot}.{config}.png" for plot in ("curves", "marginals") for config in configs}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())


def test_the_highest_bar_of_a_sparkline_is_the_largest_count():
    assert _sparkline(np.array([0, 1, 9, 99])) == " ▂▄█"


@pytest.mark.long
def test_tables_fit_100_columns_without_empty_cells(zoo_folder, tmp_path, capsys):
    main([str(zoo_folder), "--details"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines)
    assert not any(cell.strip() == "" for line in lines if line.startswith("│") for cell in line.strip("│").split("│"))
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=2, diverged=2)
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=1, seeds="distinct")
    publish(tmp_path / "runs", tmp_path / "zoo")
    main([str(tmp_path / "zoo"), "--details", "--plots", str(tmp_path / "plots")])
    text = capsys.readouterr().out
    assert "–" not in text.partition("mnist-seeds:")[0], "nothing was measured of mnist"
    assert text.count("accuracy by hyperparameter") == 1
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"accuracy.png", "curves.mnist-seeds.png"}
