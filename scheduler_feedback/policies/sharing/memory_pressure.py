"""Measured device memory of jobs: what their class learns from it, and the separation of jobs before a slot is full.

Jobs share a slot only if their planned memory fits into it. A job that grows beyond its plan may fill the slot, and any
job on it then runs out of memory. So one of them is stopped as soon as their measured memory is close to the total. If
a job runs out of memory beside others nevertheless, its class learns it, and the job then shares no slots.
"""

from __future__ import annotations

from scheduler_feedback.core.events import AttemptEnded, MemoryMeasured
from scheduler_feedback.core.job import Job, JobState, Slot, StopReason
from scheduler_feedback.core.state import Mode
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import may_borrow, where
from scheduler_feedback.policies.speeds.learnt_memory import (
    gib,
    has_outgrown,
    planned_mib,
    record,
    record_out_of_memory,
)
from scheduler_feedback.policies.speeds.learnt_speeds import class_of

FULL_SHARE = 0.9
"""Used share of a slot's device memory from which jobs on it are separated if one of them has outgrown its plan: our
choice. Agents measure every 15 s, and a job may grow meanwhile."""

MOST_MIB = 1 << 24
"""Largest measurement that counts, in MiB: more than any device has."""


def memory_measured(context: CycleContext, event: MemoryMeasured) -> None:
    """Store the measured memory of a running job, learn it for the job's class, and plan the class's jobs again."""
    state, index = context.state, context.index
    job = state.jobs.get(event.job_id)
    if job is None or job.attempt != event.attempt or not job.state.holds_slots or not 0 < event.mib <= MOST_MIB:
        return
    changed = record(state, job, event.mib)
    if event.mib > job.peak_mib:
        index.measure_memory(job, event.mib)
        index.plan_memory(job)
    if changed:
        plan_class(context, job)


def plan_class(context: CycleContext, measured: Job) -> None:
    """Plan the memory of all pending jobs of the class again."""
    state, index = context.state, context.index
    if not state.policy.learnt_memory:
        return
    key = class_of(measured.job_id, measured.spec)
    pending = [one[-1] for one in index.line.order]
    for job_id in sorted({*pending, *index.opportunists, *index.claimants, *index.unheld}):
        job = state.jobs[job_id]
        if job.spec.shareable and class_of(job_id, job.spec) == key:
            index.plan_memory(job)


def separate_full_slots(context: CycleContext) -> None:
    """Stop jobs on slots whose device memory is almost full, because a job there has outgrown its plan."""
    state, index = context.state, context.index
    if state.frozen:
        return
    for job_id in sorted(index.outgrown):
        for slot in index.held.get(job_id, ()):
            here = [state.jobs[one] for one in index.sharers.get(slot, ())]
            staying = [one for one in here if one.stop_reason is None]
            full_mib = FULL_SHARE * _device_mib(context, slot)
            grown = [one for one in staying if has_outgrown(one)]
            if not full_mib or not grown or len(staying) < 2 or _used_mib(staying) <= full_mib:
                continue
            able = [one for one in staying if may_borrow(one.spec) and one.state is JobState.RUNNING]
            text = f"{where([slot])} has {gib(_used_mib(staying))} of {gib(_device_mib(context, slot))} in use, and "
            text += f"{grown[0].job_id} uses {gib(grown[0].peak_mib)} instead of {gib(planned_mib(grown[0]))}"
            if able:
                _stop(context, min(able, key=_stays), text)
            elif grown[0].proposed != text:
                grown[0].proposed = text
                context.record(grown[0].job_id, "memory", f"{text}; no job there may be stopped")


def _stays(job: Job) -> tuple[bool, bool, int, str]:
    """Return a sort key: the first job leaves the slot. Guests, which all opportunistic jobs are, go first.

    A job within its declared memory goes last. Of equal jobs, the younger one leaves.
    """
    within = bool(job.spec.slot_memory_mib) and not has_outgrown(job)
    return (not job.guest_of, within, -(job.attempt_started_ns or 0), job.job_id)


def _stop(context: CycleContext, job: Job, why: str) -> None:
    if context.state.policy.mode is Mode.OBSERVE:
        if job.proposed != why:
            job.proposed = why
            context.decide(job.job_id, "separate", f"would leave its slots: {why}", outcome="observed")
        return
    context.index.stop(job, StopReason.PREEMPT, f"leaves its slots: {why}")
    context.decide(job.job_id, "separate", f"leaves its slots: {why}")


def ran_out(context: CycleContext, job: Job, event: AttemptEnded) -> str:
    """Return that the attempt, which has just failed, ran out of device memory beside other jobs; '' if it did not.

    Its output shows it, or its slots were almost full. If so, the class of the job learns it, and the job gets slots of
    its own.
    """
    state, index = context.state, context.index
    partners = index.partners(job.job_id)
    failed = event.started and (any(one.exit_code != 0 for one in event.exits) or event.all_exited_with)
    if not partners or not failed or job.stop_reason not in (None, StopReason.RANK_FAILED):
        return ""
    crowded = [slot for slot in index.held[job.job_id] if _is_full(context, slot)]
    if not event.out_of_memory and not crowded:
        return ""
    totals = {slot: total for slot in index.held[job.job_id] if (total := _device_mib(context, slot))}
    left = [_left_mib(index, job, slot, total) for slot, total in totals.items()]
    record_out_of_memory(state, job, max([job.peak_mib, *([min(left)] if left else [])]))
    index.keep_alone(job)
    plan_class(context, job)
    names = ", ".join(partners)
    how = "its output shows it" if event.out_of_memory else f"{where(crowded)} was almost full"
    return f"ran out of device memory beside {names} ({how}); it shares no slots from now on"


def _left_mib(index: SchedulingIndex, job: Job, slot: Slot, total_mib: int) -> int:
    """Return the device memory that the other jobs on the slot left for the job."""
    others = [index.state.jobs[one] for one in index.sharers.get(slot, ()) if one != job.job_id]
    return max(total_mib - _used_mib(others), 0)


def _is_full(context: CycleContext, slot: Slot) -> bool:
    """Return whether measured jobs have almost filled the slot."""
    here = [context.state.jobs[one] for one in context.index.sharers.get(slot, ())]
    total = _device_mib(context, slot)
    return total > 0 and any(has_outgrown(one) for one in here) and _used_mib(here) > FULL_SHARE * total


def _used_mib(jobs: list[Job]) -> int:
    """Return the device memory that these jobs use of one slot: measured, or planned if it was not measured."""
    return sum(one.peak_mib or planned_mib(one) for one in jobs)


def _device_mib(context: CycleContext, slot: Slot) -> int:
    node = context.state.nodes.get(slot.node)
    return 0 if node is None else node.slot_memory_mib
