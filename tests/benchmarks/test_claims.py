"""Numbers in prose: the right ones pass, and each wrong, unclaimed or sourceless one is named in one line."""

from typing import Any

import pytest

from benchmarks import results
from benchmarks.documents.claims import problems
from benchmarks.documents.facts import Facts
from benchmarks.results import Result
from zoo.publish import publish
from zoo.testing import TINY_MNIST, fabricate_shard

SOME = "train_fraction >= 0.8"


def row(model: str, value: float, benchmark: str = "kendall", metric: str = "tau", **setting: Any) -> Result:
    plain = {"threshold": 0.0, "recipe": "paper"} if benchmark == "kendall" else {}
    return Result.measured(benchmark, "mnist", metric, value, n=5, device="cpu", model=model, setting=plain | setting)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    folder = tmp_path_factory.mktemp("rows")
    rows = [
        row("mlp", 0.8215),
        row("mlp", 0.7934, threshold=0.8),
        row("mlp", 0.8125, recipe="converged"),
        row("mlp", 0.7989, where=SOME),
        row("statnn", 0.8089),
        row("data", 1394, metric="train_rows"),
        row("transformer_nfn", 0.853, "ablation_components", components=["encoder"]),
        row("transformer_nfn", 0.817, "ablation_components", components=["embedding", "encoder"]),
        row("nfn", 6.9, "speed.nfn", "training_step_ms", batch=16, cuda_graph=False),
        row("nfn", 0.65, "speed.nfn", "training_step_ms", batch=16, cuda_graph=True),
    ]
    results.append(rows, folder)
    fabricate_shard(folder / "runs", TINY_MNIST, count=10)
    publish(folder / "runs", folder / "generated")
    return Facts(folder)


@pytest.mark.parametrize(
    ("number", "expression"),
    [
        ("0.82", "kendall mnist mlp tau"),
        ("0.793", "kendall mnist mlp tau threshold=0.8"),
        ("0.8125", "kendall mnist mlp tau recipe=converged"),
        ("0.799", f'kendall mnist mlp tau where="{SOME}"'),
        ("1,394", "kendall mnist data train_rows"),
        ("0.853", "ablation_components mnist transformer_nfn tau components=encoder"),
        ("0.817", "ablation_components mnist transformer_nfn tau components=embedding,encoder"),
        ("0.65", "speed.nfn mnist nfn training_step_ms cuda_graph=1"),
        ("0.013", "kendall mnist mlp tau - kendall mnist statnn tau"),
        ("0.815", "mean kendall mnist {mlp|statnn} tau"),
        ("0.013", "spread kendall mnist {mlp|statnn} tau"),
        ("0.07", "max paper.kendall mnist {mlp|statnn} tau - kendall mnist {mlp|statnn} tau"),
        ("0.04", "min paper.kendall mnist {mlp|statnn} tau - kendall mnist {mlp|statnn} tau"),
        ("0.902", "paper.ablation_components mnist transformer_nfn tau components=encoder"),
        ("0.911", "paper.ablation_width agnews transformer_nfn tau channels=5,5"),
        ("0.879", "paper.augmentation agnews mlp tau"),
        ("0.833", "paper.augmentation agnews mlp tau entry_range=100"),
        ("10", "generated mnist count"),
        (
            "10",
            'generated mnist count where="test_accuracy < 0.5" + generated mnist count where="test_accuracy >= 0.5"',
        ),
        ("7.5", "1 + 2 * 3 + 1 / 2"),
        ("4.0", "8 - 3 - 1"),
        ("1e-3", "defined"),
        ("3.11", "defined"),
    ],
)
def test_a_number_that_its_source_gives_passes(facts: Facts, number: str, expression: str):
    assert problems("a.md", f"It is {number}.\n<!-- rows: {number} = {expression} -->\n", facts) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            "τ is 0.823.\n<!-- rows: 0.823 = kendall mnist mlp tau -->",
            "line 2: 0.823 is written, but kendall mnist mlp tau is 0.8215",
            id="wrong",
        ),
        pytest.param(
            "One.\n\nτ is\n0.823.",
            "line 4: 0.823 is not claimed: say in <!-- rows: --> where it comes from",
            id="unclaimed",
        ),
        pytest.param(
            "τ is 0.8.\n<!-- rows:\n0.8 = kendall mnist nobody tau -->",
            "line 3: 0.8 = kendall mnist nobody tau: there is no such row",
            id="no row",
        ),
        pytest.param(
            "It takes 6.9 ms.\n<!-- rows: 6.9 = speed.nfn mnist nfn training_step_ms batch=16 -->",
            "line 2: 6.9 = speed.nfn mnist nfn training_step_ms batch=16: 2 rows fit: name more settings",
            id="several rows",
        ),
        pytest.param(
            "τ is high.\n<!-- rows: 0.82 = kendall mnist mlp tau -->",
            "line 2: 0.82 is claimed more often than it stands in this paragraph",
            id="claim without its number",
        ),
        pytest.param(
            "- τ is 0.82.\n- And 0.82.\n  <!-- rows: 0.82 = kendall mnist mlp tau -->",
            "line 1: 0.82 is not claimed: say in <!-- rows: --> where it comes from",
            id="claimed in another item",
        ),
        pytest.param(
            "τ is 0.82, and 0.82 again.\n<!-- rows: 0.82 = kendall mnist mlp tau -->",
            "line 1: 0.82 is not claimed: say in <!-- rows: --> where it comes from",
            id="claimed once, written twice",
        ),
        pytest.param(
            "10 of 20 runs.\n<!-- rows: 20 = generated mnist count -->",
            "line 2: 20 is written, but generated mnist count is 10",
            id="wrong integer",
        ),
        pytest.param(
            "10 runs.\n<!-- rows: 10 = generated nothing count -->",
            "line 2: 10 = generated nothing count: after generated: one of mnist, one of count, min, median, max",
            id="no such runs",
        ),
        pytest.param(
            "τ is 0.8.\n<!-- rows: 0.8 -->",
            "line 2: 0.8 is claimed without a source: write NUMBER = EXPRESSION",
            id="no source",
        ),
    ],
)
def test_a_number_without_its_source_is_named_in_one_line(facts: Facts, text: str, problem: str):
    assert problems("a.md", text, facts) == [f"a.md, {problem}"]


def test_only_decimal_numbers_of_the_prose_must_be_claimed(facts: Facts):
    text = """# 32 shards

80% of 1,394 runs, `0.1` in code, [a link](v1.5/a.md), float32.

```
lr = 0.1
```

| table | 0.5 |
| --- | --- |

<!-- generated: name -->
0.25
<!-- end: name -->
<!-- a remark about 0.125 -->
"""
    assert problems("a.md", text, facts) == []
