"""Untrusted files: always our own error, never a crash, a hang, much memory, or a path outside the folder."""

import contextlib
import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fabricated import TINY_MNIST
from tests.faults.fuzzing import fuzz, read_hostile, read_with_an_eye_on_pickles
from tests.faults.hostile import KINDS, Change
from tests.faults.processes import finish
from tests.faults.readers import READERS, RIGHT, Reader, deep_json, long_header
from zoo.format.manifest import _is_inside
from zoo.format.schema import checkpoint_schema

pytestmark = pytest.mark.long

INPUTS = 100
EXAMPLES = 15
CHANGES = st.lists(
    st.builds(Change, st.sampled_from(KINDS), st.floats(0, 1, exclude_max=True), st.integers(0, 65535)),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Path]]:
    """Sound files for each reader."""
    with tempfile.TemporaryDirectory() as root:
        folders = {reader.name: Path(root) / reader.name for reader in READERS}
        for reader in READERS:
            folders[reader.name].mkdir()
            reader.make(folders[reader.name])
        yield folders


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES, which=st.integers(0, 1))
def test_a_spoiled_file_is_read_or_refused(made: dict[str, Path], reader: Reader, changes: list, which: int) -> None:
    folder = made[reader.name]
    path = folder / reader.file
    sound = path.read_bytes()
    path.write_bytes(reader.spoils[which % len(reader.spoils)](sound, changes))
    try:
        with contextlib.suppress(*RIGHT):
            reader.read(folder)
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        "runs",
        "loaded rows",
        "zoo manifest",
        "snapshot",
        "embedding",
        "predictor config",
        "idx.gz",
        "csv data",
        "npz",
        "npz, packed",
    ],
)
def test_spoiled_files_take_neither_memory_nor_time(name: str, tmp_path: Path) -> None:
    """In a process of its own, which a crash in native code would also end."""
    log = tmp_path / "log"
    assert finish(fuzz, name, 10**6, INPUTS, log=log) == 0, log.read_text()[-2000:]


def arrow(change: str) -> bytes:
    """A stream of checkpoints with false metadata."""
    schema = checkpoint_schema(TINY_MNIST)
    columns = {field.name: two_of(field) for field in schema}
    if change == "offsets":
        offsets = pa.py_buffer(np.array([0, 1 << 30, 2], dtype=np.int32).tobytes())
        columns["run_id"] = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    if change == "no unicode":
        offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32).tobytes())
        columns["run_id"] = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if change == "compressed" else None)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    data = bytearray(sink.getvalue().to_pybytes())
    if change == "metadata":
        data[4:8] = (2**31 - 1).to_bytes(4, "little")
    return bytes(data)


def two_of(field: pa.Field) -> pa.Array:
    """Two values of a column's type."""
    if pa.types.is_fixed_size_list(field.type):
        return pa.array([[0.0] * field.type.list_size] * 2, field.type)
    return pa.array(["a", "b"] if field.type == pa.string() else [1, 2], field.type)


def manifest_with(**details: object) -> bytes:
    return json.dumps({"files": {}, "details": details, "schema_version": 1, "code_version": "1"}).encode()


def predictor(**changes: object) -> bytes:
    spec = TINY_MNIST.to_dict() | changes.pop("spec", {})  # pyright: ignore[reportOperatorIssue]
    return json.dumps({"kind": "mlp", "spec": spec, "components": ["encoder"], "width": 50} | changes).encode()


HUGE = {"table": {"dtype": "F32", "shape": [1 << 40, 4], "data_offsets": [0, 1 << 44]}}
HOSTILE = {
    "a header of 2^60 bytes": ("embedding", long_header(1 << 60, HUGE)),
    "a tensor of 2^44 bytes": ("embedding", long_header(len(json.dumps(HUGE)), HUGE)),
    "a snapshot of 2^60 bytes": ("snapshot", long_header(1 << 60, HUGE)),
    "offsets past the end": ("checkpoints", arrow("offsets")),
    "text that is not Unicode": ("checkpoints", arrow("no unicode")),
    "a compressed batch": ("checkpoints", arrow("compressed")),
    "metadata of 2^31 bytes": ("checkpoints", arrow("metadata")),
    "brackets a million deep": ("zoo manifest", deep_json(10**6)),
    "brackets in a vocabulary": ("vocabulary", deep_json(10**6)),
    "a number of a million digits": ("zoo manifest", b'{"files": ' + b"9" * 10**6 + b"}"),
    "a name twice": ("shard manifest", b'{"files": {}, "files": {}}'),
    "not a number": ("shard timing", b'{"wall_seconds": NaN}'),
    "infinity by digits": ("shard timing", b'{"wall_seconds": 1e999}'),
    "a task that is a path": ("zoo manifest", manifest_with(kind="zoo", configs={"../..": {"task": "../.."}})),
    "images of 2^96 bytes": ("idx", bytes([0, 0, 8, 3]) + b"\xff" * 12),
    "160 MB of zeros in gzip": ("idx.gz", gzip.compress(bytes(160 << 20), 1)),
    "a field of 2 MB": ("csv", b'"1","a","' + b"x" * (2 << 20) + b'"\n'),
    "a predictor 10^9 wide": ("predictor config", predictor(width=10**9)),
    "a predictor of 10^12 blocks": ("predictor config", predictor(spec={"blocks": 10**12})),
    "a result of 400 digits": ("result rows", b'{"value": 1' + b"0" * 400 + b"}"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_one_line_in_little_memory(case: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert finish(read_hostile, *HOSTILE[case], log=log) == 0, log.read_text()
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/../../b", "/etc/passwd", "a\\b", "a\0b", "a//b", "./a", "a/", "a\nb", "\ud800"]
)
def test_a_manifest_names_no_file_outside_its_folder(name: str) -> None:
    assert not _is_inside(name)
    assert _is_inside("mnist/train-00000-of-00001.arrow")
    assert _is_inside("ä b.txt")


def test_what_is_forbidden_is_nowhere_in_the_code() -> None:
    """Two exceptions, both of tensors alone: the loader's benchmark, and checkpoints to rank."""
    forbidden = re.compile(r"\b(pickle\.|torch\.load|joblib\.load|np\.load\b|yaml\.load|shelve\.|allow_pickle=True)")
    root = Path(__file__).parent.parent.parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for package in ("zoo", "generation", "nfn", "benchmarks")
        for path in sorted((root / package).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if forbidden.search(line)
    ]
    allowed = [line for line in found if "weights_only=True" in line]
    assert found == allowed
    assert {line.split(":")[0] for line in allowed} <= {
        "benchmarks/speed/__main__.py",
        "zoo/export.py",
        "zoo/reading/checkpoint_file.py",
    }


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_no_package_below_a_reader_unpickles_or_executes(reader: Reader, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert finish(read_with_an_eye_on_pickles, reader.name, log=log) == 0, log.read_text()
