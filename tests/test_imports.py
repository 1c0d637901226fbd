"""Imports go one way: zoo ← generation, zoo ← nfn, both ← benchmarks; heavy packages only where needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "zoo": {"zoo"},
    "generation": {"zoo", "generation"},
    "nfn": {"zoo", "nfn"},
    "benchmarks": {"zoo", "nfn", "benchmarks"},
}
# they measure the generator, so they alone may import it
OF_GENERATION = {Path("benchmarks/speed/training.py"), Path("benchmarks/fidelity.py")}


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        allowed = ALLOWED[package] | ({"generation"} if path.relative_to(ROOT) in OF_GENERATION else set())
        foreign = imported_packages(path) & ALLOWED.keys() - allowed
        assert not foreign, f"{path.relative_to(ROOT)} must not import {foreign}"


def test_optional_packages_are_imported_lazily() -> None:
    heavy = [
        "torchvision",
        "gensim",
        "mlxtend",
        "matplotlib",
        "sklearn",
        "lightgbm",
        "xgboost",
        "scipy",
        "ray",
        "datasets",
    ]
    modules = ["zoo", "nfn", "generation.run", "generation.launch", "benchmarks.kendall", "benchmarks.report"]
    code = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
    print(module, [name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [f"{module} []" for module in modules]


def test_nothing_is_unpickled_or_evaluated() -> None:
    forbidden = {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert not imported_packages(path) & forbidden, path
            calls = {
                node.func.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not calls & {"eval", "exec"}, path
