"""Task files: the paper's two, and one line for each of many wrong ones."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from generation.protocol import Preset, Protocol
from generation.run import main
from generation.sweep import Sweep
from generation.task import named_task, whole
from zoo.tasks.task_file import TaskFile, find_task
from zoo.transformer.spec import AGNEWS, MNIST

SMALL = """
name = "small"
[data]
format = "npz"
path = "small.npz"
[transformer]
patch_size = 4
[grid]
optimizer = ["sgd", "adam"]
learning_rate = [1e-3, 1e-2]
init_std = [0.1]
train_fraction = [1.0, 0.8]
"""


def write(folder: Path, text: str = SMALL) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


def write_images(folder: Path, side: int = 8, channels: int | None = None) -> None:
    random = np.random.default_rng(0)
    shape = (side, side) if channels is None else (side, side, channels)
    x, y = random.integers(0, 256, (20, *shape), dtype=np.uint8), np.arange(20) % 3
    np.savez(folder / "small.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def test_the_papers_tasks_are_files_with_its_protocol_and_transformers() -> None:
    mnist, agnews = named_task("mnist"), named_task("agnews")
    assert mnist.protocol == agnews.protocol == Protocol()
    assert mnist.file.image_spec(28, 28, 1, 10) == MNIST
    assert agnews.file.text_spec(4) == AGNEWS
    assert (mnist.seeds, mnist.shards) == (agnews.seeds, agnews.shards) == ("shared", 32)


def test_what_a_file_leaves_out_has_the_papers_value(tmp_path: Path) -> None:
    task = named_task(write(tmp_path))
    assert task.protocol == Protocol(checkpoint_epochs=(50, 75, 100))
    assert (task.seeds, task.shards) == ("shared", 2)
    spec = task.file.image_spec(8, 12, 3, 5)
    assert (spec.task, spec.tokens, spec.channels, spec.dim, spec.blocks, spec.residual) == (
        "small",
        6,
        3,
        32,
        2,
        False,
    )
    run = whole(task)[0]
    assert (run.weight_decay, run.dropout) == (0.0, 0.0)


def test_comments_and_spaces_do_not_matter_and_everything_else_does(tmp_path: Path) -> None:
    def ids(text: str) -> list[str]:
        return [run.run_id for run in whole(named_task(write(tmp_path, text)))]

    first = ids(SMALL)
    assert ids(f"# a remark\n{SMALL}".replace("[1e-3, 1e-2]", "[ 0.001, 0.01, ] # rates")) == first
    assert not set(first) & set(ids(SMALL.replace("patch_size = 4", "patch_size = 2")))
    assert not set(first) & set(ids(f"{SMALL}\n[protocol]\nbatch_size = 64"))


@pytest.mark.parametrize("table", ["[grid]", "[[grid]]"])
def test_a_single_value_is_an_array_of_one(tmp_path: Path, table: str) -> None:
    values = ("optimizer", '"sgd"'), ("learning_rate", "0.01"), ("weight_decay", "0"), ("init_std", "0.1")
    lines = [f"{name} = {value}" for name, value in (*values, ("dropout", "0.5"), ("train_fraction", "1"))]
    head = SMALL.split("[grid]")[0] + table
    single = named_task(write(tmp_path, "\n".join([head, *lines])))
    array = named_task(write(tmp_path, "\n".join([head, *(f"{line.replace('= ', '= [')}]" for line in lines)])))
    assert single.file.text == array.file.text
    assert [run.run_id for run in whole(single)] == [run.run_id for run in whole(array)]
    assert len(whole(single)) == 1


def test_a_file_survives_being_written_out_again(tmp_path: Path) -> None:
    text = SMALL.replace('"small.npz"', '"a \\"strange\\" \\\\ näme\\u007f\\t.npz"')
    task = TaskFile.read(write(tmp_path, text))
    again = TaskFile.own(task.text, "again", tmp_path)
    assert (again.text, again.data) == (task.text, task.data)
    for paper in ("mnist", "agnews"):
        assert TaskFile.parse(find_task(paper).text, "again", tmp_path).text == find_task(paper).text


def test_shards_deal_out_every_configuration_once(tmp_path: Path) -> None:
    task = named_task(write(tmp_path, SMALL.replace("[0.1]", "[0.1, 0.2, 0.3, 0.4, 0.5]") + "shards = 6"))
    sweep = Sweep(task, Preset("own", task.protocol))
    shards = [sweep.shard(index) for index in range(6)]
    assert [len(shard) for shard in shards] == [6, 6, 7, 7, 7, 7]
    dealt = sorted(run.run_id for shard in shards for run in shard)
    assert dealt == sorted(replace(run, protocol=task.protocol).run_id for run in whole(task))
    assert all(len({run.train_fraction for run in shard}) == 1 for shard in shards)
    assert copy.deepcopy(sweep).shard(5) == shards[5], "a job is plain data, which travels to other machines"


def test_a_union_has_each_configuration_once(tmp_path: Path) -> None:
    grids = (
        SMALL
        + """
    [[grid]]
    optimizer = ["adam", "rmsprop"]
    learning_rate = [1e-3]
    init_std = [0.1]
    train_fraction = [0.8]
    """
    )
    task = named_task(write(tmp_path, grids.replace("[grid]", "[[grid]]", 1)))
    assert len(whole(task)) == 8 + 1


@pytest.mark.parametrize(
    ("seeds", "config", "runs"),
    [("", "small", 4), ('seeds = "distinct"', "small", 4), ("seeds = 3", "small-repeats", 12)],
)
def test_seeds_name_the_config(tmp_path: Path, seeds: str, config: str, runs: int) -> None:
    task = named_task(write(tmp_path, SMALL + seeds))
    sweep = Sweep(task, Preset("own", task.protocol), task.seeds)
    assert sweep.config_name == config
    assert len(sweep.shard(0)) == len({run.run_id for run in sweep.shard(0)}) == runs


WRONG = {
    "no TOML": ("name = ", "is not TOML: "),
    "a key of too many parts": (SMALL + "a" + ".a" * 30_000 + " = 1", "a key has more than 16 parts"),
    "a key of too many quoted parts": (SMALL + '"\\"" . ' * 9_000 + "a = 1", "a key has more than 16 parts"),
    "tables in tables": (SMALL + "a = " + "{a.a.a = " * 9 + "1" + "}" * 9, "arrays are more than 16 deep"),
    "no name": (SMALL.replace('name = "small"', ""), "name is missing: it must be text in quotes"),
    "an empty name": (SMALL.replace('"small"', '""'), "name must be text in quotes, got ''"),
    "a name that is a path": (
        SMALL.replace('"small"', '"../small"'),
        "name must be 1 to 48 small letters, digits, - and _",
    ),
    "a name of the paper's": (SMALL.replace('"small"', '"mnist"'), "not mnist or agnews"),
    "a reserved name": (SMALL.replace('"small"', '"small-runs"'), "not end in -seeds, -repeats, -runs"),
    "an unknown table": (
        SMALL + "[optimizer]\nlr = 1",
        "'optimizer' is not a key: there are name, data, grid, transformer, protocol",
    ),
    "no data": (SMALL.replace("[data]", "[date]"), "'date' is not a key: there are name, data, grid"),
    "an unknown format": (
        SMALL.replace('"npz"', '"hdf5"'),
        "[data] format must be one of csv, huggingface, idx, npz, text",
    ),
    "a key of no format": (SMALL.replace("path =", "file ="), "[data] 'file' is not a key: there are path"),
    "an unknown dimension": (
        SMALL.replace("patch_size", "patchsize"),
        "[transformer] 'patchsize' is not a key: there are patch_size",
    ),
    "a dimension of 0": (
        SMALL.replace("patch_size = 4", "dim = 0"),
        "[transformer] dim must be a whole number from 1 to 4,096, got 0",
    ),
    "a dimension in quotes": (
        SMALL.replace("patch_size = 4", 'dim = "32"'),
        "[transformer] dim must be a whole number",
    ),
    "residual as a number": (
        SMALL.replace("patch_size = 4", "residual = 1"),
        "[transformer] residual must be true or false, got 1",
    ),
    "no grid": (SMALL.split("[grid]")[0], "grid is missing: it must be an array of at least one value, each a table"),
    "an unknown optimizer": (
        SMALL.replace('"adam"', '"lion"'),
        "[grid] optimizer: each value must be one of adam, rmsprop, sgd, sgd_momentum, got 'lion'",
    ),
    "a rate of 0": (
        SMALL.replace("[1e-3, 1e-2]", "[0.0]"),
        "[grid] learning_rate: each value must be a number above 0, got 0.0",
    ),
    "a rate that is a word": (
        SMALL.replace("[1e-3, 1e-2]", '"fast"'),
        "[grid] learning_rate: each value must be a number above 0, got 'fast'",
    ),
    "a rate that is a table": (SMALL.replace("[1e-3, 1e-2]", "{ low = 1 }"), "cannot stand in a task file"),
    "no values": (
        SMALL.replace("[1e-3, 1e-2]", "[]"),
        "[grid] learning_rate must be an array of at least one value, each a number above 0, got []",
    ),
    "zero twice": (SMALL + "dropout = [0.0, 0.0]", "[grid] dropout names 0.0 twice"),
    "a value twice": (SMALL.replace("[1e-3, 1e-2]", "[1e-3, 1e-3]"), "[grid] learning_rate names 0.001 twice"),
    "infinity": (SMALL.replace("[1e-3, 1e-2]", "[inf]"), "inf"),
    "a number that no float holds": (
        SMALL.replace("[1e-3, 1e-2]", f"[1{'0' * 400}]"),
        "[grid] learning_rate: each value must be a number above 0, got 1000",
    ),
    "a fraction of 2": (
        SMALL.replace("[1.0, 0.8]", "[2]"),
        "[grid] train_fraction: each value must be a number above 0, at most 1, got 2",
    ),
    "a dropout of 1": (
        SMALL + "dropout = [1.0]",
        "[grid] dropout: each value must be a number from 0 to 0.99, got 1.0",
    ),
    "an unknown hyperparameter": (
        SMALL + "momentum = [0.9]",
        "[grid] 'momentum' is not a key: there are optimizer, learning_rate",
    ),
    "shards that fractions do not divide": (
        SMALL + "shards = 3",
        "[grid] shards must be a multiple of 2, the number of train fractions",
    ),
    "more shards than runs": (
        SMALL + "shards = 10",
        "[grid] shards must leave a run for each: 8 at most for 8 configurations",
    ),
    "seeds that make no sense": (
        SMALL + 'seeds = "many"',
        "[grid] seeds must be one of distinct, shared or a whole number from 2 to 1,000, got 'many'",
    ),
    "one seed": (SMALL + "seeds = 1", "[grid] seeds must be"),
    "checkpoints after the end": (
        SMALL + "[protocol]\nepochs = 20\ncheckpoints = [10, 30]",
        "[protocol] checkpoints must be ascending epochs from 1 to 20, got [10, 30]",
    ),
    "checkpoints out of order": (
        SMALL + "[protocol]\ncheckpoints = [75, 50]",
        "[protocol] checkpoints must be ascending epochs",
    ),
    "no epochs": (SMALL + "[protocol]\nepochs = 0", "[protocol] epochs must be a whole number from 1 to 10,000, got 0"),
    "a long warm-up": (
        SMALL + "[protocol]\nepochs = 5\nwarmup_epochs = 6",
        "[protocol] warm-up must take between 1 and all 5 epochs, got 6",
    ),
    "an unknown part of the protocol": (
        SMALL + "[protocol]\nscheduler = 1",
        "[protocol] 'scheduler' is not a key: there are epochs",
    ),
    "a grid without end": (
        SMALL.replace("[1e-3, 1e-2]", str([index / 1000 for index in range(1, 301)])).replace(
            "[0.1]", str([index / 1000 for index in range(1, 301)])
        ),
        "[grid] is too large: 360,000 configurations, at most 99,999",
    ),
    "a number that Python does not print": (
        SMALL.replace("patch_size = 4", f"patch_size = 0x{'f' * 5000}"),
        "small.toml is not TOML: a whole number has more than 4,096 bits",
    ),
    "a date": (SMALL.replace("[0.1]", "[2025-01-01]"), "cannot stand in a task file"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_file_is_one_line(tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, message = WRONG[fault]
    path = write(tmp_path, text)
    with pytest.raises(SystemExit) as exit:
        main(["--task", str(path), "--shard", "0", "--out", str(tmp_path / "runs"), "--device", "cpu"])
    error = capsys.readouterr().err
    assert exit.value.code == 2
    assert len(error.splitlines()) == 1, error
    assert str(path) in error
    assert message in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("patch_size = 4", "patch_size = 3"),
            "[transformer] patch_size must divide images of 8 × 8, got 3: it can be 1, 2, 4, 8",
        ),
        (("patch_size = 4", "tokens = 64"), "[transformer] tokens is for texts"),
        (("patch_size = 4", 'embedding = "random"'), "[transformer] embedding is for texts"),
        (('"small.npz"', '"other.npz"'), "other.npz"),
        (('format = "npz"', 'format = "idx"'), "small.npz"),
    ],
)
def test_data_that_do_not_fit_are_one_line(
    tmp_path: Path, change: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["--task", str(write(tmp_path, SMALL.replace(*change))), "--shard", "0", "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err.splitlines()
    assert exit.value.code == 2
    assert message in error[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "cifar"], "there is no task 'cifar': mnist, agnews, shakespeare, or the path of a TOML file"),
        (
            ["--task", "FILE", "--preset", "demo"],
            "--preset is for mnist, agnews, shakespeare: leave it out, the protocol is in",
        ),
        (["--task", "FILE", "--shard", "2"], "shard 2 does not exist: this sweep has 2 shards, numbered 0 to 1"),
    ],
)
def test_a_wrong_command_is_one_line(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    words = [str(path) if word == "FILE" else word for word in arguments]
    with pytest.raises(SystemExit) as exit:
        main(["--shard", "0", "--out", str(tmp_path / "runs"), *words])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
