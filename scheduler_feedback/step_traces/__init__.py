"""Step traces: recorded jobs, read as a stream of telemetry. Each format has a module and a line in FORMATS.

Start at ``step_trace.py``, a recorded job as every reader returns it. ``judging.py`` runs the detectors over it for
`gangwatch detect`, and ``operation_replay.py`` computes what a straggler cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.schema.errors import TraceError

if TYPE_CHECKING:
    from scheduler_feedback.core.telemetry.telemetry import Telemetry
    from scheduler_feedback.step_traces.step_trace import Trace

# Each reader is imported when a file is read: they load numpy, and `gangwatch detect --help` needs only their names.


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that can be replayed to the detectors."""

    path: Path
    """Path of the recorded file."""
    format: str
    """Name of the file's format: a key of FORMATS."""
    timed: bool
    """Whether the recording's times are real seconds on a clock. If not, each step is evaluated as one window."""
    stream: Callable[[], Iterator[Telemetry]]
    """Returns the telemetry from the beginning at each call."""
    traces: tuple[Trace, ...] = ()
    """Recorded jobs, if the format lists whole jobs; empty for recorded frames."""


Progress = Callable[[int], None]
"""Function that a reader calls after each block of a file, with the number of bytes that it has read since the last
call."""


def _of_traces(read: Callable[[Path, Progress], tuple[Trace, ...]], name: str) -> Callable[[Path, Progress], Recording]:
    def make(path: Path, progress: Progress) -> Recording:
        traces = read(path, progress)

        def stream() -> Iterator[Telemetry]:
            for trace in traces:
                yield from trace.stream()

        return Recording(path, name, any(trace.counters is not None for trace in traces), stream, traces)

    return make


def _bytedance(path: Path, _: Progress) -> tuple[Trace, ...]:
    from scheduler_feedback.step_traces import bytedance

    return (bytedance.read(path),)


def _pai(path: Path, _: Progress) -> tuple[Trace, ...]:
    from scheduler_feedback.step_traces import pai

    return (pai.read(path),)


def _json_lines(path: Path, progress: Progress) -> tuple[Trace, ...]:
    from scheduler_feedback.step_traces import json_lines

    return json_lines.read(path, progress)


def _of_frames(path: Path, _: Progress) -> Recording:
    from scheduler_feedback.step_traces import frame_file

    recorded = frame_file.read(path)
    return Recording(path, "frames", True, lambda: frame_file.stream(path, recorded))


FORMATS: dict[str, Callable[[Path, Progress], Recording]] = {
    "bytedance": _of_traces(_bytedance, "bytedance"),
    "pai": _of_traces(_pai, "pai"),
    "jsonl": _of_traces(_json_lines, "jsonl"),
    "frames": _of_frames,
}
"""Reader of each format, by name."""


def read(path: Path, format_name: str | None = None, progress: Progress = lambda _: None) -> Recording:
    """Read a recording. Without a format name, the format is guessed from the start of the file.

    progress: called while a file of JSON lines is read; files of other formats are read at once.

    Raises TraceError with file, line or row, and column if it cannot be read.
    """
    return FORMATS[format_name or guess(path)](path, progress)


def guess(path: Path) -> str:
    """Guess the format from the file's first bytes. Raises TraceError if the file is empty."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    if not start.strip():
        raise TraceError(f"{path}: the file is empty")
    if start.startswith(b"PAR1"):
        return "bytedance"
    if start.lstrip().startswith(b"{"):
        return "jsonl"
    return "frames" if b"\x00" in start[:4] else "pai"
