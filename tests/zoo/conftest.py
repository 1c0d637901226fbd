"""A fabricated zoo, small enough to copy for every test that spoils one."""

import shutil
from pathlib import Path

import pytest

from tests.fabricated import fabricate_runs, publish


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``runs`` and the ``small-transformer-zoo`` published from them, for tests that only read."""
    root = tmp_path_factory.mktemp("made")
    publish(fabricate_runs(root / "runs"), root / "small-transformer-zoo")
    return root


@pytest.fixture(scope="session")
def zoo_folder(made: Path) -> Path:
    return made / "small-transformer-zoo"


@pytest.fixture
def spoiled(zoo_folder: Path, tmp_path: Path) -> Path:
    """A copy of the zoo to spoil."""
    return Path(shutil.copytree(zoo_folder, tmp_path / "small-transformer-zoo"))


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy of the runs to spoil."""
    return Path(shutil.copytree(made / "runs", tmp_path / "runs"))
