"""Protocol buffers with fields of text, bytes and messages only, which is all that a device plug-in needs.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

_LENGTH = 2
"""Wire type of text, bytes and messages."""


def field(number: int, value: str | bytes) -> bytes:
    """Return an encoded field. A message is its encoded fields, one after another."""
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _LENGTH) + _varint(len(content)) + content


def fields(message: bytes, number: int) -> list[bytes]:
    """Return the content of each field with this number. Raises ValueError if its wire type is not bytes."""
    found, at = [], 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        if tag & 7 != _LENGTH:
            raise ValueError(f"field {tag >> 3} has wire type {tag & 7}")
        length, at = _read_varint(message, at)
        if tag >> 3 == number:
            found.append(message[at : at + length])
        at += length
    return found


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
