"""Wire format of layouts and frames.

A message is a msgpack map ``{"v": version, "k": "layout" | "frame", ...}`` with arrays as little-endian bytes. On a
stream, each message follows its length as four bytes, big-endian. A reader accepts the version of its build, the
previous version and the next one. It ignores unknown fields of the other versions.

A message of kind "batch" is a frame with earlier samples of the same agent (``Frame.earlier``); only readers that ask
for them get it. The records of a frame are an array of maps, or a table if the reader requested it: a map of
``members`` and ``rows`` (``agent.schema.record_table``).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.errors import FrameError, VersionError
from agent.schema.frame import (
    MAX_RECORDS,
    MOST_SAMPLES,
    ROW_BYTES,
    Frame,
    Layout,
    Member,
    Record,
    RecordTable,
    make_layout,
)
from agent.schema.record_table import tabulate
from agent.schema.stream_outline import Outline, outline

WIRE_VERSION = 1
"""Version of the wire format that this build writes."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Maximum message length in bytes. A longer message is refused before it is read. A message with 100,000 series of 9
bytes each, and records, is far shorter."""


class _WireTable(msgspec.Struct):
    members: tuple[Member, ...]
    rows: bytes


class _WireFrame(msgspec.Struct):
    v: int
    k: str
    node: str
    boot_id: str
    agent_id: str
    seq: int
    layout_id: str
    wall_ns: int
    monotonic_ns: int
    tier_ns: bytes
    gauges: bytes
    counters: bytes
    counters_valid: bytes
    record_seq: int
    records: tuple[Record, ...] | _WireTable


class _ReadFrame(_WireFrame):
    """Frame whose records are not decoded yet: if they equal those of the previous frame, its records are used."""

    records: msgspec.Raw  # type: ignore[assignment]


class _WireSample(msgspec.Struct, array_like=True):
    """Earlier sample. Its arrays have the lengths of the frame's."""

    seq: int
    wall_ns: int
    monotonic_ns: int
    tier_ns: bytes
    gauges: bytes
    counters: bytes
    counters_valid: bytes


class _WireBatch(_WireFrame):
    left_out: int = 0
    earlier: tuple[_WireSample, ...] = ()


class _ReadBatch(_ReadFrame):
    left_out: int = 0
    earlier: tuple[_WireSample, ...] = ()


class _WireLayout(msgspec.Struct):
    v: int
    k: str
    layout: Layout


class _Envelope(msgspec.Struct):
    v: int
    k: str


_FIELDS = _WireFrame.__struct_fields__
_VARYING = frozenset(
    ("seq", "wall_ns", "monotonic_ns", "tier_ns", "gauges", "counters", "counters_valid", "record_seq")
)
"""Fields of a frame whose values differ from frame to frame. They precede the records in a message."""

_BATCH_KEY, _LAYOUT_KEY, _KIND_WITHIN = b"\xa1k\xa5batch", b"\xa1k\xa6layout", 16
"""Kind of a message as encoded by agents ('k': 'batch' in msgpack), and the bytes within which it is searched: it is
the second key of the map."""

_MOST_LEFT_OUT = 1 << 32
"""Maximum number of records that a frame may leave out: more than an agent makes in a year."""

_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(_ReadFrame)
_batch_decoder = msgspec.msgpack.Decoder(_ReadBatch)
_records_decoder: msgspec.msgpack.Decoder[tuple[Record, ...]] = msgspec.msgpack.Decoder(tuple[Record, ...])
_raw_records_decoder = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
_table_decoder = msgspec.msgpack.Decoder(_WireTable)
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_layout_decoder = msgspec.msgpack.Decoder(_WireLayout)
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)


def encode_layout(layout: Layout) -> bytes:
    """Encode a layout as one message without its length prefix."""
    return _encoder.encode(_WireLayout(WIRE_VERSION, "layout", layout))


def encode_frame(frame: Frame, as_table: bool = False) -> bytes:
    """Encode a frame as one message without its length prefix.

    as_table: whether the reader can read tables of records.
    """
    is_batch = bool(frame.earlier or frame.left_out)
    fields = (
        WIRE_VERSION,
        "batch" if is_batch else "frame",
        frame.node,
        frame.boot_id,
        frame.agent_id,
        frame.seq,
        frame.layout_id,
        frame.wall_ns,
        frame.monotonic_ns,
        *_values(frame),
        frame.record_seq,
        _records(frame.records, as_table),
    )
    if not is_batch:
        return _encoder.encode(_WireFrame(*fields))
    samples = (_WireSample(one.seq, one.wall_ns, one.monotonic_ns, *_values(one)) for one in frame.earlier)
    return _encoder.encode(_WireBatch(*fields, frame.left_out, tuple(samples)))


