"""Verifying and publishing agree on what is not part of a zoo."""

from pathlib import Path

import pytest

from tests.fabricated import folder_contents
from tests.refusal import refusal
from zoo.publish import main as publish
from zoo.verify import main as verify

STRAYS = {
    "notes.txt": "notes.txt",
    ".notes": ".notes",
    "mnist/.train-00000-of-00001.arrow.x1y2.part": "mnist/.train-00000-of-00001.arrow.x1y2.part",
    "mnist/.git/config": "mnist/.git",
    "drafts/.keep": "drafts",
    ".drafts/notes.txt": ".drafts",
}
"""Files put there by hand, and the entry that is named for each."""


def put(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine")


@pytest.mark.parametrize(("name", "entry"), STRAYS.items())
def test_both_commands_name_the_same_stray(
    spoiled: Path, made: Path, capsys: pytest.CaptureFixture[str], name: str, entry: str
) -> None:
    put(spoiled, name)
    with pytest.raises(SystemExit) as ended:
        verify([str(spoiled)])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {spoiled / entry} is not listed in the manifest\n"
    line = refusal(publish, [str(made / "runs"), str(spoiled)], capsys)
    assert line == f"error: {spoiled / entry} is not part of the zoo and would be lost: move it away first\n"


@pytest.mark.parametrize("name", [".git/config", ".gitattributes", ".cache/huggingface/lock", "predictors/mnist.toml"])
def test_files_of_git_and_the_hub_beside_a_zoo_are_not_faults_and_not_deleted(
    spoiled: Path, made: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(spoiled, name)
    verify([str(spoiled)])
    assert "no faults" in capsys.readouterr().out
    before = folder_contents(spoiled)
    entry = spoiled / name.split("/")[0]
    assert f"{entry} is not part of the zoo" in refusal(publish, [str(made / "runs"), str(spoiled)], capsys)
    assert folder_contents(spoiled) == before


def test_an_empty_folder_is_named_by_both(spoiled: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (spoiled / "mnist" / "new").mkdir()
    with pytest.raises(SystemExit):
        verify([str(spoiled)])
    assert f"{spoiled / 'mnist/new'} is not listed" in capsys.readouterr().err
    assert f"{spoiled / 'mnist/new'} is not part" in refusal(publish, [str(made / "runs"), str(spoiled)], capsys)


def test_files_behind_a_link_are_read_but_not_replaced(
    spoiled: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spoiled / "mnist").rename(tmp_path / "elsewhere")
    (spoiled / "mnist").symlink_to(tmp_path / "elsewhere")
    verify([str(spoiled)])
    assert "no faults" in capsys.readouterr().out
    assert f"{spoiled / 'mnist'} is not part of the zoo" in refusal(publish, [str(made / "runs"), str(spoiled)], capsys)
