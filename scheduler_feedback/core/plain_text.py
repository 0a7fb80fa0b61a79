"""Checks that a text is displayed as it is written: no control characters, no characters that reorder a line."""

from __future__ import annotations

import unicodedata

_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional formatting characters (Unicode Standard Annex 9, table 3). They can make one name look like another."""


def misleading(what: str, text: str) -> str | None:
    """Return which character of the text is refused, and why; None if all are plain. what: name of the text in the
    message, such as "the job's name"."""
    for position, character in enumerate(text):
        if (kind := _harm(character)) is None:
            continue
        name = unicodedata.name(character, "")
        called = f"U+{ord(character):04X}{' ' + name if name else ''}"
        return f"{what} contains {called} at position {position + 1}, which {kind}: leave it out"
    return None


def plain(text: str) -> str:
    """Return the text with each control and reordering character replaced by U+FFFD. Used for names from other
    schedulers."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if _harm(character) is not None else character for character in text)


def _harm(character: str) -> str | None:
    if character in _REORDERING:
        return "changes the direction of text"
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return "is a control character"
    return "is no valid text" if category == "Cs" else None