def _values(frame: Frame) -> tuple[bytes, bytes, bytes, bytes]:
    return (
        frame.tier_ns.astype("<i8").tobytes(),
        frame.gauges.astype("<f8").tobytes(),
        frame.counters.astype("<u8").tobytes(),
        np.packbits(frame.counters_valid, bitorder="little").tobytes(),
    )


def encode_records(records: tuple[Record, ...], as_table: bool) -> bytes:
    """Encode records as the last value of a frame's message."""
    return _encoder.encode(_records(records, as_table))


def _records(records: tuple[Record, ...], as_table: bool) -> tuple[Record, ...] | _WireTable:
    table = tabulate(records) if as_table else None
    return records if table is None else _WireTable(table.members, table.rows)


def decode(message: bytes) -> Layout | Frame:
    """Decode the layout or frame in one message.

    Raise VersionError for a wire version that differs from WIRE_VERSION by more than one. Raise FrameError, which names
    the field, for any other invalid message.
    """
    return Decoder().decode(message)


class Decoder:
    """Decoder of the messages of one stream.

    If the encoded records equal those of the previous frame, ``decode`` returns the record objects or the table of the
    previous frame. Arrays are read-only, since they use the memory of the message or of the previous frame.
    """

    __slots__ = (
        "_before_rows", "_frame_before", "_layout_names", "_members", "_outline", "_raw_records", "_records", "_table",
        "_valid", "_valid_bits",
    )  # fmt: skip

    def __init__(self) -> None:
        self._raw_records = b""
        self._records: tuple[Record, ...] = ()
        self._table: RecordTable | None = None
        self._before_rows = b""
        self._members: tuple[Member, ...] = ()
        self._valid_bits = b""
        self._valid = np.zeros(0, np.bool_)
        self._outline: Outline | None = None
        self._layout_names: tuple[str, str] = ("", "")
        self._frame_before: tuple[str, str, str, str] = ("", "", "", "")

    def decode(self, message: bytes) -> Layout | Frame:
        """Decode one message of the stream: a layout or a frame. Raise the errors of the function ``decode``."""
        if self._outline is not None and (parts := self._outline.read(message)) is not None:
            return self._as_before(message[self._outline.size :], parts)  # the common case
        if message.find(_BATCH_KEY, 0, _KIND_WITHIN) >= 0:
            try:
                batch = _batch_decoder.decode(message)
                if batch.k == "batch" and batch.v == WIRE_VERSION:
                    return self._batch(batch)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            return self._other(message)
        self._outline = None
        if message.find(_LAYOUT_KEY, 0, _KIND_WITHIN) >= 0:
            return self._other(message)
        try:
            wire = _frame_decoder.decode(message)
            if wire.k == "frame" and wire.v == WIRE_VERSION:
                frame = self._frame(wire)
                if _encoder.encode(wire) == message:
                    self._outline = outline(message, _FIELDS, [getattr(wire, name) for name in _FIELDS], _VARYING)
                    self._frame_before = frame.node, frame.boot_id, frame.agent_id, frame.layout_id
                    # The layout's own strings: they are compared faster, and kept once.
                    if (frame.node, frame.layout_id) == self._layout_names:
                        node, layout_id = self._layout_names
                        self._frame_before = node, frame.boot_id, frame.agent_id, layout_id
                return frame
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        return self._other(message)

    def _as_before(self, raw_records: bytes, varying: tuple[Any, ...]) -> Frame:
        """Make a frame with the node, layout and array lengths of the previous frame.

        raw_records: the frame's encoded records. varying: the frame's values of the fields in _VARYING.
        """
        seq, wall_ns, monotonic_ns, tier_ns, gauges, counters, counters_valid, record_seq = varying
        node, boot_id, agent_id, layout_id = self._frame_before
        if raw_records != self._raw_records:
            self._read_records(raw_records)
        if counters_valid != self._valid_bits:
            self._read_valid(counters_valid, len(self._valid))
        return Frame(
            node,
            boot_id,
            agent_id,
            seq,
            layout_id,
            wall_ns,
            monotonic_ns,
            np.frombuffer(tier_ns, _I8),
            np.frombuffer(gauges, _F8),
            np.frombuffer(counters, _U8),
            self._valid,
            record_seq,
            self._records,
            self._table,
        )

    def _other(self, message: bytes) -> Layout | Frame:
        try:
            envelope = _envelope_decoder.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"not a gangwatch message ({len(message)} bytes): {error}") from None
        if abs(envelope.v - WIRE_VERSION) > 1:
            raise VersionError(
                f"wire version {envelope.v} is not supported: this build supports {WIRE_VERSION - 1} to "
                f"{WIRE_VERSION + 1}: upgrade the older side one minor version at a time"
            )
        try:
            if envelope.k == "layout":
                layout = _checked_layout(_layout_decoder.decode(message).layout, envelope.v)
                self._layout_names = layout.node, layout.layout_id
                return layout
            if envelope.k == "frame":
                return self._frame(_frame_decoder.decode(message))
            if envelope.k == "batch":
                return self._batch(_batch_decoder.decode(message))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"{envelope.k}: {error}") from None
        raise FrameError(f"message kind {envelope.k!r}: expected 'layout' or 'frame'")

    def _frame(self, wire: _ReadFrame) -> Frame:
        record_seq = wire.record_seq
        raw = bytes(wire.records)
        table = None
        if wire.v == WIRE_VERSION or _is_map(raw):
            if raw != self._raw_records:
                self._read_records(raw)
            records, table = self._records, self._table
        else:
            records, missing = _of_neighbour(raw)
            # The dropped records may be anywhere, so record_seq is advanced by their number: a reader sees a gap.
            record_seq += missing
        count = len(wire.counters) // 8
        if len(wire.counters_valid) != (count + 7) // 8:
            raise FrameError(f"counters_valid: {len(wire.counters_valid)} bytes do not match {count} counters")
        if wire.counters_valid != self._valid_bits or count != len(self._valid):
            self._read_valid(wire.counters_valid, count)
        return Frame(
            wire.node,
            wire.boot_id,
            wire.agent_id,
            wire.seq,
            wire.layout_id,
            wire.wall_ns,
            wire.monotonic_ns,
            _array(wire.tier_ns, _I8, "tier_ns"),
            _array(wire.gauges, _F8, "gauges"),
            _array(wire.counters, _U8, "counters"),
            self._valid,
            record_seq,
            records,
            table,
        )

    def _batch(self, wire: _ReadBatch) -> Frame:
        """Return a frame with its earlier samples. Raise FrameError if they do not precede it, or differ in lengths."""
        newest = self._frame(wire)
        if not 0 <= wire.left_out <= _MOST_LEFT_OUT:
            raise FrameError(f"left_out: {wire.left_out}, expected 0 to {_MOST_LEFT_OUT}")
        if len(wire.earlier) > MOST_SAMPLES:
            raise FrameError(f"earlier: {len(wire.earlier)} samples, at most {MOST_SAMPLES}")
        sizes = len(wire.tier_ns), len(wire.gauges), len(wire.counters), len(wire.counters_valid)
        count = len(newest.counters)
        earlier: list[Frame] = []
        order = [(-1, 0), *((one.seq, one.monotonic_ns) for one in wire.earlier), (wire.seq, wire.monotonic_ns)]
        for (before, before_ns), (seq, at_ns) in pairwise(order):
            if seq <= before or at_ns < before_ns:
                raise FrameError(f"earlier: sample {seq} does not follow sample {before}")
        for one in wire.earlier:
            if (len(one.tier_ns), len(one.gauges), len(one.counters), len(one.counters_valid)) != sizes:
                raise FrameError(f"earlier: sample {one.seq} has arrays of other lengths than frame {wire.seq}")
            earlier.append(
                Frame(
                    newest.node, newest.boot_id, newest.agent_id, one.seq, newest.layout_id, one.wall_ns,
                    one.monotonic_ns,
                    np.frombuffer(one.tier_ns, _I8), np.frombuffer(one.gauges, _F8),
                    np.frombuffer(one.counters, _U8), _valid_of(one.counters_valid, count),
                )
            )  # fmt: skip
        return msgspec.structs.replace(newest, left_out=wire.left_out, earlier=tuple(earlier))

    def _read_records(self, raw: bytes) -> None:
        records: tuple[Record, ...] = ()
        table: RecordTable | None = None
        try:
            if _is_map(raw):
                table = self._read_table(raw)
            else:
                records = _records_decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"records: {error}") from None
        if len(records) > MAX_RECORDS:
            raise FrameError(f"records: {len(records)}, at most {MAX_RECORDS}")
        self._raw_records, self._records, self._table = raw, records, table

    def _read_table(self, raw: bytes) -> RecordTable:
        """Decode a table of records. Its members are decoded only if they differ from those of the last table."""
        size = len(self._before_rows)
        if size and raw.startswith(self._before_rows):
            head = _BYTES_HEAD.get(raw[size : size + 1], 0)
            start = size + 1 + head
            if head and len(raw) - start == int.from_bytes(raw[size + 1 : start], "big"):
                return _checked_table(self._members, raw[start:])
        wire = _table_decoder.decode(raw)
        table = _checked_table(wire.members, wire.rows)
        before_rows = _encoder.encode(_WireTable(wire.members, b""))[:-_EMPTY_BYTES]
        self._before_rows = before_rows if raw.startswith(before_rows) else b""
        self._members = wire.members
        return table

    def _read_valid(self, bits: bytes, count: int) -> None:
        if count != len(self._valid):
            self._outline = None  # a batch of another layout
        self._valid_bits = bits
        self._valid = _valid_of(bits, count)


