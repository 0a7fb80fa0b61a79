"""Defragmentation: move gangs so that a pending job finds its slots within one domain, if that pays.

The first pending job may need all of its slots within one node, rail or rack while enough slots are free only across
several. Then this policy tries the domains with the most free slots. In each, it selects the gangs that are cheapest to
move, until the job would fit. The gangs of the cheapest domain are moved if

    (the wait that is saved) x (ranks of the job) > (1 + h) x (GPU-seconds that the moved gangs lose)

h is ``migration_margin`` of the policy. A gang loses the time of its save, its unsaved work and its restart, on all of
its ranks. At most ``defragmentation_moves`` gangs move at once, none while other gangs are moving, and each gang at
most once per migration cooldown. Only restartable gangs are moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_feedback.core.cluster import Level, Tier
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job, Slot, StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.domains import numbers
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS, Plan
from scheduler_feedback.policies.queue.placement import place, where
from scheduler_feedback.policies.remediation.gang_moves import (
    first_in_line,
    may_be_moved,
    proposed,
    wait_seconds,
    waits_since_ns,
)
from scheduler_feedback.policies.remediation.move_cost import moving_seconds

DOMAINS = 8
"""Maximum number of network domains that are tried, the one with the most free slots first."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Moves of gangs that free slots in one domain for the first pending job."""

    slots: tuple[Slot, ...]
    """Slots that the pending job gets, one per rank."""
    gangs: tuple[tuple[Job, tuple[Slot, ...]], ...]
    """Gangs to move, each with its new slots."""
    cost: float
    """Work that the moved gangs lose, in slot-seconds."""


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to evaluate again whether to move gangs for the first pending job."""
    if state.frozen or not state.policy.defragmentation_moves or index.claimants or not index.running:
        return
    if not index.line.needs_level():
        return
    first = first_in_line(index, state.now_ns)
    if first is not None and first.spec.required_level is not None:
        yield next_evaluation_ns(waits_since_ns(first), state.now_ns)


def make_room(context: CycleContext) -> bool:
    """Move gangs so that the first pending job fits into one domain, if that pays. Return whether gangs move."""
    index = context.index
    state, now_ns = context.state, context.now_ns
    if state.frozen or not state.policy.defragmentation_moves or index.claimants:
        return False
    first = first_in_line(index, now_ns)
    if first is None or first.spec.required_level is None or first.spec.groups or first.spec.pinned_node is not None:
        return False
    ranks = first.spec.min_ranks or first.spec.ranks
    if index.plan.free(Tier.HEALTHY, first.excluded_nodes) < ranks:
        return False
    moves = _cheapest(state, index, first, ranks, now_ns)
    if moves is None:
        return False
    wait = wait_seconds(state, index, first, now_ns)
    gain = wait * len(moves.slots)
    if gain <= (1 + state.policy.migration_margin) * moves.cost:
        return False
    level = first.spec.required_level.value
    names = ", ".join(job.job_id for job, _ in moves.gangs)
    detail = (
        ("for", first.job_id),
        ("level", level),
        ("moved", names),
        ("wait_seconds", f"{wait:.1f}"),
        ("gain_slot_seconds", f"{gain:.1f}"),
        ("cost_slot_seconds", f"{moves.cost:.1f}"),
        ("margin", f"{state.policy.migration_margin:.2f}"),
    )
    if proposed(
        context, first, f"defragment {names}", "defragment", f"would move {names} to fit into one {level}", detail
    ):
        return False
    for job, target in moves.gangs:
        why = f"moves so that {first.job_id} fits into one {level}"
        index.move(job, target, StopReason.MIGRATE, why)
        job.migrations += 1
        context.decide(
            job.job_id,
            "defragment",
            f"will move to {where(target)} so that {first.job_id} fits into one {level}: "
            f"saves {span(gain)} of waiting, costs {span(moves.cost)} (summed over slots; moved: {names})",
            detail,
        )
    index.reserve(first, moves.slots)
    context.record(
        first.job_id,
        "room-made",
        f"{names} {'moves' if len(moves.gangs) == 1 else 'move'} to free slots for it",
        detail,
    )
    return True


def _cheapest(state: State, index: SchedulingIndex, first: Job, ranks: int, now_ns: int) -> Moves | None:
    """Return the cheapest moves that free enough slots for the first job in one domain; None if there are none."""
    plan, level = index.plan, first.spec.required_level
    assert level is not None
    ranks_on: dict[int, dict[str, int]] = {}
    for job_id in index.running:
        if may_be_moved(state, state.jobs[job_id], now_ns):
            for rank in state.jobs[job_id].ranks:
                on_it = ranks_on.setdefault(plan.topology.number[rank.slot.node], {})
                on_it[job_id] = on_it.get(job_id, 0) + 1
    best: Moves | None = None
    for nodes in _domains(plan, level, ranks):
        inside: dict[str, int] = {}
        for number in numbers(nodes):
            for job_id, count in ranks_on.get(number, {}).items():
                inside[job_id] = inside.get(job_id, 0) + count
        moves = _without(state, index, first, nodes, ranks, inside, now_ns)
        if moves is not None and (best is None or moves.cost < best.cost):
            best = moves
    return best


def _domains(plan: Plan, level: Level, ranks: int) -> list[int]:
    """Return the domains of the level to try, each as a bit mask of its nodes, the one with most free slots first."""
    if level is Level.NODE:
        wide = [plan.topology.bits[number] for number in range(len(plan.topology.names))]
    else:
        wide = [plan.topology.domains[number].nodes for number in plan.topology.narrow(level)]
    found: list[tuple[int, int]] = []
    for nodes in wide:
        healthy = [n for n in numbers(nodes) if plan.pool[n] != NOWHERE and plan.pool[n] % TIERS == Tier.HEALTHY]
        free = sum(plan.count[number] for number in healthy)
        if free and sum(plan.topology.sizes[number] for number in healthy) >= ranks:
            found.append((-free, nodes))
    found.sort()
    return [nodes for _, nodes in found[:DOMAINS]]


def _without(
    state: State, index: SchedulingIndex, first: Job, nodes: int, ranks: int, inside: dict[str, int], now_ns: int
) -> Moves | None:
    """Return moves that free enough slots on these nodes for the job; None if that needs too many moves or fails."""
    plan = index.plan
    cost = {
        job_id: moving_seconds(state, state.jobs[job_id], now_ns) * len(state.jobs[job_id].ranks) for job_id in inside
    }
    missing = ranks - sum(plan.count[number] for number in numbers(nodes) if plan.pool[number] != NOWHERE)
    leaving: list[Job] = []
    for job_id in sorted(inside, key=lambda job_id: (cost[job_id] / inside[job_id], job_id)):
        if missing <= 0:
            break
        leaving.append(state.jobs[job_id])
        missing -= inside[job_id]
    if missing > 0 or not leaving or len(leaving) > state.policy.defragmentation_moves:
        return None
    elsewhere = [name for name in plan.topology.names if not plan.topology.bits[plan.topology.number[name]] & nodes]
    mark = plan.checkpoint()
    try:
        for job in leaving:
            index.vacate(job)
        most = index.most_ranks(first)
        slots = place(plan, first, excluded=elsewhere, suspects=False, policy=state.policy, most=most)
        if slots is None:
            return None
        used = set(slots)
        staying = [job for job in leaving if used.isdisjoint(rank.slot for rank in job.ranks)]
        for job in staying:
            index.stay(job)
        gangs: list[tuple[Job, tuple[Slot, ...]]] = []
        for job in sorted(leaving, key=lambda job: (-len(job.ranks), job.job_id)):
            if job in staying:
                continue
            most = min(len(job.ranks), job.spec.max_ranks or job.spec.ranks)
            target = place(plan, job, suspects=False, policy=state.policy, most=most)
            if target is None or len(target) < len(job.ranks):
                return None
            gangs.append((job, target))
        return Moves(slots, tuple(gangs), sum(cost[job.job_id] for job, _ in gangs))
    finally:
        plan.rollback(mark)
