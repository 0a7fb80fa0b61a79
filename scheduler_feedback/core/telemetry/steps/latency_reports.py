"""Which measured latencies of a service are reported to the scheduler: those after which it may decide otherwise.

A latency is reported when it differs from the last reported one by CHANGE, after each change of the jobs on the
service's slots, and every REPEAT_NS while it is above the objective's part at which the service recalls its slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_feedback.core.events import LatencyMeasured
from scheduler_feedback.core.job import Job

WINDOW_NS = 10 * 10**9
"""Least time between two reports of one service, and until the first report beside other jobs, in ns."""

REPEAT_NS = 60 * 10**9
"""Time after which a latency is reported again although it has hardly changed, in ns."""

CHANGE = 0.1
"""Least change of the latency that is reported, as a part of the last reported one."""


@dataclass(slots=True)
class LatencyReports:
    """The last reports of all services."""

    _last: dict[str, tuple[tuple[object, ...], int, float]] = field(default_factory=dict)
    """Attempt and partners of each service at its last report, when that was, and the latency."""

    def due(self, job: Job, partners: tuple[str, ...], now_ns: int) -> bool:
        """Return whether enough time has passed since the last report, or since the jobs on the slots have changed."""
        group = (job.attempt, partners)
        known = self._last.get(job.job_id)
        if known is None or known[0] != group:
            self._last[job.job_id] = (group, now_ns, 0.0)
            return False
        return now_ns - known[1] >= WINDOW_NS

    def report(self, job: Job, seconds: float, busy: float, now_ns: int) -> LatencyMeasured | None:
        """Return the report of a measured latency; None if it would change nothing. Call it only if one is due."""
        group, at_ns, before = self._last[job.job_id]
        if abs(seconds - before) <= CHANGE * before and now_ns - at_ns < REPEAT_NS:
            return None
        self._last[job.job_id] = (group, now_ns, seconds)
        return LatencyMeasured(job.job_id, job.attempt, seconds, busy)

    def keep(self, job_ids: set[str]) -> None:
        """Forget all services except these."""
        for gone in self._last.keys() - job_ids:
            del self._last[gone]
