"""The console script: every verb is a command, and passes its options and exit code on."""

import re
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from zoo.__main__ import _VERBS, main
from zoo.command import _EXTRAS, missing
from zoo.version import VERSION

ROOT = Path(__file__).parent.parent


def test_every_command_has_a_verb_and_every_verb_a_command() -> None:
    commands = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("zoo", "generation", "benchmarks")
        for path in (ROOT / package).glob("*.py")
        if path.name != "command.py"  # whose docstring shows how
        if "@_command" in path.read_text(encoding="utf-8").splitlines()
    }
    assert commands | {"benchmarks.speed", "benchmarks.leaderboard", "zoo.page"} == {
        module for module, _ in _VERBS.values()
    }
    for module, _ in _VERBS.values():
        assert find_spec(module) is not None


def test_without_a_verb_the_list_of_verbs_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code in (([], 2), (["--help"], 0)):
        monkeypatch.setattr(sys, "argv", ["small-transformer-zoo", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
        shown = capsys.readouterr().out
        for verb in _VERBS:
            assert f"  {verb} " in shown


def test_an_unknown_verb_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["small-transformer-zoo", "swim"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: unknown verb 'swim': one of generate, ")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["verify", "nowhere", "--evaluate", "-1"], 2, "error: argument --evaluate: must be a whole number"),
        (["describe", "--help"], 0, "usage: python -m zoo.describe"),
        (["--version"], 0, VERSION),
        (["kendall", "--version"], 0, VERSION),
    ],
)
def test_options_and_exit_codes_pass_through(words: list[str], code: int, message: str) -> None:
    command = [sys.executable, "-m", "zoo", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code
    assert message in done.stdout + done.stderr


def test_help_does_not_wait_for_torch() -> None:
    """All commands in one fresh process: none may leave one of these modules behind."""
    heavy = {"torch", "numpy", "pandas", "pyarrow", "datasets", "scipy", "matplotlib", "ray", "rich"}
    modules = [module for module, _ in _VERBS.values()]
    code = f"""
import runpy, sys
for module in {modules}:
    sys.argv = [module, "--help"]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        print(module, sorted({heavy} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    for module in modules:
        assert f"usage: python -m {module} " in done.stdout
        assert f"{module} []" in done.stdout.splitlines()


NEEDS = {
    ("zoo.page.__main__", "zoo", "site"): "vl_convert",
    ("zoo.describe", "--png", "x.png"): "matplotlib",
    ("generation.launch",): "ray",
    ("benchmarks.page", "zoo", "site"): "vl_convert",
    ("benchmarks.report",): "matplotlib",
    **{
        (f"benchmarks.{name}", *words): "scipy"
        for name, *words in (
            *(["kendall"], ["rows"], ["transfer"], ["ablation_components"], ["ablation_width"], ["augmentation"]),
            *(["predict", "zoo"], ["pretrain", "--out", "x.safetensors"], ["report", "--check"]),
            *(["leaderboard.__main__", "table"], ["leaderboard.__main__", "check", "x"]),
        )
    },
}


@pytest.mark.parametrize("words", NEEDS, ids=" ".join)
def test_a_missing_module_is_named_with_its_extra_before_the_work(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = words
    monkeypatch.setitem(sys.modules, NEEDS[words], None)
    command = import_module(name)._command
    with pytest.raises(SystemExit) as ended:
        command.parse(arguments)
    assert ended.value.code == 2
    extra = next(extra for extra, modules in _EXTRAS.items() if NEEDS[words] in modules)
    line = f"error: {command.name} needs {NEEDS[words]}: pip install 'small-transformer-zoo[{extra}]'\n"
    assert capsys.readouterr().err == line


def test_a_call_needs_no_more_than_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (module for modules in _EXTRAS.values() for module in modules):
        monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    assert missing("it", ["cuda.core"]) == "it needs cuda.core: pip install 'small-transformer-zoo[fused]'"
    for name in ("zoo.describe", "zoo.verify", "benchmarks.census"):
        import_module(name)._command.parse([])


def test_the_modules_of_the_extras_are_those_that_the_package_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {"scikit-learn": "sklearn", "xgboost-cpu": "xgboost", "vl-convert-python": "vl_convert"}
    names |= {"cuda-core": "cuda.core", "cuda-bindings": "cuda.bindings"}
    base = {"jinja2"}  # also a requirement of the package itself
    for extra, modules in _EXTRAS.items():
        asked = {re.split("[>; ]", requirement)[0] for requirement in extras[extra]} - base
        assert {names.get(name, name) for name in asked} == set(modules)


def test_control_c_while_importing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "from dataclasses import dataclass\n"
        "from zoo.command import Command\n"
        "@dataclass\n"
        "class Options: pass\n"
        "Command(__name__, 'slow', None, Options)\n"
        "print('importing', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, str(tmp_path / "slow.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "importing\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate() == ("", "interrupted\n")
    assert child.returncode == 130
