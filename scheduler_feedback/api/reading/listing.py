"""Lists of one snapshot, computed once for all readers of that version. Only for the thread of reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.reading.state_snapshots import Snapshot
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import PastVerdict, State
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.cycle import explain
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.queue import order

REASONS_PAUSE = 10
"""Time for which the reasons of an older snapshot are reused, as a multiple of the time to build its scheduling
index."""


@dataclass(slots=True)
class _Indexed:
    """A state with its scheduling index."""

    state: State
    until_s: float
    """Time, in monotonic seconds, until which the state also provides reasons for newer snapshots."""


class Reasons:
    """Copies of the state for the reasons why jobs are pending.

    A reason needs the scheduling index. Building the index takes 45 ms for 10,000 jobs, so several lists share one. In
    a large cluster a reason may be half a second older than its list.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._newest: _Indexed | None = None

    def of(self, state: State) -> State:
        """Return the state itself, or an earlier one with the same settings whose index exists."""
        newest, now_s = self._newest, self._clock()
        if newest is not None and (
            newest.state is state
            or (now_s < newest.until_s and newest.state.policy is state.policy and newest.state.frozen == state.frozen)
        ):
            return newest.state
        return self.exactly(state)

    def exactly(self, state: State) -> State:
        """Return the state itself, with its index."""
        if self._newest is None or self._newest.state is not state:
            begun_s = self._clock()
            _ = index_of(state).plan
            ended_s = self._clock()
            self._newest = _Indexed(state, ended_s + (ended_s - begun_s) * REASONS_PAUSE)
        return state


class Listing:
    """One snapshot, and values derived from it for all lists."""

    def __init__(self, snapshot: Snapshot, reasons: Reasons) -> None:
        self.version = snapshot.version
        self.state = snapshot.state
        self._reasons = reasons

    @property
    def reasons(self) -> State:
        """The state that explains why jobs are pending."""
        return self._reasons.of(self.state)

    def reasons_for(self, job: Job) -> State:
        """Return the state that explains why this job is pending. For other jobs no index is built."""
        return self.reasons if job.state is JobState.PENDING else self.state

    @cached_property
    def jobs(self) -> list[Job]:
        """All jobs in order of submission."""
        # Nearly sorted already: jobs of an external scheduler may become known out of order.
        return sorted(self.state.jobs.values(), key=attrgetter("submitted_ns"))

    @cached_property
    def waiting(self) -> list[Job]:
        """The pending jobs in scheduling order."""
        return order.queue(self.state)

    @cached_property
    def nodes(self) -> list[str]:
        """The nodes' names, sorted."""
        return sorted(self.state.nodes)

    @cached_property
    def present(self) -> list[str]:
        """The names of the nodes that the backend reports."""
        return documents.present_nodes(self.state)

    @cached_property
    def on_node(self) -> dict[str, dict[str, int]]:
        """Number of ranks per job that hold slots, by node."""
        found: dict[str, dict[str, int]] = {name: {} for name in self.state.nodes}
        for job in self.state.jobs.values():
            if job.state.holds_slots:
                for rank in job.ranks:
                    jobs = found.setdefault(rank.slot.node, {})
                    jobs[job.job_id] = jobs.get(job.job_id, 0) + 1
        return found

    @cached_property
    def verdicts_of(self) -> dict[str, list[tuple[Verdict, PastVerdict | None]]]:
        """Verdicts by job: active ones, then past ones, newest first."""
        found: dict[str, list[tuple[Verdict, PastVerdict | None]]] = {}
        for verdict in self.state.verdicts.values():
            found.setdefault(verdict.gang, []).append((verdict, None))
        for past in reversed(self.state.past_verdicts):
            found.setdefault(past.verdict.gang, []).append((past.verdict, past))
        return found

    def explain(self, job_id: str) -> Explanation | None:
        """Explain the job's situation; None if there is no such job."""
        older = self.reasons
        if older is not self.state and not _is_same(self.state.jobs.get(job_id), older.jobs.get(job_id)):
            older = self._reasons.exactly(self.state)
        return explain(older, job_id)


def _is_same(job: Job | None, before: Job | None) -> bool:
    """Return whether a job is unchanged, so that an earlier explanation still holds. Array ids count as unchanged
    jobs."""
    if job is None or before is None:
        return job is before
    return (job.state, job.attempt, job.stop_reason) == (before.state, before.attempt, before.stop_reason)
