"""Templates of documents: a number is that of its row, a call without one is named with its line, links work."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.report import _DOCUMENTS, _render
from benchmarks.results import Result
from tests.fabricated import TINY_MNIST, fabricate_shard, publish

ROOT = Path(__file__).parents[2]
SOME = "train_fraction >= 0.8"
TEMPLATE = "benchmarks/templates/README.md.j2"


def row(model: str, value: float, benchmark: str = "kendall", metric: str = "tau", **setting: Any) -> Result:
    plain = {"threshold": 0.0, "recipe": "paper"} if benchmark == "kendall" else {}
    return Result.measured(benchmark, "mnist", metric, value, n=5, device="cpu", model=model, setting=plain | setting)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    measured = [
        row("mlp", 0.8215),
        row("mlp", 0.7934, threshold=0.8),
        row("mlp", 0.8125, recipe="converged"),
        row("mlp", 0.7989, where=SOME),
        row("statnn", 0.8089),
        row("statnn", -0.025, metric="tau_above_hyperparameters"),
        row("statnn", -0.04, metric="tau_above_hyperparameters_low"),
        row("statnn", 0.01, metric="tau_above_hyperparameters_high"),
        row("gauge_nfn", 0.7, recipe="paper"),
        row("gauge_nfn", 0.9, recipe="gauge"),
        row("data", 1394, metric="train_rows"),
        row("transformer_nfn", 0.853, "ablation_components", components=["encoder"]),
        row("transformer_nfn", 0.817, "ablation_components", components=["embedding", "encoder"]),
        row("mlp", 0.7, "augmentation"),
        row("mlp", 0.65, "augmentation", entry_range=10.0),
        row("mlp", 0.25, "transfer", tested_config="mnist-seeds", tested_checkpoint="epoch_75", tested_unseen=True),
        row("nfn", 6.9, "speed.nfn", "training_step_ms", batch=16, cuda_graph=False),
        row("nfn", 0.65, "speed.nfn", "training_step_ms", batch=16, cuda_graph=True),
    ]
    results.append(measured, folder)
    fabricate_shard(folder / "runs", TINY_MNIST, count=10)
    publish(folder / "runs", folder / "generated")
    return folder


def rendered(text: str, root: Path, rows: Path) -> str:
    (root / TEMPLATE).parent.mkdir(parents=True, exist_ok=True)
    (root / TEMPLATE).write_text(text)
    return _render(root, rows, ["README.md"])["README.md"]


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ('tau("mnist", "mlp")', "0.822"),
        ('tau("mnist", "mlp")|digits(1)', "0.8"),
        ('tau("mnist", "mlp", threshold=0.8)', "0.793"),
        ('tau("mnist", "mlp", recipe="converged")', "0.812"),
        ('tau("mnist", "mlp", where=both.mnist)', "0.799"),
        ('tau("mnist", "gauge_nfn")', "0.900"),
        ('tau("mnist", "gauge_nfn", recipe="paper")', "0.700"),
        ('count("mnist", "train")', "1,394"),
        ('lead("mnist", "statnn")', "-0.025"),
        ('with_interval(lead, "mnist", "statnn")', "-0.025 [-0.040, 0.010]"),
        ('with_interval(lead, "mnist", "statnn", sign=-1)', "0.025 [-0.010, 0.040]"),
        ('value("ablation_components", "mnist", "transformer_nfn", components=("encoder",))', "0.853"),
        ('value("ablation_components", "mnist", "transformer_nfn", components=("embedding", "encoder"))', "0.817"),
        ('value("speed.nfn", "mnist", "nfn", "training_step_ms", cuda_graph=true)|digits(2)', "0.65"),
        ('moved("mnist", "mlp", 10)', "-0.050"),
        ('transfer("mnist", "mlp", to="mnist-seeds")', "0.250"),
        ('tau("mnist", "mlp") - tau("mnist", "statnn")', "0.013"),
        ('tau("mnist", ["mlp", "statnn"]).mean()', "0.815"),
        ('spread(tau("mnist", ["mlp", "statnn"]))', "0.013"),
        ('(tau("mnist", "mlp") - tau("mnist", ["mlp", "statnn"])).max()', "0.013"),
        ('below_paper("mnist", ["mlp", "statnn"], 0.0).max()|digits(2)', "0.07"),
        ('below_paper("mnist", "mlp", [0.0, 0.8]).min()|digits(2)', "0.04"),
        ('paper("mnist", "transformer_nfn")', "0.905"),
        ('paper("agnews", "mlp", threshold=0.8)', "0.862"),
        ("spread(widths_of_paper)", "0.008"),
        ('runs("mnist")|length', "10"),
        ('runs("mnist", "test_accuracy < 0.5")|length + runs("mnist", "test_accuracy >= 0.5")|length', "10"),
        ("2000", "2,000"),
        ("plots", "../rows/plots"),
        ("ours", "gauge_nfn"),
        ("title(ours)", "Gauge-NFN"),
    ],
)
def test_a_template_writes_the_number_of_its_row(tmp_path: Path, rows: Path, call: str, number: str):
    if call == "plots":
        rows = tmp_path / "rows"
        tmp_path /= "clone"
    assert rendered(f"It is {{{{ {call} }}}}.\n", tmp_path, rows) == f"It is {number}.\n"


def test_the_ablation_of_inputs_is_there_where_it_was_measured(tmp_path: Path, rows: Path):
    assert rendered("{{ inputs() }}.", tmp_path, rows) == "."
    own = {"recipe": "gauge", "folds": 4, "split": "train+validation", "checkpoint": "epoch_75", "zoo": "z"}
    results.append(
        [
            row("response_nfn", 0.913, **own),
            row("benchmarks.inputs:Noise", 0.7, **own),
            row("benchmarks.inputs:Noise", 0.6, metric="tau_low", **own),
            row("benchmarks.inputs:Noise", 0.8, metric="tau_high", **own),
            row("response_nfn", 0.5, recipe="gauge"),
        ],
        tmp_path / "rows",
    )
    lines = rendered("{{ inputs() }}", tmp_path, tmp_path / "rows").splitlines()
    assert lines[:4] == [
        "| Kendall's τ | mnist, epoch_75, 4 folds of train+validation |",
        "| --- | ---: |",
        "| the usual inputs | 0.913 |",
        "| Noise | 0.700<br>[0.600, 0.800] |",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            'One.\n\nτ is\n{{ tau("mnist", "nobody") }}.',
            "line 4: 0 rows fit kendall mnist nobody tau, one should: measure it first",
            id="no row",
        ),
        pytest.param(
            '{{ value("speed.nfn", "mnist", "nfn", "training_step_ms", batch=16) }}',
            "line 1: 2 rows fit speed.nfn mnist nfn training_step_ms batch=16, one should: name more settings",
            id="several rows",
        ),
        pytest.param('\n{{ tau("chess", "mlp") }}', "line 2: .* has no rows of kendall --config chess", id="no config"),
        pytest.param(
            '\n{{ table("kendall", "chess") }}', "line 2: .* has no rows of kendall --config chess", id="no table"
        ),
        pytest.param(
            '\n{{ table("ablation_width", "agnews") }}',
            "line 2: .* has no rows of ablation_width --config agnews",
            id="no widths",
        ),
        pytest.param('\n\n{{ tua("mnist") }}', "line 3: 'tua' is undefined", id="undefined name"),
        pytest.param('{{ tau("mnist", "mlp" }}', "line 1: ", id="syntax"),
        pytest.param('{{ runs("chess")|length }}', "line 1: ", id="no runs"),
        pytest.param(
            '{{ tau("mnist", ["mlp", "statnn"]) }}', "line 1: an array of 2 numbers cannot be written", id="array"
        ),
    ],
)
def test_a_call_that_cannot_be_answered_is_named_with_its_line(tmp_path: Path, rows: Path, text: str, problem: str):
    with pytest.raises(ValueError, match=f"^{re.escape(TEMPLATE)}, {problem}") as refused:
        rendered(text, tmp_path, rows)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("document", [*_DOCUMENTS, "CONTRIBUTING.md", "LOG.md"])
def test_every_link_of_a_document_leads_somewhere(document: str):
    """To a file of this repository, and to a heading of it where it names one."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors, target


def test_the_readme_of_the_benchmarks_is_read_in_minutes():
    assert len((ROOT / "benchmarks" / "README.md").read_text().splitlines()) <= 200
