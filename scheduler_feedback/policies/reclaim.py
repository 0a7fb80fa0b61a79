"""Reclaim: a queue that holds less than its quota gets back what others have borrowed.

Slots that a queue leaves idle may be used by others, beyond their own quota. When a gang of the queue waits and fits
into the quota, gangs of queues that hold more than theirs are stopped for it: only such that declared that they may be,
and have run their least time; of those the ones that lose least; and never so many that a queue is taken below its own
quota. It needs no gain: a quota is a promise. (KAI and Kueue call it reclaim; Slurm has it as preemption by QOS.)

A quota is looked for from the job's own queue upwards; the first that has one counts.
"""

from __future__ import annotations

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.core.turn import Turn
from scheduler_feedback.policies.cost import moving_seconds
from scheduler_feedback.policies.ledger import Ledger
from scheduler_feedback.policies.moves import keep_place, proposed
from scheduler_feedback.policies.preemption import may_be_stopped, place_without, stop_for


def reclaim(turn: Turn, ledger: Ledger) -> None:
    """For the first that waits of each queue below its quota; called when it is looked at what to preempt."""
    state, queues = turn.state, ledger.shares.queues
    if not any(queue.quota is not None and queue.borrow for queue in queues.values()) or not ledger.line.order:
        return
    asked: set[str] = set()
    for key in list(ledger.line.order):
        job = state.jobs[key[-1]]
        owner = _quota_of(ledger, job.spec.queue)
        if owner is None or owner in asked:
            continue
        asked.add(owner)
        if ledger.shares.held[owner] + job.spec.ranks > (queues[owner].quota or 0) or job.not_before_ns > turn.now_ns:
            continue
        if ledger.shares.room(job.spec.queue, job.spec.ranks) is not None:
            continue
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
    queues, left = ledger.shares.queues, dict(ledger.shares.held)
    chosen: list[Job] = []
    if place_without(ledger, job, chosen, state) is not None:
        return None
    borrowing: list[tuple[float, str, str]] = []
    for job_id in ledger.held:
        other = state.jobs[job_id]
        lender = _quota_of(ledger, other.spec.queue)
        if lender not in (None, owner) and may_be_stopped(state, other, now_ns):
            borrowing.append((moving_seconds(state, other, now_ns), job_id, lender or ""))
    for _, job_id, lender in sorted(borrowing):
        other = state.jobs[job_id]
        if left[lender] - len(other.ranks) < (queues[lender].quota or 0):
            continue
        left[lender] -= len(other.ranks)
        chosen.append(other)
        slots = place_without(ledger, job, chosen, state)
        if slots is not None:
            used = set(slots)
            return slots, [one for one in chosen if not used.isdisjoint(rank.slot for rank in one.ranks)]
    return None
