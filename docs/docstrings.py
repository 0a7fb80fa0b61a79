"""Griffe extension: docstrings of this project as Markdown (mkdocs.yml).

A docstring describes parameters and fields in prose: "Return the step. tokens: tokens of this rank." The site shows
each parameter or field as an item of a list. A line that ends with ``::`` introduces code, as in reStructuredText.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SEPARATE = re.compile(r"(?:^|(?<=[.;)] )|(?<=\n))(?P<names>\w+(?:, \w+)*)(?P<note> \([^)]*\))?: ")


def as_markdown(text: str, names: set[str]) -> str:
    """Return the docstring as Markdown, with a list item for each name in `names` that it describes."""
    blocks = re.sub(r"(?m)^::\n+|:(?=:$)", "", text).split("\n\n")
    return "\n\n".join(block if block.startswith("    ") else _with_list(block, names) for block in blocks)


def _with_list(block: str, names: set[str]) -> str:
    found = [match for match in _SEPARATE.finditer(block) if set(match["names"].split(", ")) <= names]
    if not found:
        return block
    parts = [block[: found[0].start()].strip()] if found[0].start() else []
    items = []
    for match, following in zip(found, [*found[1:], None], strict=True):
        words = " ".join(block[match.end() : following.start() if following else len(block)].split())
        code = ", ".join(f"`{name}`" for name in match["names"].split(", "))
        items.append(f"- {code}{match['note'] or ''}: {words}")
    return "\n\n".join([*parts, "\n".join(items)])


class Docstrings(griffe.Extension):
    """Griffe extension that converts each loaded docstring to Markdown."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        self._rewrite(func, {parameter.name for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        constructor = cls.members.get("__init__")
        parameters = constructor.parameters if isinstance(constructor, griffe.Function) else ()
        self._rewrite(cls, {*cls.members, *(parameter.name for parameter in parameters)})

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        self._rewrite(mod, set())

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        self._rewrite(attr, set())

    @staticmethod
    def _rewrite(documented: griffe.Object, names: set[str]) -> None:
        if documented.docstring is not None:
            documented.docstring.value = as_markdown(documented.docstring.value, names)
