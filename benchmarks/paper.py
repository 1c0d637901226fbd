"""The numbers of the paper, to show beside ours: ``paper.toml`` has them, mean and standard error of Kendall's τ."""

import tomllib
from pathlib import Path

_Number = tuple[float, float]
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)
RANGES = (None, 1.0, 10.0, 100.0)
"""Of the entries of M and N; None is the original data."""
TRAIN_ROWS = 11_200  # 70 % of its 16,000 runs per task
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

KENDALL: dict[str, dict[str, dict[float, _Number]]] = {
    config: {model: dict(zip(THRESHOLDS, map(tuple, row), strict=True)) for model, row in models.items()}
    for config, models in _TABLES["kendall"].items()
}
COMPONENTS: dict[str, dict[tuple[str, ...], _Number]] = {
    config: {tuple(names.split(" + ")): tuple(number) for names, number in rows.items()}
    for config, rows in _TABLES["components"].items()
}
WIDTHS: dict[tuple[int, ...], _Number] = {
    tuple(map(int, channels.split(" + "))): tuple(number) for channels, number in _TABLES["widths"].items()
}
AUGMENTATION: dict[str, dict[float | None, _Number]] = {
    model: dict(zip(RANGES, map(tuple, row), strict=True)) for model, row in _TABLES["augmentation"].items()
}
