"""Timeouts: every instant at which a decision may become possible through time alone.

A cycle without events evaluates decisions only if a timeout has expired. A decision without a registered timeout would
never be made. So every policy that depends on time has a function ``timeouts``, which yields the instants after which
its result may change. ``SOURCES`` lists these functions; a new policy adds one line. Timeouts of a single job or node
(for example a late start, or the end of a pause, a cooldown or a quarantine) are in the scheduling index.

An instant may be early, but never late: an early evaluation does no harm. ``expired`` makes the cycle evaluate all
decisions again. ``next_ns`` gives the next instant to the simulator and the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.gpu_types import type_moves
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.nodes import quarantine
from scheduler_feedback.policies.power import limits
from scheduler_feedback.policies.queue import defragmentation, level_patience, preemption, resizing
from scheduler_feedback.policies.remediation import migration
from scheduler_feedback.policies.sharing import guest_moves
from scheduler_feedback.policies.sizes import reallocation

Source = Callable[[State, SchedulingIndex], Iterator[int]]


class Timeout(NamedTuple):
    """An instant in ns at which to evaluate decisions again, and the name of the policy that asked for it."""

    at_ns: int
    source: str


SOURCES: tuple[tuple[str, Source], ...] = (
    ("preemption", preemption.timeouts),
    ("resizing", resizing.timeouts),
    ("sizes", reallocation.timeouts),
    ("level patience", level_patience.timeouts),
    ("GPU types", type_moves.timeouts),
    ("guests", guest_moves.timeouts),
    ("defragmentation", defragmentation.timeouts),
    ("migration", migration.timeouts),
    ("quarantine", quarantine.timeouts),
    ("power", limits.timeouts),
)
"""Policies whose results depend on time: (name, function that yields the instants of the next evaluations)."""


def registered(state: State, index: SchedulingIndex) -> Iterator[Timeout]:
    """Yield the next timeouts of all policies. A timeout that is already past expires in the next cycle."""
    if index.grown or index.changed or index.fresh:
        yield Timeout(state.now_ns, "the last cycle")
    yield from (Timeout(at_ns, "stops") for at_ns in _refused_stops(state, index))
    if index.timeouts and not state.frozen:
        overdue = index.timeouts[0][0] <= state.now_ns  # expired since the last cycle: later ones count too
        yield from (Timeout(at_ns, "jobs and nodes") for at_ns, _ in index.timeouts[: None if overdue else 1])
    if index.ends and (len(index.line) or index.claimants or index.elastic or state.verdicts or state.host_waits):
        yield Timeout(index.ends[0].at_ns, "expected ends")
        if (first := index.first_own_end()) is not None:
            yield Timeout(first[0], "expected ends of jobs that share slots")
    yield from _of_policies(state, index)


def next_ns(state: State, index: SchedulingIndex, after_ns: int) -> int | None:
    """Return the first instant after after_ns at which a cycle may make a decision without events; None: never."""
    return min((timeout.at_ns for timeout in registered(state, index) if timeout.at_ns > after_ns), default=None)


def expired(state: State, index: SchedulingIndex, now_ns: int) -> bool:
    """Return whether a policy's timeout has expired since the last cycle. Call before the state's time advances."""
    return any(timeout.at_ns <= now_ns for timeout in _of_policies(state, index))


def _of_policies(state: State, index: SchedulingIndex) -> Iterator[Timeout]:
    for name, source in SOURCES:
        for at_ns in source(state, index):
            if at_ns > state.now_ns:  # earlier ones were evaluated in the last cycle
                yield Timeout(at_ns, name)


def _refused_stops(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield the times at which stop requests are repeated. During a freeze, only cancelled jobs are stopped."""
    for job_id in index.stopping:
        job = state.jobs[job_id]
        if job.state.holds_slots and (not state.frozen or job.stop_reason is StopReason.CANCEL):
            yield max(job.not_before_ns, state.now_ns)
