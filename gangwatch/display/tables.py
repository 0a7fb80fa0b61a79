"""Tables without borders on standard output, for all commands that print them."""

from __future__ import annotations

import os

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPED_COLUMNS = 10_000
"""Width of the output in characters if standard output is not a terminal. It is large so that no line wraps."""


def output_console() -> Console:
    """Return the console of standard output. It prints names and reasons as they are: they may have brackets."""
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _PIPED_COLUMNS
    return console


def table_of(*columns: str) -> Table:
    """Return an empty table with these headers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print the table. If it is too wide, wrap only the last column, between words.

    Words in the other columns are not split. On a very narrow terminal, the terminal itself wraps long lines.
    """
    *first, last = table.columns
    for column in first:
        column.no_wrap = True
    taken = sum(max(cell_len(str(cell)) for cell in (column.header, *column.cells)) + 1 for column in first)
    last.min_width = max((cell_len(word) for cell in last.cells for word in str(cell).split()), default=1)
    console.width = max(console.width, taken + last.min_width)
    console.print(table)


def add_row(table: Table, *cells: object) -> None:
    """Add a row. Cells that are None or empty are shown as "-"."""
    # Text, not str: a rich table parses markup in a str even if the console has it disabled.
    table.add_row(*(cell if isinstance(cell, Text) else Text(shown(cell)) for cell in cells))


def shown(value: object) -> str:
    """Return the text of a cell."""
    return "-" if value is None or value == "" else str(value)
