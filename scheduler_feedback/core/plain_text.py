"""Text that a person reads as it is written: no control characters, nothing that reorders a line."""

from __future__ import annotations

import unicodedata

_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional formatting characters (Unicode Standard Annex 9, table 3): they make a name show as another."""


def misleading(what: str, text: str) -> str | None:
    """Say which character of the text is refused, and why; None where all are plain. what: "the job's name"."""
    for position, character in enumerate(text):
        if character in _REORDERING:
            kind = "changes the direction of text"
        elif unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            kind = "is a control character"
        elif unicodedata.category(character) == "Cs":
            kind = "is no valid text"
        else:
            continue
        name = unicodedata.name(character, "")
        called = f"U+{ord(character):04X}{' ' + name if name else ''}"
        return f"{what} contains {called} at position {position + 1}, which {kind}: leave it out"
    return None
