"""A submission or a fitted predictor whose writer is killed: the old one, the new one, never a mixture of both."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.leaderboard.scoring import HeldOutRows
from benchmarks.leaderboard.submission import Card, PredictionSet, Submission, submissions_in, write_submission
from benchmarks.pretrain import _replace_pair
from tests.fabricated import folder_contents
from tests.faults.kill_points import KillPoint, run_to_kill_point
from tests.faults.killing import KILLED
from tests.faults.processes import finish

pytestmark = pytest.mark.long

ROWS = HeldOutRows(
    "mnist", "all", (("1", "best"), ("2", "best")), np.zeros(2, np.float32), np.arange(2), None, 100, "a" * 64
)
OTHER_ROWS = PredictionSet("tiny", "mnist", "best", "b" * 64, "other.csv")


def submit(folder: Path, name: str, prediction: float) -> None:
    predictions = PredictionSet("tiny", "mnist", "all", ROWS.sha256, "mnist.csv")
    card = Card(name, ("Ada Lovelace",), ("weights",), ())
    write_submission(folder, card, predictions, ROWS, np.full(2, prediction))


def kills(phase: str, work: Callable[..., None], arguments: tuple[object, ...], counted: Path) -> Iterator[KillPoint]:
    """Every moment of ``work``: it is killed in the middle of a write, or when a flush or a rename is done."""
    assert finish(run_to_kill_point, work, arguments, KillPoint(phase, None), counted) == 0
    moments = dict(line.split("\t") for line in counted.read_text().splitlines())[phase]
    yield from (KillPoint(phase, moment, after=True) for moment in range(1, int(moments) + 1))


@pytest.mark.parametrize("earlier", [False, True], ids=["a new folder", "an earlier submission"])
def test_a_killed_submission_is_the_old_one_or_the_new_one(earlier: bool, tmp_path: Path) -> None:
    def begin(folder: Path) -> Path:
        if earlier:
            write_submission(
                folder, Card("old", ("Ada Lovelace",), ("weights",), ()), OTHER_ROWS, ROWS, np.full(2, 0.3)
            )
            submit(folder, "old", 0.25)
        return folder

    old = folder_contents(begin(tmp_path / "old" / "guess")) if earlier else {}
    new_folder = begin(tmp_path / "new" / "guess")
    submit(new_folder, "new", 0.75)
    new, left = folder_contents(new_folder), set()
    assert new.keys() == old.keys() | {"card.toml", "mnist.csv"}
    first = begin(tmp_path / "counted" / "guess")
    points = kills("submission", submit, (first, "new", 0.75), tmp_path / "moments")
    for number, point in enumerate(points):
        folder = begin(tmp_path / str(number) / "guess")
        assert finish(run_to_kill_point, submit, (folder, "new", 0.75), point) == KILLED
        there = folder_contents(folder) if folder.exists() else {}
        assert there in (old, new)
        left.add(there == new)
        assert [each.name for each in submissions_in(folder.parent)] == (["guess"] if there else [])
        submit(folder, "new", 0.75)
        assert folder_contents(folder) == new
        assert [path.name for path in folder.parent.iterdir()] == ["guess"], "leftovers of a killed writer"
        assert Submission.read(folder).card.name == "new"
    assert left == ({False, True} if earlier else {False}), "a new folder's rename is not among the moments"


def test_a_killed_fit_leaves_no_predictor_with_the_card_of_another(tmp_path: Path) -> None:
    file = tmp_path / "fitted.safetensors"
    left = set()
    for point in kills("predictor", _replace_pair, (file, b"new", b"new"), tmp_path / "moments"):
        _replace_pair(file, b"old", b"old")
        assert finish(run_to_kill_point, _replace_pair, (file, b"new", b"new"), point) == KILLED
        card = file.with_suffix(".toml")
        left.add((file.read_bytes(), card.read_bytes() if card.exists() else None))
    assert left == {(b"old", None), (b"new", None), (b"new", b"new")}
