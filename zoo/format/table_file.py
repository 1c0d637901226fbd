"""Arrow stream files: written atomically in record batches of 64 rows, read without trusting their headers.

Arrow's reader trusts a file: a text column whose offsets point past its end is only found when it is used, which may
end the process, and a compressed buffer is unpacked to whatever size it claims. So Arrow sees only messages that
our own writer could have written: of metadata version 5, without metadata of their own (an older version hides a
compression there), uncompressed, with buffers that lie one after the other inside a body that is there. A batch is
passed on only after a full validation. Of a Parquet file, the bytes that it unpacks to are counted first.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from zoo.format.hyperparameters import LATER
from zoo.format.manifest import FileEntry
from zoo.format.schema import CHECKPOINT, STATUSES
from zoo.storage.atomic import atomic_file
from zoo.storage.untrusted import HeldFile

ROWS_PER_BATCH = 64
MAX_TABLE_BYTES = 256 << 20
"""The largest table that is read whole. The runs of the paper's whole grid, with their curves, have 25 MB."""

_NAMES = {
    "run_id": (re.compile("[0-9a-f]{16}"), "the run_id is not 16 hexadecimal digits"),
    "checkpoint": (re.compile(CHECKPOINT), "the checkpoint is neither epoch_N nor best"),
    "status": (re.compile("|".join(STATUSES)), f"the status is none of {', '.join(STATUSES)}"),
}
"""Columns of names, the pattern of each, and the fault of a name that does not match."""
_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX_BYTES = 8  # the continuation and the length of the metadata, which is 0 at the end of a stream
_LONGEST_METADATA = 1 << 16  # a stream of checkpoints has 2 kB
# Numbers of Arrow's Message.fbs and Schema.fbs; the fields of a flatbuffer table are counted from 0.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_SCHEMA, _RECORD_BATCH = 1, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)
_ENDIANNESS, _FIELDS, _SCHEMA_METADATA = range(3)
_METADATA_V5 = 4


