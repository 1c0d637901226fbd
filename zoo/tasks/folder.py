"""Where task data lies when nobody names a folder."""

import os
from pathlib import Path

DEFAULT_FOLDER = Path(
    os.environ.get("SMALL_TRANSFORMER_ZOO_DATA", Path.home() / ".cache" / "small-transformer-zoo" / "data")
)
