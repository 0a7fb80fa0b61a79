"""Live screen of the demo: nodes and slots, step times of the training, and messages.

On a terminal the screen is redrawn twice a second; elsewhere (a pipe, CI) only the messages are printed, one per line.
All output goes to standard error: standard output is for the report.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent.schema.errors import GangwatchError
from gangwatch.demo.report import per_step

if TYPE_CHECKING:
    from gangwatch.demo.conductor import Conductor

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"healthy": "green", "suspect": "yellow", "quarantine": "red", "probation": "cyan", "maintenance": "magenta"}
SHOWN_STEPS = 90
SHOWN_LINES = 8


def sparkline(values: list[float], most: float) -> str:
    """Return a text with one bar character per value. A value of `most` or more has the full height."""
    return "".join(_BARS[min(len(_BARS) - 1, int(value / most * len(_BARS)))] for value in values) if most > 0 else ""


class Screen:
    """The demo's screen, a context manager. Any thread may call ``say``."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._conductor: Conductor | None = None
        self._live: Live | None = None
        self._closed = threading.Event()
        self._painter = threading.Thread(target=self._paint, name="screen", daemon=True)

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
            self._painter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._live is not None:
            self._painter.join(timeout=5)
            self._live.stop()

    def say(self, text: str) -> None:
        """Show a message on the screen, with the time since the start of the demo."""
        line = f"{time.monotonic() - self._began:6.1f} s  {text}"
        self._lines.append(line)
        if self._live is None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def watch(self, conductor: Conductor) -> None:
        """Show the cluster of this demo run from now on."""
        self._conductor = conductor

    def _paint(self) -> None:
        while not self._closed.wait(0.5):
            if self._live is not None:
                self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        said = Panel(Text("\n".join(self._lines[-SHOWN_LINES:])), title="gangwatch demo", title_align="left")
        conductor = self._conductor
        if conductor is None or "training" not in conductor.play.job_ids:
            return Group(said)
        try:
            nodes = conductor.audience.get("/api/nodes")
            jobs = conductor.audience.get("/api/jobs?active=1")
        except (GangwatchError, OSError):
            return Group(said)  # the controller is starting or stopping
        return Group(self._cluster(nodes, jobs), self._steps(conductor), said)

    def _cluster(self, nodes: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> Table:
        held = {
            (rank["node"], rank["slot"]): f"{job['name']} {rank['rank']}"
            for job in jobs
            if job["state"] in ("starting", "running", "stopping")
            for rank in job["ranks"]
        }
        table = Table(box=None, padding=(0, 2))
        for title in ("node", "state", "slot 0", "slot 1"):
            table.add_column(title)
        for node in nodes:
            state = str(node["state"])
            slots = [held.get((node["node"], slot), "·") for slot in range(2)]
            table.add_row(node["node"], Text(state, style=_COLOURS.get(state, "")), *slots)
        waiting = [f"{job['name']} ({job['state']})" for job in jobs if job["state"] == "pending"]
        table.add_row("", Text("pending", style="dim"), Text(", ".join(waiting) or "none", style="dim"), "")
        return table

    def _steps(self, conductor: Conductor) -> Panel:
        gang = conductor.play.job_ids["training"]
        durations = per_step(conductor.listener.steps(), gang, 0, time.time_ns())[-SHOWN_STEPS:]
        most = max([*durations, 1e-9])
        newest = f"{durations[-1] * 1000:.0f} ms" if durations else "none yet"
        return Panel(
            Text(sparkline(durations, most)), title=f"training: step time, latest {newest}", title_align="left"
        )
