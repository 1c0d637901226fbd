"""The fused engine's kernels through NVIDIA's runtime compiler, which needs no GPU."""

from pathlib import Path

import pytest

from generation.fused import compiled
from zoo.storage.cache import CACHE_VARIABLE
from zoo.transformer.spec import AGNEWS, MNIST, TransformerSpec

pytest.importorskip("cuda.core", reason="needs cuda-core")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")
ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("spec", [MNIST, AGNEWS], ids=["mnist", "agnews"])
@pytest.mark.parametrize(
    ("kernel", "architecture"), [("train_epoch", "sm_90"), ("evaluate", "sm_90"), ("evaluate", "sm_100")]
)
def test_kernels_compile(kernel: str, spec: TransformerSpec, architecture: str) -> None:
    code = compiled.machine_code(kernel, spec, architecture)
    assert code.startswith(ELF)
    assert kernel.encode() in code
    assert f"{kernel}_needs".encode() in code


def test_compiled_code_is_kept_and_named_after_everything_it_is_made_of(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = compiled.machine_code("evaluate", MNIST, "sm_90")
    (kept,) = cache.iterdir()
    assert kept.read_bytes() == code
    kept.write_bytes(b"from the cache")
    assert compiled.machine_code("evaluate", MNIST, "sm_90") == b"from the cache"
    changed = tmp_path / "kernels"
    changed.mkdir()
    for source in compiled.SOURCES.iterdir():
        (changed / source.name).write_bytes(source.read_bytes())
    with (changed / "norm.cuh").open("a") as header:
        header.write("// changed\n")
    monkeypatch.setattr(compiled, "SOURCES", changed)
    assert compiled.machine_code("evaluate", MNIST, "sm_90").startswith(ELF)


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="compiled kernels cannot be kept"):
        assert compiled.machine_code("evaluate", MNIST, "sm_90").startswith(ELF)
