"""Markup: HTML and SVG from calls. Every text and every value of an attribute is escaped; only markup is not."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
"""Elements without an end tag (https://html.spec.whatwg.org/multipage/syntax.html#void-elements) that are used here."""


class Markup(str):
    """Text that is markup already. Made here alone: whatever else is a str is text, and is escaped."""

    __slots__ = ()


Child = object
"""Markup as it is; None and False are nothing; lists and generators are their parts; all else is text."""


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """One element. An attribute's '_' at the end is dropped and others are '-' (class_, aria_label); None and False
    leave it out, True gives it no value."""
    written = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
        for key, value in ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """What stands one after the other."""
    return Markup("".join(_written(child) for child in children))


def _written(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if child is None or child is False:
        return ""
    if isinstance(child, str):
        return html.escape(child)
    if isinstance(child, Iterable):
        return join(child)
    return html.escape(str(child))
