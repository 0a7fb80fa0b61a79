"""Step traces: recorded jobs as a stream of telemetry, whatever the format. One file a format, one line in FORMATS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.step_traces import bytedance, frames, json_lines, pai
from scheduler_feedback.step_traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that can be shown to the detectors.

    timed: whether its times are real seconds on a clock; else each step is a window of its own. traces: the jobs, where
    the format has them before it is played. stream: makes the telemetry anew at each call.
    """

    path: Path
    format: str
    timed: bool
    stream: Callable[[], Iterator[Telemetry]]
    traces: tuple[Trace, ...] = ()


def _of_traces(read: Callable[[Path], tuple[Trace, ...]], name: str) -> Callable[[Path], Recording]:
    def make(path: Path) -> Recording:
        traces = read(path)

        def stream() -> Iterator[Telemetry]:
            for trace in traces:
                yield from trace.stream()

        return Recording(path, name, False, stream, traces)

    return make


def _of_frames(path: Path) -> Recording:
    recorded = frames.read(path)
    return Recording(path, "frames", True, lambda: frames.stream(path, recorded))


FORMATS: dict[str, Callable[[Path], Recording]] = {
    "bytedance": _of_traces(lambda path: (bytedance.read(path),), "bytedance"),
    "pai": _of_traces(lambda path: (pai.read(path),), "pai"),
    "jsonl": _of_traces(json_lines.read, "jsonl"),
    "frames": _of_frames,
}
"""Every format: its name and what reads a file of it."""


def read(path: Path, format_name: str | None = None) -> Recording:
    """Read a recording; the format is told from the file's beginning where it is not given.

    Raises TraceError naming file, line or row, and column where it can't be read.
    """
    return FORMATS[format_name or guess(path)](path)


def guess(path: Path) -> str:
    """The format by the file's first bytes. Raises TraceError for an empty one."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    if not start.strip():
        raise TraceError(f"{path}: it is empty")
    if start.startswith(b"PAR1"):
        return "bytedance"
    if start.lstrip().startswith(b"{"):
        return "jsonl"
    return "frames" if b"\x00" in start[:4] else "pai"
