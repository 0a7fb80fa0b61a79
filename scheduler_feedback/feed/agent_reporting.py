"""Which agents are heard, and which have fallen silent: what page, API and command line say of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler_feedback.feed.stream_state import Stream

SILENT_INTERVALS = 3.0
SILENT_LEAST_SECONDS = 3.0
"""An agent is silent after three of its own intervals without a frame, but not before 3 s. One late frame is usual on a
busy machine; at the usual interval of a second it is told within 5 s."""

NEVER_SECONDS = 10.0
"""Without a first frame for so long an agent passes for silent: its stream is opened within a second or two, of 10,000
agents that come at once within ten."""


class Hearing(NamedTuple):
    """One node's agent. age_seconds: since its newest frame came in, None where none ever did. since_ns: wall time of
    that frame. silent: no frame for too long, by the interval at which it sends them."""

    age_seconds: float | None
    since_ns: int | None
    silent: bool

    @property
    def words(self) -> str:
        """How fresh the node's telemetry is."""
        if self.age_seconds is None:
            return "no frame yet"
        return f"no frame for {self.age_seconds:.0f} s" if self.silent else "fresh"


def hearing_of(streams: Iterable[Stream], monotonic_ns: int, wall_ns: int) -> dict[str, Hearing]:
    """By node, of every agent that the feed has ever followed."""
    found: dict[str, Hearing] = {}
    for stream in streams:
        if stream.received_ns is None:
            waited_seconds = (monotonic_ns - stream.known_ns) / 1e9
            found[stream.node] = Hearing(None, None, waited_seconds > NEVER_SECONDS)
            continue
        age_ns = max(0, monotonic_ns - stream.received_ns)
        limit_seconds = max(SILENT_LEAST_SECONDS, SILENT_INTERVALS * stream.interval_seconds)
        found[stream.node] = Hearing(age_ns / 1e9, wall_ns - age_ns, age_ns / 1e9 > limit_seconds)
    return found


def silent(hearing: Mapping[str, Hearing], nodes: Iterable[str]) -> list[tuple[str, Hearing]]:
    """Those of these nodes whose agent has fallen silent, the longest silent first."""
    found = [(node, hearing[node]) for node in nodes if node in hearing and hearing[node].silent]
    return sorted(found, key=lambda one: (-(one[1].age_seconds or 0.0), one[0]))
