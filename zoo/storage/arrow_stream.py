"""Arrow streams from anywhere, batch by batch, without trusting what their headers say.

Arrow's reader takes a file at its word: a text column whose offsets point past its end is only found when it is looked
at, which may end the process, and a compressed buffer is unpacked to whatever size it claims. So a batch is handed on
only after a full validation, and a compressed one, which the zoo never writes, is refused before it is unpacked.
"""

import struct
from collections.abc import Iterator

import pyarrow as pa

END = b"\xff\xff\xff\xff\0\0\0\0"
HEADER, COMPRESSION = 2, 3
"""Fields of the flatbuffer tables Message and RecordBatch, counted from 0 (Arrow's Message.fbs)."""


def read_batches(buffer: pa.Buffer, schema: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    """The batches of a whole stream of this schema, each a view of ``buffer``; anything else is a ValueError."""
    if buffer.size == 0:
        raise ValueError(f"{where} is empty")
    # a stream cut between two batches would read as a shorter one
    if buffer.size < len(END) or buffer.slice(buffer.size - len(END)).to_pybytes() != END:
        raise ValueError(f"{where} is damaged: it is not a whole Arrow stream")
    try:
        with pa.ipc.open_stream(buffer) as stream:
            stream_schema = stream.schema
        if not stream_schema.equals(schema):
            raise ValueError(f"{where} is damaged: {schema_difference(stream_schema, schema)}")
        messages = pa.ipc.MessageReader.open_stream(buffer)
        messages.read_next_message()
        for message in messages:
            if message.type != "record batch":
                raise ValueError(f"{where} is damaged: a {message.type} where a record batch should be")
            if is_compressed(message.metadata.to_pybytes()):
                raise ValueError(f"{where} is compressed: the zoo's files are plain Arrow streams")
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            yield batch
    # Arrow reports a damaged stream as ArrowInvalid or as OSError, according to where the damage is
    except (pa.ArrowException, OSError, struct.error) as error:
        raise ValueError(f"{where} is damaged: {error}") from error


def is_compressed(message: bytes) -> bool:
    """Whether the record batch in this flatbuffer has a ``compression``; Arrow has no function to ask."""
    (root,) = struct.unpack_from("<I", message, 0)
    header = field(message, root, HEADER)
    if header is None:
        return False
    (offset,) = struct.unpack_from("<I", message, header)
    return field(message, header + offset, COMPRESSION) is not None


def field(message: bytes, table: int, number: int) -> int | None:
    """The place of a table's field in a flatbuffer, or None where the table does not have it."""
    (back,) = struct.unpack_from("<i", message, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error("a table that begins before the message")
    (size,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", message, vtable + entry)
    return table + offset if offset else None


def schema_difference(got: pa.Schema, expected: pa.Schema) -> str:
    """The first column in which two schemas differ, in words."""
    for column in expected:
        if column.name not in got.names:
            return f"no column {column.name}"
        if got.names.count(column.name) > 1:
            return f"column {column.name} is there twice"
        if not got.field(column.name).equals(column):
            return f"column {column.name} is {got.field(column.name).type}, not {column.type}"
    return f"its columns are {', '.join(got.names)}"
