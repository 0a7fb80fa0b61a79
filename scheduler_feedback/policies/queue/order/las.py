"""Least attained service: jobs that have used the fewest GPU-seconds go first (Tiresias-L, NSDI 2019, section 3.2).

No run times are needed: a job moves to the next of several levels each time its GPU-seconds pass a threshold. Within a
level the order is: jobs chosen by the last preemption pass, so that a running gang is not stopped for an older gang of
the same level; jobs stopped by that pass; pending jobs; new jobs. `Job.level` is the level, `Job.turn` the place in it,
least first: far below zero for chosen jobs, below zero for stopped jobs, above zero for new jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import Order, State

CHOSEN = -(2**60)
"""Place (`Job.turn`) of the first job that a preemption pass chooses; later chosen jobs get higher numbers. It is so
low that every chosen job is before every stopped job."""


class LeastAttainedService:
    """Rule that sorts by level, which rises with the used GPU-seconds, then by the place within the level."""

    name = Order.LAS

    def key(self, state: State, job: Job, now_ns: int) -> tuple[Any, ...]:  # noqa: ARG002 - the job has all terms
        return (job.level, job.turn)


def enter(state: State, job: Job) -> None:
    """Put the job at the end of its level."""
    state.last_turn += 1
    job.turn = state.last_turn


def falls_ns(state: State, job: Job) -> int | None:
    """Return when the running job passes the threshold of its level, in ns; None if its level has no threshold."""
    thresholds = state.policy.las_thresholds
    if job.level >= len(thresholds) or job.attempt_started_ns is None or not job.state.holds_slots:
        return None
    return job.attempt_started_ns + math.ceil(thresholds[job.level] / job.spec.ranks) * 1_000_000_000 - job.run_ns


def demote(state: State, running: Iterable[Job], now_ns: int) -> list[Job]:
    """Move each running job that has passed the threshold of its level to the next level. Return the moved jobs."""
    fallen = []
    for job in sorted(running, key=lambda job: (job.attempt_started_ns or 0, job.level, job.turn, job.job_id)):
        at_ns = falls_ns(state, job)
        if at_ns is not None and at_ns <= now_ns:
            job.level += 1
            enter(state, job)
            fallen.append(job)
    return fallen


def take_turns(state: State, chosen: Iterable[Job], stopped: Sequence[Job]) -> list[Job]:
    """Put chosen jobs first in their level, then stopped jobs. Return the pending jobs whose place has changed."""
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
