"""The commands of an installed package: without a clone around them they work, or name in one line what they need."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import results
from tests.fabricated import TINY_MNIST, fabricate_shard

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
PACKAGES = ("zoo", "generation", "nfn", "benchmarks")
# runs the commands of a JSON list of [folder, words] one after the other: torch is imported once
SEVERAL_COMMANDS = """
import contextlib, io, json, os, sys, zoo.__main__
print(zoo.__file__)
for folder, words in json.loads(sys.argv[1]):
    os.chdir(folder)
    sys.argv = ["small-transformer-zoo", *words]
    code, out, errors = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            zoo.__main__.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), errors.getvalue()]))
"""


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    errors: str


def python(*words: str | Path, **environment: str) -> str:
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this working tree, built from a copy and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    python("-m", "pip", "wheel", *options, "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    python("-m", "pip", "install", *options, "--no-compile", "--target", folder / "site", wheel)
    return folder / "site"


def test_the_wheel_has_every_file_but_the_documents_and_rows_of_a_clone(installed: Path) -> None:
    kept = {".py", ".md", ".cu", ".cuh", ".html", ".css", ".js", ".txt"}
    documents = {Path("benchmarks/README.md"), Path("benchmarks/RESULTS.md"), Path("generation/README.md")}
    for package in PACKAGES:
        paths = (path.relative_to(ROOT) for path in (ROOT / package).rglob("*") if path.suffix in kept)
        expected = {path for path in paths if "results" not in path.parts} - documents
        assert not {path for path in expected if not (installed / path).is_file()}
    assert (installed / "bin" / "small-transformer-zoo").is_file()
    fitted = {path.relative_to(ROOT) for path in (ROOT / "nfn" / "pretrained").iterdir()}
    assert len(fitted) >= 6, "predictors and their cards"
    assert all((installed / path).is_file() for path in fitted)


def test_census_and_report_work_or_name_what_they_need(installed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=6)
    commands = [
        (tmp_path, ["census"]),
        (empty, ["census"]),
        (empty, ["report", "--check"]),
        (ROOT, ["report", "--check"]),
    ]
    words = json.dumps([(str(folder), words) for folder, words in commands])
    where, *lines = python("-P", "-c", SEVERAL_COMMANDS, words, PYTHONPATH=str(installed)).splitlines()
    assert Path(where).parent == installed / "zoo"
    census, nothing, outside, inside = (Ended(*json.loads(line)) for line in lines)

    assert census.code == 0, census.errors
    assert "mnist, shard 0, demo preset" in census.out
    counted = {row.metric: row.value for row in results.read("census", tmp_path / "results")}
    assert counted["runs"] == 6, "its rows are where the user stands"
    assert nothing.code == outside.code == 2
    assert nothing.errors.startswith("error: runs")
    assert outside.errors.startswith("error: no benchmarks/templates in this folder: the report is of a clone")
    assert nothing.errors.count("\n") == outside.errors.count("\n") == 1
    assert (inside.code, inside.errors) == (0, "")
    assert inside.out.endswith("up to date\n")
