"""Status of agents' telemetry for page, API and command line: reporting, or not reporting (stale)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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


class AgentStatuses(Mapping[str, AgentStatus]):
    """Status of every agent that the feed has followed, by node. Each is computed on access, because most requests
    need the status of a few of 12,500 nodes, or only of the nodes that do not report."""

    def __init__(self, streams: Mapping[str, Stream], monotonic_ns: int, wall_ns: int) -> None:
        """streams: of the agents, by node; the feed may change them meanwhile. monotonic_ns, wall_ns: the present."""
        self._streams, self._monotonic_ns, self._wall_ns = streams, monotonic_ns, wall_ns

    def __getitem__(self, node: str) -> AgentStatus:
        stream = self._streams[node]
        received_ns = stream.received_ns
        if received_ns is None:
            return AgentStatus(None, None, _is_silent(stream, self._monotonic_ns))
        age_ns = max(0, self._monotonic_ns - received_ns)
        return AgentStatus(age_ns / 1e9, self._wall_ns - age_ns, _is_silent(stream, self._monotonic_ns))

    def get(self, node: str, default: Any = None) -> Any:
        """Return the status of the node's agent, or `default`."""
        return self[node] if node in self._streams else default

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._streams))  # the feed may add one meanwhile

    def __len__(self) -> int:
        return len(self._streams)

    def silent(self, nodes: Iterable[str]) -> list[tuple[str, AgentStatus]]:
        """Return the nodes among `nodes` whose agent is not reporting, the longest outage first."""
        least_ns = self._monotonic_ns - int(SILENT_LEAST_SECONDS * 1e9)
        streams, found = self._streams, []
        for node in nodes:
            stream = streams.get(node)
            if stream is None or ((received_ns := stream.received_ns) is not None and received_ns >= least_ns):
                continue  # the usual case
            if (status := self[node]).silent:
                found.append((node, status))
        return sorted(found, key=lambda one: (-(one[1].age_seconds or 0.0), one[0]))


def _is_silent(stream: Stream, monotonic_ns: int) -> bool:
    """Return whether frames of the agent are overdue."""
    if stream.received_ns is None:
        return (monotonic_ns - stream.known_ns) / 1e9 > NEVER_SECONDS
    limit_seconds = max(SILENT_LEAST_SECONDS, SILENT_INTERVALS * stream.interval_seconds * stream.every)
    return (monotonic_ns - stream.received_ns) / 1e9 > limit_seconds
