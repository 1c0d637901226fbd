"""The experiment in README.md runs as it stands and learns something; its tree and its extras are complete."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENT = re.compile(r"^## Load and learn\n.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_the_experiment_of_the_readme_prints_the_tau_it_names():
    """Chance gives 0. The weights it starts from are fixed, so that another machine differs by rounding alone."""
    match = EXPERIMENT.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert match, "README.md has a python block under Load and learn"
    written = float(match[1].splitlines()[-1].rpartition("#")[2])
    command = [sys.executable, "-W", "error", "-c", match[1]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    printed = float(finished.stdout.rpartition(":")[2])
    assert printed > 0.5
    assert printed == pytest.approx(written, abs=0.1)


def test_the_tree_of_the_readme_has_one_line_per_folder():
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is where")[2].split("```")[1]
    lines = [line.partition("/")[0] for line in tree.strip().splitlines()]
    package, written = "", []
    for name in lines:
        package = package if name.startswith(" ") else name
        written.append(name if name == package else f"{package}/{name.strip()}")
    folders = [
        path.relative_to(ROOT).as_posix()
        for name in ("zoo", "generation", "nfn", "benchmarks")
        for path in (ROOT / name, *(ROOT / name).iterdir())
        if path.is_dir() and not path.name.startswith("__")
    ]
    assert sorted(written) == sorted([*folders, "examples", "tests", "small-transformer-zoo"])


def test_the_readme_says_what_each_extra_is_for():
    install = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[2].partition("\n## ")[0]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(f"`{extra}`" in install for extra in extras)
