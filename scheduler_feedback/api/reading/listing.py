"""Lists of jobs, nodes and verdicts of one state snapshot, cached for all API requests.

Only the thread that computes answers may use them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import msgspec

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.reading.encoded_parts import EncodedParts
from scheduler_feedback.api.reading.node_summary import NodeSummary, summary_of
from scheduler_feedback.api.reading.of_nodes import OfNodes
from scheduler_feedback.api.reading.rank_counts import RankCounts
from scheduler_feedback.api.reading.state_snapshots import Snapshot
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import PastVerdict, State
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.cycle import explain
from scheduler_feedback.policies.index.scheduling_index import free_derived, index_of
from scheduler_feedback.policies.queue import order

REASONS_PAUSE = 40
"""A scheduling index that took T seconds to build explains pending jobs for 40 T seconds, also those of newer
snapshots. So at most a fortieth of the time is spent on building."""


@dataclass(slots=True)
class _Indexed:
    """A state whose scheduling index was built."""

    state: State
    until_s: float
    """Time, in monotonic seconds, until which this state also explains pending jobs of newer snapshots."""


class Reasons:
    """Cache of a state with scheduling index, from which the API explains why jobs are pending.

    Building the index takes 45 ms for 10,000 jobs, so several snapshots share one index. In a large cluster an
    explanation may therefore be two seconds older than its list.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._newest: _Indexed | None = None

    def of(self, state: State) -> State:
        """Return a state with a scheduling index: an earlier state with the same policy, or this state."""
        newest, now_s = self._newest, self._clock()
        if newest is not None and (
            newest.state is state
            or (now_s < newest.until_s and newest.state.policy is state.policy and newest.state.frozen == state.frozen)
        ):
            return newest.state
        return self.exactly(state)

    def exactly(self, state: State) -> State:
        """Build the scheduling index of this state if necessary, and return the state.

        The plan of free slots, most of the work, is needed only to explain pending jobs.
        """
        if self._newest is None or self._newest.state is not state:
            begun_s = self._clock()
            index = index_of(state)
            if any(job.state is JobState.PENDING for job in state.jobs.values()):
                _ = index.plan
            ended_s = self._clock()
            if self._newest is not None:
                free_derived(self._newest.state)
            self._newest = _Indexed(state, ended_s + (ended_s - begun_s) * REASONS_PAUSE)
        return state


class Kept:
    """Values that the lists of successive snapshots share. counts: of the jobs' ranks. rows: of the timetable. ranks,
    nodes, verdicts: encoded."""

    def __init__(self) -> None:
        self.reasons = Reasons()
        self.rows: OfNodes[Any] = OfNodes()
        self._summaries: OfNodes[NodeSummary] = OfNodes()
        self.counts = RankCounts()
        self.ranks, self.nodes, self.verdicts = EncodedParts(), EncodedParts(), EncodedParts()

    def summary_of(self, state: State) -> NodeSummary:
        """Return the summary of the state's nodes."""
        return self._summaries.of(state.nodes, lambda: summary_of(state.nodes.values()))

    def keep(self, state: State) -> None:
        """Delete most values of jobs and nodes that are not in the state."""
        self.counts.keep(state.jobs.keys())
        self.ranks.keep(state.jobs.keys())
        self.nodes.keep(state.nodes.keys())
        self.verdicts.keep({*state.verdicts, *(past.verdict.verdict_id for past in state.past_verdicts)})


class Listing:
    """One snapshot of the state, with cached lists and other derived values."""

    def __init__(self, snapshot: Snapshot, kept: Kept | None = None) -> None:
        self.version = snapshot.version
        self.state = snapshot.state
        self.kept = Kept() if kept is None else kept
        self.kept.keep(self.state)

    @property
    def reasons(self) -> State:
        """A state with a scheduling index, from which the API explains why jobs are pending."""
        return self.kept.reasons.of(self.state)

    def reasons_for(self, job: Job) -> State:
        """Return the state from which the API explains why this job is pending; for other jobs, `state` itself."""
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

    @property
    def present(self) -> list[str]:
        """The names of the nodes that the backend reports."""
        return self.kept.summary_of(self.state).present

    @cached_property
    def on_node(self) -> dict[str, dict[str, int]]:
        """Number of ranks of each job on each node: {node: {job id: ranks}}."""
        found: dict[str, dict[str, int]] = {name: {} for name in self.state.nodes}
        for job in self.state.jobs.values():
            if job.state.holds_slots:
                for node, ranks in self.kept.counts.of(job).items():
                    found.setdefault(node, {})[job.job_id] = ranks
        return found

    def encoded_node(self, name: str) -> bytes:
        """Return the document of a node as JSON, without its agent's status."""
        node, jobs = self.state.nodes[name], self.on_node[name]
        return self.kept.nodes.of(name, (node, jobs), lambda: documents.node_document(node, jobs))

    def encoded_verdict(self, verdict: Verdict, past: PastVerdict | None = None) -> msgspec.Raw:
        """Return the document of a verdict as JSON. A verdict about a large gang names the newest frame of each of its
        nodes, which takes a millisecond to encode."""
        state, verdict_id = self.state, verdict.verdict_id
        opened = state.open_decisions.get(verdict_id)
        values = (verdict, past, state.judged.get(verdict_id), opened)
        return msgspec.Raw(
            self.kept.verdicts.of(verdict_id, values, lambda: documents.verdict_document(state, verdict, past))
        )

    def encoded_ranks(self, job: Job) -> msgspec.Raw:
        """Return the documents of a job's ranks as JSON."""
        return msgspec.Raw(self.kept.ranks.of(job.job_id, (job.ranks,), lambda: documents.rank_documents(job.ranks)))

    @cached_property
    def verdicts_of(self) -> dict[str, list[tuple[Verdict, PastVerdict | None]]]:
        """Verdicts by job id: first active verdicts, then past verdicts, the newest first."""
        found: dict[str, list[tuple[Verdict, PastVerdict | None]]] = {}
        for verdict in self.state.verdicts.values():
            found.setdefault(verdict.gang, []).append((verdict, None))
        for past in reversed(self.state.past_verdicts):
            found.setdefault(past.verdict.gang, []).append((past.verdict, past))
        return found

    def explain(self, job_id: str) -> Explanation | None:
        """Return the explanation of the job's present state; None if there is no such job."""
        older = self.reasons
        if older is not self.state and not _is_same(self.state.jobs.get(job_id), older.jobs.get(job_id)):
            older = self.kept.reasons.exactly(self.state)
        return explain(older, job_id)


def _is_same(job: Job | None, before: Job | None) -> bool:
    """Return whether the job is the same in both states, so that an explanation from the earlier state still applies.

    Both arguments are None for an array, which counts as unchanged.
    """
    if job is None or before is None:
        return job is before
    return (job.state, job.attempt, job.stop_reason) == (before.state, before.attempt, before.stop_reason)
