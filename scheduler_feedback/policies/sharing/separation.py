"""Separation of jobs that share slots: after a measurement, after a verdict of interference, and with their host.

The guest goes back to the queue; it is restartable, and the jobs that it joined go on without it.
"""

from __future__ import annotations

from scheduler_feedback.core.events import SharedSpeed
from scheduler_feedback.core.job import Job, JobState, StopReason
from scheduler_feedback.core.state import Mode, Sharing
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.sharing import pair_speeds
from scheduler_feedback.policies.sharing.antman import LEAST_HOST_SPEED
from scheduler_feedback.policies.sharing.case import LEAST_PART, combined, pays

_LEAVES = frozenset({StopReason.PREEMPT, StopReason.MIGRATE, StopReason.RESIZE})


def shared_speed(context: CycleContext, event: SharedSpeed) -> None:
    """Store a measured speed of a job that shares slots, and separate the jobs if sharing does not pay."""
    state, index = context.state, context.index
    job = state.jobs.get(event.job_id)
    if job is None or job.attempt != event.attempt or job.state is not JobState.RUNNING:
        return
    if job.spec.mig_profile:  # its instance has slices of its own
        return
    partners = index.partners(job.job_id)
    if tuple(partners) != event.partners or not partners:  # the measurement is of another group
        return
    if job.spec.latency_objective_seconds and state.policy.sharing is Sharing.MUXFLOW:
        return  # its requests are measured instead (``lending``)
    if len(partners) == 1:
        speed = min(event.speed / job.slot_part, 1.0) if job.slot_part else event.speed  # as if it had the whole slot
        pair_speeds.learn(state, job.spec, state.jobs[partners[0]].spec, speed)
        index.regrouped |= {job.job_id, *partners}
        _judge(context, job, state.jobs[partners[0]])


def _judge(context: CycleContext, one: Job, other: Job) -> None:
    """Separate two jobs if both speeds are known and sharing does not pay."""
    state = context.state
    guest, host = (one, other) if one.guest_of else (other, one)
    if not guest.guest_of or guest.stop_reason is not None or state.frozen:
        return
    mine = pair_speeds.speed_beside(state, guest.spec, (host.spec,))
    theirs = pair_speeds.speed_beside(state, host.spec, (guest.spec,))
    if host.spec.latency_objective_seconds and state.policy.sharing is Sharing.MUXFLOW:  # its latency decides
        if mine is not None and (speed := mine * (guest.slot_part or 1.0)) < LEAST_PART:
            separate(context, guest, host, f"it runs at {speed:.2f} of its speed alone")
        return
    if theirs is None:
        return
    if guest.spec.opportunistic:
        if theirs < LEAST_HOST_SPEED:
            separate(context, guest, host, f"{host.job_id} runs at {theirs:.2f} of its speed alone")
        return
    if mine is None or state.policy.sharing is Sharing.MURI:
        if theirs < LEAST_PART and state.policy.sharing is not Sharing.MURI:
            separate(context, guest, host, f"{host.job_id} runs at {theirs:.2f} of its speed alone")
        return
    together = combined(len(host.ranks), theirs, len(guest.ranks), mine)
    if not pays(len(host.ranks), theirs, len(guest.ranks), mine, state.policy.separate_below):
        text = f"measured {together:.2f}x together ({theirs:.2f} and {mine:.2f} of their speeds alone)"
        separate(context, guest, host, text)


def separate(context: CycleContext, guest: Job, host: Job, why: str) -> None:
    """Stop the guest because of its host, and log why. Observe mode only logs it."""
    text = f"is separated from {host.job_id}: {why}"
    if context.state.policy.mode is Mode.OBSERVE:
        if guest.proposed != text:
            guest.proposed = text
            context.decide(
                guest.job_id, "separate", f"would be separated from {host.job_id}: {why}", outcome="observed"
            )
        return
    context.index.stop(guest, StopReason.PREEMPT, f"separated from {host.job_id}: {why}")
    context.decide(guest.job_id, "separate", text)


def separate_interfering(context: CycleContext) -> None:
    """Separate jobs that share slots if a verdict reports that one of them slows the other.

    The victim's measured speed is stored as well, so that the pair is not tried again.
    """
    state, index = context.state, context.index
    if not index.sharers or state.frozen:
        return
    for verdict in list(state.verdicts.values()):
        pair = _pair(context, verdict)
        if pair is None:
            continue
        victim, aggressor = pair
        guest, host = (victim, aggressor) if victim.guest_of else (aggressor, victim)
        if not guest.guest_of or guest.stop_reason is not None or guest.state is not JobState.RUNNING:
            continue
        learned = pair_speeds.learn(state, victim.spec, aggressor.spec, 1 / max(verdict.slowdown, 1.0))
        other = pair_speeds.speed_beside(state, aggressor.spec, (victim.spec,))
        if other is None:  # the aggressor was not measured: it is assumed to lose as much
            other = pair_speeds.learn(state, aggressor.spec, victim.spec, learned)
        speeds = (learned, other) if victim is host else (other, learned)
        together = combined(len(host.ranks), speeds[0], len(guest.ranks), speeds[1])
        if not pays(len(host.ranks), speeds[0], len(guest.ranks), speeds[1], state.policy.separate_below):
            text = f"{verdict.verdict_id} reports that {victim.job_id} runs {verdict.slowdown:.2f} times as long"
            separate(context, guest, host, f"{text}; {together:.2f}x together")


def _pair(context: CycleContext, verdict: Verdict) -> tuple[Job, Job] | None:
    """Return the victim and the aggressor of the verdict if they share slots; None otherwise."""
    jobs = context.state.jobs
    victim, aggressor = jobs.get(verdict.gang), jobs.get(verdict.aggressor) if verdict.aggressor else None
    if victim is None or aggressor is None or verdict.confidence < context.state.policy.minimum_confidence:
        return None
    return (victim, aggressor) if aggressor.job_id in context.index.partners(victim.job_id) else None


def leave_with_host(context: CycleContext) -> None:
    """Stop the guests of every job that is being stopped to continue elsewhere: its slots are needed."""
    state, index = context.state, context.index
    if not index.sharers:
        return
    for job_id in sorted(index.stopping):
        job = state.jobs[job_id]
        if job.stop_reason not in _LEAVES:
            continue
        for other in index.partners(job_id):
            guest = state.jobs[other]
            if job_id in guest.guest_of and guest.stop_reason is None:
                index.stop(guest, StopReason.PREEMPT, f"leaves with {job_id}, whose slots are needed")
                context.decide(other, "separate", f"leaves its slots, because {job_id} is stopped")