@lru_cache(1024)
def _valid_of(bits: bytes, count: int) -> npt.NDArray[np.bool_]:
    """Return the unpacked validity bits of `count` counters. Thousands of streams share the same array, usually that
    of all valid ones."""
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").view(np.bool_)
    valid.flags.writeable = False
    return valid


_BYTES_HEAD = {b"\xc4": 1, b"\xc5": 2, b"\xc6": 4}
"""Number of bytes of the length of a byte string (bin 8, bin 16, bin 32 of msgpack), by its first byte."""

_EMPTY_BYTES = 2
"""Length of an encoded empty byte string."""


def _is_map(raw: bytes) -> bool:
    """Return whether the encoded value is a map: fixmap, map 16 or map 32 of msgpack."""
    return raw[:1] in _MAPS


_MAPS = frozenset(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF))


def _checked_table(members: tuple[Member, ...], rows: bytes) -> RecordTable:
    """Return the table. Raise FrameError if it is too long, or if its last row is incomplete."""
    count = len(rows) // ROW_BYTES
    if len(rows) % ROW_BYTES:
        raise FrameError(f"records: rows of {len(rows)} bytes, expected a multiple of {ROW_BYTES}")
    if count > MAX_RECORDS or len(members) > MAX_RECORDS:
        raise FrameError(f"records: {count} rows of {len(members)} ranks, at most {MAX_RECORDS}")
    return RecordTable(members, rows)


