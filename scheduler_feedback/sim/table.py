"""Tables: text files of separated cells with a header. A bad line does not affect the other lines."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import TraceError

LONGEST_LINE_CHARACTERS = 1 << 20
"""Longest line of a table. Without a limit, a file without line ends would be read into memory as a whole."""

LARGEST = 1e18
"""Largest number in a cell. It can still be converted to nanoseconds."""


class CellError(Exception):
    """An invalid cell. The message contains line and column."""

    def __init__(self, line: int, column: str | int, what: str) -> None:
        super().__init__(f"line {line}, column {column}: {what}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    line: int
    """Number of the line in the file, starting with 1."""
    cells: Mapping[str, str]
    """Cells by column name."""

    def text(self, column: str) -> str:
        """Return the cell without surrounding blanks; '' if the file has no such column."""
        return self.cells.get(column, "").strip()

    def wrong(self, column: str, what: str) -> CellError:
        """Return the error for an invalid cell of this column."""
        return CellError(self.line, column, what)

    def number(self, column: str, least: float = 0.0, most: float = LARGEST) -> float:
        """Return the cell as a finite number from `least` to `most`. Raises CellError."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{_short(text)} is not a number") from None
        if not math.isfinite(value):
            raise self.wrong(column, f"{_short(text)} is not finite")
        if not least <= value <= most:
            than = f"less than {least:g}" if value < least else f"more than {most:g}"
            raise self.wrong(column, f"{text[:40]} is {than}")
        return value

    def count(self, column: str, least: int = 0) -> int:
        """Return the cell as a whole number. Raises CellError."""
        value = self.number(column, least)
        if value != int(value):
            raise self.wrong(column, f"{self.text(column)} is not a whole number")
        return int(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, text without line end) of each non-empty line. Raises TraceError if the file cannot be read.

    Bytes that are not UTF-8 are read as Python escapes (``\\xff``), so that they affect only their own cell.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="backslashreplace", newline="\n") as file:
            number = 0
            while text := file.readline(LONGEST_LINE_CHARACTERS):
                number += 1
                if len(text) == LONGEST_LINE_CHARACTERS and not text.endswith("\n"):
                    raise TraceError(f"{path}: line {number} is longer than {LONGEST_LINE_CHARACTERS} characters")
                if text := text.rstrip("\r\n"):
                    yield number, text
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def rows(
    path: Path, needed: Sequence[str], separator: str = ",", header: Sequence[str] = ()
) -> Iterator[Row | CellError]:
    """Yield each line below the header, or its error. Raises TraceError if a needed column is missing.

    header: names of the columns of a format that is published without a header; the file may still have one.
    """
    lines = lines_of(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: is empty; it needs a header with the columns {', '.join(needed)}")
    names = [name.strip() for name in _cells(first[1], separator)]
    if header and names[0] != header[0]:
        lines, names = itertools.chain((first,), lines), list(header)
    yield from _below(path, first[0], names, lines, needed, separator)


def _below(
    path: Path, first: int, header: list[str], lines: Iterator[tuple[int, str]], needed: Sequence[str], separator: str
) -> Iterator[Row | CellError]:
    for column in needed:
        if column not in header:
            has = ", ".join(_short(name) for name in header[:20])
            raise TraceError(f"{path}: line {first}: no column {column!r}; the header has {has}")
    for line, text in lines:
        cells = _cells(text, separator)
        if len(cells) != len(header):
            at = min(len(cells), len(header)) + 1
            yield CellError(line, at, f"{len(cells)} cells under a header of {len(header)}")
        else:
            yield Row(line, dict(zip(header, cells, strict=True)))


def _cells(text: str, separator: str) -> list[str]:
    if '"' not in text:
        return text.split(separator)
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return [text]
