"""Submissions to the leaderboard: scored like the tables, one line for each fault, ours like any other."""

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import report, results
from benchmarks.leaderboard import __main__ as leaderboard
from benchmarks.leaderboard.__main__ import main
from benchmarks.leaderboard.scoring import HeldOutRows, _errors, leaked_labels, score
from benchmarks.leaderboard.submission import (
    Card,
    PredictionSet,
    Submission,
    rank,
    refuse_copies,
    submissions_in,
    write_submission,
)
from benchmarks.models.registry import MODELS
from benchmarks.plots import first_predictions
from benchmarks.report import _DOCUMENTS, _RANKING, _TEMPLATES
from benchmarks.results import ResultIndex
from benchmarks.statistics import kendall_tau
from benchmarks.tables import render_table
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.refusal import refusal

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^## Your own predictor\n.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CARD = Card("guess", ("Ada Lovelace",), ("weights",), (), paper="https://arxiv.org/abs/2410.04209")


def invented(folder: Path, zoo: Path, predict: Callable[[HeldOutRows], np.ndarray] | None = None) -> HeldOutRows:
    """Writes a submission for all checkpoints of the tiny zoo: by default noisy accuracies."""
    rows = HeldOutRows.read(zoo, "mnist", "all")
    noise = np.random.default_rng(0).normal(scale=0.2, size=len(rows.keys))
    predicted = np.clip(rows.truth + noise, 0, 1) if predict is None else predict(rows)
    predictions = PredictionSet("tiny", "mnist", "all", rows.sha256, "mnist.csv")
    write_submission(folder, CARD, predictions, rows, predicted)
    return rows


