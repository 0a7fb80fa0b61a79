"""Measured latencies of services: jobs with a latency objective, each step of which is one request.

The latency is the time in which 95 % of the newest requests were answered, divided by the share of the time in which
the ranks were idle: requests that arrive at random wait for those before them (the mean of an M/M/1 queue, Kleinrock,
"Queueing Systems", 1975). The reporter does not see the queue itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.events import LatencyMeasured
from scheduler_feedback.core.state import Sharing, State
from scheduler_feedback.core.telemetry.steps.latency_reports import LatencyReports
from scheduler_feedback.core.telemetry.steps.step_ring import Requests
from scheduler_feedback.policies.index.scheduling_index import index_of

QUANTILE = 0.95
"""Share of the requests that must be answered in time."""

LEAST_REQUESTS = 20
"""Least number of requests in a measurement: one of them is beyond the quantile."""

MOST_BUSY = 0.99
"""Upper bound of the share of the time in which the ranks are busy, so that the latency stays finite."""

NewestRequests = Callable[[str], Requests | None]
"""Function that returns the newest requests of a job; None if it has answered none, or if they cannot be read now."""


@dataclass(slots=True)
class Latencies:
    """Measurement of all services. Used by the cycle's thread only."""

    newest_requests: NewestRequests
    """Returns the newest requests of a job."""
    _reports: LatencyReports = field(default_factory=LatencyReports)
    """Last report of each service."""

    def measure(self, state: State, now_ns: int) -> list[LatencyMeasured]:
        """Return new measurements. now_ns: monotonic time."""
        if state.policy.sharing is not Sharing.MUXFLOW:
            return []
        index, found = index_of(state), []
        services = sorted(one for one in index.running if state.jobs[one].spec.latency_objective_seconds)
        self._reports.keep(set(services))
        for job_id in services:
            job = state.jobs[job_id]
            if not self._reports.due(job, tuple(index.partners(job_id)), now_ns):
                continue
            requests = self.newest_requests(job_id)
            if requests is None or requests.seconds.size < LEAST_REQUESTS:
                continue
            seconds, busy = latency_of(requests)
            if (report := self._reports.report(job, seconds, busy, now_ns)) is not None:
                found.append(report)
        return found


def latency_of(requests: Requests) -> tuple[float, float]:
    """Return (latency in seconds, share of the time in which the ranks were busy)."""
    begun_ns = requests.end_ns[0] - requests.seconds[0] * 1e9
    passed = (requests.end_ns[-1] - begun_ns).sum() / 1e9
    busy = min(float(requests.seconds.sum() / passed), 1.0) if passed > 0 else 1.0
    return float(np.quantile(requests.seconds, QUANTILE)) / (1 - min(busy, MOST_BUSY)), busy
