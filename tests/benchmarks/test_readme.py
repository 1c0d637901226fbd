"""The experiment in README.md runs as it stands and learns something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENT = re.compile(r"^## Load and learn\n.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
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
