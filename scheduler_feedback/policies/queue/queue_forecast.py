"""Queue metrics: why gangs wait, and when running gangs are expected to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from agent.schema.sample import Sample
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.runtime_estimate import end_ns, slowest
from scheduler_feedback.policies.queue.waiting_reasons import what_binds

MOST_ASKED = 1000
"""Maximum number of pending gangs that are evaluated, the oldest first. This takes about 5 us a gang every second."""


def queue_metrics(state: State) -> Iterator[Sample]:
    """Yield the metric samples of the queue. It runs on the cycle's thread and does not change the scheduling index."""
    pending = (job for job in state.jobs.values() if job.state is JobState.PENDING)
    binds = Counter(what_binds(state, job)[0] for job in islice(pending, MOST_ASKED))
    if others := sum(1 for _ in pending):
        binds["not-evaluated"] = others
    for reason in sorted(binds):
        yield "gangwatch_gangs_waiting", (("reason", reason),), float(binds[reason])
    worst = slowest(state.verdicts.values())
    for job in state.jobs.values():
        if job.state.holds_slots and job.attempt_started_ns is not None:
            left_ns = end_ns(state.policy, job, worst.get(job.job_id), state.now_ns) - state.now_ns
            yield "gangwatch_gang_seconds_left", (("gang", job.job_id),), max(left_ns, 0) / 1e9
