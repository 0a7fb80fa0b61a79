"""Timeouts: every instant at which a decision may become possible by the passing of time alone.

A cycle without events evaluates nothing again unless a timeout has expired, so a decision that becomes possible without
a registered timeout would never be made. Therefore every policy whose answer depends on the time has a function
``timeouts`` that yields the instants after which the answer may be another one, and ``SOURCES`` lists them all: a new
policy adds one line. Timeouts of a single job or node (a late start, the end of a pause, of the least run time, of a
cooldown, of a quarantine) are in the ledger's heap, which is one of the sources.

An instant may be early, never late: evaluating a decision that is not possible yet does no harm. ``expired`` tells the
cycle that it has to evaluate all of them again; ``next_ns`` tells the simulator and the tests when that will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.scheduling_index import Ledger
from scheduler_feedback.policies.nodes import quarantine
from scheduler_feedback.policies.queue import defragmentation, preemption, resizing
from scheduler_feedback.policies.remediation import migration

Source = Callable[[State, Ledger], Iterator[int]]


class Timeout(NamedTuple):
    """An instant, in ns, and the source that registered it."""

    at_ns: int
    source: str


SOURCES: tuple[tuple[str, Source], ...] = (
    ("preemption", preemption.timeouts),
    ("resizing", resizing.timeouts),
    ("defragmentation", defragmentation.timeouts),
    ("migration", migration.timeouts),
    ("quarantine", quarantine.timeouts),
)
"""Policies whose answers depend on the time. Their instants open the cycle's evaluation (``expired``)."""


def registered(state: State, ledger: Ledger) -> Iterator[Timeout]:
    """Yield what is due next, of every source; an instant that is not after now is due in the next cycle."""
    if ledger.grown or ledger.changed or ledger.fresh:
        yield Timeout(state.now_ns, "the last cycle")
    yield from (Timeout(at_ns, "stops") for at_ns in _refused_stops(state, ledger))
    if ledger.clocks and not state.frozen:
        overdue = ledger.clocks[0][0] <= state.now_ns  # set in the last cycle; the ones after it count too
        yield from (Timeout(at_ns, "jobs and nodes") for at_ns, _ in ledger.clocks[: None if overdue else 1])
    if ledger.ends and (len(ledger.line) or ledger.claimants or ledger.elastic or state.verdicts or state.host_waits):
        yield Timeout(ledger.ends[0].at_ns, "expected ends")
    yield from _of_policies(state, ledger)


def next_ns(state: State, ledger: Ledger, after_ns: int) -> int | None:
    """Return the next instant, after that one, at which a cycle without events may decide something; None: none."""
    return min((timeout.at_ns for timeout in registered(state, ledger) if timeout.at_ns > after_ns), default=None)


def expired(state: State, ledger: Ledger, now_ns: int) -> bool:
    """Return whether a timeout of a policy has expired since the last cycle, whose time the state still has."""
    return any(timeout.at_ns <= now_ns for timeout in _of_policies(state, ledger))


def _of_policies(state: State, ledger: Ledger) -> Iterator[Timeout]:
    for name, source in SOURCES:
        for at_ns in source(state, ledger):
            if at_ns > state.now_ns:  # earlier ones were evaluated in the last cycle
                yield Timeout(at_ns, name)


def _refused_stops(state: State, ledger: Ledger) -> Iterator[int]:
    """Yield when a stop is asked for again: of cancelled jobs while actions are frozen too."""
    for job_id in ledger.stopping:
        job = state.jobs[job_id]
        if job.state.holds_slots and (not state.frozen or job.stop_reason is StopReason.CANCEL):
            yield max(job.not_before_ns, state.now_ns)
