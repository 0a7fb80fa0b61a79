"""Encoded parts of documents, kept for as long as the values in them are equal.

Lists of 12,500 nodes and 100,000 ranks have 17 MB. From one snapshot to the next, few nodes and ranks change, so most
parts of a list are copied instead of being encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

SPARE = 64
"""Number of parts that are kept although their object is gone, so that deleting them is rarely needed."""


class EncodedParts:
    """Cache of JSON texts, by name. Only the thread that computes answers may use it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Any, ...], bytes]] = {}

    def of(self, name: str, values: tuple[Any, ...], document: Callable[[], Any]) -> bytes:
        """Return `document()` as JSON. values: everything on which the document depends. The caller must not change
        them later; snapshots share equal objects, so most comparisons are by identity."""
        known = self._known.get(name)
        if known is not None and known[0] == values:
            return known[1]
        text = msgspec.json.encode(document())
        self._known[name] = values, text
        return text

    def keep(self, names: Collection[str]) -> None:
        """Delete all other parts if there are many."""
        if len(self._known) > len(names) + SPARE:
            self._known = {name: part for name, part in self._known.items() if name in names}


def with_field(document: bytes, name: str, value: Any) -> msgspec.Raw:
    """Return the encoded object with one more field at its end. The object must have a field."""
    return msgspec.Raw(b'%b,"%b":%b}' % (document[:-1], name.encode(), msgspec.json.encode(value)))
