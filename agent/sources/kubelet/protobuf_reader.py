"""Reading protocol buffers' wire format, strictly: enough for a handful of messages, without a schema compiler.

Format: https://protobuf.dev/programming-guides/encoding/. Groups (deprecated before proto3) are refused, a field that
is not asked for is skipped, and whatever does not add up raises: a message is read whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.schema.errors import SourceError

VARINT = 0
FIXED64 = 1
DELIMITED = 2
FIXED32 = 5

_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}

MAX_VARINT_BYTES = 10
"""Ten groups of seven bits hold 64."""

MAX_FIELD_NUMBER = (1 << 29) - 1


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The varint at `at` and where it ends. Raises SourceError."""
    value = shift = 0
    for position in range(at, min(end, at + MAX_VARINT_BYTES)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                raise SourceError(f"protocol buffer: varint over 64 bits at byte {at}")
            return value, position + 1
        shift += 7
    raise SourceError(f"protocol buffer: varint without an end at byte {at}")


def fields(data: bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Each field of the message in ``data[at:end]``, in order: (number, wire type, start, end of its content).

    A varint's content is its value, and stands in the third place; the fourth is 0 then. Raises SourceError.
    """
    end = len(data) if end is None else end
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if not 1 <= number <= MAX_FIELD_NUMBER:
            raise SourceError(f"protocol buffer: field number {number} before byte {at}")
        if wire == VARINT:
            value, at = _varint(data, at, end)
            yield number, wire, value, 0
            continue
        if wire == DELIMITED:
            length, at = _varint(data, at, end)
        elif wire in _FIXED_BYTES:
            length = _FIXED_BYTES[wire]
        else:
            raise SourceError(f"protocol buffer: wire type {wire} of field {number} before byte {at}")
        if length > end - at:
            raise SourceError(f"protocol buffer: field {number} of {length} bytes, and {end - at} are left")
        yield number, wire, at, at + length
        at += length


def text(data: bytes, number: int, wire: int, start: int, end: int) -> str:
    """The content of a string field. Raises SourceError where it is none, or not UTF-8."""
    demand(number, wire)
    try:
        return data[start:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"protocol buffer: field {number} is no UTF-8: {error.reason}") from None


def demand(number: int, wire: int) -> None:
    """Raise SourceError unless the field is a delimited one (a string, bytes, or a message)."""
    if wire != DELIMITED:
        raise SourceError(f"protocol buffer: field {number} of wire type {wire}, expected {DELIMITED}")
