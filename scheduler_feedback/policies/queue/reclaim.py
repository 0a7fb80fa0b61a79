"""Quotas: a gang within its queue's quota gets free slots first, and slots that other queues have borrowed.

Queues may borrow idle slots of other queues beyond their own quota. When a pending gang fits into its queue's quota,
gangs of borrowing queues are stopped for it: only preemptible gangs that have run their minimum run time, and first
the gangs that lose least. A quota is guaranteed: gangs are stopped for it at once, even if the cluster gains nothing.

A queue must borrow before one of its gangs is stopped, as in KAI and Kueue. A gang may hold both slots within its
queue's quota and borrowed slots. Such a gang is stopped whole, and its queue falls below its quota until the gang
restarts; this happens only if other gangs do not free enough slots. The stopped gang does not fit into the rest of its
queue's quota, so it cannot reclaim its slots in turn.

A job's quota is that of its queue, or of the nearest parent queue that has one. If quotas apply to each GPU type
(``gpu_types.type_quotas``), a gang must fit into the rest of its queue's slots of one type, and gets back slots of that
type from queues that hold more of it than theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import place, usable_types
from scheduler_feedback.policies.queue.preemption import may_be_stopped, place_without, stop_for
from scheduler_feedback.policies.queue.starting import start
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import proposed
from scheduler_feedback.policies.remediation.move_cost import moving_seconds


class Rest(NamedTuple):
    """Rest of a queue's quota."""

    slots: int
    """Number of slots."""
    gpu_type: str | None
    """GPU type of the slots; None: of any type."""


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
        owner = index.shares.owner(job.spec.queue)
        ranks = job.spec.min_ranks or job.spec.ranks
        if index.shares.room(job.spec.queue, ranks) is not None or paused(state, job, context.now_ns):
            continue
        if first is not None and key[:2] != first:
            break
        slots = rest = None
        for rest in _rests(index, job, owner) if owner is not None else ():
            asked, most = _within(job, rest), index.most_ranks(job)
            if (slots := place(index.plan, asked, policy=state.policy, most=most)) is not None:  # may borrow more
                break
        if slots is None or rest is None:
            first = first or key[:2]
            continue
        start(context, job, slots, "started", f"queue {owner} is below its {_quota_text(rest)}")
        started = True
    return started


def _rests(index: SchedulingIndex, job: Job, owner: str) -> list[Rest]:
    """Return the rest of the owner's quota, for each GPU type if quotas apply to each, where the job fits into it."""
    ranks, shares = job.spec.min_ranks or job.spec.ranks, index.shares
    if shares.types is None or owner not in shares.types.entitled:
        rest = Rest((shares.queues[owner].quota or 0) - shares.held[owner], None)
        return [rest] if rest.slots >= ranks else []
    names = index.plan.topology.type_names
    found = [
        Rest(-shares.types.excess(owner, names[number]), names[number])
        for number in usable_types(index.plan, job, index.state.policy)
    ]
    return [rest for rest in found if rest.slots >= ranks]


def _within(job: Job, rest: Rest) -> Job:
    """Return the job with the GPU type of the rest of the quota as its only one."""
    if rest.gpu_type is None:
        return job
    return structs.replace(job, spec=structs.replace(job.spec, gpu_types=(rest.gpu_type,)))


def _quota_text(rest: Rest) -> str:
    return "quota" if rest.gpu_type is None else f"quota of {rest.gpu_type or 'GPUs of unknown type'}"


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
        owner = index.shares.owner(job.spec.queue)
        if owner is None or owner in asked or job.not_before_ns > context.now_ns:
            continue
        ranks = job.spec.min_ranks or job.spec.ranks
        rests = _rests(index, job, owner)
        if not rests or index.shares.room(job.spec.queue, ranks) is not None:
            continue
        asked.add(owner)
        victims, rest = _first_victims(state, index, job, owner, rests, context.now_ns)
        if victims is None:
            continue
        slots, stopped = victims
        names = ", ".join(victim.job_id for victim in stopped)
        text = f"queue {owner} is below its {_quota_text(rest)}: {names} {{}} borrowed slots"
        if proposed(context, job, f"reclaim {names}", "reclaim", text.format("would return"), ()):
            continue
        for victim in stopped:
            stop_for(context, victim, job)
        index.reserve(job, slots)
        context.decide(job.job_id, "reclaim", text.format("must return"))


