"""Quotas: a gang within its queue's quota gets free slots first, and slots that other queues have borrowed.

Queues may borrow idle slots of other queues beyond their own quota. When a pending gang fits into its queue's quota,
gangs of borrowing queues are stopped for it: only preemptible gangs that have run their minimum run time, and first
the gangs that lose least. A quota is guaranteed: gangs are stopped for it at once, even if the cluster gains nothing.

A queue must borrow before one of its gangs is stopped, as in KAI and Kueue. A gang may hold both slots within its
queue's quota and borrowed slots. Such a gang is stopped whole, and its queue falls below its quota until the gang
restarts; this happens only if other gangs do not free enough slots. The stopped gang does not fit into the rest of its
queue's quota, so it cannot reclaim its slots in turn.

A job's quota is that of its queue, or of the nearest parent queue that has one.
"""

from __future__ import annotations

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import place
from scheduler_feedback.policies.queue.preemption import may_be_stopped, place_without, stop_for
from scheduler_feedback.policies.queue.starting import start
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import proposed
from scheduler_feedback.policies.remediation.move_cost import moving_seconds


def start_within_quota(context: CycleContext) -> bool:
    """Start pending gangs that fit into free slots and into the rest of their queue's quota; return whether one did.

    Such a gang may use slots that are reserved for a job beyond its queue's quota. Only jobs of a higher priority, and
    starved jobs of the same priority, go first.
    """
    index = context.index
    state, started = context.state, False
    if not _has_quotas(index) or state.frozen:
        return False
    first: tuple[object, ...] | None = None
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        owner = _quota_of(index, job.spec.queue)
        ranks = job.spec.min_ranks or job.spec.ranks
        if index.shares.room(job.spec.queue, ranks) is not None or paused(state, job, context.now_ns):
            continue
        if first is not None and key[:2] != first:
            break
        slots = None
        if owner is not None and index.shares.held[owner] + ranks <= (index.shares.queues[owner].quota or 0):
            slots = place(index.plan, job, policy=state.policy, most=index.most_ranks(job))  # may borrow more
        if slots is None:
            first = first or key[:2]
            continue
        start(context, job, slots, "started", f"queue {owner} is below its quota")
        started = True
    return started


def _has_quotas(index: SchedulingIndex) -> bool:
    return any(queue.quota is not None for queue in index.shares.queues.values())


def reclaim(context: CycleContext) -> None:
    """For each queue whose first pending gang fits into the rest of its quota, stop gangs of borrowing queues."""
    index = context.index
    state, queues = context.state, index.shares.queues
    if not any(queue.quota is not None and queue.borrow for queue in queues.values()) or not index.line.order:
        return
    asked: set[str] = set()
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        owner = _quota_of(index, job.spec.queue)
        if owner is None or owner in asked or job.not_before_ns > context.now_ns:
            continue
        ranks = job.spec.min_ranks or job.spec.ranks
        if index.shares.held[owner] + ranks > (queues[owner].quota or 0):
            continue
        if index.shares.room(job.spec.queue, ranks) is not None:
            continue
        asked.add(owner)
        victims = _victims(state, index, job, owner, context.now_ns)
        if victims is None:
            continue
        slots, stopped = victims
        names = ", ".join(victim.job_id for victim in stopped)
        text = f"queue {owner} is below its quota: {names} {{}} borrowed slots"
        if proposed(context, job, f"reclaim {names}", "reclaim", text.format("would return"), ()):
            continue
        for victim in stopped:
            stop_for(context, victim, job)
        index.reserve(job, slots)
        context.decide(job.job_id, "reclaim", text.format("must return"))


def _quota_of(index: SchedulingIndex, queue: str) -> str | None:
    """Return the name of the queue, or of its nearest parent queue, that has a quota; None if none has."""
    chain = index.shares.chain(queue)
    return next((name for name in chain if index.shares.queues[name].quota is not None), None)


def _victims(
    state: State, index: SchedulingIndex, job: Job, owner: str, now_ns: int
) -> tuple[tuple[Slot, ...], list[Job]] | None:
    """Return (slots for the job, gangs to stop for it); None if stopping gangs is not possible or not needed."""
    queues, held = index.shares.queues, index.shares.held
    if _within_quota(index, job, owner, []) is not None:
        return None
    borrowing: list[tuple[float, str, str]] = []
    for job_id in index.held:
        other = state.jobs[job_id]
        lender = _quota_of(index, other.spec.queue)
        if lender not in (None, owner) and may_be_stopped(state, other, now_ns):
            borrowing.append((moving_seconds(state, other, now_ns), job_id, lender or ""))
    left, chosen = dict(held), list[Job]()
    slots: tuple[Slot, ...] | None = None
    for straddling in (False, True):  # first the gangs that hold nothing of their queue's own quota
        for _, job_id, lender in sorted(borrowing):
            other, quota = state.jobs[job_id], queues[lender].quota or 0
            after = left[lender] - len(other.ranks)
            if other in chosen or left[lender] <= quota or (after < quota) is not straddling:
                continue
            left[lender] = after
            chosen.append(other)
            slots = _within_quota(index, job, owner, chosen)
            if slots is not None:
                return _fewest(index, job, owner, chosen, slots)
    return None


def _fewest(
    index: SchedulingIndex, job: Job, owner: str, chosen: list[Job], slots: tuple[Slot, ...]
) -> tuple[tuple[Slot, ...], list[Job]]:
    """Return (slots for the job, gangs to stop for it), without the chosen gangs whose stop is not needed."""
    for other in list(reversed(chosen[:-1])):
        fewer = [one for one in chosen if one is not other]
        if (found := _within_quota(index, job, owner, fewer)) is not None:
            chosen, slots = fewer, found
    used = set(slots)
    return slots, [one for one in chosen if not used.isdisjoint(rank.slot for rank in one.ranks)]


def _within_quota(index: SchedulingIndex, job: Job, owner: str, victims: list[Job]) -> tuple[Slot, ...] | None:
    """Return slots for the job as if the victims had ended; None if the rest of the quota is too small."""
    left = (index.shares.queues[owner].quota or 0) - index.shares.held[owner]
    return place_without(index, job, victims, index.state, left)
