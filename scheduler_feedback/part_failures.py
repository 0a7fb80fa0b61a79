"""Failures of the controller's parts: a bug in one part disables only that part, and is reported.

Every boundary between scheduling and other parts (frames, detectors, page, API, metrics) catches unexpected exceptions
and reports them here. Each bug is logged with its traceback once, and counted. ``/readyz``, ``/api/parts``, the page's
banner, ``gangwatch check`` and the metrics below name the parts that are out of service.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict

from agent.schema.sample import Sample

PARTS = (
    *("feed", "fleet", "pace", "speeds", "memory", "shared"),
    *("verdicts", "entries", "baselines", "metrics", "page", "api"),
)
"""Names of the parts.

- feed: reads the agents' streams.
- fleet: processes frames.
- pace: keeps step times for the page.
- shared: data that all detectors share, and the arbiter of their verdicts.
- verdicts: passes verdicts to the cycle.
- entries: passes journal entries to readers.
- baselines: takes the detectors' snapshots.
- metrics: serves /metrics.
- page, api: answer requests.
"""

MOST_KNOWN = 256
"""Maximum number of different bugs that are logged, each once; further bugs are not logged."""

RECENT_SECONDS = 900.0
"""A failure of a part that works again is shown for this time after the failure, in seconds."""

_log = logging.getLogger(__name__)


class Trouble(TypedDict):
    """A part of the controller that raised an unexpected error."""

    part: str
    out: bool
    """Whether the part is out of service; if not, it failed recently and still works."""
    text: str
    failures: int
    """Number of failures since the controller's start."""
    wall_ns: int
    """Wall time of the newest failure, in nanoseconds since the epoch."""


@dataclass(slots=True)
class _Newest:
    """Newest failure of a part. at_s: its time on the monotonic clock."""

    text: str
    at_s: float
    wall_ns: int


