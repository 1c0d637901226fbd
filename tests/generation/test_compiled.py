"""The fused engine's kernels through NVIDIA's runtime compiler, which needs no GPU."""

import sys
from pathlib import Path

import pytest

from generation.fused import compiled
from generation.fused.variants import _LARGEST, _SMALLEST, _VARIANTS, Variant
from tests.kernel_resources import _ARCHITECTURES, _fits, _measure, main
from tests.refusal import refusal
from zoo.reading.locate import _CACHE_VARIABLE
from zoo.transformer.spec import AGNEWS, MNIST, SHAKESPEARE, TransformerSpec

pytest.importorskip("cuda.core", reason="needs cuda-core")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")
ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(_CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.long
@pytest.mark.parametrize("spec", [MNIST, AGNEWS, SHAKESPEARE], ids=lambda spec: spec.task)
@pytest.mark.parametrize(
    ("kernel", "architecture", "variant"),
    [("train_epoch", "sm_90", _LARGEST), ("evaluate", "sm_100", _LARGEST), ("evaluate", "sm_80", _VARIANTS[1])],
    ids=["train_epoch-sm_90", "evaluate-sm_100", "evaluate-sm_80"],
)
def test_kernels_compile(kernel: str, spec: TransformerSpec, architecture: str, variant: Variant) -> None:
    code = compiled._machine_code(kernel, spec, architecture, variant)
    assert code.startswith(ELF)
    assert kernel.encode() in code
    assert f"{kernel}_needs".encode() in code


@pytest.mark.long
@pytest.mark.parametrize(("blocks", "most_spilled"), [(1, 0), (4, 32)])
def test_kernels_of_another_shape_compile_and_spill_no_more(blocks: int, most_spilled: int) -> None:
    """45 tokens of an image and 16 classes; with four blocks gradients wait in device memory."""
    spec = TransformerSpec("strips", classes=16, tokens=45, patch_size=4, blocks=blocks)
    registers, spilled, _, shared = _measure("train_epoch", spec, "sm_80", _VARIANTS[1])
    assert registers <= 255
    assert spilled <= most_spilled
    assert 0 < shared <= _VARIANTS[1].shared_bytes


def test_compiled_code_is_kept_and_named_after_everything_it_is_made_of(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = compiled._machine_code("evaluate", MNIST, "sm_90", _LARGEST)
    (kept,) = cache.iterdir()
    assert kept.read_bytes() == code
    kept.write_bytes(b"from the cache")
    assert compiled._machine_code("evaluate", MNIST, "sm_90", _LARGEST) == b"from the cache"
    changed = tmp_path / "kernels"
    changed.mkdir()
    for source in compiled._SOURCES.iterdir():
        (changed / source.name).write_bytes(source.read_bytes())
    with (changed / "norm.cuh").open("a") as header:
        header.write("// changed\n")
    monkeypatch.setattr(compiled, "_SOURCES", changed)
    assert compiled._machine_code("evaluate", MNIST, "sm_90", _LARGEST).startswith(ELF)


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="compiled kernels cannot be kept"):
        assert compiled._machine_code("evaluate", MNIST, "sm_90", _LARGEST).startswith(ELF)


@pytest.mark.long
def test_resources_of_the_smallest_variant() -> None:
    """One of the rows that ``python -m tests.kernel_resources`` prints."""
    registers, spilled, threads, shared = _measure("train_epoch", MNIST, "sm_86", _SMALLEST)
    assert registers <= 255
    assert spilled < 256
    assert threads == 256
    assert 0 < shared <= _SMALLEST.shared_bytes
    best = {
        architecture: next(v.name for v in _VARIANTS if _fits(v, architecture, MNIST))
        for architecture in _ARCHITECTURES
    }
    assert best == {
        "sm_80": "medium", "sm_86": "small", "sm_89": "small", "sm_90": "large", "sm_100": "large", "sm_120": "small",
    }  # fmt: skip


def test_an_architecture_that_fits_nothing_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--architecture", "sm_86", "sm_89", "--dim", "64", "--heads", "4", "--hidden-dim", "128"])
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{name}    no variant fits mnist, agnews, shakespeare in 99 KiB of shared memory"
        for name in ("sm_86", "sm_89")
    ]


def test_without_cuda_core_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    assert "pip install 'small-transformer-zoo[fused]'" in refusal(main, [], capsys)
