"""Canaries: a unique text in each field that a user can set, and the rules for where each may appear.

The fields are taken from the types, so that new ones are included.
"""

from __future__ import annotations

import dataclasses
import enum
import gzip
import itertools
import threading
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from scheduler_feedback.core.disclosure import Audience, Rule, Share, rule_of
from scheduler_feedback.core.job import JobSpec

_numbers = itertools.count()


def holds_text(hint: object) -> bool:
    """Return whether a value of this type can hold text of a user. Nested structures do not count."""
    if hint is str:
        return True
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return False
    if get_origin(hint) is typing.Literal:
        return False
    return any(holds_text(one) for one in get_args(hint))


def structures(hint: object) -> Iterator[type]:
    """Yield the structs and dataclasses that the type is or contains."""
    if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint)):
        yield hint
    for one in get_args(hint):
        yield from structures(one)


def text_fields(*roots: type) -> dict[str, type]:
    """Return {"JobSpec.name": type that has the field} for every text field of these types and of nested ones."""
    found: dict[str, type] = {}
    seen: set[type] = set()
    left = list(roots)
    while left:
        owner = left.pop()
        if owner in seen:
            continue
        seen.add(owner)
        for name, hint in get_type_hints(owner).items():
            left += structures(hint)
            if holds_text(hint):
                found[f"{owner.__name__}.{name}"] = owner
    return found


@dataclass(frozen=True)
class Canary:
    """Unique text in one field. rule: where the field may appear. key: the text is a mapping's key, not its value."""

    text: str
    field: str
    rule: Rule
    key: bool = False

    def allowed_in_documents(self, owner: bool) -> bool:
        """Return whether documents may contain the text. owner: the reader is the job's user or an operator."""
        if self.key and self.rule.documents is Audience.NOBODY:
            return False
        return self.rule.documents is Audience.ANYONE or (owner and self.rule.documents is Audience.OWNER)

    @property
    def allowed_in_text(self) -> bool:
        return self.rule.text

    @property
    def allowed_in_journal(self) -> bool:
        return self.rule.journal

    @property
    def allowed_in_bundle(self) -> bool:
        return self.rule.bundle is Share.WHOLE or (self.key and self.rule.bundle is Share.KEYS)


class Planter:
    """Builder of request bodies with canaries in their fields."""

    def __init__(self) -> None:
        self.planted: list[Canary] = []

    def text(self, field: str, rule: Rule, key: bool = False, form: str = "{}") -> str:
        canary = f"CNRY{next(_numbers)}x{field.replace('.', '').replace('_', '')}"
        self.planted.append(Canary(canary, field, rule, key))
        return form.format(canary)

    def fill(self, body: type, table: type, valid: dict[str, Any]) -> dict[str, Any]:
        """Return a body with a canary in each text field that is not in `valid`. table: type whose rules apply."""
        filled: dict[str, Any] = {}
        for name, hint in get_type_hints(body).items():
            if name in valid:
                filled[name] = valid[name]
            elif holds_text(hint):
                filled[name] = self._value(f"{table.__name__}.{name}", rule_of(table, name), hint)
        return filled

    def _value(self, field: str, rule: Rule, hint: object) -> Any:
        arguments = get_args(hint)
        if hint is str:
            return self.text(field, rule)
        if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
            return self._value(field, rule, next(one for one in arguments if one is not type(None)))
        if get_origin(hint) is dict:
            key = self.text(field, rule, key=True)
            return {key: self._value(field, rule, arguments[1]) if holds_text(arguments[1]) else 1.0}
        if get_origin(hint) in (tuple, list):
            return [self._value(field, rule, arguments[0])]
        if get_origin(hint) is typing.Annotated:
            return self._value(field, rule, arguments[0])
        raise AssertionError(f"{field}: {hint} holds text, and no canary can be made for it")


def job_fields() -> set[str]:
    return set(JobSpec.__struct_fields__)


class Sink:
    """OTLP receiver that keeps the decompressed bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Sink:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
