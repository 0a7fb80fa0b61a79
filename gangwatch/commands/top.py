"""The command `top`: a live view of the cluster."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from gangwatch.commands.options import client_of, json_option, print_json, state_option
from gangwatch.controller_client import Client
from gangwatch.state_folder import NotRunningError, StateFolder

PATH = "/api/overview"


@click.command()
@state_option
@click.option("--once", is_flag=True, help="Print one screen and exit.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between two updates."
)
@json_option
def top(state: StateFolder, once: bool, interval: float, as_json: bool) -> None:
    """Show jobs, queue, reservation, verdicts and unhealthy nodes in the terminal, until `q` or Ctrl-C.

    The content is that of the overview page at the controller's address. While no controller responds, the last
    content stays on the screen with a warning.

    \b
    Examples:
      gangwatch top
      gangwatch top --once
      gangwatch top --json
    """
    client = client_of(state)
    if as_json:
        print_json(client.get(PATH))
        return
    # Here and in _live: rich, which `--help`, --json and shell completion must not load.
    from gangwatch.display.top_screen import console, screen

    where = console()
    document = client.get(PATH)
    if once:
        where.print(screen(document, where.width, None))
        return
    if not where.is_terminal:
        raise click.UsageError("standard output is not a terminal: use --once or --json")
    _live(client, document, interval)


def _live(client: Client, document: dict[str, Any], interval_seconds: float) -> None:
    """Draw the screen again every `interval_seconds`, until `q` or Ctrl-C."""
    from rich.live import Live

    from gangwatch.display.top_screen import console, screen

    where = console()
    trouble = ""
    try:
        with (
            _waiter() as wait,
            Live(console=where, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            due_s = time.monotonic() + interval_seconds
            while True:
                live.update(screen(document, where.width, where.height, trouble), refresh=True)
                if wait.quits(max(due_s - time.monotonic(), 0.0)):
                    return
                if time.monotonic() < due_s:
                    continue  # the terminal was resized
                due_s = time.monotonic() + interval_seconds
                try:
                    document, trouble = client.get(PATH), ""
                except NotRunningError as error:
                    trouble = str(error)
    except KeyboardInterrupt:
        return


class _Waiter:
    """Object that waits for a pressed key, a change of the terminal's size, or a timeout."""

    def __init__(self, keys: int | None, resized: int) -> None:
        self._keys, self._resized = keys, resized

    def quits(self, seconds: float) -> bool:
        """Wait at most `seconds`.

        Return True once `q` is pressed, and False after a resize of the terminal or the timeout.
        """
        sources = [self._resized, *([] if self._keys is None else [self._keys])]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._resized in ready:
            os.read(self._resized, 4096)
        if self._keys in ready and self._keys is not None:
            pressed = os.read(self._keys, 64)
            if not pressed:
                self._keys = None  # standard input has ended
            return b"q" in pressed.lower()
        return False


@contextmanager
def _waiter() -> Iterator[_Waiter]:
    """Yield an object that waits for keys. Inside the context, the terminal does not print pressed keys."""
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keys) if keys is not None else None
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakes = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    resize = signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    try:
        if keys is not None:
            tty.setcbreak(keys)
        yield _Waiter(keys, read)
    finally:
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, resize)
        signal.set_wakeup_fd(wakes)
        os.close(read)
        os.close(write)