_Victims = tuple[tuple[Slot, ...], list[Job]]


def _first_victims(
    state: State, index: SchedulingIndex, job: Job, owner: str, rests: list[Rest], now_ns: int
) -> tuple[_Victims | None, Rest]:
    """Return the result of ``_victims`` for the first type with one, and that rest of the quota.

    None if the job fits into free slots of any of the types.
    """
    if any(_within_quota(index, job, rest, []) is not None for rest in rests):
        return None, rests[0]
    found = ((_victims(state, index, job, owner, rest, now_ns), rest) for rest in rests)
    return next((one for one in found if one[0] is not None), (None, rests[0]))


def _victims(state: State, index: SchedulingIndex, job: Job, owner: str, rest: Rest, now_ns: int) -> _Victims | None:
    """Return (slots for the job, gangs to stop for it); None if stopping gangs does not free enough slots."""
    borrowing: list[tuple[float, str, str]] = []
    for job_id in index.held:
        other = state.jobs[job_id]
        lender = index.shares.owner(other.spec.queue)
        if lender not in (None, owner) and may_be_stopped(state, other, now_ns):
            borrowing.append((moving_seconds(state, other, now_ns), job_id, lender or ""))
    over, chosen = dict[str, int](), list[Job]()  # slots of each queue beyond its quota, without the chosen gangs
    for lender in {lender for _, _, lender in borrowing}:
        over[lender] = _excess(index, lender, rest)
    slots: tuple[Slot, ...] | None = None
    for straddling in (False, True):  # first the gangs that hold nothing of their queue's own quota
        for _, job_id, lender in sorted(borrowing):
            other, holds = state.jobs[job_id], _holds(index, state.jobs[job_id], rest)
            after = over[lender] - holds
            if not holds or other in chosen or over[lender] <= 0 or (after < 0) is not straddling:
                continue
            over[lender] = after
            chosen.append(other)
            slots = _within_quota(index, job, rest, chosen)
            if slots is not None:
                return _fewest(index, job, rest, chosen, slots)
    return None


def _excess(index: SchedulingIndex, queue: str, rest: Rest) -> int:
    """Return how many slots, of this GPU type, the queue holds beyond its quota."""
    if rest.gpu_type is None or index.shares.types is None:
        return index.shares.held[queue] - (index.shares.queues[queue].quota or 0)
    return index.shares.types.excess(queue, rest.gpu_type)


def _holds(index: SchedulingIndex, job: Job, rest: Rest) -> int:
    """Return how many slots, of this GPU type, the gang holds."""
    if rest.gpu_type is None or index.shares.types is None:
        return len(job.ranks)
    return index.shares.types.of(job.job_id, rest.gpu_type)


def _fewest(
    index: SchedulingIndex, job: Job, rest: Rest, chosen: list[Job], slots: tuple[Slot, ...]
) -> tuple[tuple[Slot, ...], list[Job]]:
    """Return (slots for the job, gangs to stop for it), without the chosen gangs whose stop is not needed."""
    for other in list(reversed(chosen[:-1])):
        fewer = [one for one in chosen if one is not other]
        if (found := _within_quota(index, job, rest, fewer)) is not None:
            chosen, slots = fewer, found
    used = set(slots)
    return slots, [one for one in chosen if not used.isdisjoint(rank.slot for rank in one.ranks)]


def _within_quota(index: SchedulingIndex, job: Job, rest: Rest, victims: list[Job]) -> tuple[Slot, ...] | None:
    """Return slots for the job as if the victims had ended; None if the rest of the quota is too small."""
    return place_without(index, _within(job, rest), victims, index.state, rest.slots)