def write_table(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> FileEntry:
    """Writes the rows of ``tables``, one after the other, in batches of 64; only the last batch may be shorter.

    The same rows always give the same bytes. Columns that the schema does not have are left out.
    """
    rows = 0
    with atomic_file(path) as file, pa.ipc.new_stream(file, schema) as writer:
        pending = schema.empty_table()
        for table in tables:
            pending = pa.concat_tables([pending, table.select(schema.names).cast(schema)]).combine_chunks()
            whole = len(pending) // ROWS_PER_BATCH * ROWS_PER_BATCH
            writer.write_table(pending.slice(0, whole), max_chunksize=ROWS_PER_BATCH)
            rows += whole
            pending = pending.slice(whole)
        writer.write_table(pending)
    return FileEntry.of(path, rows + len(pending))


def read_table(file: Path | HeldFile, schema: pa.Schema) -> pa.Table:
    """The rows of a small file, in memory; another schema, or a name that is not ours, is an error that names it."""
    file = HeldFile(file) if isinstance(file, Path) else file
    data = pa.py_buffer(file.read(MAX_TABLE_BYTES))
    return pa.Table.from_batches(list(read_batches(data, schema, str(file.path))), schema)


def read_stream(path: Path, limit: int) -> pa.Table:
    """The rows of anyone's uncompressed stream of at most ``limit`` bytes, as views of the mapped file."""
    file = HeldFile(path)
    file.refuse_larger(limit)
    return pa.Table.from_batches(list(_valid_batches(pa.py_buffer(file.map()), None, str(path))))


@runtime_checkable
class _MessageSource(Protocol):
    """The bytes of a stream: a ``pa.Buffer``, or anything else with a size that gives slices of itself."""

    @property
    def size(self) -> int: ...

    def slice(self, offset: int, length: int) -> pa.Buffer:
        """Some of the bytes. ``offset`` never goes back."""
        ...


def read_batches(source: _MessageSource, schema: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    """The batches of a whole stream of this schema, views of the source's messages; anything else is a ValueError.

    Only the later hyperparameters may be missing: they are filled in with their defaults. Names end up in paths and on
    terminals, so they are checked here, before anyone can use them.
    """
    rows = 0
    for batch in _valid_batches(source, schema, where):
        for name, (pattern, fault) in _NAMES.items():
            if name in schema.names:
                for row, value in enumerate(batch.column(name).to_pylist()):
                    if value is None or not pattern.fullmatch(value):
                        raise ValueError(f"{where}, row {rows + row}: {fault}")
        rows += len(batch)
        yield batch


def _valid_batches(source: _MessageSource, wanted: pa.Schema | None, where: str) -> Iterator[pa.RecordBatch]:
    if source.size == 0:
        raise ValueError(f"{where} is empty")
    try:
        message, position = _read_message(source, 0, _SCHEMA)
        if message is None:
            raise ValueError("it has no schema")
        got = pa.ipc.read_schema(message)
        schema = got if wanted is None else wanted
        absent = {name: LATER[name] for name in schema.names if name in LATER and name not in got.names}
        if not got.equals(pa.schema([field for field in schema if field.name not in absent])):
            raise ValueError(_schema_difference(got, schema))
        while True:
            message, position = _read_message(source, position, _RECORD_BATCH)
            if message is None:
                break
            batch = pa.ipc.read_record_batch(message, got)
            batch.validate(full=True)
            if absent:  # one value in all rows, in the place that the schema has it
                filled = {name: pa.array([absent[name]] * len(batch), schema.field(name).type) for name in absent}
                columns = dict(zip(got.names, batch.columns, strict=True)) | filled
                batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
            yield batch
        if position < source.size:
            raise ValueError(f"{source.size - position:,} bytes after its end")
    except ConnectionError:
        raise
    # Arrow reports a damaged stream as ArrowInvalid or as OSError, according to where the damage is
    except (pa.ArrowException, ValueError, OSError, struct.error) as error:
        raise ValueError(f"{where} is damaged: {error}") from error


def _read_message(source: _MessageSource, start: int, kind: int) -> tuple[pa.Message | None, int]:
    """The message at ``start``, which must be of this kind, or None at the end of the stream; and where it ends."""
    prefix = _slice(source, start, _PREFIX_BYTES).to_pybytes()
    end = _PREFIX_BYTES + int.from_bytes(prefix[4:], "little")
    if not prefix.startswith(_CONTINUATION) or end > _LONGEST_METADATA:
        raise ValueError("no message where one should begin")
    if end == _PREFIX_BYTES:
        return None, start + end
    metadata = _slice(source, start, end).to_pybytes()[_PREFIX_BYTES:]
    end += _body_length(metadata, kind)
    return pa.ipc.read_message(_slice(source, start, end)), start + end


def _slice(source: _MessageSource, start: int, length: int) -> pa.Buffer:
    # a stream cut between two batches would read as a shorter one
    if start + length > source.size:
        raise ValueError("it is not a whole Arrow stream")
    return source.slice(start, length)


def _body_length(message: bytes, kind: int) -> int:
    """How many bytes follow a message's metadata; a message that our writer would not write is a ValueError."""
    root = _flatbuffer_table(message, 0)
    _refuse_but(root, _VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH)
    if _number(message, root.get(_VERSION), "<h") != _METADATA_V5:
        raise ValueError("it is not of Arrow's metadata version 5")
    if (got := _number(message, root.get(_HEADER_TYPE), "<B")) != kind:
        raise ValueError(f"a message of type {got} where one of type {kind} should be")
    if _HEADER not in root:
        raise ValueError("a message without content")
    body = _number(message, root.get(_BODY_LENGTH), "<q")
    header = _flatbuffer_table(message, root[_HEADER])
    if kind == _SCHEMA:
        _refuse_but(header, _ENDIANNESS, _FIELDS, _SCHEMA_METADATA)
        if body or _number(message, header.get(_ENDIANNESS), "<h"):
            raise ValueError("a schema with a body or of big-endian numbers")
        return 0
    if _COMPRESSION in header:
        raise ValueError("it is compressed, and the zoo's files are plain Arrow streams")
    _refuse_but(header, _LENGTH, _NODES, _BUFFERS)
    end = 0
    for start, length in _pairs(message, header.get(_BUFFERS)):
        if start < end or length < 0:
            raise ValueError("buffers that overlap")
        end = start + length
    if end > body:
        raise ValueError("buffers outside the message they belong to")
    return body


def _refuse_but(fields: dict[int, int], *known: int) -> None:
    if fields.keys() - set(known):
        raise ValueError("a message with features that the zoo's files do not have")


def _flatbuffer_table(data: bytes, reference: int) -> dict[int, int]:
    """The fields that a flatbuffer table has and their positions; the offset at ``reference`` leads to the table."""
    table = reference + struct.unpack_from("<I", data, reference)[0]
    layout = table - struct.unpack_from("<i", data, table)[0]
    if layout < 0:
        raise struct.error("a table that begins before the message")
    (layout_bytes,) = struct.unpack_from("<H", data, layout)
    offsets = struct.unpack_from(f"<{max(0, layout_bytes - 4) // 2}H", data, layout + 4)
    return {number: table + offset for number, offset in enumerate(offsets) if offset}


def _number(data: bytes, position: int | None, form: str) -> int:
    """The number at a position; a field that is absent is 0."""
    return 0 if position is None else struct.unpack_from(form, data, position)[0]


def _pairs(data: bytes, reference: int | None) -> Iterator[tuple[int, int]]:
    """The pairs of eight-byte numbers in a flatbuffer vector; the offset at ``reference`` leads to it."""
    if reference is None:
        return iter(())
    vector = reference + struct.unpack_from("<I", data, reference)[0]
    (count,) = struct.unpack_from("<I", data, vector)
    if vector + 4 + 16 * count > len(data):
        raise struct.error("a vector that ends after the message")
    return struct.iter_unpack("<qq", data[vector + 4 : vector + 4 + 16 * count])


def _schema_difference(got: pa.Schema, expected: pa.Schema) -> str:
    """The first column in which two schemas differ, in words."""
    for column in expected:
        if column.name not in got.names:
            return f"no column {column.name}"
        if got.names.count(column.name) > 1:
            return f"column {column.name} is there twice"
        if not got.field(column.name).equals(column):
            return f"column {column.name} is {got.field(column.name).type}, not {column.type}"
    return f"its columns are {', '.join(got.names)}"


def unpacked_size(path: str, most: int) -> int:
    """The bytes of the rows of a Parquet file, where a text counts as often as it occurs; too many are a ValueError.

    A text that is there once can stand in all rows. So texts are read as numbers of texts, which takes no more memory
    than the file records.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        about = file.metadata
        leaves = [about.schema.column(number) for number in range(about.num_columns)]
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [(group.column(number), leaf) for group in groups for number, leaf in enumerate(leaves)]
    size = sum(chunk.total_uncompressed_size + chunk.num_values * max(8, leaf.length) for chunk, leaf in chunks)
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    if size <= most and texts:
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            size += sum(_text_bytes(column) for batch in file.iter_batches(columns=texts) for column in batch.columns)
    if size > most:
        raise ValueError(f"{path} unpacks to {size:,} bytes, at most {most:,} are read")
    return size


def _text_bytes(array: pa.Array) -> int:
    """The bytes of texts that are read as numbers, inside of tables and lists too."""
    from pyarrow import compute

    if isinstance(array, pa.DictionaryArray):
        lengths = compute.call_function("binary_length", [array.dictionary]).to_numpy(zero_copy_only=False)
        return int(lengths[array.indices.drop_null().to_numpy()].sum())
    if isinstance(array, pa.MapArray):
        return _text_bytes(array.keys) + _text_bytes(array.items)
    inner = array.flatten() if pa.types.is_nested(array.type) else []
    return sum(map(_text_bytes, inner if isinstance(inner, list) else [inner]))
