"""Moves of guests to idle slots: a job that shares slots goes on alone, if the measured gain of all jobs there pays.

Gandiva migrates jobs in this way (Xiao et al., OSDI'18, section 3.3). Done only while no job is pending, as other moves
for speed are (``gpu_types/type_moves``). In T seconds, a guest with the speed m beside its host gains T (1 - m), and a
host with the speed h and k times as many ranks gains T (1 - h) k. T is the shortest of the guest's remaining run time,
the time since which no job is pending, and ``resize_horizon_seconds``. The guest moves if the sum is more than
(1 + ``migration_margin``) x the cost of its restart. Speeds that were never measured move no job.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.job import Job, Slot, StopReason
from scheduler_feedback.core.state import Sharing, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from scheduler_feedback.policies.index.runtime_estimate import healthy_end_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import place, speed, types_for, where
from scheduler_feedback.policies.remediation.gang_moves import may_be_moved, proposed
from scheduler_feedback.policies.remediation.move_cost import moving_seconds
from scheduler_feedback.policies.sharing.pair_speeds import speed_beside


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to evaluate again whether guests move: the longer no job is pending, the more a move pays."""
    if _possible(state, index) and any(_lost_share(state, job) for job in _guests(state, index)):
        yield next_evaluation_ns(state.emptied_ns, state.now_ns)


def move_guests(context: CycleContext) -> None:
    """Move guests to idle slots on which they and their hosts are faster, the largest gain first."""
    state, index, now_ns = context.state, context.index, context.now_ns
    if not _possible(state, index):
        return
    gaining = []
    for job in _guests(state, index):
        if may_be_moved(state, job, now_ns, shares=True) and (share := _lost_share(state, job)):
            gaining.append((-share * _lasts_seconds(state, index, job, now_ns), job.job_id))
    for negative, job_id in sorted(gaining):
        job, gain = state.jobs[job_id], -negative
        cost = moving_seconds(state, job, now_ns)
        if gain <= (1 + state.policy.migration_margin) * cost:
            continue
        slots = None if job.spec.opportunistic and _leaves(index) else _idle_slots(state, index, job)
        if slots is not None:
            _move(context, job, slots, gain, cost)


def _move(context: CycleContext, job: Job, slots: tuple[Slot, ...], gain: float, cost: float) -> None:
    state = context.state
    hosts = [state.jobs[one] for one in job.guest_of]
    mine = _own_speed(state, job)
    names = ", ".join(host.job_id for host in hosts)
    text = f"continue alone on {where(slots)}: it runs at {mine:.2f} of its speed beside {names}"
    detail = (
        ("speed_beside", f"{mine:.3f}"),
        ("benefit_seconds", f"{gain:.1f}"),
        ("cost_seconds", f"{cost:.1f}"),
        ("margin", f"{state.policy.migration_margin:.2f}"),
        ("to", where(slots)),
    )
    if proposed(context, job, f"alone on {where(slots)}", "guest-moves", f"would {text}", detail):
        return
    # An opportunistic job reserves nothing: it starts again on slots that are still idle then.
    claim = () if job.spec.opportunistic else slots
    context.index.move(job, claim, StopReason.MIGRATE, f"leaves the slots that it shares with {names}")
    context.decide(job.job_id, "guest-moves", f"will {text}", detail)


def _possible(state: State, index: SchedulingIndex) -> bool:
    policy = state.policy
    if state.frozen or not policy.move_guests or policy.sharing in (Sharing.NONE, Sharing.MURI) or not index.sharers:
        return False
    if policy.sharing.divides:
        return False
    return not index.line.order and not index.claimants and bool(index.plan.free(Tier.HEALTHY))


def _leaves(index: SchedulingIndex) -> bool:
    """Return whether an opportunistic job is moving already: it may need the idle slots, which it does not reserve."""
    moving = (index.state.jobs[one] for one in index.stopping)
    return any(job.spec.opportunistic and job.stop_reason is StopReason.MIGRATE for job in moving)


def _guests(state: State, index: SchedulingIndex) -> Iterator[Job]:
    for job_id in sorted({one for jobs in index.sharers.values() for one in jobs}):
        job = state.jobs[job_id]
        if job.guest_of and job.ranks and all(rank.slot.node in state.nodes for rank in job.ranks):
            yield job


def _own_speed(state: State, job: Job) -> float:
    """Return the measured speed of the guest beside its hosts, relative to running alone; 1 if it is unknown."""
    found = speed_beside(state, job.spec, [state.jobs[one].spec for one in job.guest_of])
    return 1.0 if found is None else found * (job.slot_part or 1.0)


def _lost_share(state: State, job: Job) -> float:
    """Return what the guest and its hosts lose beside each other, in seconds of the guest's slots per second."""
    lost = 1 - _own_speed(state, job)
    for one in job.guest_of:
        host = state.jobs[one]
        theirs = speed_beside(state, host.spec, (job.spec,))
        if theirs is not None and not host.spec.latency_objective_seconds:  # a service has no work that ends earlier
            lost += (1 - theirs) * len(host.ranks) / len(job.ranks)
    return max(lost, 0.0)


def _lasts_seconds(state: State, index: SchedulingIndex, job: Job, now_ns: int) -> float:
    left = (healthy_end_ns(state.policy, job, now_ns) - now_ns) / 1e9
    return min(left, index.idle_seconds(), state.policy.resize_horizon_seconds)


def _idle_slots(state: State, index: SchedulingIndex, job: Job) -> tuple[Slot, ...] | None:
    """Return idle slots for the guest, of a GPU type that is not slower than its present one; None if there are none.

    No slots are taken.
    """
    plan, policy = index.plan, state.policy
    present = speed(policy, job, state.nodes[job.ranks[0].slot.node].gpu_type, plan.learnt)
    names = [plan.topology.type_names[number] for number in types_for(plan, job, policy)]
    allowed = tuple(name for name in names if speed(policy, job, name, plan.learnt) >= present)
    if not allowed:
        return None
    spec = structs.replace(job.spec, gpu_types=allowed) if any(allowed) else job.spec
    mark = plan.checkpoint()
    slots = place(plan, structs.replace(job, spec=spec), suspects=False, policy=policy, most=len(job.ranks))
    plan.rollback(mark)
    return slots