def lines(edit: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """Changes the lines of the file of predictions; the first is its header."""

    def change(folder: Path) -> None:
        path = folder / "mnist.csv"
        path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")

    return change


def card(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / "card.toml").read_text()
        assert old in text
        (folder / "card.toml").write_text(text.replace(old, new, 1))

    return change


def predicted(text: str) -> Callable[[list[str]], list[str]]:
    return lambda rows: [rows[0], f"{rows[1].rpartition(',')[0]},{text}", *rows[2:]]


def huge(folder: Path) -> None:
    with (folder / "mnist.csv").open("r+b") as file:
        file.truncate(1 << 40)  # sparse: it takes no room


def linked(folder: Path) -> None:
    (folder / "mnist.csv").unlink()
    (folder / "mnist.csv").symlink_to("/etc/passwd")


FAULTS = {
    "a row is missing": (lines(lambda rows: rows[:-2]), "is missing, as are 2 in all; there are "),
    "a foreign run": (lines(lambda rows: [*rows, "0123456789abcdef,best,0.5"]), "is not a test row"),
    "a row twice": (lines(lambda rows: [*rows, rows[1]]), "is there twice"),
    "not a number": (lines(predicted("nan")), "to 1.5 is read, got nan"),
    "infinite": (lines(predicted("1e999")), "got 1e999"),
    "in percent": (lines(predicted("87.5")), "a prediction is an accuracy, a share from 0 to 1"),
    "no header": (lines(lambda rows: rows[1:]), "line 1: must be run_id,checkpoint,predicted"),
    "a field too many": (lines(lambda rows: [*rows, "0123456789abcdef,best,0.5,0.5"]), "must be a run id"),
    "other test rows": (card('test_rows = "', 'test_rows = "0000000000000000" #'), "test_rows must be a SHA-256, 64"),
    "an unknown key": (card("name =", 'badge = "gold"\nname ='), "badge' is not a key"),
    "an unknown key inside": (card("zoo =", "tau = 1.0\nzoo ="), "'tau' is not a key"),
    "no authors": (card("authors = [", "authors = [] #"), "authors must be an array of at least one value"),
    "a number as name": (card('name = "guess"', "name = 5"), "name must be text in quotes, got 5"),
    "an escape sequence": (card('name = "guess"', 'name = "\\u001b[2J"'), "printable characters"),
    "reads what is not": (card('reads = ["weights"]', 'reads = ["labels"]'), "got 'labels'"),
    "no address": (card("https://", "javascript://"), "must be an address that begins with https://"),
    "a file elsewhere": (card('file = "mnist.csv"', 'file = "../mnist.csv"'), "must be a file beside the card"),
    "no TOML": (card("name =", "name = = "), "is not TOML"),
    "a file that is not there": (card('file = "mnist.csv"', 'file = "other.csv"'), "holds 'mnist.csv'"),
    "a file too many": (lambda folder: (folder / "run.py").write_text("import os"), "holds 'run.py'"),
    "a link": (linked, "is missing, or is not a file"),
    "a huge file": (huge, "at most 16,777,216 are read"),
    "no card": (lambda folder: (folder / "card.toml").unlink(), "card.toml is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_submission_is_one_line(fault: str, tiny_zoo: Path, tmp_path: Path, capsys) -> None:
    change, message = FAULTS[fault]
    invented(tmp_path / "guess", tiny_zoo)
    change(tmp_path / "guess")
    assert message in refusal(main, ["check", str(tmp_path / "guess"), "--zoo", str(tiny_zoo)], capsys)


def test_predictions_for_other_test_rows_are_not_scored(tiny_zoo: Path, tmp_path: Path, capsys) -> None:
    rows = invented(tmp_path / "guess", tiny_zoo)
    card(rows.sha256, "0" * 64)(tmp_path / "guess")
    message = refusal(main, ["check", str(tmp_path / "guess"), "--zoo", str(tiny_zoo)], capsys)
    assert f"those of {tiny_zoo} are {rows.sha256}" in message, "it says what the hash should be"


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (lambda rows: rows.truth.astype(np.float64), "100% of the predictions are the measured test accuracies"),
        (lambda rows: rows.truth + 1e-7, "100% of the predictions are"),
        (lambda rows: np.where(np.arange(len(rows.truth)) % 3 == 0, 0.5, rows.truth), "66% of the predictions are"),
        (lambda rows: rows.truth.astype(np.float64) ** 3 / 2 + 0.1, "the order is that of the test labels"),
    ],
)
def test_test_labels_as_predictions_are_suspicious(predict, message: str, tiny_zoo: Path, tmp_path: Path, capsys):
    invented(tmp_path / "guess", tiny_zoo, predict)
    line = refusal(main, ["check", str(tmp_path / "guess"), "--zoo", str(tiny_zoo)], capsys)
    assert "mnist.csv is suspicious: " in line
    assert message in line


def test_a_predictor_at_the_noise_ceiling_is_not_suspicious(tiny_zoo: Path) -> None:
    """It knows every true accuracy, but not how the test examples fell."""
    rows = replace(HeldOutRows.read(tiny_zoo, "mnist", "all"), test_examples=1000)
    drawn = np.random.default_rng(0).binomial(1000, rows.truth.astype(np.float64)) / 1000
    assert leaked_labels(drawn, rows) is None


def test_most_labels_with_a_little_noise_are_suspicious() -> None:
    rows = HeldOutRows.read("small-transformer-zoo", "mnist", None)
    noisy = rows.truth + np.random.default_rng(0).normal(scale=0.0002, size=len(rows.truth))
    found = leaked_labels(np.where(np.arange(len(noisy)) % 3 == 0, 0.5, noisy), rows)
    assert found
    assert "to within a sixth of their sampling error" in found


def test_the_error_shows_labels_with_a_noise_that_cannot_be_refused() -> None:
    """A noise of 0.002 is the sampling error of an accuracy of 95 % on 10,000 examples."""
    rows = HeldOutRows.read("small-transformer-zoo", "mnist", None)
    submissions = submissions_in(ROOT / "benchmarks" / "submissions")
    ranked = {ranking["test_rows"]: ranking["entries"] for ranking in rank(submissions, ["small-transformer-zoo"])}
    ours = [entry["error"] for entry in ranked[rows.sha256]]
    for seed in range(5):
        noisy = rows.truth + np.random.default_rng(seed).normal(scale=0.002, size=len(rows.truth))
        assert leaked_labels(noisy, rows) is None, "nothing proves it"
        assert score(noisy, rows)["error"] < 1 < min(ours)


@pytest.mark.long
def test_no_predictor_of_the_tables_is_suspicious() -> None:
    """Invariant-NFN is above the noise ceiling of AG News: labels of training and test split share their examples."""
    rows, near = results.read("kendall", results._COMMITTED), 0
    for config, examples in (("mnist", 10_000), ("agnews", 7600)):
        found = first_predictions(ResultIndex.latest(rows, config), results._COMMITTED)
        for name in ("hyperparameters", "invariant_nfn", "invariant_nfn_hyperparameters"):
            predicted, truth = found[name].predicted, found[name].truth
            held_out = HeldOutRows(config, "epoch_75", (), truth, np.arange(len(truth)), None, examples, "")
            assert leaked_labels(predicted, held_out) is None, (config, name)
            near += float(np.median(_errors(predicted, held_out))) < 0.5
    assert near, "labels with a noise of 0.002 are not nearer than that on AG News"


def test_the_score_is_that_of_the_tables(tiny_zoo: Path, tmp_path: Path, capsys) -> None:
    rows = invented(tmp_path / "guess", tiny_zoo)
    main(["check", str(tmp_path / "guess"), "--zoo", str(tiny_zoo)])
    printed = capsys.readouterr().out
    values = np.loadtxt(tmp_path / "guess" / "mnist.csv", delimiter=",", skiprows=1, usecols=2)
    in_file = dict(zip(sorted(rows.keys), values, strict=True))
    ordered = np.array([in_file[key] for key in rows.keys])
    expected = kendall_tau(ordered, rows.truth)
    assert f"τ, no threshold: {expected:.3f} [" in printed
    good = rows.truth >= 0.6
    scored = score(ordered, rows)
    whole, *_, above, _ = scored["thresholds"]
    assert (above["threshold"], above["value"]) == (0.6, round(kendall_tau(ordered[good], rows.truth[good]), 6))
    assert whole["low"] < expected < whole["high"]
    assert scored["within"] is None, "this zoo has no repeats"


def test_within_a_configuration_only_runs_at_one_checkpoint_are_compared(tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=160, seeds="4")
    publish(tmp_path / "runs", tmp_path / "zoo")
    rows = HeldOutRows.read(tmp_path / "zoo", "mnist-repeats", "all")
    assert rows.configurations is not None
    by_configuration = score(rows.configurations / 100, rows)["within"]
    assert by_configuration is not None
    assert by_configuration["value"] == 0.0, "it reads nothing of the run"
    labels = sorted({checkpoint for _, checkpoint in rows.keys})
    # right within each checkpoint, and all wrong between them
    shifted = rows.truth / 10 - np.array([labels.index(checkpoint) for _, checkpoint in rows.keys]) / 10
    within = score(shifted, rows)["within"]
    assert within is not None
    assert within["value"] == 1.0
    assert within["count"] == len(np.unique(rows.configurations))


def test_a_submission_keeps_its_predictions_of_other_rows(tiny_zoo: Path, tmp_path: Path) -> None:
    invented(tmp_path / "guess", tiny_zoo)
    other = HeldOutRows.read(tiny_zoo, "mnist", "best")
    predictions = PredictionSet("tiny", "mnist", "best", other.sha256, "mnist.best.csv")
    write_submission(tmp_path / "guess", CARD, predictions, other, np.full(len(other.keys), 0.5))
    card_read = Card.read(tmp_path / "guess")
    assert [each.checkpoint for each in card_read.predictions] == ["best", "all"]
    assert Card.parse(card_read.text().encode(), "again") == card_read


def test_without_the_test_rows_there_is_no_score_and_the_entry_is_last(tiny_zoo: Path, tmp_path: Path) -> None:
    invented(tmp_path / "guess", tiny_zoo)
    rows = invented(tmp_path / "foreign", tiny_zoo, lambda rows: np.linspace(0, 1, len(rows.keys)))
    card('name = "guess"', 'name = "foreign"')(tmp_path / "foreign")
    card(rows.sha256, "0" * 64)(tmp_path / "foreign")
    scored, foreign = rank(submissions_in(tmp_path), [str(tiny_zoo)])
    assert (scored["rows"], scored["entries"][0]["submission"]) == (len(rows.keys), "guess")
    assert (foreign["zoo"], foreign["rows"], foreign["entries"][0]["thresholds"]) == (None, None, [])
    table = render_table("leaderboard", rankings=[scored, foreign])
    assert "**mnist**, all checkpoints: test rows `000000000000`, which are not in this repository" in table
    assert "| weights | – | not scored | – | – | – | – |" in table


def test_an_unreadable_file_is_an_entry_without_a_score_after_those_with_one(tiny_zoo: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        invented(tmp_path / name, tiny_zoo)
        card('name = "guess"', f'name = "{name}"')(tmp_path / name)
    (tmp_path / "a" / "mnist.csv").write_bytes(b"\xff\x00")
    (ranking,) = rank(submissions_in(tmp_path), [str(tiny_zoo)])
    assert [(entry["submission"], bool(entry["thresholds"])) for entry in ranking["entries"]] == [
        ("b", True),
        ("a", False),
    ]


def test_what_a_card_says_cannot_become_markup(tiny_zoo: Path, tmp_path: Path) -> None:
    invented(tmp_path / "guess", tiny_zoo)
    card('name = "guess"', 'name = "a | b <img src=x> [c](http://d) $e$ __f__"')(tmp_path / "guess")
    table = render_table("leaderboard", rankings=rank(submissions_in(tmp_path), [str(tiny_zoo)]))
    assert "<img" not in table
    (row,) = (line for line in table.splitlines() if "submissions/guess/card.toml" in line)
    assert row.count("|") == 9
    assert "](http://d)" not in row
    assert not any(markup in row for markup in ("$", "__"))


@pytest.mark.parametrize(
    "name",
    ["a\u202eb", "a\u200bb", "a\u2066b", "\u3164", "a\u2800b", "a\ufe0f", "a" + "\u0301" * 3, "a" * 81],
    ids=["bidi", "zero width", "isolate", "filler", "blank", "variation", "accents", "long"],
)
@pytest.mark.parametrize("key", ["name", "authors"])
def test_a_name_that_is_not_what_it_looks_like_is_refused(name: str, key: str) -> None:
    values = {"name": name} if key == "name" else {"authors": (name,)}
    with pytest.raises(ValueError, match=f"{key} must be one line of at most 80 printable characters"):
        replace(CARD, **values)
    assert replace(CARD, name="Noël’s Ω-net (ß)", authors=("Nguyễn Văn A", "山田太郎", "دانا")).authors


def test_the_heading_of_a_ranking_is_not_a_card_s(tiny_zoo: Path, tmp_path: Path) -> None:
    rows = invented(tmp_path / "guess", tiny_zoo)
    card('zoo = "tiny"', 'zoo = "the official benchmark"')(tmp_path / "guess")
    table = render_table("leaderboard", rankings=rank(submissions_in(tmp_path), [str(tiny_zoo)]))
    assert f"**mnist** of zoo, all checkpoints: {len(rows.keys)} test rows `{rows.sha256[:12]}`\n" in table
    assert "official" not in table


def test_copied_predictions_and_names_are_refused_naming_both(tmp_path: Path, capsys) -> None:
    """Against what is in the repository, also where the copy was rounded, or some of it was changed."""
    original, copy = ROOT / "benchmarks" / "submissions" / "invariant_nfn", tmp_path / "better"
    shutil.copytree(original, copy)
    card("The Small Transformer Zoo authors", "Charles")(copy)
    message = refusal(main, ["check", str(copy)], capsys)
    assert f"{copy} has the name of {original}, 'Invariant-NFN': choose another" in message
    card("Invariant-NFN", "Better-NFN")(copy)
    for path in copy.glob("*.csv"):
        header, *rows = path.read_text().splitlines()
        parts = [row.rsplit(",", 1) for row in rows]
        changed = [f"{key},{0.5 if at % 4 == 0 else float(value):.5f}" for at, (key, value) in enumerate(parts)]
        path.write_text("\n".join([header, *changed]) + "\n")
    message = refusal(main, ["check", str(copy)], capsys)
    assert re.search(rf"{copy}/\S+ has \d+ of its \d+ predictions in common with {original}/", message)
    with pytest.raises(ValueError, match="predictions in common with"):
        rank([Submission.read(original), Submission.read(copy)], ["small-transformer-zoo"])
    refuse_copies(submissions_in(original.parent))


def test_a_submission_of_other_authors_is_not_replaced(tiny_zoo: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(leaderboard, "_fit", None)
    invented(tmp_path / "guess", tiny_zoo)
    before = (tmp_path / "guess" / "card.toml").read_bytes()
    words = ["submit", "mlp", "--zoo", str(tiny_zoo), "--out", str(tmp_path / "guess"), "--authors", "Charles"]
    assert "guess is a submission of Ada Lovelace: choose another folder" in refusal(main, words, capsys)
    assert (tmp_path / "guess" / "card.toml").read_bytes() == before


def test_the_committed_ranking_is_that_of_the_committed_submissions() -> None:
    submissions = submissions_in(ROOT / "benchmarks" / "submissions")
    names = {submission.name for submission in submissions}
    assert names >= {"hyperparameters", "mlp", "statnn", "transformer_nfn", "invariant_nfn"}
    assert rank(submissions, ["small-transformer-zoo"]) == json.loads((ROOT / _RANKING).read_text())["zoos"]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a contributor changes of this repository, with the bundled sample beside it."""
    for document in _DOCUMENTS:
        (tmp_path / document).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / document, tmp_path / document)
    shutil.copytree(ROOT / _TEMPLATES, tmp_path / _TEMPLATES)
    for folder in ("submissions", "results"):
        shutil.copytree(ROOT / "benchmarks" / folder, tmp_path / "benchmarks" / folder)
    (tmp_path / "small-transformer-zoo").symlink_to(ROOT / "small-transformer-zoo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def leaderboard_section(document: Path) -> str:
    return re.split(r"^## ", document.read_text().partition("\n## Leaderboard\n")[2], flags=re.MULTILINE)[0]


def forge(clone: Path) -> None:
    """A submission that nobody can score, with a hand-written row of the highest τ, and a higher τ of another."""
    folder = clone / "benchmarks" / "submissions" / "forged"
    shutil.copytree(folder.parent / "invariant_nfn", folder)
    for path in folder.glob("*.csv"):
        rows = path.stem.rpartition(".")[2]
        path.write_bytes(b"\xff unreadable")
        card(f'test_rows = "{rows}', f'test_rows = "{rows[::-1]}')(folder)
    card('name = "Invariant-NFN"', 'name = "Forged"')(folder)
    zoos = json.loads((clone / _RANKING).read_text())["zoos"]
    measured = str(zoos[0]["entries"][-1]["thresholds"][0]["value"])
    sha256 = hashlib.sha256(b"\xff unreadable").hexdigest()
    for zoo in list(zoos):
        first = zoo["entries"][0]
        best = [tau | {"value": 0.999, "low": 0.998, "high": 1.0} for tau in first["thresholds"]]
        row = first | {"submission": "forged", "name": "Forged", "predictions_sha256": sha256, "thresholds": best}
        zoos.append(zoo | {"test_rows": zoo["test_rows"][7::-1] + zoo["test_rows"][8:], "entries": [row]})
    (clone / _RANKING).write_text(json.dumps({"zoos": zoos}, indent=1).replace(measured, "0.999598"))


@pytest.mark.long
def test_a_hand_written_score_reaches_no_document(clone: Path, capsys) -> None:
    for template in _DOCUMENTS.values():
        (clone / _TEMPLATES / template).write_text("\n## Leaderboard\n{{ leaderboard() }}\n")
    forge(clone)
    assert "0.999" in (clone / _RANKING).read_text()
    with pytest.raises(SystemExit) as ended:
        report.main(["--check", "--root", str(clone)])
    assert ended.value.code == 1
    assert re.search(rf"^{_RANKING}, line \d+ is out of date: run python", capsys.readouterr().err, re.MULTILINE)
    main(["table", "--root", str(clone)])
    assert "not scored" in capsys.readouterr().out, "the ranking is printed"
    written = [leaderboard_section(clone / "benchmarks" / name) for name in ("README.md", "RESULTS.md")]
    for text in (*written, (clone / _RANKING).read_text()):
        assert "0.999" not in text
    assert all("| not scored |" in text for text in written)
    report.main(["--check", "--root", str(clone)])


@pytest.mark.parametrize("document", ["README.md", "RESULTS.md"])
def test_the_page_of_the_leaderboard_tells_what_a_score_is_worth(document: str) -> None:
    section = " ".join(leaderboard_section(ROOT / "benchmarks" / document).split())
    assert re.search("The labels are public, (so|and) a score is as honest as its author", section)


@pytest.mark.long
def test_following_contributing_adds_both_submissions(clone: Path, capsys) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    example = EXAMPLE.search((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8"))
    assert example
    (clone / "my_module.py").write_text(example[1])
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text.partition("## Add a submission")[2], re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["", "python", "toml", ""]
    for place, (kind, block) in enumerate(blocks):
        if kind == "python":
            exec(block, {})  # noqa: S102
        elif kind == "toml":
            (clone / "benchmarks" / "submissions" / "size-of-weights" / "card.toml").write_text(block)
        else:
            for line in block.splitlines():
                words = shlex.split(line)
                assert words[:3] == ["python", "-m", "benchmarks.leaderboard"]
                if words[3] != "table":
                    main(words[3:])
                elif place == len(blocks) - 1:  # the first table would be made again
                    main([*words[3:], "--root", str(clone)])
    printed = capsys.readouterr().out
    again = re.search(r"fitted again: changes by (.+) under the group, (.+) from what was submitted", printed)
    assert again
    assert float(again[1]) > 1e-6, "it reads the weights as they are"
    assert float(again[2]) < 1e-6
    table = (clone / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert "[NearestRun](submissions/nearest-run/card.toml)" in table
    assert "[size of the weights](submissions/size-of-weights/card.toml)" in table
    assert "nearest-run" in (clone / "benchmarks" / "results" / "leaderboard.json").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--paper", "ftp://arxiv.org"], "paper must be an address that begins with https://"),
        (["--seed", "-1"], "--seed: must be a whole number from 0 to 4,294,967,295, got '-1'"),
        (["--jobs", "-3"], "--jobs: must be a whole number of at least 1, got '-3'"),
        (["--out", "foreign"], "foreign/card.toml is missing"),
        (["--out", "file"], "file is not a folder"),
    ],
)
def test_bad_options_are_refused_before_the_fit(
    words: list[str], message: str, tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leaderboard, "_fit", None)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["submit", "mlp", "--zoo", str(tiny_zoo), "--out", "guess", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_empty_folder_takes_a_new_submission(tiny_zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "guess").mkdir()
    invented(tmp_path / "guess", tiny_zoo)
    assert Card.read(tmp_path / "guess").name == "guess"


def test_cards_name_the_probes_of_every_model_that_runs_checkpoints():
    reading = [name for name, model in MODELS.items() if "probes" in model.reads]
    assert reading == ["probes", "hidden_probe_nfn", "probe_gen_nfn"]


@pytest.mark.long
def test_an_average_is_submitted_and_checked_by_fitting_its_parts(tiny_zoo: Path, tmp_path: Path, capsys) -> None:
    model, folder = "gauge_nfn_hyperparameters", tmp_path / "average"
    zoo = ["--zoo", str(tiny_zoo), "--jobs", "1", "--device", "cpu"]
    main(["submit", model, *zoo, "--checkpoint", "best", "--out", str(folder)])
    written = Card.read(folder)
    assert written.reads == ("weights", "hyperparameters")
    assert written.predictions[0].change_under_group is None
    main(["check", str(folder), *zoo, "--predictor", model])
    again = re.search(r"fitted again: (\S+) from what was submitted", capsys.readouterr().out)
    assert again
    assert float(again[1]) < 1e-6


def test_a_table_of_no_clone_is_refused_and_creates_nothing(tmp_path: Path, capsys) -> None:
    root = tmp_path / "nowhere"
    assert f"no benchmarks/templates in {root}" in refusal(main, ["table", "--root", str(root)], capsys)
    assert not root.exists()


def test_a_card_that_says_it_moves_less_than_it_does_is_refused(clone: Path, tiny_zoo: Path, capsys) -> None:
    (clone / "raw.py").write_text(
        "class First:\n"
        "    def fit(self, train, validation): pass\n"
        "    def predict(self, rows): return rows.weights[:, 70:90].sum(1).sigmoid()\n"
    )
    words = ["submit", "raw:First", "--zoo", str(tiny_zoo), "--checkpoint", "best", "--out", "first"]
    assert "a submission has authors" in refusal(main, words, capsys)
    main([*words, "--authors", "Ada", "--name", "First weights"])
    check = ["check", "first", "--zoo", str(tiny_zoo), "--predictor", "raw:First"]
    main(check)
    text = (clone / "first" / "card.toml").read_text()
    said = re.search(r"change_under_group = (.*)", text)
    assert said
    assert float(said[1]) > 0.01
    card(said[0], "change_under_group = 0.0")(clone / "first")
    assert "under the group, its card says 0" in refusal(main, check, capsys)
