"""Strict reader of the protocol buffers wire format, without a schema compiler.

Format: https://protobuf.dev/programming-guides/encoding/. Groups (deprecated before proto3) are refused, and unknown
fields are skipped. A message with any error is refused as a whole.
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
"""Maximum length of a varint in bytes. Ten bytes of seven bits each can encode 64 bits."""

MAX_FIELD_NUMBER = (1 << 29) - 1


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the value of the varint at index `at`, and the index after the varint. Raise SourceError if malformed."""
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
    """Yield each field of the message in ``data[at:end]``.

    Each item is (field number, wire type, start and end of the content in `data`). For a varint, its value and 0
    replace start and end. Raise SourceError if the message is malformed.
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
            raise SourceError(f"protocol buffer: field {number} of {length} bytes, but only {end - at} are left")
        yield number, wire, at, at + length
        at += length


def text(data: bytes, number: int, wire: int, start: int, end: int) -> str:
    """Return the content of a string field. Raise SourceError if it is not a string or not UTF-8."""
    demand(number, wire)
    try:
        return data[start:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"protocol buffer: field {number} is not UTF-8: {error.reason}") from None


def demand(number: int, wire: int) -> None:
    """Raise SourceError if a field's wire type is not that of strings, bytes and messages.

    number: field number, for the error.
    """
    if wire != DELIMITED:
        raise SourceError(f"protocol buffer: field {number} of wire type {wire}, expected {DELIMITED}")
