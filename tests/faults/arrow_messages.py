"""Arrow streams taken apart into messages and put together again, with whatever a hostile writer may put into them."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tests.faults.hostile import EXTREMES, Change
from zoo.format.table_file import (
    _BODY_LENGTH,
    _BUFFERS,
    _CONTINUATION,
    _HEADER,
    _HEADER_TYPE,
    _LENGTH,
    _METADATA_V5,
    _NODES,
    _PREFIX_BYTES,
    _RECORD_BATCH,
    _VERSION,
    _flatbuffer_table,
    _number,
    _pairs,
)

END = _CONTINUATION + bytes(4)
Pair = tuple[int, int]


@dataclass(frozen=True)
class BatchMessage:
    """A record batch: its metadata and its body."""

    rows: int
    nodes: tuple[Pair, ...]
    buffers: tuple[Pair, ...]
    body: bytes
    version: int = _METADATA_V5
    body_length: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    compression: int | None = None

    def encode(self) -> bytes:
        out = Flatbuffer()
        length = len(self.body) if self.body_length is None else self.body_length
        pairs = list(self.metadata.items())
        message = out.table(
            ("h", self.version), ("B", _RECORD_BATCH), ("I", 0), ("q", length), ("I", 0) if pairs else None
        )
        out.point(0, message.place)
        codec = None if self.compression is None else ("I", 0)
        batch = out.table(("q", self.rows), ("I", 0), ("I", 0), codec)
        out.point(message.fields[2], batch.place)
        out.point(batch.fields[1], out.structs(self.nodes))
        out.point(batch.fields[2], out.structs(self.buffers))
        if codec:
            out.point(batch.fields[3], out.table(("b", self.compression), ("b", 0)).place)
        if pairs:
            vector, places = out.references(len(pairs))
            out.point(message.fields[4], vector)
            for place, texts in zip(places, pairs, strict=True):
                entry = out.table(("I", 0), ("I", 0))
                out.point(place, entry.place)
                for number, text in enumerate(texts):
                    out.point(entry.fields[number], out.text(text))
        metadata = out.padded()
        return _CONTINUATION + struct.pack("<i", len(metadata)) + metadata + self.body


@dataclass(frozen=True)
class Written:
    """The position of a table, and of each of its fields."""

    place: int
    fields: dict[int, int]


class Flatbuffer:
    """Writes tables from front to back; the offset at each reference is filled in when its target is written."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def align(self, size: int, ahead: int = 0) -> None:
        self.data += bytes(-(len(self.data) + ahead) % size)

    def table(self, *fields: tuple[str, int | None] | None) -> Written:
        sizes = [struct.calcsize(form[0]) if form else 0 for form in fields]
        offsets, end = [], 4
        for size in sizes:
            end += -end % max(1, size)
            offsets.append(end if size else 0)
            end += size
        self.align(8, ahead=4 + 2 * len(fields))
        layout = len(self.data)
        self.data += struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), end, *offsets)
        place = len(self.data)
        self.data += bytes(end)
        struct.pack_into("<i", self.data, place, place - layout)
        for form, offset in zip(fields, offsets, strict=True):
            if form:
                struct.pack_into(f"<{form[0]}", self.data, place + offset, form[1])
        return Written(place, {number: place + offset for number, offset in enumerate(offsets)})

    def structs(self, pairs: tuple[Pair, ...]) -> int:
        self.align(8, ahead=4)
        place = len(self.data)
        self.data += struct.pack("<I", len(pairs))
        for a, b in pairs:
            self.data += struct.pack("<QQ", a % 2**64, b % 2**64)
        return place

    def references(self, count: int) -> tuple[int, list[int]]:
        self.align(4)
        place = len(self.data)
        self.data += struct.pack("<I", count) + bytes(4 * count)
        return place, [place + 4 + 4 * number for number in range(count)]

    def text(self, text: str) -> int:
        self.align(4)
        place = len(self.data)
        self.data += struct.pack("<I", len(text)) + text.encode() + b"\0"
        return place

    def point(self, reference: int, place: int) -> None:
        struct.pack_into("<I", self.data, reference, place - reference)

    def padded(self) -> bytes:
        self.align(8)
        return bytes(self.data)


