"""Measurement of the lines of a parser that inputs execute. Only lines inside functions count."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Tracer = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True)
class Lines:
    """Lines of a target, each as (path, line).

    all: lines that inputs should execute. reached: lines that were executed.
    """

    all: frozenset[tuple[str, int]]
    reached: frozenset[tuple[str, int]]

    @property
    def share(self) -> float:
        return len(self.reached) / len(self.all) if self.all else 0.0

    def missed(self) -> list[str]:
        return [f"{path}:{line}" for path, line in sorted(self.all - self.reached)]


def codes_of(place: str) -> list[CodeType]:
    """Return the code objects of all functions in a module, or of one function or class ("module:name").

    Raises ValueError for an unknown name.
    """
    module, _, name = place.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{place}: there is no such module")
    compiled = compile(Path(spec.origin).read_bytes(), spec.origin, "exec", dont_inherit=True)
    found = list(_functions(compiled))
    if name:
        path = name.split(".")
        # From 3.11 on code objects have qualified names; '<locals>' is a function inside of one.
        found = [code for code in found if code.co_qualname.split(".")[: len(path)] == path]
    if not found:
        raise ValueError(f"{place}: it has no function of that name")
    return found


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects of all functions in this code, including nested ones, but not of class bodies."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS (dis): set for functions, not for class bodies
                yield constant
            yield from _functions(constant)


def _lines(code: CodeType) -> Iterator[int]:
    """Yield the line numbers of a function, except the line of its `def`."""
    for _, _, line in code.co_lines():
        if line is not None and line != code.co_firstlineno:
            yield line


def all_lines(places: Iterable[str]) -> frozenset[tuple[str, int]]:
    """Return all lines of these modules and functions that inputs can execute, as (path, line)."""
    return frozenset((code.co_filename, line) for place in places for code in codes_of(place) for line in _lines(code))


def _clear_caches(places: Iterable[str]) -> None:
    """Clear the caches of functions in these modules, which earlier inputs of other parsers have filled."""
    for module in {place.partition(":")[0] for place in places}:
        for value in vars(importlib.import_module(module)).values():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()


def reached(places: Iterable[str], runs: Iterable[Callable[[], object]]) -> Lines:
    """Return the lines of these modules and functions that the calls execute in this thread.

    Tracing makes calls about ten times slower. Exceptions of the calls are ignored.
    """
    places = list(places)
    wanted = all_lines(places)
    _clear_caches(places)
    left: dict[tuple[str, str, int], set[int]] = {}
    for place in places:
        for code in codes_of(place):
            key = code.co_filename, code.co_qualname, code.co_firstlineno
            left.setdefault(key, set()).update(_lines(code))

    def in_function(frame: FrameType, event: str, _: Any) -> Tracer | None:
        code = frame.f_code
        remaining = left[code.co_filename, code.co_qualname, code.co_firstlineno]
        if event == "line":
            remaining.discard(frame.f_lineno)
        return in_function if remaining else None

    def in_any(frame: FrameType, _: str, __: Any) -> Tracer | None:
        code = frame.f_code
        return in_function if left.get((code.co_filename, code.co_qualname, code.co_firstlineno)) else None

    before = sys.gettrace()
    try:
        for run in runs:
            # Set it again for each run: Python removes a tracer called with no stack left (RecursionError).
            sys.settrace(in_any)
            try:
                run()
            except Exception:
                continue
    finally:
        sys.settrace(before)
    missed = {(path, line) for (path, _, _), lines in left.items() for line in lines}
    return Lines(wanted, wanted - missed)
