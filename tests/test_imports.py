"""Imports go one way: zoo ← generation, zoo ← nfn, both ← benchmarks; heavy packages only where needed."""

import ast
import re
import subprocess
import sys
from collections.abc import Container
from functools import cache
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

PUBLIC = {"nfn.testing", "benchmarks.inputs"}  # for the tests of users, or named on a command line


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
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
            assert not imported_packages(path) & forbidden, path
            calls = {
                node.func.id
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not calls & {"eval", "exec"}, path


def test_the_main_of_a_command_is_its_last_definition() -> None:
    """Its decorator calls it at once where the module is run as a command: what came later would not be there yet, and
    another call would do everything twice."""
    commands = 0
    for path in (path for package in (*ALLOWED, "tests") for path in (ROOT / package).rglob("*.py")):
        for place, node in enumerate(body := parsed(path).body, start=1):
            decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
            if any(decorator.startswith(("_command", "Command(__name__")) for decorator in decorators):
                where = f"{path.relative_to(ROOT)}, line {node.lineno}"
                assert (getattr(node, "name", None), place) == ("main", len(body)), where
                commands += 1
    assert commands > 20


def public_names(tree: ast.Module) -> set[str]:
    """The functions, classes and constants of a module that have no leading underscore."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = [
                each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])
            ]
            names |= {each.id for each in named if isinstance(each, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def imported_names(tree: ast.Module, modules: Container[str]) -> set[tuple[str, str]]:
    """Names that a module imports, as (module, name): by ``from module import name``, or as ``module.name``."""
    taken: set[tuple[str, str]] = set()
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                taken.add((node.module, alias.name))
                if f"{node.module}.{alias.name}" in modules:
                    aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            taken.add((aliases[node.value.id], node.attr))
    return taken


def test_what_is_internal_to_a_module_has_a_leading_underscore() -> None:
    """A name without one is used by another module or a template; a name with one is not. Tests may use either."""
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): parsed(path)
        for package in ALLOWED
        for path in (ROOT / package).rglob("*.py")
    }
    taken = {
        (module, name)
        for importer, tree in trees.items()
        for module, name in imported_names(tree, trees)
        if module != importer
    }
    for template in (ROOT / "benchmarks" / "templates").rglob("*.j2"):
        names = re.findall(r"\bpaper\.(\w+)", template.read_text(encoding="utf-8"))
        taken |= {("benchmarks.paper", name) for name in names}
    idle = [
        f"{module}.{name}"
        for module, tree in trees.items()
        for name in sorted(public_names(tree) - {"main"})
        if (module, name) not in taken and module not in PUBLIC
    ]
    assert not idle, f"only their own module uses them, so they need a leading underscore: {idle}"
    private = sorted(f"{module}.{name}" for module, name in taken if module in trees and name.startswith("_"))
    assert not private, f"private names of other modules: {private}"
