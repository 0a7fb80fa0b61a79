"""Reclaim: a queue that holds less than its quota gets back what others have borrowed.

Slots that a queue leaves idle may be used by others, beyond their own quota. When a gang of the queue waits and fits
into the quota, gangs of queues that hold more than theirs are stopped for it: only gangs that declared that they may be
stopped, and have run their least time; of those the ones that lose least. It needs no gain and does not wait for the
next preemption pass: a quota is a promise.

Whether a queue borrows is tested before a gang of it is stopped, as KAI and Kueue do. A gang that holds part of its
queue's quota and part of what it borrowed cannot give back a part of itself. So it is stopped whole, and its queue
falls below its quota until the gang finds room again; but only where no other gangs make enough room. The stopped gang
does not fit into its queue's quota beside what runs there, so it cannot reclaim its slots in turn.

A quota is looked for from the job's own queue upwards; the first queue that has one counts.
"""

from __future__ import annotations

from scheduler_feedback.core.cycle_context import Turn
from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.scheduling_index import Ledger
from scheduler_feedback.policies.queue.preemption import may_be_stopped, place_without, stop_for
from scheduler_feedback.policies.remediation.gang_moves import keep_place, proposed
from scheduler_feedback.policies.remediation.move_cost import moving_seconds


def reclaim(turn: Turn, ledger: Ledger) -> None:
    """Stop borrowing gangs for the first waiting gang of each queue that fits into what is left of its quota."""
    state, queues = turn.state, ledger.shares.queues
    if not any(queue.quota is not None and queue.borrow for queue in queues.values()) or not ledger.line.order:
        return
    asked: set[str] = set()
    for key in list(ledger.line.order):
        job = state.jobs[key[-1]]
        owner = _quota_of(ledger, job.spec.queue)
        if owner is None or owner in asked or job.not_before_ns > turn.now_ns:
            continue
        ranks = job.spec.min_ranks or job.spec.ranks
        if ledger.shares.held[owner] + ranks > (queues[owner].quota or 0):
            continue
        if ledger.shares.room(job.spec.queue, ranks) is not None:
            continue
        asked.add(owner)
        victims = _victims(state, ledger, job, owner, turn.now_ns)
        if victims is None:
            continue
        slots, stopped = victims
        names = ", ".join(victim.job_id for victim in stopped)
        text = f"queue {owner} is below its quota: {names} {{}} what was borrowed"
        if proposed(turn, job, f"reclaim {names}", "reclaim", text.format("would give back"), ()):
            continue
        for victim in stopped:
            stop_for(turn, ledger, victim, job)
        keep_place(ledger, job, slots)
        turn.decide(job.job_id, "reclaim", text.format("gave back"))


def _quota_of(ledger: Ledger, queue: str) -> str | None:
    """The queue, or the nearest above it, that has a quota."""
    chain = ledger.shares.chain(queue)
    return next((name for name in chain if ledger.shares.queues[name].quota is not None), None)


def _victims(
    state: State, ledger: Ledger, job: Job, owner: str, now_ns: int
) -> tuple[tuple[Slot, ...], list[Job]] | None:
    """A place for the job, and the gangs that must be stopped for it; None where that can't be, or need not."""
    queues, held = ledger.shares.queues, ledger.shares.held
    if _within_quota(ledger, job, owner, []) is not None:
        return None
    borrowing: list[tuple[float, str, str]] = []
    for job_id in ledger.held:
        other = state.jobs[job_id]
        lender = _quota_of(ledger, other.spec.queue)
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
            slots = _within_quota(ledger, job, owner, chosen)
            if slots is not None:
                return _fewest(ledger, job, owner, chosen, slots)
    return None


def _fewest(
    ledger: Ledger, job: Job, owner: str, chosen: list[Job], slots: tuple[Slot, ...]
) -> tuple[tuple[Slot, ...], list[Job]]:
    """The place and the gangs to stop, without the gangs that the place can do without; the last chosen is needed."""
    for other in list(reversed(chosen[:-1])):
        fewer = [one for one in chosen if one is not other]
        if (found := _within_quota(ledger, job, owner, fewer)) is not None:
            chosen, slots = fewer, found
    used = set(slots)
    return slots, [one for one in chosen if not used.isdisjoint(rank.slot for rank in one.ranks)]


def _within_quota(ledger: Ledger, job: Job, owner: str, victims: list[Job]) -> tuple[Slot, ...] | None:
    """A place for the job once the victims have gone, no larger than what is left of its quota; it is not taken."""
    left = (ledger.shares.queues[owner].quota or 0) - ledger.shares.held[owner]
    return place_without(ledger, job, victims, ledger.state, left)