class PartFailures:
    """Counters and records of failures of parts and detectors. Every method may be called from any thread.

    detectors: names of the detectors, which have a metric of their own.
    """

    def __init__(self, detectors: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._detectors = tuple(detectors)
        self._failures = dict.fromkeys((*PARTS, *self._detectors), 0)
        self._newest: dict[str, _Newest] = {}
        self._out: dict[str, str] = {}
        self._aside: dict[str, int] = {"node": 0, "gang": 0}
        self._known: set[tuple[str, str, str, int]] = set()
        self._started_again: tuple[float, Trouble] | None = None

    # --- reporting ----------------------------------------------------------------------------------------------------

    def report(self, part: str, error: BaseException, subject: str = "", out: bool = False) -> None:
        """Count a failure of a part, and log it if the bug is new.

        subject: the affected object ("node n1"). out: whether the part is out of service from now on.
        """
        text = f"{type(error).__name__}: {error}"[:300]
        where = _where(error)
        with self._lock:
            self._failures[part] = self._failures.get(part, 0) + 1
            of = f" ({subject})" if subject else ""
            self._newest[part] = _Newest(text + of, time.monotonic(), time.time_ns())
            if out:
                self._out.setdefault(part, text)
            bug = part, type(error).__name__, *where
            new = bug not in self._known and len(self._known) < MOST_KNOWN
            if new:
                self._known.add(bug)
        if new:
            _log.critical(
                "part=%s subject=%s out_of_service=%s: unexpected error; this is a bug, please report it; scheduling "
                "continues",
                part, subject or "-", "yes" if out else "no", exc_info=error,
            )  # fmt: skip

    def back(self, part: str) -> None:
        """Mark the part as in service again."""
        with self._lock:
            if self._out.pop(part, None) is not None:
                _log.warning("part=%s: in service again", part)

    def set_aside(self, nodes: int, gangs: int) -> None:
        """Set the number of nodes and gangs whose telemetry is ignored because it triggered a bug."""
        self._aside = {"node": nodes, "gang": gangs}

    def started_again(self, reason: str, ended_ns: int) -> None:
        """Record that this controller replaced one that ended unexpectedly. ended_ns: wall time of that end."""
        trouble = Trouble(part="controller", out=False, text=reason, failures=1, wall_ns=ended_ns)
        self._started_again = time.monotonic(), trouble

    # --- reading ------------------------------------------------------------------------------------------------------

    def is_out(self, part: str) -> bool:
        """Return whether the part is out of service."""
        return part in self._out

    def out_of_service(self) -> str:
        """Return the parts that are out of service, and why, as text; empty if all parts work."""
        with self._lock:
            return "; ".join(f"{part} failed: {text}" for part, text in self._out.items())

    def troubles(self) -> list[Trouble]:
        """Return the parts that are out of service, then those that failed within RECENT_SECONDS.

        An unexpected end of the previous controller is listed too.
        """
        now_s = time.monotonic()
        with self._lock:
            found = [
                Trouble(
                    part=part,
                    out=part in self._out,
                    text=self._out.get(part, newest.text),
                    failures=self._failures[part],
                    wall_ns=newest.wall_ns,
                )
                for part, newest in self._newest.items()
                if part in self._out or now_s - newest.at_s < RECENT_SECONDS
            ]
        if self._started_again is not None and now_s - self._started_again[0] < RECENT_SECONDS:
            found.append(self._started_again[1])
        return sorted(found, key=lambda one: not one["out"])

    def measures(self) -> Iterator[Sample]:
        """Yield the metric samples of the parts and detectors."""
        with self._lock:
            failures, out, aside = dict(self._failures), set(self._out), dict(self._aside)
        for name, count in failures.items():
            if name in self._detectors:
                yield "gangwatch_detector_failures_total", (("detector", name),), float(count)
            else:
                yield "gangwatch_part_failures_total", (("part", name),), float(count)
                yield "gangwatch_part_out_of_service", (("part", name),), float(name in out)
        for kind, count in aside.items():
            yield "gangwatch_telemetry_set_aside", (("kind", kind),), float(count)


_NAMES = {
    "feed": "Reading the agents' streams",
    "fleet": "Telemetry",
    "pace": "Step times on the page",
    "speeds": "Measured speeds of jobs",
    "memory": "Measured device memory of jobs",
    "shared": "Detection",
    "verdicts": "Passing verdicts to the scheduler",
    "entries": "Passing events to readers",
    "baselines": "Saving the detectors' baselines",
    "metrics": "/metrics",
    "page": "A page",
    "api": "The API",
}


def in_words(trouble: Trouble) -> str:
    """Return one trouble as a sentence for users."""
    part, text = trouble["part"], trouble["text"]
    if part == "controller":
        at = time.strftime("%H:%M:%S", time.localtime(trouble["wall_ns"] / 1e9))
        return f"The controller ended at {at} ({text}) and was restarted. Running jobs were not affected."
    name = _NAMES.get(part, f"Detector {part}")
    if trouble["out"]:
        back = "it is retried automatically" if part == "feed" else "to enable it again, restart the controller"
        return (
            f"{name} is out of service because of a bug: {text}. Jobs are still started and stopped. "
            f"The controller's log has the traceback; {back}."
        )
    often = "once" if trouble["failures"] == 1 else f"{trouble['failures']} times"
    return f"{name} failed {often} because of a bug: {text}. The controller's log has the traceback."


def _where(error: BaseException) -> tuple[str, int]:
    """Return the file and line that raised the error, which identify a bug.

    They are stored in the exception, because only the first of several callers that await a task gets the full
    traceback.
    """
    known: tuple[str, int] | None = getattr(error, "_raised_at", None)
    if known is not None:
        return known
    trace = error.__traceback__
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    try:
        error._raised_at = found  # type: ignore[attr-defined]
    except AttributeError:
        pass  # an exception with slots
    return found
