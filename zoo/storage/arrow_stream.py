"""Arrow streams from anywhere, batch by batch, without trusting what their headers say.

Arrow's reader takes a file at its word: a text column whose offsets point past its end is only found when it is looked
at, which may end the process, and a compressed buffer is unpacked to whatever size it claims. So nothing reaches Arrow
but what the zoo's own writer could have written: messages of metadata version 5 without metadata of their own (an older
version hides a compression there), uncompressed, with buffers that lie one after the other inside a body that is there.
A batch is handed on only after a full validation.
"""

import struct
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import pyarrow as pa

CONTINUATION = b"\xff\xff\xff\xff"
PREFIX_BYTES = 8  # the continuation and the length of the metadata, which is 0 at the end of a stream
LONGEST_METADATA = 1 << 16
"""A stream of checkpoints has 2 kB; of a longer one not even the metadata is read."""

# Numbers of Arrow's Message.fbs and Schema.fbs; the fields of a table are counted from 0.
VERSION, HEADER_TYPE, HEADER, BODY_LENGTH, MESSAGE_METADATA = range(5)
SCHEMA, RECORD_BATCH = 1, 3
NODES, BUFFERS, COMPRESSION, VARIADIC = range(1, 5)
ENDIANNESS, FIELDS, SCHEMA_METADATA, FEATURES = range(4)
METADATA_V5 = 4
STRUCT_BYTES = 16  # of a field node, and of a buffer: two numbers of eight bytes


@runtime_checkable
class MessageSource(Protocol):
    """The bytes of a stream in order, gathered into one message after the other."""

    @property
    def remaining(self) -> int:
        """Bytes of the stream that are in no message yet."""
        ...

    def grow(self, count: int) -> pa.Buffer:
        """The present message so far, with ``count`` more bytes, at most ``remaining``."""
        ...

    def next(self) -> None:
        """The next byte begins a new message."""
        ...

    def close(self) -> None:
        """No more bytes are asked for."""
        ...


class BufferSource:
    """A whole stream in memory or on a map; its messages are views of it."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self.buffer, self.start, self.end = buffer, 0, 0

    @property
    def remaining(self) -> int:
        return self.buffer.size - self.end

    def grow(self, count: int) -> pa.Buffer:
        self.end += count
        return self.buffer.slice(self.start, self.end - self.start)

    def next(self) -> None:
        self.start = self.end

    def close(self) -> None:
        """Messages stay: they hold the memory themselves."""


def read_batches(source: MessageSource, schema: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    """The batches of a whole stream of this schema, views of the source's messages; anything else is a ValueError."""
    if source.remaining == 0:
        raise ValueError(f"{where} is empty")
    try:
        message = next_message(source, SCHEMA)
        if message is None:
            raise ValueError("it holds no schema")
        if not (got := pa.ipc.read_schema(message)).equals(schema):
            raise ValueError(schema_difference(got, schema))
        while (message := next_message(source, RECORD_BATCH)) is not None:
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            yield batch
        if source.remaining:
            raise ValueError(f"{source.remaining:,} bytes after its end")
    except ConnectionError:
        raise
    # Arrow reports a damaged stream as ArrowInvalid or as OSError, according to where the damage is
    except (pa.ArrowException, ValueError, OSError, struct.error) as error:
        raise ValueError(f"{where} is damaged: {error}") from error


def next_message(source: MessageSource, kind: int) -> pa.Message | None:
    """The next message, of this kind and such as the zoo writes; None at the end of the stream."""
    source.next()
    prefix = grow(source, PREFIX_BYTES).to_pybytes()
    length = int.from_bytes(prefix[4:], "little")
    if not prefix.startswith(CONTINUATION) or length > LONGEST_METADATA:
        raise ValueError("no message where one should begin")
    if length == 0:
        return None
    metadata = grow(source, length).to_pybytes()[PREFIX_BYTES:]
    return pa.ipc.read_message(grow(source, body_length(metadata, kind)))


def grow(source: MessageSource, count: int) -> pa.Buffer:
    # a stream cut between two batches would read as a shorter one
    if count > source.remaining:
        raise ValueError("it is not a whole Arrow stream")
    return source.grow(count)


def body_length(message: bytes, kind: int) -> int:
    """How many bytes follow a message's metadata; a message that the zoo's writer would not write is a ValueError."""
    root = Table.at(message, 0)
    root.refuse_but(VERSION, HEADER_TYPE, HEADER, BODY_LENGTH)
    if root.number(VERSION, "<h") != METADATA_V5:
        raise ValueError("it is not of Arrow's metadata version 5")
    if (got := root.number(HEADER_TYPE, "<B")) != kind:
        raise ValueError(f"a message of type {got} where one of type {kind} should be")
    body = root.number(BODY_LENGTH, "<q")
    header = root.table(HEADER)
    if kind == SCHEMA:
        header.refuse_but(ENDIANNESS, FIELDS, SCHEMA_METADATA)
        if body or header.number(ENDIANNESS, "<h"):
            raise ValueError("a schema with a body or of big-endian numbers")
        return 0
    if header.has(COMPRESSION):
        raise ValueError("it is compressed, and the zoo's files are plain Arrow streams")
    header.refuse_but(0, NODES, BUFFERS)
    end = 0
    for start, length in header.pairs(BUFFERS):
        if start < end or length < 0:
            raise ValueError("buffers that overlap")
        end = start + length
    if end > body:
        raise ValueError("buffers outside the message they belong to")
    return body


class Table:
    """A table of a flatbuffer, which Arrow has no function to look into."""

    def __init__(self, data: bytes, place: int) -> None:
        (back,) = struct.unpack_from("<i", data, place)
        self.data, self.place, self.layout = data, place, place - back
        if self.layout < 0:
            raise struct.error("a table that begins before the message")
        (self.layout_bytes,) = struct.unpack_from("<H", data, self.layout)

    @classmethod
    def at(cls, data: bytes, reference: int) -> "Table":
        """The table that the offset at this place leads to."""
        (offset,) = struct.unpack_from("<I", data, reference)
        return cls(data, reference + offset)

    def field(self, number: int) -> int | None:
        """The place of a field, or None where the table does not have it."""
        entry = 4 + 2 * number
        if entry + 2 > self.layout_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self.data, self.layout + entry)
        return self.place + offset if offset else None

    def has(self, number: int) -> bool:
        return self.field(number) is not None

    def number(self, number: int, form: str) -> int:
        """A field's value, by default 0, as flatbuffers have it."""
        place = self.field(number)
        return 0 if place is None else struct.unpack_from(form, self.data, place)[0]

    def table(self, number: int) -> "Table":
        place = self.field(number)
        if place is None:
            raise ValueError("a message without content")
        return Table.at(self.data, place)

    def pairs(self, number: int) -> Iterator[tuple[int, int]]:
        """The structs of a vector, each two numbers of eight bytes."""
        place = self.field(number)
        if place is None:
            return
        (offset,) = struct.unpack_from("<I", self.data, place)
        (count,) = struct.unpack_from("<I", self.data, place + offset)
        start = place + offset + 4
        if start + STRUCT_BYTES * count > len(self.data):
            raise struct.error("a vector that ends after the message")
        for place in range(start, start + STRUCT_BYTES * count, STRUCT_BYTES):
            yield struct.unpack_from("<qq", self.data, place)

    def refuse_but(self, *known: int) -> None:
        """Refuses a table with any other field than these."""
        for number in range((self.layout_bytes - 4) // 2):
            if number not in known and self.has(number):
                raise ValueError("a message with features that the zoo's files do not have")


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
