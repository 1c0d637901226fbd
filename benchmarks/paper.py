"""The numbers of the paper, to show beside ours: Kendall's τ as mean and standard error of five seeds."""

_Number = tuple[float, float]
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)
TRAIN_ROWS = 11_200  # 70 % of its 16,000 runs per task


def _row(*numbers: _Number) -> dict[float, _Number]:
    return dict(zip(THRESHOLDS, numbers, strict=True))


# tab:mnist-transformer, tab:agnews-transformer
KENDALL: dict[str, dict[str, dict[float, _Number]]] = {
    "mnist": {
        "mlp": _row((0.866, 0.002), (0.873, 0.001), (0.874, 0.003), (0.874, 0.006), (0.873, 0.007)),
        "statnn": _row((0.881, 0.001), (0.872, 0.001), (0.868, 0.001), (0.86, 0.001), (0.856, 0.001)),
        "xgboost": _row((0.860, 0.002), (0.839, 0.004), (0.869, 0.003), (0.846, 0.001), (0.884, 0.001)),
        "lightgbm": _row((0.858, 0.002), (0.835, 0.001), (0.847, 0.001), (0.822, 0.001), (0.830, 0.001)),
        "random_forest": _row((0.772, 0.002), (0.758, 0.004), (0.769, 0.001), (0.752, 0.001), (0.759, 0.001)),
        "transformer_nfn": _row((0.905, 0.002), (0.899, 0.001), (0.895, 0.001), (0.895, 0.002), (0.888, 0.002)),
    },
    "agnews": {
        "mlp": _row((0.879, 0.006), (0.875, 0.001), (0.841, 0.012), (0.842, 0.001), (0.862, 0.006)),
        "statnn": _row((0.841, 0.002), (0.839, 0.003), (0.812, 0.003), (0.813, 0.001), (0.812, 0.001)),
        "xgboost": _row((0.859, 0.001), (0.852, 0.002), (0.872, 0.002), (0.874, 0.001), (0.872, 0.001)),
        "lightgbm": _row((0.835, 0.001), (0.845, 0.001), (0.837, 0.001), (0.835, 0.001), (0.820, 0.001)),
        "random_forest": _row((0.774, 0.003), (0.801, 0.001), (0.797, 0.001), (0.798, 0.002), (0.773, 0.001)),
        "transformer_nfn": _row((0.910, 0.001), (0.908, 0.001), (0.897, 0.001), (0.896, 0.001), (0.890, 0.001)),
    },
}

# tab:ablation-components; AG News has no trainable embedding
COMPONENTS: dict[str, dict[tuple[str, ...], _Number]] = {
    "mnist": {
        ("encoder",): (0.902, 0.001),
        ("embedding",): (0.424, 0.002),
        ("classifier",): (0.847, 0.001),
        ("embedding", "classifier"): (0.857, 0.003),
        ("encoder", "classifier"): (0.904, 0.001),
        ("embedding", "encoder"): (0.903, 0.001),
        ("embedding", "encoder", "classifier"): (0.905, 0.002),
    },
    "agnews": {
        ("encoder",): (0.909, 0.001),
        ("classifier",): (0.795, 0.008),
        ("encoder", "classifier"): (0.910, 0.001),
    },
}

# tab:ablation-hidden-dim, AG News
WIDTHS: dict[tuple[int, ...], _Number] = {
    (3,): (0.907, 0.002),
    (5,): (0.909, 0.002),
    (10,): (0.909, 0.001),
    (15,): (0.913, 0.001),
    (3, 3): (0.905, 0.003),
    (5, 5): (0.911, 0.002),
    (10, 10): (0.913, 0.001),
    (15, 15): (0.913, 0.002),
}

# tab:augmented_agnews: the original data, then the ranges of the entries of M and N
RANGES = (None, 1.0, 10.0, 100.0)
AUGMENTATION: dict[str, dict[float | None, _Number]] = {
    name: dict(zip(RANGES, numbers, strict=True))
    for name, numbers in {
        "xgboost": ((0.859, 0.001), (0.799, 0.003), (0.800, 0.001), (0.802, 0.003)),
        "lightgbm": ((0.835, 0.001), (0.785, 0.003), (0.784, 0.003), (0.786, 0.004)),
        "random_forest": ((0.774, 0.003), (0.714, 0.001), (0.715, 0.002), (0.716, 0.002)),
        "mlp": ((0.879, 0.006), (0.830, 0.002), (0.833, 0.002), (0.833, 0.005)),
        "statnn": ((0.841, 0.002), (0.793, 0.003), (0.791, 0.003), (0.771, 0.013)),
        "transformer_nfn": ((0.910, 0.001), (0.912, 0.001), (0.912, 0.002), (0.913, 0.001)),
    }.items()
}
