"""Publish and verify go by one list of rules: neither accepts a cell that the other finds fault with."""

from pathlib import Path

import pytest

from tests.faults.cells import all_cells, outcomes

FAULTS = {
    "test_accuracy": (1.7, -0.1, 0.5, [0.5] * 100),
    "test_loss": (1.7,),
    "run_id": ("0" * 16,),
    "best_epoch": (7,),
    "seed": (1,),
    "train_loss": (-1.0,),
    "status": ("x",),
    "shard": (7,),
    "epoch": (0, 7),
    "dropout": (1.7,),
}


@pytest.mark.long
def test_publish_refuses_what_verify_finds(tmp_path: Path) -> None:
    cells = [cell for cell in all_cells() if cell.value is None or cell.value in FAULTS.get(cell.column, ())]
    accepted = [cell for cell, found in outcomes(tmp_path, cells) if not found]
    assert not accepted


def test_what_is_only_odd_is_published_and_verified(tmp_path: Path) -> None:
    cells = [cell for cell in all_cells() if (cell.column, cell.value) in (("code_version", "x"), ("train_loss", 1.7))]
    assert len(cells) == 2
    assert not any(found for _, found in outcomes(tmp_path, cells))
