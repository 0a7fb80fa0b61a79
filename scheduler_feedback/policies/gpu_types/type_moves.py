"""Moves to a faster GPU type: a running gang restarts on idle slots of a faster type, if that pays.

Done only while no job is pending, as elastic gangs grow (``queue/resizing``). In T seconds the gang does T s of work,
with s its speed. On a type of speed f it does the same in T s/f, so it gains T (1 - s/f). T is the shortest of the
gang's remaining run time, the time since which no job is pending (it is expected to last as long again), and
``resize_horizon_seconds``. The gang moves if T (1 - s/f) > (1 + h) x the cost of a restart, with h the policy's
``migration_margin``. Only restartable gangs move, each at most once per migration cooldown.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.job import Job, Slot, StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from scheduler_feedback.policies.index.runtime_estimate import healthy_end_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import TIERS
from scheduler_feedback.policies.queue.placement import place, speed, types_for, where
from scheduler_feedback.policies.remediation.gang_moves import may_be_moved, proposed
from scheduler_feedback.policies.remediation.move_cost import moving_seconds


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to evaluate again whether gangs move to a faster type: the longer no job is pending, the more pays."""
    if _possible(state, index) and any(_faster(state, index, state.jobs[job_id]) for job_id in index.running):
        yield next_evaluation_ns(state.emptied_ns, state.now_ns)


def move_to_faster_types(context: CycleContext) -> None:
    """Move running gangs to idle slots of a faster GPU type, the largest gain first."""
    index, state, now_ns = context.index, context.state, context.now_ns
    if not _possible(state, index):
        return
    gaining: list[tuple[float, str]] = []
    for job_id in index.running:
        job = state.jobs[job_id]
        if may_be_moved(state, job, now_ns) and (faster := _faster(state, index, job)):
            gaining.append((-_gain_seconds(state, index, job, faster[0], now_ns), job_id))
    for _, job_id in sorted(gaining):
        job = state.jobs[job_id]
        slots = _slots(state, index, job)
        if slots is None:
            continue
        name, before = state.nodes[slots[0].node].gpu_type, _type_of(state, job)
        gain = _gain_seconds(state, index, job, name, now_ns)
        cost = moving_seconds(state, job, now_ns)
        if gain <= (1 + state.policy.migration_margin) * cost:
            continue
        text = f"continue on {name} instead of {before}: no pending job needs the idle slots"
        detail = (
            ("gpu_type", f"{before} -> {name}"),
            ("benefit_seconds", f"{gain:.1f}"),
            ("cost_seconds", f"{cost:.1f}"),
            ("margin", f"{state.policy.migration_margin:.2f}"),
            ("to", where(slots)),
        )
        if proposed(context, job, f"faster type {name}", "faster-type", f"would {text}", detail):
            continue
        index.move(job, slots, StopReason.MIGRATE, f"restarts on {name}")
        context.decide(job_id, "faster-type", f"will {text}", detail)


def _possible(state: State, index: SchedulingIndex) -> bool:
    if state.frozen or not index.running or index.line.order or index.claimants:
        return False
    return len(index.plan.topology.type_names) > 1


def _type_of(state: State, job: Job) -> str:
    return state.nodes[job.ranks[0].slot.node].gpu_type


def _faster(state: State, index: SchedulingIndex, job: Job) -> list[str]:
    """Return the GPU types on which the gang would be faster and fits by the number of free slots, fastest first."""
    plan, policy = index.plan, state.policy
    known = (
        job.spec.throughput
        or policy.throughput
        or (plan.learnt is not None and plan.learnt.knows(job.job_id, job.spec))
    )
    if not job.spec.restartable or not known:
        return []
    if not job.ranks or job.ranks[0].slot.node not in state.nodes:
        return []
    present = speed(policy, job, _type_of(state, job), plan.learnt)
    return [
        name
        for number in types_for(plan, job, policy)
        if plan.free_in[number * TIERS + Tier.HEALTHY][0] >= len(job.ranks)
        and speed(policy, job, name := plan.topology.type_names[number], plan.learnt) > present
    ]


def _slots(state: State, index: SchedulingIndex, job: Job) -> tuple[Slot, ...] | None:
    """Return idle slots of a faster type for all ranks of the gang; None if there are none. No slots are taken."""
    faster = _faster(state, index, job)
    if not faster:
        return None
    spec, ranks = job.spec, len(job.ranks)
    least = None if spec.min_ranks is None else ranks
    wanted = structs.replace(job, spec=structs.replace(spec, gpu_types=tuple(faster), min_ranks=least))
    plan = index.plan
    mark = plan.checkpoint()
    slots = place(plan, wanted, suspects=False, policy=state.policy, most=ranks)
    plan.rollback(mark)
    return slots


def _gain_seconds(state: State, index: SchedulingIndex, job: Job, name: str, now_ns: int) -> float:
    """Return the seconds that the gang is expected to gain on this GPU type in the time that the rule counts."""
    left = (healthy_end_ns(state.policy, job, now_ns) - now_ns) / 1e9
    lasts = min(left, index.idle_seconds(), state.policy.resize_horizon_seconds)
    learnt = index.plan.learnt
    present = speed(state.policy, job, _type_of(state, job), learnt)
    return lasts * (1 - present / speed(state.policy, job, name, learnt))
