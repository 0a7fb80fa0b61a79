"""Two-dimensional least attained service, in discrete queues (Tiresias-L, NSDI 2019, section 3.2).

Nothing is known of run times: a job falls into the next queue each time its GPU-seconds pass a threshold. Inside of a
queue those that were chosen last stand first, so that a running gang is not stopped for an older one of its own queue;
then those that were stopped just now; then those that wait; whoever is new in the queue stands last. `Job.level` is the
queue, `Job.turn` the place in it: chosen ones count up from far below 0, stopped ones down from 0, new ones up from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import Order, State

CHOSEN = -(2**60)
"""Where the turns of chosen jobs begin: no other can ever count down to it."""


class LeastAttainedService:
    """By queue, then by turn."""

    name = Order.LAS

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - the job holds it all
        return (job.level, job.turn)


def enter(state: State, job: Job) -> None:
    """The job is new in its queue: it stands last."""
    state.last_turn += 1
    job.turn = state.last_turn


def falls_ns(state: State, job: Job) -> int | None:
    """When the running job's service passes the threshold of its queue, in whole seconds of run time; None: never."""
    thresholds = state.policy.las_thresholds
    if job.level >= len(thresholds) or job.attempt_started_ns is None or not job.state.holds_slots:
        return None
    return job.attempt_started_ns + math.ceil(thresholds[job.level] / job.spec.ranks) * 1_000_000_000 - job.run_ns


def demote(state: State, running: Iterable[Job], now_ns: int) -> list[Job]:
    """Those that have passed the threshold of their queue fall into the next, who started first first."""
    fallen = []
    for job in sorted(running, key=lambda job: (job.attempt_started_ns or 0, job.level, job.turn, job.job_id)):
        at_ns = falls_ns(state, job)
        if at_ns is not None and at_ns <= now_ns:
            job.level += 1
            enter(state, job)
            fallen.append(job)
    return fallen


def take_turns(state: State, chosen: Iterable[Job], stopped: Sequence[Job]) -> list[Job]:
    """After a choice: the chosen stand first in their queue, the stopped before those that wait. Whose turn changed."""
    moved = []
    for job in chosen:
        if job.turn > CHOSEN // 2:
            state.chosen_turn += 1
            job.turn = CHOSEN + state.chosen_turn
            moved.append(job)
    for job in reversed(stopped):
        if job.turn > CHOSEN // 2:  # it has fallen just now: it stands last all the same
            continue
        state.first_turn -= 1
        job.turn = state.first_turn
    return [job for job in moved if job.state is JobState.PENDING]
