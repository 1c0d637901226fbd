"""The documents say what the committed rows say, and a stale one is found."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import zoo
from benchmarks import kendall, report, results
from benchmarks.report import _DOCUMENTS, _TABLES, _TEMPLATES, _Contents, _final_runs
from benchmarks.results import Result, ResultIndex
from benchmarks.tables import for_terminal, render_table
from tests.fabricated import TINY_MNIST, fabricate_shard, publish


def write_templates(root: Path, text: str) -> dict[str, Path]:
    """A clone whose templates are all the same; the documents do not exist yet."""
    for document, template in _DOCUMENTS.items():
        for path in (root / document, root / _TEMPLATES / template):
            path.parent.mkdir(exist_ok=True, parents=True)
        (root / _TEMPLATES / template).write_text(text)
    return {document: root / document for document in _DOCUMENTS}


def test_the_documents_are_what_the_rows_say(capsys: pytest.CaptureFixture[str]):
    report.main(["--check"])
    assert f"{', '.join(_DOCUMENTS)}: up to date" in capsys.readouterr().out


def test_stale_documents_are_found_and_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_templates(tmp_path, '# A zoo\n\nτ is {{ tau("mnist", "mlp") }}.\n{{ speed() }}\n')
    rows = tmp_path / "rows"
    results.append([row("tau", 0.25, zoo="some", threshold=0.0, recipe="paper")], rows)
    arguments = ["--root", str(tmp_path), "--results", str(rows)]
    report.main(arguments)
    report.main([*arguments, "--check"])
    reading = r"\| checkpoints read [^|]+, one thread \| – \(one `.pt` file each\) \| – in order, – shuffled \|"
    for path in paths.values():
        assert "τ is 0.250.\n" in path.read_text()
        assert re.search(reading, path.read_text())
    capsys.readouterr()
    results.append([row("tau", 0.5, zoo="some", threshold=0.0, recipe="paper")], rows)
    before = {path: path.read_text() for path in paths.values()}
    with pytest.raises(SystemExit) as ended:
        report.main([*arguments, "--check"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{document}, line 3 is out of date: edit {_TEMPLATES}/{template}, then run python -m benchmarks.report"
        for document, template in _DOCUMENTS.items()
    ]
    assert {path: path.read_text() for path in paths.values()} == before, "--check writes nothing"
    report.main(arguments)
    assert "τ is 0.500.\n" in paths["README.md"].read_text()


def test_a_table_apart_has_a_file_that_comes_and_goes_with_its_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    document = write_templates(tmp_path, "some text\n")["benchmarks/RESULTS.md"]
    template, own = tmp_path / _TEMPLATES / "results.md.j2", tmp_path / _TABLES / "mnist-one-seed.md"
    link = '{{ table("kendall", "mnist")|apart("MNIST, one seed") }}\n'
    rows, what = tmp_path / "rows", {"zoo": "some", "threshold": 0.0, "recipe": "paper", "checkpoint": "epoch_75"}
    arguments = ["--root", str(tmp_path), "--results", str(rows)]
    results.append([row("tau", 0.25, **what)], rows)
    template.write_text(link)
    report.main(arguments)
    assert document.read_text() == "[Table: MNIST, one seed](results/tables/mnist-one-seed.md)\n"
    assert (document.parent / "results" / "tables" / "mnist-one-seed.md") == own
    assert "\n\n# MNIST, one seed\n\n| Kendall's τ, mnist, epoch_75 | no threshold |\n" in own.read_text()
    assert own.read_text().endswith("\n\nExplained in [benchmarks/RESULTS.md](../../RESULTS.md).\n")
    assert "| MLP | **0.250 ± 0.010**<br>" in own.read_text()

    def check(code: int = 1) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            report.main([*arguments, "--check"])
        assert ended.value.code == code
        return capsys.readouterr().err

    results.append([row("tau", 0.5, **what)], rows)
    assert check() == f"{_TABLES}/{own.name}, line 7 is out of date: run python -m benchmarks.report\n"
    template.write_text(link + link)
    assert "two tables are called 'MNIST, one seed'" in check(code=2)
    template.write_text("no table\n")
    assert f"{_TABLES}/{own.name} has no link: run python -m benchmarks.report\n" in check()
    (tmp_path / _TEMPLATES / "README.md.j2").write_text(link)
    report.main(arguments)
    assert "](benchmarks/results/tables/mnist-one-seed.md)" in (tmp_path / "README.md").read_text()
    (tmp_path / _TEMPLATES / "README.md.j2").write_text("no table\n")
    report.main(arguments)
    assert not own.exists()
    report.main([*arguments, "--check"])


def test_a_template_without_its_row_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    paths = write_templates(tmp_path, 'τ is\n{{ tau("mnist", "mlp") }}\n')
    for arguments in ([], ["--check"]):
        with pytest.raises(SystemExit) as ended:
            report.main(["--root", str(tmp_path), "--results", str(tmp_path / "rows"), *arguments])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("error: benchmarks/templates/README.md.j2, line 2: ")
        assert error.count("\n") == 1
    assert not any(path.exists() for path in paths.values())


def test_the_report_of_a_computed_table_has_its_plots(tiny_zoo: Path, tmp_path: Path):
    rows = tmp_path / "rows"
    kendall.main(["--quick", "--zoo", str(tiny_zoo), "--out", str(rows), "--epochs", "1", "--models", "mlp", "statnn"])
    paths = write_templates(
        tmp_path, '{{ table("kendall", "mnist") }}\n{{ headline() }}\n![τ]({{ plots }}/headline.png)'
    )
    report.main(["--root", str(tmp_path), "--results", str(rows)])
    assert "](rows/plots/headline.png)" in paths["README.md"].read_text()
    assert "](../rows/plots/headline.png)" in paths["benchmarks/README.md"].read_text()
    assert "| Kendall's τ, mnist, epoch_75 | no threshold |" in paths["README.md"].read_text()
    assert "| Kendall's τ | MNIST, 70 runs |" in paths["README.md"].read_text()
    for name in ("kendall.mnist.scatter", "kendall.mnist.thresholds", "headline"):
        assert (rows / "plots" / f"{name}.png").exists()


def test_the_spread_of_accuracies_is_that_of_completed_runs(tmp_path: Path):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=40, diverged=3)
    publish(tmp_path / "runs", tmp_path / "generated")
    runs = zoo.open(tmp_path / "generated", "mnist").runs
    completed = runs[runs["status"] == "completed"]
    assert 0 < len(completed) < len(runs)
    (name, found), *others = _final_runs(tmp_path, tmp_path / "no clone").items()
    assert name == "mnist"
    assert not others
    (tmp_path / "generated").rename(tmp_path / "small-transformer-zoo")
    assert not _final_runs(tmp_path / "no rows", tmp_path), "of the zoo of a clone, only language models"
    assert found["test_accuracy"].tolist() == [curve[-1] for curve in completed["test_accuracy"]]
    assert found["optimizer"].tolist() == completed["optimizer"].tolist()


def test_each_accuracy_is_counted_in_one_interval():
    runs = pd.DataFrame({"test_accuracy": [0.0, 0.1, 0.2, 0.85, 0.9, 0.95, 1.0, 0.97]})
    *_, line = render_table("accuracies", runs={"mnist": runs}).splitlines()
    assert line == "| mnist | 8 | 25.0% | 12.5% | 0.0% | 0.0% | 12.5% | 50.0% | 0.875 | 1.000 |"


def row(metric: str, value: float, model: str = "mlp", **setting: float | str) -> Result:
    return Result.measured(
        "kendall", "mnist", metric, value, n=5, stderr=0.01, device="cpu", model=model, setting=dict(setting)
    )


def test_the_last_row_counts_and_another_zoo_s_rows_do_not():
    common = {"threshold": 0.0, "recipe": "paper", "checkpoint": "epoch_75"}
    rows = [
        row("tau", 0.1, zoo="old", model="statnn", **common),
        row("tau", 0.15, zoo="old", **common),
        row("tau", 0.2, zoo="new", **common),
        row("tau", 0.3, zoo="new", **common),
    ]
    index = ResultIndex.latest(rows, "mnist")
    assert index.value("tau", "mlp", threshold=0.0) == 0.3
    assert index.find("tau", "statnn") is None
    assert not ResultIndex.latest(rows, "agnews")
    text = render_table("kendall", {"mnist": index})
    assert "| MLP | **0.300 ± 0.010**<br>paper 0.866 ± 0.002 |" in text
    assert "STATNN" not in text, "a model without a row has no line"
    beside = ResultIndex.latest(rows, "mnist", beside="statnn")
    assert {row.model: row.value for row in beside.rows} == {"statnn": 0.1, "mlp": 0.15}, "all rows of its last zoo"
    assert not ResultIndex.latest(rows, "mnist", beside="xgboost"), "which no zoo has"


def test_a_table_of_some_rows_says_so_and_has_no_number_of_the_paper_beside():
    chosen = {"threshold": 0.0, "recipe": "paper", "where": "train_fraction == 1.0"}
    rows = [row("tau", 0.4, **chosen), row("tau", 0.5, model="transformer_nfn", **chosen)]
    index = ResultIndex.latest(rows, "mnist", "train_fraction == 1.0")
    assert "Embedding + Encoder + Classifier | 0.500" in render_table("ablation_components", {"mnist": index})
    assert "| Encoder |" not in render_table("ablation_components", {"mnist": index}), "nothing is known of it"
    for text in (
        render_table("kendall", {"mnist": index}),
        render_table("ablation_components", {"mnist": index}),
        render_table("ablation_width", {"agnews": index}),
        render_table("augmentation", {"agnews": index}),
    ):
        assert "where train_fraction == 1.0" in text
        assert "paper" not in text


def test_predictors_trained_to_the_end_have_a_table_where_more_than_one_threshold_was_tried():
    rows = [row("tau", 0.5, threshold=threshold, recipe="paper") for threshold in (0.0, 0.4, 0.8)]
    rows += [row("tau", 0.6, threshold=0.0, recipe="converged"), row("epochs", 70, threshold=0.0, recipe="converged")]
    of_one = render_table("kendall", {"mnist": ResultIndex.latest(rows, "mnist")})
    assert "0.600 ± 0.010 (70 epochs)" in of_one
    heading = "\n| τ, trained until validation stops improving |"
    assert heading not in of_one
    rows += [row("tau", 0.7, threshold=0.8, recipe="converged"), row("epochs", 90, threshold=0.8, recipe="converged")]
    text = render_table("kendall", {"mnist": ResultIndex.latest(rows, "mnist")})
    assert f"{heading} no threshold | ≥ 80% |" in text
    assert "| MLP | 0.600 ± 0.010 (70 epochs) | 0.700 ± 0.010 (90 epochs) |" in text
    assert "| STATNN | – | –" not in text, "a model that was not tried"


def test_the_leader_reads_weights():
    common = {"threshold": 0.0, "recipe": "paper"}
    rows = [row("tau", 0.5, **common), row("tau", 0.4, model="lightgbm", **common)]
    index = ResultIndex.latest([*rows, row("tau", 0.9, model="hyperparameters", **common)], "mnist")
    text = render_table("kendall", {"mnist": index})
    assert "| MLP | **0.500 ± 0.010**" in text
    assert "| hyperparameters only | 0.900 ± 0.010" in text


def test_the_speed_table_takes_the_last_measurement():
    rows = [one for name in ("generation", "nfn", "loader") for one in results.read(f"speed.{name}")]
    reading = [one for one in rows if one.metric == "checkpoints_per_second" and one.variant == "zoo.open"]
    assert f"{reading[-1].value:,.0f} in order" in render_table("speed", rows=rows)
    assert "123,456 in order" in render_table("speed", rows=[*rows, replace(reading[-1], value=123_456.0)])


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
    text = render_table("seeds", {config: ResultIndex.latest(rows, config) for config in ("mnist", "mnist-seeds")})
    assert "| MLP | 0.900 ± 0.010<br>0.600 ± 0.010 | –<br>0.700 ± 0.010 (30 epochs) |" in text
    assert "| STATNN | –<br>– | –<br>– |" in text
    assert "20%" not in text, "a threshold that only one of them has"


def test_each_task_with_both_kinds_of_seeds_has_its_table(tmp_path: Path):
    setting = {"threshold": 0.0, "recipe": "paper"}
    parts = {"mnist": "train_fraction >= 0.8", "agnews": "train_fraction >= 0.9"}
    for config, part in parts.items():
        for name, tau in ((config, 0.9), (f"{config}-seeds", 0.6)):
            results.append([replace(row("tau", tau, where=part, **setting), config=name)], tmp_path)
    for config, part in parts.items():
        contents, seeds = _Contents(tmp_path), f"{config}-seeds"
        text = contents.table("seeds", config, seeds, benchmark="kendall", where=part)
        text += contents.table("kendall", seeds, where=part)
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
    heading, _, first, second, *_ = render_table("headline", {"MNIST": index, "again": index}).splitlines()
    assert heading == "| Kendall's τ | MNIST, 2,000 runs | again, 2,000 runs |"
    assert first == "| hyperparameters only | 0.900 | 0.900 |"
    assert second == "| MLP | **0.500** [0.450, 0.550] | **0.500** [0.450, 0.550] |"


def test_a_terminal_sees_columns_instead_of_markdown() -> None:
    text = (
        "About **it**\n\n| τ | none | ≥ 80% | empty |\n| --- | ---: | ---: | ---: |\n"
        "| [MLP](x.md) · [code](y.py) | **0.5**<br>[0.4, 0.6] | – | – |\n| a&#124;b&#27; | – | 0.1 | |\n\nNote"
    )
    assert for_terminal(text).split("\n") == [
        "About it",
        "",
        "τ          none  ≥ 80%",
        "MLP       0.5 *      –",
        "     [0.4, 0.6]",
        "a|b           –    0.1",
        "",
        "Note",
    ]


def test_a_table_as_wide_as_the_terminal_is_one_table_and_one_without_numbers_has_its_names() -> None:
    numbers = "".join(f" {'9' * 12} |" for _ in range(5))
    wide = f"| name |{numbers}\n| --- |{' ---: |' * 5}\n| {'a' * 30} |{numbers}"
    assert [len(line) for line in for_terminal(wide).splitlines()] == [100, 100]
    assert for_terminal("| name | none |\n| --- | ---: |\n| a\\ | – |\n| b | – |").splitlines() == ["name", "a\\", "b"]


def test_every_table_of_the_repository_fits_a_terminal() -> None:
    folder = Path(report.__file__).parent
    paths = [folder / "RESULTS.md", *sorted((folder / "results" / "tables").glob("*.md"))]
    text = "\n\n".join(path.read_text() for path in paths)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    shown = for_terminal(text).splitlines()
    assert len(tables) > 500
    assert max(len(line) for line in shown if "](" not in line) <= 100
    numbers = re.compile(r"-?\d[\d,.]*")
    cells = "\n".join(tables).replace("**", "")
    assert set(numbers.findall(re.sub(r"\]\(\S+\)", "]", cells))) <= set(numbers.findall("\n".join(shown)))


def test_notes_are_about_rows_that_are_there() -> None:
    common = {"threshold": 0.0, "recipe": "paper", "checkpoint": "all"}
    counted = replace(row("test_rows", 40, **common), model=None, variant="data")
    rows = [replace(row("tau", 0.5, **common), stderr=None), counted]
    text = render_table("kendall", {"mnist": ResultIndex.latest(rows, "mnist")})
    assert "| Kendall's τ, mnist, all checkpoints | no threshold |" in text
    assert "| **0.500**" in text
    for absent in ("± standard error", "randomness", "share a GPU", "noise ceiling", "converged", "Cross", "unit size"):
        assert absent not in text
    several = [counted, replace(rows[0], stderr=0.1, device="NVIDIA H200"), row("tau", 0.4, model="xgboost", **common)]
    text = render_table("kendall", {"mnist": ResultIndex.latest(several, "mnist")})
    for present in (
        "Mean ± standard error",
        "error over seeds: XGBoost.",
        "share a GPU",
        "Bold is the best",
    ):
        assert present in text
    for layout, absent in (("rows", "least squares"), ("transfer", "the lower one")):
        assert absent not in render_table(layout, {"mnist": ResultIndex.latest(rows, "mnist")})


def test_outside_a_clone_one_line_says_what_the_report_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "_CLONE", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        report.main(["--check"])
    assert ended.value.code == 2
    assert "the report is of a clone of the repository, name it with --root" in capsys.readouterr().err
