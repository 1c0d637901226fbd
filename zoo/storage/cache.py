"""Where this project keeps what can be made or fetched again: one folder in the user's cache."""

import os
from pathlib import Path

CACHE_VARIABLE, DATA_VARIABLE = "SMALL_TRANSFORMER_ZOO_CACHE", "SMALL_TRANSFORMER_ZOO_DATA"


def cache_folder() -> Path:
    """``$SMALL_TRANSFORMER_ZOO_CACHE``, else ``small-transformer-zoo`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "small-transformer-zoo"


def data_folder() -> Path:
    """Where task data lies when nobody names a folder: ``$SMALL_TRANSFORMER_ZOO_DATA``, else in the cache."""
    return Path(os.environ.get(DATA_VARIABLE) or cache_folder() / "data")
