"""Table: a text file of separated cells under a header, read line by line so that one bad line loses no other."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import TraceError

LONGEST_LINE_CHARACTERS = 1 << 20
"""A longer line is no line of a table: a file without line ends would otherwise be read whole."""

LARGEST = 1e18
"""No cell counts or measures more; in nanoseconds it is still a number."""


class CellError(Exception):
    """A cell that can't be used; the text names line and column."""

    def __init__(self, line: int, column: str | int, what: str) -> None:
        super().__init__(f"line {line}, column {column}: {what}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Row:
    """One line. line: its number in the file, the first being 1. cells: by the header's names."""

    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The cell without surrounding blanks, '' where the file has no such column."""
        return self.cells.get(column, "").strip()

    def wrong(self, column: str, what: str) -> CellError:
        return CellError(self.line, column, what)

    def number(self, column: str, least: float = 0.0, most: float = LARGEST) -> float:
        """The cell as a finite number from `least` to `most`. Raises CellError."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{_short(text)} is no number") from None
        if not math.isfinite(value):
            raise self.wrong(column, f"{_short(text)} is not finite")
        if not least <= value <= most:
            than = f"less than {least:g}" if value < least else f"more than {most:g}"
            raise self.wrong(column, f"{text[:40]} is {than}")
        return value

    def count(self, column: str, least: int = 0) -> int:
        """The cell as a whole number. Raises CellError."""
        value = self.number(column, least)
        if value != int(value):
            raise self.wrong(column, f"{self.text(column)} is no whole number")
        return int(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text without its end) of each line that is not blank. Raises TraceError where it can't be read.

    Bytes that are no UTF-8 are read as they are written in Python (``\\xff``): they spoil no more than their own cell.
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


def rows(path: Path, needed: Sequence[str], separator: str = ",") -> Iterator[Row | CellError]:
    """Each line under the header, or what is wrong with it. Raises TraceError where a needed column is missing."""
    lines = lines_of(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: is empty; a header with the columns {', '.join(needed)} is needed")
    header = [name.strip() for name in _cells(first[1], separator)]
    for column in needed:
        if column not in header:
            has = ", ".join(_short(name) for name in header[:20])
            raise TraceError(f"{path}: line {first[0]}: no column {column!r}; the header has {has}")
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
