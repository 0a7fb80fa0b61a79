"""Progress messages of the commands that simulate, on standard error if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# rich must not be loaded by `--help` and shell completion: the functions that need it import it.


def terminal(as_json: bool) -> Console | None:
    """Return a console for progress messages; None if standard error is not a terminal or must stay empty."""
    from rich.console import Console

    console = Console(stderr=True, markup=False)
    return console if console.is_terminal and (not as_json or sys.stdout.isatty()) else None


def showing(text: str, as_json: bool) -> AbstractContextManager[object]:
    """Show a status line while a slow operation runs in the context, if standard error is a terminal."""
    from rich.text import Text

    console = terminal(as_json)
    return console.status(Text(text)) if console is not None else nullcontext()


@contextmanager
def counting(text: str, as_json: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar of ended jobs while a simulation runs in the context. Yield the function that moves it.

    Yield None if standard error is not a terminal. The function takes (ended jobs, all jobs).
    """
    console = terminal(as_json)
    if console is None:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    columns = (TextColumn(Text(text).plain, markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("jobs", total=None)
        yield lambda ended, of_all: bar.update(task, completed=ended, total=of_all)
