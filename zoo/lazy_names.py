"""The public names of a package, each imported when it is first used, so that ``import zoo`` does not wait for torch.

An ``__init__.py`` lists its names once, as imports for type checkers, which never run:

    if TYPE_CHECKING:
        from zoo.transformer.spec import MNIST as MNIST

    __all__, __getattr__ = lazy_names(__name__, __file__)
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], Any]]:
    """The names that the file imports from modules of its package or of ``zoo``, and the function that finds them."""
    homes = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in (package, "zoo")
        for alias in node.names
    }
    homes.pop("lazy_names", None)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        if module == package:
            return importlib.import_module(f"{module}.{attribute}")
        value = getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    return sorted(homes), find
