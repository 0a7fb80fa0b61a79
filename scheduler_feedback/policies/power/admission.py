"""Starts within the power budget.

A gang that fits into free slots, but not into the budget, reserves its slots and waits there until the limits of other
gangs are lowered, or until one of them ends. Gangs that wait for power start in the order of the queue: each leaves the
watts that the ones before it need.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.power.account import account_of
from scheduler_feedback.policies.power.gpus import TINY, gpus_of, in_force, never_fits
from scheduler_feedback.policies.queue.order import key_of

RETRY_SECONDS = 5.0
"""Time after which a gang that would share slots tries again to start within the budget."""


def refusal(state: State, index: SchedulingIndex, slots: Sequence[Slot], reserved_watts: float = 0.0) -> str:
    """Return why a gang cannot start on these slots within the power budget, in words; '' if it can.

    reserved_watts: what gangs ahead of it need.
    """
    if not in_force(state):
        return ""
    account = account_of(state, index)
    fresh = account.fresh(slots)
    if unknown := gpus_of(state, fresh).unknown:
        return f"the power of the GPUs of {', '.join(unknown[:8])} is not known: no agent has reported it yet"
    need = account.need_watts(fresh)
    if need <= TINY or need <= account.room_watts - reserved_watts + TINY:
        return ""
    budget = in_watts(state.policy.power_budget_watts)
    return (
        f"it needs {in_watts(need)} more with its lowest power limits, and {in_watts(max(account.room_watts, 0.0))} "
        f"of the cluster's power budget of {budget} is left"
        + (f" ({in_watts(reserved_watts)} of that for jobs ahead of it)" if reserved_watts else "")
    )


def need_watts(state: State, index: SchedulingIndex, slots: Sequence[Slot]) -> float:
    """Return by how much the power of all GPUs rises if a gang starts on these slots with its lowest limit."""
    return account_of(state, index).need_watts(slots)


def delayed(context: CycleContext, job: Job, slots: tuple[Slot, ...]) -> bool:
    """Return whether the start of a gang on free slots must wait for power. It then keeps the slots.

    A gang that would share slots with others cannot keep them: it tries again later.
    """
    state, index = context.state, context.index
    if not in_force(state) or (job.claim and tuple(job.claim) == slots):  # ``restart_moved`` has asked
        return False
    why = refusal(state, index, slots) or refusal(state, index, slots, waiting_need_watts(state, index, job))
    if not why:
        return False
    is_probe = job.spec.kind is JobKind.PROBE  # it waits without slots, and its node takes no other job meanwhile
    if is_probe or (job.spec.opportunistic and never_fits(state, slots)):  # neither is in the queue, which checks that
        index.plan.give([slot for slot in slots if not index.sharers.get(slot)])
        return True
    if never_fits(state, slots) or any(index.sharers.get(slot) for slot in slots):
        index.plan.give([slot for slot in slots if not index.sharers.get(slot)])
        index.requeue(job, f"waits for power: {why}", context.after(RETRY_SECONDS))
    else:
        index.reserve(job, slots)
    context.record(job.job_id, "waits", f"its slots are free, but {why}")
    return True


def waiting_need_watts(state: State, index: SchedulingIndex, job: Job) -> float:
    """Return the watts that pending gangs ahead of the job need which have reserved free slots."""
    if not index.claimants:
        return 0.0
    account, key = account_of(state, index), key_of(state, job)
    waiting = (state.jobs[one] for one in index.claimants if one != job.job_id)
    return sum(
        account.need_watts(one.claim)
        for one in waiting
        if one.state is JobState.PENDING and index.is_clear(one.claim) and key_of(state, one) < key
    )


def waits_for_power(state: State, index: SchedulingIndex, job: Job) -> str:
    """Return why a pending gang with reserved slots waits for power, in words; '' if it does not."""
    if not in_force(state) or not job.claim or not index.is_clear(job.claim):
        return ""
    ahead = waiting_need_watts(state, index, job)
    why = refusal(state, index, job.claim) or refusal(state, index, job.claim, ahead)
    return why or "starts now: limits of other jobs were lowered for it"


def in_watts(watts: float) -> str:
    """Format a power, such as '300 W' or '12.4 kW'."""
    if watts < 10_000:
        return f"{watts:.0f} W"
    return f"{round(watts / 1000, 1):g} kW"
