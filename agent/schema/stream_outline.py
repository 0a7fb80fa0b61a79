"""Outline of a stream's messages: the offsets of the values that change, for fast decoding of similar messages.

Consecutive frames of an agent differ in their numbers only; names, lengths and most of the header are at the same
offsets. Such a message is split at these offsets in one call. If the other bytes differ from those of the previous
message, the message is decoded in full.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_struct = lru_cache(1024)(struct.Struct)  # thousands of streams share the same offsets

_INTEGERS = {0: "B", 1: "B", 2: "H", 4: "I", 8: "Q"}
"""Python struct format of a varying integer in a message, by its size. The key is the number of bytes that follow the
integer's type byte. The key 0 is an integer so small that its one byte is type and value together."""

_MOST_ALONE = 0x7F
"""Largest integer that msgpack encodes in a single byte (positive fixint)."""


class Outline:
    """Offsets of the constant and the varying parts of an encoded map.

    size: number of bytes before the value of the last key. This last value may be anything.
    """

    __slots__ = ("_alone", "_cut", "_fixed", "size")

    def __init__(self, form: str, alone: tuple[int, ...], message: bytes) -> None:
        self._cut = _struct(form)
        self._alone = alone
        self._fixed = self._cut.unpack_from(message)[::2]
        self.size = self._cut.size

    def read(self, message: bytes) -> tuple[Any, ...] | None:
        """Return the varying values in message order; None if a constant part differs from the outline."""
        if len(message) < self.size:
            return None
        parts = self._cut.unpack_from(message)
        if parts[::2] != self._fixed:
            return None
        found = parts[1::2]
        for place in self._alone:
            if found[place] > _MOST_ALONE:
                return None
        return found


def outline(message: bytes, keys: Sequence[str], values: Sequence[object], varying: frozenset[str]) -> Outline | None:
    """Return the outline of an encoded map with these keys and values; None if the map has no outline.

    varying: keys whose values (numbers and byte strings) may differ between messages. message: the map as encoded by
    msgspec. A map has no outline if one of the varying numbers is negative or if it was encoded differently.
    """
    form, alone, place = [">"], [], 0
    at, begun = 1 if len(keys) < 16 else 3, 0
    for key, value in zip(keys[:-1], values[:-1], strict=True):
        at += len(_encode(key))
        size = len(_encode(value))
        if key in varying:
            if isinstance(value, int):
                if value < 0:
                    return None
                payload = max(size - 1, 1)
                code = _INTEGERS[size - 1]
                if size == 1:
                    alone.append(place)
            else:
                assert isinstance(value, bytes | bytearray)
                payload = len(value)
                code = f"{payload}s"
            form.append(f"{at + size - payload - begun}s{code}")
            begun = at + size
            place += 1
        at += size
    at += len(_encode(keys[-1]))
    form.append(f"{at - begun}s")
    return Outline("".join(form), tuple(alone), message)
