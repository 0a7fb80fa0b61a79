"""Reader of recorded frames: a file with agents' frame streams as sent over the network.

Messages of several agents may be mixed. They are processed as in the controller: in the order of their wall time, and
with the same interval of the detectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent.schema.errors import FrameError, TraceError
from agent.schema.frame import Frame, Layout
from agent.schema.wire import MessageSplitter, decode
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.step_traces.step_trace import TICK_NS

CHUNK_BYTES = 1 << 20


def read(path: Path) -> list[tuple[Layout, Frame]]:
    """Return every frame with its layout (the description of its series), in the order of wall time.

    Raises TraceError with the number of an invalid message.
    """
    layouts: dict[str, Layout] = {}
    found: list[tuple[Layout, Frame]] = []
    splitter, count = MessageSplitter(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                for message in splitter.feed(chunk):
                    count += 1
                    value = decode(message)
                    if isinstance(value, Layout):
                        layouts[value.layout_id] = value
                    elif value.layout_id in layouts:
                        found.append((layouts[value.layout_id], value))
                    else:
                        raise TraceError(
                            f"{path}: message {count}: no earlier message contains its layout {value.layout_id}"
                        )
    except FrameError as error:
        raise TraceError(f"{path}: message {count}: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error}") from None
    if not found:
        raise TraceError(f"{path}: the file contains no frames")
    return sorted(found, key=lambda item: item[1].wall_ns)


def stream(path: Path, frames: list[tuple[Layout, Frame]]) -> Iterator[Telemetry]:
    """Yield the detectors' input, tick by tick. Raises TraceError for a frame that does not match its layout."""
    fleet = Fleet()
    look = Look(fleet)
    due = frames[0][1].wall_ns + TICK_NS
    for number, (layout, frame) in enumerate(frames, 1):
        while due < frame.wall_ns:
            yield look.next(due, due)
            due = max(due + TICK_NS, frame.wall_ns - 60 * TICK_NS)
        try:
            fleet.observe(layout, frame, frame.wall_ns)
        except FrameError as error:
            raise TraceError(f"{path}: frame {number}: {error}") from None
    yield look.next(due, due)