def take_apart(stream: bytes) -> tuple[bytes, list[BatchMessage]]:
    """The schema's message, and the batches."""
    parts = list(messages(stream))
    batches = []
    for whole, metadata_bytes in parts[1:]:
        metadata = whole[_PREFIX_BYTES : _PREFIX_BYTES + metadata_bytes]
        root = _flatbuffer_table(metadata, 0)
        assert _number(metadata, root[_HEADER_TYPE], "<B") == _RECORD_BATCH
        header = _flatbuffer_table(metadata, root[_HEADER])
        batches.append(
            BatchMessage(
                _number(metadata, header.get(_LENGTH), "<q"),
                tuple(_pairs(metadata, header.get(_NODES))),
                tuple(_pairs(metadata, header.get(_BUFFERS))),
                whole[_PREFIX_BYTES + metadata_bytes :],
                _number(metadata, root[_VERSION], "<h"),
            )
        )
    return parts[0][0], batches


def messages(stream: bytes) -> Iterator[tuple[bytes, int]]:
    """Each message with its prefix and its body, and the length of its metadata."""
    place = 0
    while stream[place : place + 8] not in (END, b""):
        (length,) = struct.unpack_from("<i", stream, place + 4)
        metadata = stream[place + _PREFIX_BYTES : place + _PREFIX_BYTES + length]
        body_length = _number(metadata, _flatbuffer_table(metadata, 0).get(_BODY_LENGTH), "<q")
        end = place + _PREFIX_BYTES + length + body_length
        yield stream[place:end], length
        place = end


def put_together(schema: bytes, batches: list[BatchMessage]) -> bytes:
    return schema + b"".join(batch.encode() for batch in batches) + END


def spoil_arrow(data: bytes, changes: list[Change]) -> bytes:
    """A stream with changes to the metadata of its messages, well formed otherwise."""
    schema, batches = take_apart(data)
    for change in changes:
        if not batches:
            break
        at = int(change.place * len(batches))
        batches[at] = spoil_message(batches[at], change)
    return put_together(schema, batches)


def spoil_message(message: BatchMessage, change: Change) -> BatchMessage:
    extreme = EXTREMES[change.value % len(EXTREMES)] - (change.value & 1)
    signed = extreme if extreme < 2**63 else extreme - 2**64
    pick = change.value >> 4
    match change.kind:
        case "flip":
            return replace(message, version=pick % 6)
        case "set":
            return replace(message, rows=signed)
        case "cut":
            return replace(message, body_length=signed if pick % 2 else len(message.body) + 8 * (pick % 7 - 3))
        case "drop":
            codec = ("ZSTD", "zstd", "LZ4_FRAME", "lz4")[pick % 4]
            return replace(message, version=3 + pick % 2, metadata={"ARROW:experimental_compression": codec})
        case "repeat":
            return replace(message, compression=pick % 3)
        case "insert" if message.nodes:
            nodes = list(message.nodes)
            nodes[pick % len(nodes)] = (signed, pick % 2)
            return replace(message, nodes=tuple(nodes))
        case "zero" if message.buffers:
            buffers = list(message.buffers)
            start, length = buffers[pick % len(buffers)]
            buffers[pick % len(buffers)] = (signed, length) if pick % 2 else (start, signed)
            return replace(message, buffers=tuple(buffers))
    return message


def bomb(table: pa.Table, hidden: bool) -> bytes:
    """The rows, compressed: marked as Arrow does now, or as in a metadata version that no reader should accept."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    if not hidden:
        return data
    schema, batches = take_apart(data)
    marked = [replace(batch, version=3, metadata={"ARROW:experimental_compression": "ZSTD"}) for batch in batches]
    return put_together(schema, marked)