_I8, _F8, _U8 = np.dtype("<i8"), np.dtype("<f8"), np.dtype("<u8")


def _array(raw: bytes, dtype: np.dtype[Any], field: str) -> npt.NDArray[Any]:
    if len(raw) % 8:
        raise FrameError(f"{field}: {len(raw)} bytes, expected a multiple of 8")
    return np.frombuffer(raw, dtype)


def _of_neighbour(raw: bytes) -> tuple[tuple[Record, ...], int]:
    """Decode the records of a message whose wire version is the previous or the next one.

    Return the decoded records, and the number of records of unknown types, which are omitted.
    """
    every = _raw_records_decoder.decode(raw)
    if len(every) > MAX_RECORDS:
        raise FrameError(f"records: {len(every)}, at most {MAX_RECORDS}")
    known: list[Record] = []
    for one in every:
        try:
            known.append(_record_decoder.decode(one))
        except msgspec.ValidationError:
            continue
    return tuple(known), len(every) - len(known)


def _checked_layout(layout: Layout, version: int) -> Layout:
    for kind, columns in (("gauges", layout.gauges), ("counters", layout.counters)):
        for index, column in enumerate(columns):
            if not 0 <= column.tier < len(layout.tiers):
                raise FrameError(f"layout {kind}[{index}] {column.metric}: tier {column.tier} of {len(layout.tiers)}")
            if column.width not in (32, 64):
                raise FrameError(f"layout {kind}[{index}] {column.metric}: width {column.width}, expected 32 or 64")
    # The digest of another version includes unknown fields and cannot be checked.
    digest = make_layout(layout.node, layout.tiers, layout.gauges, layout.counters).layout_id
    if version == WIRE_VERSION and digest != layout.layout_id:
        raise FrameError(f"layout {layout.layout_id}: the id is not the digest of the content")
    return layout


def with_length(message: bytes) -> bytes:
    """Return the message with its length prefix of four bytes, big-endian."""
    return len(message).to_bytes(4, "big") + message


class MessageSplitter:
    """Splitter of a byte stream into messages.

    ``feed`` raises FrameError if a message is longer than `most_bytes`. After this error the stream cannot be read
    further.
    """

    __slots__ = ("_buffer", "_most_bytes")

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._buffer = bytearray()
        self._most_bytes = most_bytes

    @property
    def pending(self) -> bool:
        """Whether a part of an incomplete message has been received."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes and return all messages that are now complete, in order."""
        self._buffer += data
        messages: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= 4:
            length = int.from_bytes(self._buffer[start : start + 4], "big")
            if length > self._most_bytes:
                raise FrameError(f"message of {length} bytes, at most {self._most_bytes}")
            if len(self._buffer) - start - 4 < length:
                break
            messages.append(bytes(self._buffer[start + 4 : start + 4 + length]))
            start += 4 + length
        del self._buffer[:start]
        return messages
