"""Writer of the Protocol Buffers wire format. A library would need ten times the memory.

https://protobuf.dev/programming-guides/encoding/: a field is a key (number << 3 | wire type) and a value; wire types
are 0 varint, 1 eight bytes, 2 length and bytes. The tests read the output with Google's library.
"""

from __future__ import annotations

import struct

_FIXED64 = struct.Struct("<Q")
_SFIXED64 = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")


def varint(value: int) -> bytes:
    """Encode an integer in groups of seven bits, the lowest first.

    A negative integer is encoded as its 64-bit complement.
    """
    value &= 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def key(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def block(field: int, content: bytes) -> bytes:
    """Encode a field of bytes or of a message."""
    return key(field, 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Encode a field of a string; characters that UTF-8 can't represent are replaced."""
    return block(field, content.encode("utf-8", "replace"))


def integer(field: int, value: int) -> bytes:
    """Encode a field of an int64, uint64, bool or enumeration."""
    return key(field, 0) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    return key(field, 1) + _FIXED64.pack(value)


def sfixed64(field: int, value: int) -> bytes:
    return key(field, 1) + _SFIXED64.pack(value)


def double(field: int, value: float) -> bytes:
    return key(field, 1) + _DOUBLE.pack(value)
