"""Slow-node placement: start pending gangs on slow nodes if a longer wait would cost more.

Placement avoids slow nodes unless they pay at once (``placement.slow_slots_pay``), because other jobs might use the
healthy slots better. After backfill no pending job fits into the remaining healthy slots, so these would stay idle. A
gang with a long expected wait therefore starts on healthy and slow slots together. Nodes that are in quarantine only
because they are slow become suspect, so that the gang can use them. The job with the reservation is evaluated first.
Other jobs must end before the reservation begins, at the speed of the slow node.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_feedback.core.cluster import Node, NodeState, Tier
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Backfilling, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import TIERS
from scheduler_feedback.policies.nodes.quarantine import may_be_reinstated, reinstate
from scheduler_feedback.policies.queue.backfill import Reservation, reserve
from scheduler_feedback.policies.queue.placement import NEVER, barred_for, place, slow_slots_pay, usable_types
from scheduler_feedback.policies.queue.starting import start
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import at_limit

DEPTH = 100
"""Maximum number of pending jobs, from the front of the queue, that are evaluated."""


def start_on_slow_nodes(context: CycleContext, reservation: Reservation | None) -> bool:
    """Start one pending gang on slow nodes if that pays. Return whether a gang was started."""
    index = context.index
    state = context.state
    if state.frozen or not index.doubtful or not len(index.line):
        return False
    slow = [node for name in sorted(index.doubtful) if _slow(state, index, node := state.nodes[name])]
    if not slow:
        return False
    slow.sort(key=lambda node: node.slowdown)
    for job, patience, most_slowdown in _asked(context, reservation):
        needed = _needed(state, index, job, slow, patience, most_slowdown)
        if not needed:
            continue
        for node in needed:
            if node.state is NodeState.QUARANTINE:
                reinstate(context, node)
        waits = _wait(index, job, patience)
        most = index.most_ranks(job)
        slots = place(index.plan, job, policy=state.policy, most=most, patience=patience)
        if slots is not None:
            start(context, job, slots, "started", f"on slow nodes too, instead of waiting: {waits}")
            return True
    return False


def _slow(state: State, index: SchedulingIndex, node: Node) -> bool:
    """Return whether the node is slow and has free slots, and is suspect or may leave quarantine to be used."""
    if node.slowdown <= 1 or not node.present or not index.plan.free_on(node.name):
        return False
    return node.state is NodeState.SUSPECT or may_be_reinstated(state, node)


def _asked(context: CycleContext, reservation: Reservation | None) -> Iterator[tuple[Job, float, float]]:
    """Yield the pending jobs that may start on slow nodes, in queue order, as (job, patience, largest slowdown).

    patience: expected wait for healthy slots / expected run time. largest slowdown: of a node that the job may use.
    """
    index = context.index
    state, now_ns, policy = context.state, context.now_ns, context.state.policy
    window_ns = reservation.from_ns - now_ns if reservation is not None else None
    only_head = policy.backfill in (Backfilling.NONE, Backfilling.CONSERVATIVE)
    for key in index.line.order[: 1 if only_head else DEPTH]:
        job = state.jobs[key[-1]]
        if job.spec.pinned_node is not None or at_limit(index, job) or paused(state, job, now_ns) is not None:
            continue
        length_ns = max(index.line.places[job.job_id].length_ns, 1)
        if window_ns is None:
            found = reserve(index.plan, index.ends, job, now_ns, policy)
            yield job, NEVER if found is None else (found.from_ns - now_ns) / length_ns, NEVER
        elif reservation is not None and job.job_id == reservation.job_id:
            yield job, window_ns / length_ns, NEVER
        else:
            yield job, window_ns / length_ns, window_ns / length_ns


def _needed(
    state: State, index: SchedulingIndex, job: Job, slow: list[Node], patience: float, most_slowdown: float
) -> list[Node]:
    """Return the slow nodes that the gang needs in addition to free healthy slots; [] if it should not start there."""
    plan, spec = index.plan, job.spec
    ranks = spec.min_ranks or spec.ranks
    barred = barred_for(plan, job)
    for number in usable_types(plan, job, state.policy):
        missing = ranks - plan.free_in[number * TIERS + Tier.HEALTHY][0]
        taken: list[Node] = []
        slots = 0
        for node in slow:
            position = plan.topology.number[node.name]
            if slots < missing and plan.topology.types[position] == number and not barred >> position & 1:
                taken.append(node)
                slots += plan.count[position]
        if not taken or slots < missing or taken[-1].slowdown > most_slowdown:
            continue
        if slow_slots_pay(min(slots, ranks), ranks, taken[-1].slowdown, patience):
            return taken
    return []


def _wait(index: SchedulingIndex, job: Job, patience: float) -> str:
    if patience >= NEVER:
        return "no start on healthy slots can be predicted"
    return f"healthy slots are expected in {span(patience * index.line.places[job.job_id].length_ns / 1e9)}"
