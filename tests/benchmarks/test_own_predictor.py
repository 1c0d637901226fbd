"""A predictor of the user's own, named on the command line: rows, plots, trials, and one line for each mistake."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pytest
import torch

from benchmarks import augmentation, kendall, results
from benchmarks import trial as trial_module
from benchmarks.leaderboard.__main__ import main as leaderboard
from benchmarks.models.registry import (
    MODELS,
    _load_model,
    check_models,
    known_models,
    own_models,
)
from benchmarks.models.training import _Recipe, train_one_by_one, train_together
from benchmarks.plots import _COLORS
from benchmarks.results import ResultIndex
from benchmarks.trial import Trial
from nfn import MLPPredictor, Predictor, load_predictor, save_predictor
from tests.benchmarks.synthetic import SMALL, invariant_label, invent
from tests.refusal import refusal

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
EXAMPLE = re.compile(r"^## Your own predictor\n.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NETWORK = """
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, spec, *, generator):
        super().__init__()
        self.layer = nn.Linear(spec.num_parameters, {width})
        nn.init.normal_(self.layer.weight, std=0.01, generator=generator)
        self.drop = nn.Dropout(0.1)
        self.normalization = nn.BatchNorm1d({width})

    def logits(self, weights):
        return self.drop(self.normalization(self.layer(weights.flat()))).sum(1)
"""
STACKED = """
from torch import nn
from nfn import Predictor
from nfn.predictors.predictor import linear

class Stacked(Predictor):
    kind = "stacked"

    def build(self, generator):
        self.layer = linear(self.spec.num_parameters, 1, generator)

    def logits_of(self, inputs):
        return self.layer(inputs).squeeze(-1)
"""


@runtime_checkable
class Write(Protocol):
    def __call__(self, source: str, name: str = "own_module") -> str: ...


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the source of a module of the user's, new to Python, and returns its name."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("own_module", "own_layers")

    def forget() -> None:
        for name in names:
            sys.modules.pop(name, None)

    def write(source: str, name: str = "own_module") -> str:
        forget()
        (folder / f"{name}.py").write_text(source)
        return name

    yield write
    forget()


def options(zoo: Path, out: Path, *words: str) -> list[str]:
    shared = ["--zoo", str(zoo), "--out", str(out), "--epochs", "2", "--jobs", "1", "--device", "cpu"]
    return [*shared, "--models", *words]


@pytest.mark.long
def test_the_example_of_the_readme_gets_rows_tables_plots_and_trials(
    tiny_zoo: Path, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
):
    match = EXAMPLE.search(README.read_text(encoding="utf-8"))
    assert match, "benchmarks/README.md has a python block under Your own predictor"
    name = write(match[1])
    models = ["mlp", f"{name}:MyPredictor", f"{name}:NearestRun"]
    arguments = [*options(tiny_zoo, tmp_path, *models), "--thresholds", "none", "50", "--seeds", "2"]
    arguments += ["--recipes", "paper", "scaled", "place"]
    kendall.main(arguments)
    table = (tmp_path / "kendall.mnist.md").read_text()
    assert "| MyPredictor | " in table
    assert "| NearestRun | " in table
    for plot in ("scatter", "thresholds", "accuracy"):
        assert (tmp_path / f"kendall.mnist.{plot}.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "cells").glob("*.safetensors")} == {
        "mnist.mlp.safetensors",
        "mnist.own_module-MyPredictor.safetensors",
        "mnist.own_module-NearestRun.safetensors",
    }
    index = ResultIndex.latest(results.read("kendall", tmp_path), "mnist")
    for recipe in ("paper", "scaled", "place"):
        row = index.find("tau", models[1], threshold=0.0, recipe=recipe)
        assert row is not None
        assert row.n == 2
    nearest = index.find("tau", models[2], threshold=0.5)
    assert nearest is not None
    assert nearest.n == 1, "without a seed it is fitted once"
    assert set(known_models()) == set(MODELS), "a command leaves nothing behind"

    def fail(*_: object) -> None:
        raise AssertionError("a finished trial was computed again")

    monkeypatch.setattr(trial_module, "_fit_and_judge", fail)
    kendall.main(arguments)
    assert (tmp_path / "kendall.mnist.md").read_text() == table


def test_the_other_table_has_its_row_too(tiny_zoo: Path, tmp_path: Path, write: Write):
    name = write(NETWORK.format(width=3))
    augmentation.main([*options(tiny_zoo, tmp_path, f"{name}:Network"), "--seeds", "1", "--ranges", "1"])
    assert "| Network | " in (tmp_path / "augmentation.agnews.md").read_text()


def test_a_changed_source_is_another_trial_also_where_it_imports_from_beside_it(write: Write):
    def key() -> str:
        with own_models():
            (name,) = check_models(["own_module:Network"])
            return Trial("kendall", "mnist", name, 0, "zoo").key

    write(NETWORK.format(width=3))
    first = key()
    assert key() == first
    write(NETWORK.format(width=4))
    changed = key()
    write("WIDTH = 3", "own_layers")
    write("from own_layers import WIDTH\n" + NETWORK.format(width="WIDTH"))
    imported = key()
    write("WIDTH = 4", "own_layers")
    assert len({first, changed, imported, key()}) == 4


def test_a_folder_of_data_named_like_an_import_does_not_matter(write: Write):
    name = write("import numpy\n" + NETWORK.format(width=3))
    alone = _load_model(f"{name}:Network").source
    Path("numpy").mkdir()
    assert _load_model(f"{name}:Network").source == alone


def test_a_predictor_trained_alone_comes_out_as_trained_together():
    """The loop for plain networks is the slow twin of the one that trains many together."""
    train, validation = invent(90, 0, invariant_label), invent(40, 1, invariant_label)

    def build(generator: torch.Generator) -> MLPPredictor:
        return MLPPredictor(SMALL, generator=generator)

    for recipe in (_Recipe(), _Recipe(scaled=True), _Recipe(place=True, weight_decay=0.01)):
        together, apart = (
            fit(build, (0, 1), train, validation, recipe, epochs=3) for fit in (train_together, train_one_by_one)
        )
        for one, other in zip(together, apart, strict=True):
            np.testing.assert_allclose(one.predict(validation), other.predict(validation), atol=1e-4)
            assert one.validation_tau == pytest.approx(other.validation_tau, abs=0.01)
            assert (one.epoch, one.epochs, one.parameters) == (other.epoch, other.epochs, other.parameters)


def test_a_predictor_with_inputs_and_logits_trains_stacked_without_a_scaled_column(write: Write):
    model = _load_model(f"{write(STACKED)}:Stacked")
    assert model.stacked
    assert not model.scalable
    plain = _load_model(f"{write(NETWORK.format(width=3))}:Network")
    assert not plain.stacked
    assert plain.scalable


def test_predict_never_sees_an_accuracy(write: Write):
    source = """
