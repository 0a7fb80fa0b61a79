"""True speeds of simulated jobs that share slots, relative to running alone.

A source of speeds is a function of a job, the other jobs on its slot, and the GPU type. Two are here: measured pairs,
and stages of an iteration that overlap (Muri).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.policies.sharing.antman import LEAST_HOST_SPEED
from scheduler_feedback.policies.sharing.muri import iteration_seconds

CoSpeed = Callable[[JobSpec, tuple[JobSpec, ...], str], float]
"""Function (job, other jobs on the slot, GPU type) that returns the job's speed, relative to running alone."""

LEAST_SPEED = 1e-3
"""Speed of a job whose pair is measured as 0, because it ran out of memory: it makes almost no progress."""

TABLE = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Speeds by GPU type, workload and other workload."""


def equal_shares(_job: JobSpec, others: tuple[JobSpec, ...], _gpu_type: str) -> float:
    """Return the speed if all jobs on a slot get equal shares of its time, and nothing overlaps."""
    return 1 / (1 + len(others))


def of_parts(job: JobSpec, others: tuple[JobSpec, ...], gpu_type: str) -> float:
    """Return 1 if all jobs on the slot declare their shares: run times are those with the share. Else shares are
    equal."""
    return 1.0 if all(one.slot_share for one in (job, *others)) else equal_shares(job, others, gpu_type)


def of_pairs(table: TABLE) -> CoSpeed:
    """Return speeds from measured pairs. Speeds beside several jobs are multiplied; unknown pairs share time equally.

    Beside an opportunistic job, a job keeps at least LEAST_HOST_SPEED: the opportunistic one gets only the part of the
    time at which that holds. On the slots of a service, it gets the part that the scheduler has set. Both speeds are
    interpolated between running alone and sharing freely.
    """

    def speed(job: JobSpec, others: tuple[JobSpec, ...], gpu_type: str) -> float:
        found = 1.0
        for other in others:
            mine = _free(table, job, other, gpu_type)
            if job.opportunistic != other.opportunistic:
                guest, host = (job, other) if job.opportunistic else (other, job)
                if host.latency_objective_seconds and guest.slot_share:  # it uses a fixed part of the slot
                    found *= guest.slot_share * mine if guest is job else 1 - guest.slot_share * (1 - mine)
                    continue
                host_speed = _free(table, other, job, gpu_type) if job.opportunistic else mine
                part = 1.0 if host_speed >= LEAST_HOST_SPEED else (1 - LEAST_HOST_SPEED) / (1 - host_speed)
                mine = part * mine if job.opportunistic else 1 - part * (1 - mine)
            found *= mine
        return max(found, LEAST_SPEED)

    return speed


def _free(table: TABLE, job: JobSpec, other: JobSpec, gpu_type: str) -> float:
    return table.get(gpu_type, {}).get(job.workload, {}).get(other.workload, 0.5)


def of_stages(job: JobSpec, others: tuple[JobSpec, ...], gpu_type: str) -> float:
    """Return the speed of a job whose stages are interleaved with those of the others: all make equal iterations."""
    if not job.stages or not all(other.stages for other in others):
        return equal_shares(job, others, gpu_type)
    together = iteration_seconds(tuple(sorted((job.stages, *(other.stages for other in others)))))
    return sum(job.stages) / together
