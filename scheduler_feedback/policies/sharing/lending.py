"""Services lend their slots: measured latencies, and the recall of slots before a latency objective is broken."""

from __future__ import annotations

import math

from scheduler_feedback.core.events import LatencyMeasured
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.sharing import pair_speeds
from scheduler_feedback.policies.sharing.muxflow import LEND_BELOW, milliseconds, recall_seconds, request_seconds
from scheduler_feedback.policies.sharing.separation import separate

TRIAL_NS = 120 * 10**9
"""Time from a guest's start in which a change of the service's requests is attributed to the guest, in ns. Later, the
requests themselves may have changed."""

LEAST_NEWS = 0.05
"""Least change of a known speed that is stored: each one changes all predictions, and so all comparisons of jobs."""

LEAST_SPEED = 0.01
"""Lower bound of a learnt speed of a service beside a guest that has the whole slot."""


def latency_measured(context: CycleContext, event: LatencyMeasured) -> None:
    """Store the measured latency of a service, and recall its slots if it is too close to the objective."""
    state, index = context.state, context.index
    job = state.jobs.get(event.job_id)
    if job is None or job.attempt != event.attempt or job.state is not JobState.RUNNING:
        return
    if not job.spec.latency_objective_seconds or not math.isfinite(event.seconds) or event.seconds < 0:
        return
    job.latency_seconds, job.busy = event.seconds, min(max(event.busy, 0.0), 1.0)
    index.touched.add(job.job_id)
    guests = [state.jobs[one] for one in index.partners(job.job_id)]
    if not guests:
        job.alone_request_seconds = request_seconds(job)
    elif len(guests) == 1:
        _learn(context, job, guests[0])
    if index.opportunists and event.seconds <= LEND_BELOW * job.spec.latency_objective_seconds:
        index.grown = True  # one of them may join it
    if event.seconds > recall_seconds(job) and not state.frozen:
        for guest in guests:
            _recall(context, job, guest)


def _learn(context: CycleContext, service: Job, guest: Job) -> None:
    """Store how much longer the service takes for a request beside the guest."""
    alone, beside = service.alone_request_seconds, request_seconds(service)
    since_ns = guest.attempt_started_ns or 0
    if not alone or not beside or guest.state is not JobState.RUNNING or context.now_ns - since_ns > TRIAL_NS:
        return
    slower = 1 - min(alone / beside, 1.0)
    speed = max(1 - slower / (guest.slot_part or 1.0), LEAST_SPEED)  # as if the guest had the whole slot
    before = pair_speeds.known(context.state, service.spec, guest.spec)
    if before is not None and abs(speed - before) < LEAST_NEWS:
        return
    pair_speeds.learn(context.state, service.spec, guest.spec, speed)
    context.index.regrouped |= {service.job_id, guest.job_id}


def _recall(context: CycleContext, service: Job, guest: Job) -> None:
    """Stop the guest because the service needs its slots. It goes back to the queue."""
    if not guest.spec.opportunistic or not guest.guest_of or guest.stop_reason is not None:
        return
    latency, objective = service.latency_seconds or 0.0, service.spec.latency_objective_seconds
    limit = milliseconds(recall_seconds(service))
    why = (
        f"{service.job_id} answers in {milliseconds(latency)}, more than {limit} of its objective of "
        f"{milliseconds(objective)}"
    )
    separate(context, guest, service, why)
    asked: str | None = guest.stop_reason
    if asked is not None:  # not in observe mode
        context.record(service.job_id, "recalls", f"recalls its slots from {guest.job_id}: {why}")
