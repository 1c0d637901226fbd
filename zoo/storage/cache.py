"""Where this project keeps what can be made again: the user's cache folder."""

import os
from pathlib import Path


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "small-transformer-zoo"
