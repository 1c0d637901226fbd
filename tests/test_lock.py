"""The lock file has the versions of the constraints, each with hashes, and make installs what it lists."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = {"torch", "torchvision"}
"""Their builds differ between machines: see .ci/lock.py."""


def test_the_lock_file_has_a_hash_for_every_pinned_version() -> None:
    pins = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")}
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert re.fullmatch(r"setuptools==[\d.]+", build)
    wanted = {pin for pin in pins if pin.partition("==")[0] not in LEFT_OUT} | {build}
    entries = re.split(r"\n(?=\S)", (ROOT / "constraints.lock").read_text().strip())[1:]
    locked = {
        entry.split(" ", 1)[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}(?: \\)?$", entry, re.M) for entry in entries
    }
    assert locked.keys() == wanted
    assert all(len(hashes) == entry.count("\n") >= 1 for entry, hashes in zip(entries, locked.values(), strict=True))


def test_make_installs_only_torch_and_this_clone_without_hashes() -> None:
    recipes = (ROOT / "Makefile").read_text()
    installs = re.findall(r"pip install --quiet (.*)", recipes)
    assert len(installs) == recipes.count("pip install")
    assert installs == [
        "--require-hashes --no-deps --requirement constraints.lock",
        "--constraint constraints.txt torch torchvision",
        "--no-deps --no-build-isolation --editable .",
    ]
    assert "$(INSTALLED): pyproject.toml constraints.txt constraints.lock\n" in recipes


def test_what_macos_lacks_is_not_installed_there() -> None:
    """None of these is published for macOS; xgboost takes the place of one."""
    lock = (ROOT / "constraints.lock").read_text()
    markers = dict(re.findall(r"^(\S+)==\S+ ; sys_platform (.+) \\$", lock, re.M))
    linux = dict.fromkeys(("cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc"), '== "linux"')
    assert markers == linux | {"xgboost-cpu": '!= "darwin"', "xgboost": '== "darwin"'}
