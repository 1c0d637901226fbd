"""Verifying and publishing agree on what is not part of a zoo."""

from pathlib import Path

import pytest

from tests.refusal import refusal
from zoo.publish import main as publish
from zoo.testing import folder_contents
from zoo.verify import main as verify

STRAYS = {
    "notes.txt": "notes.txt",
    ".notes": ".notes",
    "mnist/.train-00000-of-00001.arrow.x1y2.part": "mnist/.train-00000-of-00001.arrow.x1y2.part",
    "mnist/.git/config": "mnist/.git",
    "drafts/.keep": "drafts",
    ".drafts/notes.txt": ".drafts",
}
"""Files that somebody put there, and the entry that is named for each."""


def put(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine")


@pytest.mark.parametrize(("name", "entry"), STRAYS.items())
def test_both_commands_name_the_same_stray(
    spoilt: Path, made: Path, capsys: pytest.CaptureFixture[str], name: str, entry: str
) -> None:
    put(spoilt, name)
    with pytest.raises(SystemExit) as ended:
        verify([str(spoilt)])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {spoilt / entry} is not listed in the manifest\n"
    line = refusal(publish, [str(made / "runs"), str(spoilt)], capsys)
    assert line == f"error: {spoilt / entry} is not part of the zoo and would be lost: move it away first\n"


@pytest.mark.parametrize("name", [".git/config", ".gitattributes", ".cache/huggingface/lock", "predictors/mnist.toml"])
def test_what_git_and_the_hub_put_beside_a_zoo_is_no_fault_of_it_and_is_not_deleted(
    spoilt: Path, made: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(spoilt, name)
    verify([str(spoilt)])
    assert "no faults" in capsys.readouterr().out
    before = folder_contents(spoilt)
    entry = spoilt / name.split("/")[0]
    assert f"{entry} is not part of the zoo" in refusal(publish, [str(made / "runs"), str(spoilt)], capsys)
    assert folder_contents(spoilt) == before


def test_an_empty_folder_is_named_by_both(spoilt: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (spoilt / "mnist" / "new").mkdir()
    with pytest.raises(SystemExit):
        verify([str(spoilt)])
    assert f"{spoilt / 'mnist/new'} is not listed" in capsys.readouterr().err
    assert f"{spoilt / 'mnist/new'} is not part" in refusal(publish, [str(made / "runs"), str(spoilt)], capsys)


def test_files_behind_a_link_are_read_but_not_replaced(
    spoilt: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spoilt / "mnist").rename(tmp_path / "elsewhere")
    (spoilt / "mnist").symlink_to(tmp_path / "elsewhere")
    verify([str(spoilt)])
    assert "no faults" in capsys.readouterr().out
    assert f"{spoilt / 'mnist'} is not part of the zoo" in refusal(publish, [str(made / "runs"), str(spoilt)], capsys)
