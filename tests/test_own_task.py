"""Your own task from start to end, as in generation/README.md: from an array of images to a table."""

import contextlib
import re
import runpy
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

import zoo
from benchmarks import census, kendall
from generation.run import main as run
from generation.task import named_task
from tests.fabricated import TINY_MNIST, fabricate_shard
from zoo.describe import main as describe
from zoo.export import main as export
from zoo.format.manifest import Manifest
from zoo.format.published import PublishedZoo, configs_of
from zoo.join import main as join
from zoo.publish import main as publish
from zoo.verify import main as verify

pytestmark = pytest.mark.long
README = Path(__file__).parents[1] / "generation" / "README.md"
RUNS = 3  # of each shard
SECTION = re.compile(r"^## Your own task\n(.*?)^## ", re.DOTALL | re.MULTILINE)
PREDICTOR = """
import torch
from torch import nn

class Spread(nn.Module):
    '''Reads how large the weights of each tensor are.'''

    def __init__(self, spec, *, generator):
        super().__init__()
        self.spec, self.layer = spec, nn.Linear(len(spec.tensors), 1)

    def logits(self, weights):
        sizes = [weights[name].flatten(1).square().mean(1).add(1e-8).log() for name in self.spec.tensors]
        return self.layer(torch.stack(sizes, 1)).squeeze(1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's example up to two shards, trained on every third of its digits."""
    folder = tmp_path_factory.mktemp("own")
    section = SECTION.search(README.read_text(encoding="utf-8"))
    assert section
    script, definition = (re.search(rf"```{kind}\n(.*?)```", section[1], re.DOTALL) for kind in ("python", "toml"))
    assert script
    assert definition
    (folder / "data.py").write_text(script[1])
    (folder / "digits.toml").write_text(definition[1])
    with contextlib.chdir(folder):
        runpy.run_path("data.py")
        digits = np.load("digits.npz")
        parts = {name: digits[name][::3] if name.endswith("train") else digits[name] for name in digits}
        np.savez("digits.npz", **parts)
        words = ["--task", "digits.toml", "--runs", str(RUNS), "--models-per-pass", str(RUNS), "--out", "runs"]
        for shard in "01":
            run([*words, "--device", "cpu", "--shard", shard])
    publish([str(folder / "runs"), str(folder / "digits-zoo")])
    return folder


@pytest.mark.long
def test_from_start_to_end(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    verify(["digits-zoo", "--evaluate", "4"])
    assert "accuracy of 4 random rows per config measured again" in capsys.readouterr().out
    describe(["digits-zoo", "--config", "digits"])
    assert "epoch_15" in capsys.readouterr().out
    census.main(["runs", "--dry-run"])
    assert re.search(r"digits, shards 0 to 1, own preset, CPU, 1 threads +6 +0\.0% ", capsys.readouterr().out)

    rows = datasets.load_dataset("digits-zoo", "digits", cache_dir=str(tmp_path / "cache"))
    assert isinstance(rows, datasets.DatasetDict)
    reader = zoo.open("digits-zoo", "digits", split="all")
    assert sum(len(split) for split in rows.values()) == len(reader) == 2 * RUNS * 4
    assert set(reader.metadata["checkpoint"]) == {"epoch_10", "epoch_15", "epoch_20", "best"}
    assert set(reader.metadata["epoch"][list(reader.metadata["checkpoint"] == "epoch_15")]) == {15}
    assert reader.spec.residual
    assert reader.spec.tokens == 4
    assert reader.metadata["test_accuracy"].to_numpy().max() > 0.8, "digits can be learned in 20 epochs"

    best = int(reader.metadata["test_accuracy"].argmax())
    model = zoo.build_model(reader.spec, reader.weights(best))
    stored = float(reader.metadata["test_accuracy"].iloc[best])
    assert zoo.evaluate(model, "digits", zoo="digits-zoo").accuracy == pytest.approx(stored, abs=0.002)
    assert zoo.evaluate(model, folder / "digits.toml").accuracy == pytest.approx(stored, abs=0.002)
    export(["digits-zoo", "digits", str(tmp_path / "best"), "--where", "checkpoint == 'best'"])
    assert len(list((tmp_path / "best").glob("*-best.safetensors"))) == 2 * RUNS

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "spread.py").write_text(PREDICTOR)
    monkeypatch.setattr("benchmarks.models.trees._ROUNDS", 100)  # all 2,000 take 5 s
    models = ["mlp", "gauge_nfn", "hyperparameters", "spread:Spread"]
    arguments = ["--zoo", "digits-zoo", "--config", "digits", "--models", *models, "--thresholds", "none"]
    kendall.main(
        [*arguments, "--checkpoint", "all", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path / "out"), "--quick"]
    )
    table = (tmp_path / "out" / "kendall.digits.md").read_text()
    for title in ("MLP", "Gauge-NFN", "hyperparameters only", "Spread"):
        assert f"| {title} | " in table
    sys.modules.pop("spread", None)


def test_the_file_travels_with_the_zoo(folder: Path) -> None:
    published = PublishedZoo.read(folder / "digits-zoo")
    details = published.config("digits")
    text = named_task(folder / "digits.toml").file.text
    assert details.task_file == text
    assert f"```toml\n{text}```" in (folder / "digits-zoo" / "README.md").read_text()
    assert details.preset == "own"
    assert details.checkpoints == ("epoch_10", "epoch_15", "epoch_20", "best")


def test_it_joins_a_zoo_of_the_papers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST)
    publish([str(tmp_path / "runs"), str(tmp_path / "mnist-zoo")])
    join([str(folder / "digits-zoo"), str(tmp_path / "mnist-zoo"), str(tmp_path / "both")])
    verify([str(tmp_path / "both")])
    assert "digits, mnist" in capsys.readouterr().out
    card = (tmp_path / "both" / "README.md").read_text()
    assert "There are residual connections, x + f(LN(x)), in `digits`; the others have none" in card
    assert "in `digits` every run has a seed of its own; in `mnist` all runs share one seed" in card


def test_data_in_another_folder_are_named_as_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        verify([str(folder / "digits-zoo"), "--evaluate", "1"])
    assert "name the folder of digits's data with --data" in capsys.readouterr().err
    verify([str(folder / "digits-zoo"), "--evaluate", "1", "--data", str(folder)])


def test_another_file_of_the_same_name_is_not_mixed_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = folder / "other.toml"
    other.write_text((folder / "digits.toml").read_text().replace("hidden_dim = 48", "hidden_dim = 40"))
    with pytest.raises(SystemExit):
        run(["--task", str(other), "--shard", "0", "--runs", str(RUNS), "--out", str(folder / "runs")])
    assert "holds a finished shard of another digits, whose task file was different" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_file": None}, "unknown task 'digits'"),
        ({"task_file": "name = "}, "is not TOML"),
        ({"task": "../digits"}, "but its spec is that of 'digits'"),
        ({"protocol": {"checkpoint_epochs": [3, 2]}}, "checkpoint_epochs must be ascending epochs"),
    ],
)
def test_a_forged_record_is_refused(folder: Path, tmp_path: Path, change: dict, message: str) -> None:
    manifest = Manifest.read(folder / "digits-zoo")
    manifest.details["configs"]["digits"] |= change
    with pytest.raises(ValueError, match=re.escape(message)):
        configs_of(manifest, tmp_path)
