"""Outline: what the messages of one stream have in common, so that the next need not be taken apart word by word.

An agent's frames differ in their numbers: names, lengths and most of the head stand at the same places second after
second. Such a message is cut at the known places in one call, and the bytes between are compared with those of the
message before. Whatever is not as before is no message of this outline, and is read like one never seen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_struct = lru_cache(1024)(struct.Struct)  # thousands of streams are cut at the same places

_INTEGERS = {0: "B", 1: "B", 2: "H", 4: "I", 8: "Q"}
"""Bytes that follow a number's type -> how struct reads them; none follow a number that is its own type's byte."""

_MOST_ALONE = 0x7F
"""Largest number that is written without a type before it (msgpack specification, positive fixint)."""


class Outline:
    """One way of writing a map. size: bytes before the value of its last key, of which nothing is said."""

    __slots__ = ("_alone", "_cut", "_fixed", "size")

    def __init__(self, form: str, alone: tuple[int, ...], message: bytes) -> None:
        self._cut = _struct(form)
        self._alone = alone
        self._fixed = self._cut.unpack_from(message)[::2]
        self.size = self._cut.size

    def read(self, message: bytes) -> tuple[Any, ...] | None:
        """What may differ, in its order; None for a message that differs in more."""
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
    """The outline of a map with these keys and values, of which those of `varying` (numbers and byte strings) may
    differ from message to message; None where one of these numbers is negative.

    The message is what msgspec makes of them: whoever wrote it otherwise has no outline.
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
