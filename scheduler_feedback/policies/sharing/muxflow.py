"""MuxFlow: opportunistic jobs share the slots of services, which keep their latency objective.

Zhao et al., "MuxFlow: Efficient and Safe GPU Sharing in Large-Scale Production Deep Learning Clusters", 2023. A service
is a shareable job with a latency objective. It lends its slots while its measured latency is far below the objective,
and recalls them when the latency comes near it (``lending``). A guest gets only the part of the computing power that
the requests leave, as MuxFlow's percentage of streaming multiprocessors. Guests and services are matched so that the
sum of the predicted speeds of the guests is largest (``matching``).
"""

from __future__ import annotations

import math

from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.sharing.case import LEAST_PART, Case, Chance
from scheduler_feedback.policies.sharing.interference_model import UNKNOWN, measured, predicted_speed
from scheduler_feedback.policies.sharing.pair_speeds import known

LEND_BELOW = 0.6
"""A service lends its slots while its expected latency is at most this part of its objective: our choice. MuxFlow's
limits are on counters of the GPU and are not published."""

RECALL_ABOVE = 0.8
"""A service recalls its slots when its latency exceeds this part of its objective: our choice. The distance from
LEND_BELOW keeps a guest from starting and leaving in turns."""

LEAST_SHARE, MOST_SHARE = 0.1, 0.9
"""Bounds of the part of a slot's computing power that a guest may use: our choice."""

STEPS = 20
"""Parts are multiples of 1/STEPS."""

MOST_BUSY, LEAST_SPARE = 0.99, 0.01
"""Bounds of the share of the time in which a service is busy, and of the share that is left, in computed latencies."""


def part_for(service: Job) -> float:
    """Return the part of the computing power of the service's slots that a guest may use: what its requests leave."""
    return min(max(math.floor((1 - service.busy) * STEPS) / STEPS, LEAST_SHARE), MOST_SHARE)


def recall_seconds(service: Job) -> float:
    """Return the latency above which the service recalls its slots, in seconds."""
    return RECALL_ABOVE * service.spec.latency_objective_seconds


def request_seconds(service: Job) -> float:
    """Return the service's latency without the wait for earlier requests, in seconds."""
    return (service.latency_seconds or 0.0) * (1 - min(service.busy, MOST_BUSY))


def latency_at(service: Job, speed: float) -> float:
    """Return the latency that the service, which now runs alone, would have at this speed, in seconds.

    It is the latency of an M/M/1 queue, as it is measured (``controller/reports/latencies.py``).
    """
    return request_seconds(service) / max(speed - service.busy, LEAST_SPARE)


def milliseconds(seconds: float) -> str:
    """Return a latency as text, such as '31.5 ms'."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def chance(case: Case) -> Chance | None:
    """Return the speed that the opportunistic job is predicted to have; None if the service lends it no slots."""
    guest, service = case.guest.spec, case.host
    objective, latency = service.spec.latency_objective_seconds, service.latency_seconds
    if not guest.opportunistic or not objective or latency is None or case.others:
        return None
    part = part_for(service)
    speed = 1 - part * (1 - _speed(case.state, service.spec, guest))
    mine = part * _speed(case.state, guest, service.spec)
    if latency_at(service, speed) > LEND_BELOW * objective or mine < LEAST_PART:
        return None
    return Chance(
        mine,
        f"{service.job_id} answers in {milliseconds(latency)} of {milliseconds(objective)}; the guest gets {part:.0%} "
        f"of each slot and is predicted to run at {mine:.2f} of its speed alone",
        part,
    )


def _speed(state: State, spec: JobSpec, other: JobSpec) -> float:
    """Return the known or predicted speed of the job beside the other one; UNKNOWN while one was never measured.

    Otherwise the first bad pair would be the prediction for all others, and none would be tried.
    """
    if known(state, spec, other) is None and not (measured(state, spec) and measured(state, other)):
        return UNKNOWN
    return predicted_speed(state, spec, other, LEAST_PART)


def present(state: State, job: Job) -> str:
    """Return what a running service lends, or what a guest uses of its slots, to append to the job's explanation."""
    objective, latency = job.spec.latency_objective_seconds, job.latency_seconds
    if objective and latency is None:
        return "; its latency is not measured yet"
    if objective and latency is not None:
        text = f"; answers in {milliseconds(latency)} of {milliseconds(objective)}"
        return f"{text}; lends its slots below {milliseconds(LEND_BELOW * objective)}" if job.spec.shareable else text
    hosts = [state.jobs[one] for one in job.guest_of if one in state.jobs]
    return "".join(
        f"; uses up to {job.slot_part:.0%} of the slots of {host.job_id}, until {host.job_id} answers in more than "
        f"{milliseconds(recall_seconds(host))}"
        for host in hosts
    )
