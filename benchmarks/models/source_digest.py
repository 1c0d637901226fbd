"""The identity of a user's source code, so that a model whose code has changed is fitted again."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

OURS = ("zoo", "generation", "nfn", "benchmarks")
DIGITS = 16


def source_digest(modules: Sequence[ModuleType]) -> str:
    """A hash of the source of these modules, and of those beside them that they import."""
    found: dict[str, bytes] = {}
    for module in modules:
        collect(module, found)
    hashes = (f"{name} {hashlib.sha256(source).hexdigest()}" for name, source in sorted(found.items()))
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:DIGITS]


def collect(module: ModuleType, found: dict[str, bytes]) -> None:
    """Adds the source of a module and of all it imports from its own folder or package."""
    path = source_file(module)
    if module.__name__ in found or path is None:
        return
    found[module.__name__] = path.read_bytes()
    for name in imported_names(ast.parse(found[module.__name__]), module.__package__ or ""):
        other = sys.modules.get(name)
        if other is not None and belong_together(module, other):
            collect(other, found)


def belong_together(module: ModuleType, other: ModuleType) -> bool:
    """Whether both are of one package, or lie in one folder of the user's. This project has its own editions."""
    first, second = (one.__name__.partition(".")[0] for one in (module, other))
    folder = top_folder(module)
    beside = folder is not None and folder == top_folder(other) and "site-packages" not in folder.parts
    return first == second or (beside and second not in OURS)


def top_folder(module: ModuleType) -> Path | None:
    """The folder that the module's first name lies in; None for a module without source."""
    path = source_file(module)
    if path is None:
        return None
    depth = module.__name__.count(".") + (1 if hasattr(module, "__path__") else 0)
    return path.parents[depth] if depth < len(path.parents) else None


def source_file(module: ModuleType) -> Path | None:
    """None for what is compiled or built in."""
    path = Path(getattr(module, "__file__", None) or "").resolve()
    return path if path.suffix == ".py" and path.is_file() else None


def imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Every name that may be a module in the import statements of a source file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level > len(package.split(".") if package else ()):
                continue  # beyond the package: an import that fails
            start = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield start
            for alias in node.names:
                yield f"{start}.{alias.name}"
