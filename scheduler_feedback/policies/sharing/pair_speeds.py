"""Speeds of jobs that share slots: measured ones, ones given by the operator, and predictions.

A speed is relative to the job's speed alone on the same slots. It is stored by workload: pairs of the same two
workloads are expected to be alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.queue.placement import attempt_speed

NEWEST = 0.5
"""Weight of a new measurement in the stored speed, so that one outlier does not decide for ever."""


def workload_of(spec: JobSpec) -> str:
    """Return the workload under which the job's speeds are stored: its own, else its user and name."""
    return spec.workload or f"{spec.user}/{spec.name}"


def known(state: State, spec: JobSpec, other: JobSpec) -> float | None:
    """Return the measured or given speed of the job beside the other one; None if there is none."""
    mine, theirs = workload_of(spec), workload_of(other)
    measured = state.pair_speeds.get(mine, {}).get(theirs)
    return state.policy.pair_speeds.get(mine, {}).get(theirs) if measured is None else measured


def speed_beside(state: State, spec: JobSpec, others: Sequence[JobSpec]) -> float | None:
    """Return the job's speed beside all of these jobs; None if the speed of a pair is unknown.

    The speeds of several pairs are multiplied, as if each other job slowed it independently.
    """
    speed = 1.0
    for other in others:
        pair = known(state, spec, other)
        if pair is None:
            return None
        speed *= pair
    return speed


def assumed_speed(state: State, spec: JobSpec, others: Sequence[JobSpec]) -> float:
    """Return the job's known speed beside these jobs, else that of equal shares of time.

    Opportunistic jobs get no share of the time that other jobs use. Where `Policy.sharing` divides slots, jobs that all
    declare their shares are expected to run at full speed: their run times are those with the share.
    """
    if not spec.opportunistic:
        others = [other for other in others if not other.opportunistic]
    speed = speed_beside(state, spec, others)
    if speed is None and state.policy.sharing.divides and all(one.slot_share for one in (spec, *others)):
        return 1.0
    return 1 / (1 + len(others)) if speed is None else speed


def learn(state: State, spec: JobSpec, other: JobSpec, speed: float) -> float:
    """Store a measured speed of the job beside the other one. Return the speed that is now expected."""
    row = state.pair_speeds.setdefault(workload_of(spec), {})
    before = row.get(workload_of(other))
    found = row[workload_of(other)] = speed if before is None else (1 - NEWEST) * before + NEWEST * speed
    if found != before:
        news_of(state).append((workload_of(spec), workload_of(other)))
        state.__dict__["pair_changes"] = pair_changes(state) + 1
    return found


def news_of(state: State) -> list[tuple[str, str]]:
    """Return the pairs of workloads whose stored speeds have changed, in order, since the list was emptied."""
    found: list[tuple[str, str]] = state.__dict__.setdefault("pair_news", [])
    return found


def pair_changes(state: State) -> int:
    """Return how many times a stored speed has changed since the state was made or read."""
    found: int = state.__dict__.get("pair_changes", 0)
    return found


def refresh(context: CycleContext) -> None:
    """Update speeds and hosts of jobs on whose slots another job has started or ended."""
    state, index = context.state, context.index
    if not index.regrouped:
        return
    regrouped, index.regrouped = index.regrouped, set()
    for job_id in sorted(regrouped):
        job = state.jobs.get(job_id)
        if job is None or not job.state.holds_slots or not job.ranks:
            continue
        partners = index.partners(job_id)
        index.plan_memory(job)  # the other jobs may have left room for a larger plan
        node = state.nodes.get(job.ranks[0].slot.node)
        alone = job.speed
        if node is not None:
            alone = attempt_speed(state.policy, job, node.gpu_type, len(job.ranks), index.plan.learnt)
        beside = 1.0
        if partners:
            beside = assumed_speed(state, job.spec, [state.jobs[one].spec for one in partners])
        guest_of = tuple(one for one in job.guest_of if one in partners)
        if job.guest_of and not guest_of:
            context.record(job_id, "alone", f"{', '.join(job.guest_of)} left its slots: it runs alone")
        speed = alone * max(beside * (job.slot_part or 1.0), 0.01)
        if guest_of != job.guest_of or speed * job.power_speed != job.speed:
            index.share_again(job, guest_of, speed)
