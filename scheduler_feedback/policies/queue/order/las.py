"""Two-dimensional least attained service, in discrete queues (Tiresias-L, NSDI 2019, section 3.2).

Needs no run times: a job falls into the next queue each time its GPU-seconds pass a threshold. Within a queue the order
is: jobs chosen by the last pass, so that a running gang is not stopped for an older one of the same queue; jobs stopped
by it; pending jobs; new jobs. `Job.level` is the queue, `Job.turn` the place in it: chosen jobs count up from far below
0, stopped jobs down from 0, new jobs up from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import Order, State

CHOSEN = -(2**60)
"""First place of chosen jobs, so low that stopped jobs never reach it."""


class LeastAttainedService:
    """Order by queue, then by the place in it."""

    name = Order.LAS

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - the job has all terms
        return (job.level, job.turn)


def enter(state: State, job: Job) -> None:
    """Put the job at the end of its discrete queue."""
    state.last_turn += 1
    job.turn = state.last_turn


def falls_ns(state: State, job: Job) -> int | None:
    """Return when the running job's service passes its queue's threshold, in whole seconds of run time; None: never."""
    thresholds = state.policy.las_thresholds
    if job.level >= len(thresholds) or job.attempt_started_ns is None or not job.state.holds_slots:
        return None
    return job.attempt_started_ns + math.ceil(thresholds[job.level] / job.spec.ranks) * 1_000_000_000 - job.run_ns


def demote(state: State, running: Iterable[Job], now_ns: int) -> list[Job]:
    """Move jobs past the threshold of their queue into the next one, in order of their start. Return them."""
    fallen = []
    for job in sorted(running, key=lambda job: (job.attempt_started_ns or 0, job.level, job.turn, job.job_id)):
        at_ns = falls_ns(state, job)
        if at_ns is not None and at_ns <= now_ns:
            job.level += 1
            enter(state, job)
            fallen.append(job)
    return fallen


def take_turns(state: State, chosen: Iterable[Job], stopped: Sequence[Job]) -> list[Job]:
    """Put chosen jobs first in their queue, and stopped jobs before pending ones. Return moved pending jobs."""
    moved = []
    for job in chosen:
        if job.turn > CHOSEN // 2:
            state.chosen_turn += 1
            job.turn = CHOSEN + state.chosen_turn
            moved.append(job)
    for job in reversed(stopped):
        if job.turn > CHOSEN // 2:  # it has just fallen into this queue and stays last
            continue
        state.first_turn -= 1
        job.turn = state.first_turn
    return [job for job in moved if job.state is JobState.PENDING]
