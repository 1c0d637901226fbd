"""The documents say what the committed rows say, and a stale one is found."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import zoo
from benchmarks import kendall, report, results
from benchmarks.documents.blocks import DOCUMENTS, PICTURES, blocks, kendall_block, seeds_block
from benchmarks.documents.generated_runs import final_runs
from benchmarks.results import Result
from benchmarks.speed.measurements import speed_table
from benchmarks.tables.ablation import components_table, variants_table, width_table
from benchmarks.tables.accuracies import accuracies_table
from benchmarks.tables.augmentation import augmentation_table
from benchmarks.tables.headline import headline_table
from benchmarks.tables.kendall import kendall_tables
from benchmarks.tables.markdown import for_terminal
from benchmarks.tables.result_index import ResultIndex
from benchmarks.tables.seeds import seeds_table
from zoo.publish import publish
from zoo.testing import TINY_MNIST, fabricate_shard


def write_documents(root: Path) -> dict[str, Path]:
    """Every document with its blocks, all of them old."""
    paths = {document: root / document for document in DOCUMENTS}
    for document, path in paths.items():
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("# A zoo\n\n" + "\n".join(f"{opening(name)}\nold\n{end(name)}" for name in DOCUMENTS[document]))
    return paths


def opening(name: str) -> str:
    return f"<!-- generated: {name} -->"


def end(name: str) -> str:
    return f"<!-- end: {name} -->"


def test_the_documents_are_what_the_rows_say(capsys: pytest.CaptureFixture[str]):
    report.main(["--check"])
    assert "README.md, benchmarks/README.md, generation/README.md: all say what the rows say" in capsys.readouterr().out


def test_every_block_is_in_one_document():
    assert sorted(name for names in DOCUMENTS.values() for name in names) == sorted(blocks(Path(), Path()))


def test_stale_documents_are_found_and_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_documents(tmp_path)
    before = {path: path.read_text() for path in paths.values()}
    arguments = ["--root", str(tmp_path), "--results", str(tmp_path / "rows")]
    with pytest.raises(SystemExit) as ended:
        report.main([*arguments, "--check"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{document} is out of date: run python -m benchmarks.report" for document in DOCUMENTS
    ]
    assert {path: path.read_text() for path in paths.values()} == before, "--check writes nothing"
    report.main(arguments)
    text = "".join(path.read_text() for path in paths.values())
    assert "old" not in text
    assert "No rows yet: `python -m benchmarks.kendall --config mnist --out benchmarks/results`" in text
    reading = r"\| checkpoints read [^|]+, one thread \| – \(one `.pt` file each\) \| – in order, – shuffled \|"
    assert re.search(reading, text)
    report.main([*arguments, "--check"])


def test_the_report_of_a_computed_table_has_its_plots(tiny_zoo: Path, tmp_path: Path):
    rows = tmp_path / "rows"
    kendall.main(["--quick", "--zoo", str(tiny_zoo), "--out", str(rows), "--epochs", "1", "--models", "mlp", "statnn"])
    paths = write_documents(tmp_path)
    report.main(["--root", str(tmp_path), "--results", str(rows)])
    assert "](rows/plots/headline.png)" in paths["README.md"].read_text()
    assert "](../rows/plots/kendall.mnist.scatter.png)" in paths["benchmarks/README.md"].read_text()
    for name in (*(f"kendall.mnist.{picture}" for picture in PICTURES), "headline"):
        assert (rows / "plots" / f"{name}.png").exists()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("generated: speed", "generated: spee"),
        ("end: speed", "end: spee"),
        ("# A zoo", f"{opening('more')}\n{end('more')}"),
        ("# A zoo", opening("more")),
        ("# A zoo", f"{opening('speed')}\n{end('speed')}"),
    ],
    ids=["missing", "without its end", "unknown", "unknown and without its end", "twice"],
)
def test_a_document_with_other_blocks_than_its_own_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, right: str
):
    path = write_documents(tmp_path)["generation/README.md"]
    path.write_text(path.read_text().replace(wrong, right))
    with pytest.raises(SystemExit) as ended:
        report.main(["--root", str(tmp_path), "--check"])
    assert ended.value.code == 2
    assert "generation/README.md must have each of these blocks once" in capsys.readouterr().err


def test_a_number_that_is_not_its_row_s_is_named_whether_checking_or_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write_documents(tmp_path)["README.md"]
    path.write_text(path.read_text() + "\n\nτ is 0.5.\n<!-- rows: 0.5 = kendall mnist mlp tau -->\n")
    results.append([row("tau", 0.25, zoo="some", threshold=0.0, recipe="paper")], tmp_path / "rows")
    for arguments in ([], ["--check"]):
        with pytest.raises(SystemExit) as ended:
            report.main(["--root", str(tmp_path), "--results", str(tmp_path / "rows"), *arguments])
        assert ended.value.code == 1
        line = path.read_text().splitlines().index("<!-- rows: 0.5 = kendall mnist mlp tau -->") + 1
        problem = f"README.md, line {line}: 0.5 is written, but kendall mnist mlp tau is 0.25"
        assert capsys.readouterr().err.splitlines() == [problem]


def test_the_spread_of_accuracies_is_that_of_completed_runs(tmp_path: Path):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=40, diverged=3)
    publish(tmp_path / "runs", tmp_path / "generated")
    runs = zoo.open(tmp_path / "generated", "mnist").runs
    completed = runs[runs["status"] == "completed"]
    assert 0 < len(completed) < len(runs)
    (name, found), *others = final_runs(tmp_path).items()
    assert name == "mnist"
    assert not others
    assert found["test_accuracy"].tolist() == [curve[-1] for curve in completed["test_accuracy"]]
    assert found["optimizer"].tolist() == completed["optimizer"].tolist()


def test_each_accuracy_is_counted_in_one_interval():
    *_, line = accuracies_table({"mnist": np.array([0.0, 0.1, 0.2, 0.85, 0.9, 0.95, 1.0, 0.97])}).splitlines()
    assert line == "| mnist | 8 | 25.0% | 12.5% | 0.0% | 0.0% | 12.5% | 50.0% | 0.875 | 1.000 |"


def row(metric: str, value: float, model: str = "mlp", **setting: float | str) -> Result:
    return Result.measured(
        "kendall", "mnist", metric, value, n=5, stderr=0.01, device="cpu", model=model, setting=dict(setting)
    )


def test_the_last_row_counts_and_another_zoo_s_rows_do_not():
    common = {"threshold": 0.0, "recipe": "paper", "checkpoint": "epoch_75"}
    rows = [
        row("tau", 0.1, zoo="old", model="statnn", **common),
        row("tau", 0.2, zoo="new", **common),
        row("tau", 0.3, zoo="new", **common),
    ]
    index = ResultIndex.latest(rows, "mnist")
    assert index.value("tau", "mlp", threshold=0.0) == 0.3
    assert index.find("tau", "statnn") is None
    assert not ResultIndex.latest(rows, "agnews")
    text = kendall_tables(index, "mnist")
    assert "| MLP | **0.300 ± 0.010**<br>paper 0.866 ± 0.002 |" in text
    assert "STATNN" not in text, "a model without a row has no line"


def test_a_table_of_some_rows_says_so_and_has_no_number_of_the_paper_beside():
    chosen = {"threshold": 0.0, "recipe": "paper", "where": "train_fraction == 1.0"}
    rows = [row("tau", 0.4, **chosen), row("tau", 0.5, model="transformer_nfn", **chosen)]
    index = ResultIndex.latest(rows, "mnist", "train_fraction == 1.0")
    assert "Embedding + Encoder + Classifier | 0.500" in components_table({"mnist": index})
    assert "| Encoder |" not in components_table({"mnist": index}), "nothing is known of it"
    for text in (
        kendall_tables(index, "mnist"),
        components_table({"mnist": index}),
        width_table(index, "agnews"),
        augmentation_table(index, "agnews"),
    ):
        assert "where train_fraction == 1.0" in text
        assert "paper" not in text


def test_predictors_trained_to_the_end_have_a_table_where_more_than_one_threshold_was_tried():
    rows = [row("tau", 0.5, threshold=threshold, recipe="paper") for threshold in (0.0, 0.4, 0.8)]
    rows += [row("tau", 0.6, threshold=0.0, recipe="converged"), row("epochs", 70, threshold=0.0, recipe="converged")]
    of_one = kendall_tables(ResultIndex.latest(rows, "mnist"), "mnist")
    assert "0.600 ± 0.010 (70 epochs)" in of_one
    heading = "\n| τ, trained until validation stops improving |"
    assert heading not in of_one
    rows += [row("tau", 0.7, threshold=0.8, recipe="converged"), row("epochs", 90, threshold=0.8, recipe="converged")]
    text = kendall_tables(ResultIndex.latest(rows, "mnist"), "mnist")
    assert f"{heading} no threshold | ≥ 80% |" in text
    assert "| MLP | 0.600 ± 0.010 (70 epochs) | 0.700 ± 0.010 (90 epochs) |" in text
    assert "| STATNN | – | –" not in text, "a model that was not tried"


def test_the_leader_reads_weights():
    common = {"threshold": 0.0, "recipe": "paper"}
    rows = [row("tau", 0.5, **common), row("tau", 0.4, model="lightgbm", **common)]
    text = kendall_tables(
        ResultIndex.latest([*rows, row("tau", 0.9, model="hyperparameters", **common)], "mnist"), "mnist"
    )
    assert "| MLP | **0.500 ± 0.010**" in text
    assert "| hyperparameters only | 0.900 ± 0.010" in text


def test_variants_stand_beside_the_model_that_they_change_and_not_among_the_others(tmp_path: Path):
    setting = {"threshold": 0.0, "recipe": "paper"}
    variant = "transformer_nfn_classifier_invariants"
    rows = [row("tau", 0.82, model="transformer_nfn", **setting), row("tau", 0.9, model=variant, **setting)]
    behind = {"tau_behind_leader": -0.08, "tau_behind_leader_low": -0.1, "tau_behind_leader_high": -0.06}
    rows += [row(metric, value, model=variant, **setting) for metric, value in behind.items()]
    results.append(rows, tmp_path)
    (text,) = variants_table(ResultIndex.latest(rows, "mnist"), "mnist")
    assert "| Transformer-NFN | 0.820 ± 0.010 | – |" in text
    assert "| Transformer-NFN, classifier's invariants | 0.900 ± 0.010 | 0.080 [0.060, 0.100] |" in text
    assert variants_table(ResultIndex.latest(rows[:1], "mnist"), "mnist") == []
    shown = kendall_block("mnist", tmp_path, tmp_path)
    assert "| Transformer-NFN | **0.820" in shown
    assert "invariants" not in shown


def test_the_speed_table_takes_the_last_measurement():
    rows = [one for name in ("generation", "nfn", "loader") for one in results.read(f"speed.{name}")]
    reading = [one for one in rows if one.metric == "checkpoints_per_second" and one.variant == "zoo.open"]
    assert f"{reading[-1].value:,.0f} in order" in speed_table(rows)
    assert "123,456 in order" in speed_table([*rows, replace(reading[-1], value=123_456.0)])


def test_both_zoos_stand_side_by_side():
    common = {"threshold": 0.0, "recipe": "paper"}
    shared, distinct = row("tau", 0.9, **common), replace(row("tau", 0.6, **common), config="mnist-seeds")
    longer = {"threshold": 0.0, "recipe": "converged"}
    rows = [
        shared,
        distinct,
        replace(distinct, setting=common | {"threshold": 0.2}),
        *(replace(one, config="mnist-seeds") for one in (row("tau", 0.7, **longer), row("epochs", 30, **longer))),
    ]
    text = seeds_table(ResultIndex.latest(rows, "mnist"), ResultIndex.latest(rows, "mnist-seeds"), "mnist")
    assert "| MLP | 0.900 ± 0.010<br>0.600 ± 0.010 | –<br>0.700 ± 0.010 (30 epochs) |" in text
    assert "| STATNN | –<br>– | –<br>– |" in text
    assert "20%" not in text, "a threshold that only one of them has"


def test_each_task_with_both_kinds_of_seeds_has_its_table(tmp_path: Path):
    assert "No rows yet" in seeds_block(tmp_path)
    setting = {"threshold": 0.0, "recipe": "paper"}
    parts = {"mnist": "train_fraction >= 0.8", "agnews": "train_fraction >= 0.9"}
    for config, part in parts.items():
        for name, tau in ((config, 0.9), (f"{config}-seeds", 0.6)):
            results.append([replace(row("tau", tau, where=part, **setting), config=name)], tmp_path)
    text = seeds_block(tmp_path)
    for config, part in parts.items():
        assert f"| τ, {config}: one seed for all runs, below it a seed for each run |" in text
        assert f"| Kendall's τ, {config}-seeds where {part} |" in text


def test_the_headline_has_one_column_per_zoo_and_the_row_without_weights_first():
    common = {"threshold": 0.0, "recipe": "paper"}
    counts = [
        replace(row(f"{split}_rows", count, **common), model=None, variant="data")
        for split, count in (("train", 1394), ("validation", 298), ("test", 308))
    ]
    rows = [
        row("tau", 0.5, **common),
        row("tau_low", 0.45, **common),
        row("tau_high", 0.55, **common),
        row("tau", 0.9, model="hyperparameters", **common),
        *counts,
    ]
    index = ResultIndex.latest(rows, "mnist")
    heading, _, first, second, *_ = headline_table({"MNIST": index, "again": index}).splitlines()
    assert heading == "| Kendall's τ | MNIST, 2,000 runs | again, 2,000 runs |"
    assert first == "| hyperparameters only | 0.900 | 0.900 |"
    assert second == "| MLP | **0.500** [0.450, 0.550] | **0.500** [0.450, 0.550] |"


def test_a_terminal_sees_columns_instead_of_markdown() -> None:
    text = "About\n\n| τ | none | ≥ 80% |\n| --- | ---: | ---: |\n| MLP | **0.5**<br>[0.4, 0.6] | – |\n\nNote"
    assert for_terminal(text).split("\n") == [
        "About",
        "",
        "τ          none  ≥ 80%",
        "MLP       0.5 *      –",
        "     [0.4, 0.6]",
        "",
        "Note",
    ]


def test_outside_a_clone_one_line_says_what_the_report_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "CLONE", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        report.main(["--check"])
    assert ended.value.code == 2
    assert "the report is of a clone of the repository, name it with --root" in capsys.readouterr().err
