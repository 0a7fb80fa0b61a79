"""HTML and SVG built by function calls. All texts and attribute values are escaped, except for Markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
"""Names of the used HTML elements that have no end tag.

See https://html.spec.whatwg.org/multipage/syntax.html#void-elements."""


class Markup(str):
    """Text that is already HTML. Only this module creates it. Any other text is escaped."""

    __slots__ = ()


Child = object
"""Content of an element. Markup is inserted as it is, None and False add nothing, and an iterable adds its items. Any
other object adds its escaped text."""


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """Return one HTML element with these children and attributes.

    A '_' at the end of an attribute's name is dropped, and any other '_' becomes '-' (class_, aria_label). None and
    False omit the attribute. True writes it without a value.
    """
    written = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
        for key, value in ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Return these children as HTML, one after the other."""
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
