"""Names with misleading characters are refused; the error names the character."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.plain_text import misleading


@pytest.mark.parametrize("text", ["", "train", "Größe 7", "模型", "مدرب", "a\u0301", "👩‍🔬", "a b", "a" * 1000])
def test_ordinary_names_are_accepted(text: str) -> None:
    assert misleading("the name", text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", "U+000A at position 2"),
        ("\x1b[31m", "U+001B at position 1"),
        ("a\x9b", "U+009B"),
        ("a\u202eb", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\u2066x", "U+2066 LEFT-TO-RIGHT ISOLATE"),
        ("x\u200f", "U+200F RIGHT-TO-LEFT MARK"),
        ("x\u2028y", "U+2028 LINE SEPARATOR"),
        ("x\udcff", "U+DCFF"),
    ],
)
def test_misleading_characters_are_named(text: str, expected: str) -> None:
    wrong = misleading("the name", text)
    assert wrong is not None and wrong.startswith("the name contains ") and expected in wrong
