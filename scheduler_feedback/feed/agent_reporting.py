"""Status of agents' telemetry for page, API and command line: reporting, or not reporting (stale)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler_feedback.feed.stream_state import Stream

SILENT_INTERVALS = 3.0
SILENT_LEAST_SECONDS = 3.0
"""An agent is silent after three of its intervals without a frame, but not before 3 s. One late frame is normal on a
busy machine. At the usual interval of a second, silence is reported within 5 s."""

NEVER_SECONDS = 10.0
"""Seconds without a first frame after which an agent is silent. Its stream is usually opened within a second or two;
if 10,000 agents start at once, within ten."""


class AgentStatus(NamedTuple):
    """Status of one node's agent."""

    age_seconds: float | None
    """Time since the node's newest frame was received; None without a frame."""
    since_ns: int | None
    """Wall time of the node's newest frame; None without a frame."""
    silent: bool
    """Whether frames are overdue, measured by the agent's own interval."""

    @property
    def words(self) -> str:
        """Describe the age of the node's telemetry."""
        if self.age_seconds is None:
            return "no frame yet"
        return f"no frame for {self.age_seconds:.0f} s" if self.silent else "fresh"


def agent_statuses(streams: Iterable[Stream], monotonic_ns: int, wall_ns: int) -> dict[str, AgentStatus]:
    """Return the status of every agent that the feed has followed, by node."""
    found: dict[str, AgentStatus] = {}
    for stream in streams:
        if stream.received_ns is None:
            waited_seconds = (monotonic_ns - stream.known_ns) / 1e9
            found[stream.node] = AgentStatus(None, None, waited_seconds > NEVER_SECONDS)
            continue
        age_ns = max(0, monotonic_ns - stream.received_ns)
        limit_seconds = max(SILENT_LEAST_SECONDS, SILENT_INTERVALS * stream.interval_seconds * stream.every)
        found[stream.node] = AgentStatus(age_ns / 1e9, wall_ns - age_ns, age_ns / 1e9 > limit_seconds)
    return found


def silent(statuses: Mapping[str, AgentStatus], nodes: Iterable[str]) -> list[tuple[str, AgentStatus]]:
    """Return the nodes among `nodes` whose agent is not reporting, the longest outage first."""
    found = [(node, statuses[node]) for node in nodes if node in statuses and statuses[node].silent]
    return sorted(found, key=lambda one: (-(one[1].age_seconds or 0.0), one[0]))