class Cheat:
    def __init__(self, seed):
        self.seed = seed
    def fit(self, train, validation):
        assert train.accuracy.isfinite().all()
    def predict(self, rows):
        assert rows.accuracy.isnan().all()
        return rows.weights[:, self.seed].numpy()
"""
    model = _load_model(f"{write(source)}:Cheat")
    assert model.fit is not None
    assert model.seeded
    rows = invent(10, 0, invariant_label)
    first, second = model.fit(rows, rows, [0, 1], 1)
    np.testing.assert_array_equal(second.predict(rows), rows.weights[:, 1].numpy())
    assert not np.array_equal(first.predict(rows), second.predict(rows))


INSTANCE = """
from types import SimpleNamespace
network = Network(SimpleNamespace(num_parameters=3), generator=None)
"""
PLAIN = "class P:\n def fit(self, train, validation): pass\n def predict(self, rows): return {value}\n"


@pytest.mark.parametrize(
    ("source", "model", "message"),
    [
        ("", "nowhere:P", "no module called nowhere in "),
        ("", "nowhere", "unknown model 'nowhere': choose some of mlp, "),
        ("", "own_module:P", "has no P"),
        ("", "own_module:", "write module:Class"),
        ("", "own_module:P.q", "write module:Class"),
        ("import no_such_package", "own_module:P", "importing own_module failed: it needs no_such_package"),
        ("class P(:", "own_module:P", "importing own_module failed: SyntaxError: invalid syntax"),
        ("class P: pass", "own_module:P", "is a class with no method of a predictor: a neural predictor is"),
        ("class P:\n def logits(self, weights): pass", "own_module:P", "derived from torch.nn.Module"),
        ("class P:\n def fit(self, train, validation): pass", "own_module:P", "with fit: a neural"),
        ("class P:\n def predict(self, rows): pass", "own_module:P", "with predict: a neural"),
        (PLAIN.format(value=0) + " def __init__(self, depth): pass", "own_module:P", "cannot be built as P()"),
        (PLAIN.format(value=0), "own_module:P", "P.predict must return one number per checkpoint, ["),
        (NETWORK.format(width=3).replace("*, generator", "depth"), "own_module:Network", "(spec, generator=generator)"),
        (NETWORK.format(width=3).replace(".sum(1)", ""), "own_module:Network", "Network.logits must return one number"),
        (NETWORK.format(width=3) + INSTANCE, "own_module:network", "is an object with logits: a neural"),
        (STACKED.replace('kind = "stacked"', ""), "own_module:Stacked", "lacks its kind"),
        (
            STACKED.replace('kind = "stacked"', 'kind, recipe = "stacked", ["own"]'),
            "own_module:Stacked",
            "unknown recipe",
        ),
    ],
)
def test_every_mistake_is_one_line(
    tiny_zoo: Path,
    tmp_path: Path,
    write: Write,
    capsys: pytest.CaptureFixture[str],
    source: str,
    model: str,
    message: str,
):
    write(source)
    with pytest.raises(SystemExit) as stopped:
        kendall.main([*options(tiny_zoo, tmp_path, model), "--quick"])
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert message in line


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            NETWORK.format(width=3).replace("Network", "Bad").replace(".sum(1)", ".sum(1) * torch.nan"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            PLAIN.format(value="[float('nan')] * len(rows)").replace("class P", "class Bad"), marks=pytest.mark.long
        ),
        PLAIN.format(value="[1e300] * len(rows)").replace("class P", "class Bad"),
    ],
    ids=["network", "nan", "beyond single precision"],
)
def test_predictions_that_are_not_finite_leave_out_their_model_alone_and_are_not_stored(
    tiny_zoo: Path, tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str], source: str
):
    arguments = [*options(tiny_zoo, tmp_path, "hyperparameters", f"{write(source)}:Bad"), "--quick"]
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            kendall.main(arguments)
        assert stopped.value.code == 3
        assert "skipped: own_module:Bad predicts NaN or infinity for 8 of 8 test rows" in capsys.readouterr().err
    assert ResultIndex.latest(results.read("kendall", tmp_path), "mnist").find("tau", "hyperparameters") is not None
    assert [path.name for path in (tmp_path / "cells").glob("*.safetensors")] == ["mnist.hyperparameters.safetensors"]
    submission = tmp_path / "bad"
    words = ["submit", "own_module:Bad", "--zoo", str(tiny_zoo), "--authors", "Ada", "--out", str(submission)]
    assert "own_module:Bad predicts NaN or infinity for 8 of 8 test rows" in refusal(leaderboard, words, capsys)
    assert not submission.exists()


def test_own_models_are_forgotten_and_have_colors(write: Write):
    own = f"{write(STACKED)}:Stacked"
    with own_models():
        assert check_models([own, "mlp", own]) == ("mlp", own)
        assert list(known_models()) == [*MODELS, own]
    assert known_models() == MODELS
    assert len(set(_COLORS)) == 30 > len(MODELS)
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in _COLORS)


def test_a_predictor_of_ones_own_is_saved_or_the_line_says_what_is_missing(write: Write, tmp_path: Path):
    own = _load_model(f"{write(STACKED)}:Stacked").kind
    assert own is not None
    assert issubclass(own, Predictor)
    predictor = own(SMALL, generator=torch.Generator().manual_seed(0))
    save_predictor(predictor, tmp_path / "saved")
    weights = invent(5, 0, invariant_label).weights
    torch.testing.assert_close(load_predictor(tmp_path / "saved", own)(weights), predictor(weights))
    with pytest.raises(ValueError, match="unknown kind of predictor 'stacked'"):
        load_predictor(tmp_path / "saved")
    plain = _load_model(f"{write(NETWORK.format(width=3))}:Network").kind
    assert plain is not None
    built = plain(SMALL, generator=torch.Generator())  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match=r"Network cannot be saved: it must derive from nfn\.Predictor"):
        save_predictor(built, tmp_path / "plain")
    wider = type("Wider", (MLPPredictor,), {})
    with pytest.raises(ValueError, match="its kind 'mlp' is that of MLPPredictor"):
        save_predictor(wider(SMALL), tmp_path / "wider")
