"""Resizing: an elastic gang grows into idle slots, and shrinks if another job needs slots.

    grow     No job is pending, and slots are free. The remaining work takes R seconds with n ranks and R n/m with m.
             Done if R (1 - n/m) > (1 + h) x the cost of a restart. R is at most the time since which no job is pending,
             because that time is expected to last as long again. The same rule decides whether a new gang starts with
             more ranks than it asks for.
    shrink   The first pending job needs slots that elastic gangs hold beyond their minimum. Done if (its wait) x (slots
             that are freed and needed) > (1 + h) x (GPU-seconds that the gangs lose by their restarts). Slower progress
             of the gangs is no loss, because the freed slots do other work meanwhile. Gangs keep slots that no pending
             job needs.

R and the wait count up to ``resize_horizon_seconds``, because the future load is unknown. Speed is proportional to the
number of ranks, or learnt (``speeds``): then n/m is the ratio of the two speeds, and the gang gets the fewest ranks
that are about as fast as all that it could get. h is ``migration_margin`` of the policy. Only restartable gangs are
resized, each at most once per migration cooldown. `Policy.sizes` can replace both rules (``policies/sizes``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job, JobState, RankRecord, Slot, StopReason
from scheduler_feedback.core.state import Estimates, Sizes, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from scheduler_feedback.policies.index.runtime_estimate import healthy_end_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import attempt_speed, place, where
from scheduler_feedback.policies.remediation.gang_moves import (
    at_limit,
    first_in_line,
    may_be_moved,
    proposed,
    wait_seconds,
    waits_since_ns,
)
from scheduler_feedback.policies.remediation.move_cost import resizing_seconds
from scheduler_feedback.policies.speeds.learnt_speeds import WORTH


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to evaluate again whether elastic gangs grow, or shrink for the first pending job."""
    now_ns = state.now_ns
    if state.frozen or not index.elastic or state.policy.sizes is not Sizes.IDLE:
        return
    jobs = [job for job_id in index.elastic if (job := state.jobs[job_id]).state is JobState.RUNNING]
    if not index.line.order and not index.claimants:
        if index.plan.free(Tier.HEALTHY) and any(len(job.ranks) < (job.spec.max_ranks or 0) for job in jobs):
            yield next_evaluation_ns(state.emptied_ns, now_ns)
        return
    # A known wait only gets shorter. An estimated wait, and the unsaved work of a gang, grow.
    guessed = state.policy.estimates is Estimates.HISTORY
    ample = [job for job in jobs if _surplus(job) > 0 and (guessed or job.spec.checkpoint_interval_seconds)]
    if ample and (first := first_in_line(index, now_ns)) is not None:
        yield next_evaluation_ns(waits_since_ns(first), now_ns)


def grow(context: CycleContext) -> None:
    """Restart elastic gangs with more ranks on idle slots if that pays, those with the most work left first."""
    index = context.index
    state, now_ns = context.state, context.now_ns
    if state.frozen or not index.elastic or index.line.order or index.claimants:
        return
    if state.policy.sizes is not Sizes.IDLE:  # ``sizes/reallocation`` does it
        return
    wanting = [
        (-_left_seconds(state, job, now_ns), job.job_id)
        for job_id in index.elastic
        if len((job := state.jobs[job_id]).ranks) < (job.spec.max_ranks or job.spec.ranks)
        and may_be_moved(state, job, now_ns)
    ]
    for left, job_id in sorted(wanting):
        if not index.plan.free(Tier.HEALTHY):
            return
        job = state.jobs[job_id]
        slots = _larger(state, index, job)
        if slots is None:
            continue
        lasts = min(-left, index.idle_seconds(), state.policy.resize_horizon_seconds)
        gain = lasts * (1 - _speed(state, index, job, job.ranks) / _speed(state, index, job, slots))
        cost = resizing_seconds(state, job, now_ns)
        if gain <= (1 + state.policy.migration_margin) * cost:
            continue
        text = f"continue with {len(slots)} ranks instead of {len(job.ranks)}: no pending job needs the idle slots"
        detail = (
            ("ranks", f"{len(job.ranks)} -> {len(slots)}"),
            ("benefit_seconds", f"{gain:.1f}"),
            ("cost_seconds", f"{cost:.1f}"),
            ("margin", f"{state.policy.migration_margin:.2f}"),
            ("to", where(slots)),
        )
        if proposed(context, job, f"grow {len(slots)}", "grow", f"would {text}", detail):
            continue
        index.move(job, slots, StopReason.RESIZE, f"restarts with {_ranks(len(slots))}")
        context.decide(job_id, "grow", f"will {text}", detail)


def _speed(state: State, index: SchedulingIndex, job: Job, slots: Sequence[Slot] | Sequence[RankRecord]) -> float:
    """Return the job's expected speed with this number of slots, on the GPU type of its present ones."""
    gpu_type = state.nodes[job.ranks[0].slot.node].gpu_type
    return attempt_speed(state.policy, job, gpu_type, len(slots), index.plan.learnt)


def _left_seconds(state: State, job: Job, now_ns: int) -> float:
    return (healthy_end_ns(state.policy, job, now_ns) - now_ns) / 1e9


def _larger(state: State, index: SchedulingIndex, job: Job) -> tuple[Slot, ...] | None:
    """Return the slots that the gang would have after growing; None if it cannot get more slots than it has."""
    plan, ranks = index.plan, len(job.ranks)
    most = job.spec.max_ranks or job.spec.ranks
    if (left := index.shares.left(job.spec.queue)) is not None:
        most = min(most, ranks + left)
    if index.capacity.most is not None:
        most = min(most, index.capacity.most)
    wanted = replace(job, spec=replace(job.spec, min_ranks=ranks + job.spec.unit))
    most = _worth(state, index, job, most)
    if most <= ranks:
        return None
    mark = plan.checkpoint()
    index.vacate(job)
    slots = place(plan, wanted, suspects=False, policy=state.policy, most=most)
    plan.rollback(mark)
    return slots


def _worth(state: State, index: SchedulingIndex, job: Job, most: int) -> int:
    """Return the fewest ranks that are expected to be about as fast as any number up to `most`."""
    learnt = index.plan.learnt
    if learnt is None or not learnt.knows(job.job_id, job.spec):
        return most
    gpu_type = state.nodes[job.ranks[0].slot.node].gpu_type
    sizes = job.spec.sizes_between(len(job.ranks), most + 1) or [len(job.ranks)]
    speeds = {size: attempt_speed(state.policy, job, gpu_type, size, learnt) for size in sizes}
    fastest = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed * WORTH >= fastest)


def make_room(context: CycleContext) -> bool:
    """Shrink elastic gangs so that the first pending job can start, if that pays. Return whether gangs shrink."""
    index = context.index
    state, now_ns = context.state, context.now_ns
    if state.frozen or not index.elastic or state.policy.sizes is not Sizes.IDLE:
        return False
    if (first := first_in_line(index, now_ns)) is None:
        return False
    ample = [
        (resizing_seconds(state, job, now_ns) * len(job.ranks) / _surplus(job), job.job_id)
        for job_id in index.elastic
        if _surplus(job := state.jobs[job_id]) > 0 and may_be_moved(state, job, now_ns)
    ]
    if not ample:
        return False
    found = _room_without(state, index, first, [state.jobs[job_id] for _, job_id in sorted(ample)])
    if found is None:
        return False
    slots, kept = found
    cost = sum(resizing_seconds(state, job, now_ns) * len(job.ranks) for job, _ in kept)
    wait = wait_seconds(state, index, first, now_ns)
    freed = sum(len(job.ranks) - len(stay) for job, stay in kept)
    wanted = _wanted(state, index, freed + len(slots))
    gain = wait * max(len(slots), min(freed, wanted))
    if gain <= (1 + state.policy.migration_margin) * cost:
        return False
    detail = (
        ("for", first.job_id),
        ("wait_seconds", f"{wait:.1f}"),
        ("gain_slot_seconds", f"{gain:.1f}"),
        ("cost_slot_seconds", f"{cost:.1f}"),
        ("margin", f"{state.policy.migration_margin:.2f}"),
    )
    names = ", ".join(job.job_id for job, _ in kept)
    text = f"shrink {names} to start now instead of in {span(wait)}"
    if proposed(context, first, f"shrink {names}", "shrink", f"would {text}", detail):
        return False
    for job, stay in _with_spare(kept, set(slots), max(wanted - len(slots), 0)):
        words = f"continue with {len(stay)} of its {len(job.ranks)} ranks to save {first.job_id} a wait of {span(wait)}"
        index.move(job, stay, StopReason.RESIZE, f"restarts with {_ranks(len(stay))}")
        context.decide(job.job_id, "shrink", f"will {words}", detail)
    index.reserve(first, slots)
    context.record(
        first.job_id, "room-made", f"{names} {'shrinks' if len(kept) == 1 else 'shrink'} to free slots for it", detail
    )
    return True


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


def _wanted(state: State, index: SchedulingIndex, most: int) -> int:
    """Return the number of slots that pending jobs need. Counting stops once it reaches `most`."""
    wanted = 0
    for key in index.line.order:
        job = state.jobs[key[-1]]
        if not at_limit(index, job):
            wanted += job.spec.ranks
        if wanted >= most:
            break
    return wanted


def _surplus(job: Job) -> int:
    """Return how many more ranks the gang has than its minimum."""
    return len(job.ranks) - (job.spec.min_ranks or job.spec.ranks)


def _room_without(
    state: State, index: SchedulingIndex, first: Job, ample: list[Job]
) -> tuple[tuple[Slot, ...], list[tuple[Job, tuple[Slot, ...]]]] | None:
    """Return (slots for the first job, gangs that must shrink with the slots that they keep); None if it cannot fit."""
    plan = index.plan
    mark = plan.checkpoint()
    freed: list[tuple[Job, tuple[Slot, ...], tuple[Slot, ...]]] = []
    slots: tuple[Slot, ...] | None = None
    for job in ample:
        stay, leave = _split(job)
        index.vacate(job, leave)
        freed.append((job, stay, leave))
        inner = plan.checkpoint()
        slots = place(plan, first, suspects=False, policy=state.policy, most=index.most_ranks(first))
        if slots is not None:
            plan.rollback(inner)
            break
    plan.rollback(mark)
    if slots is None:
        return None
    used = set(slots)
    return slots, [(job, stay) for job, stay, leave in freed if not used.isdisjoint(leave)]


def _with_spare(
    kept: list[tuple[Job, tuple[Slot, ...]]], used: set[Slot], wanted: int
) -> Iterator[tuple[Job, tuple[Slot, ...]]]:
    """Yield the gangs with the slots that they keep: those of their minimum, and those that no pending job needs.

    used: slots of the first job. wanted: number of slots that the other pending jobs need. Gangs keep whole units of
    ranks, first on nodes where they stay anyway.
    """
    leaving = {rank.slot for job, _ in kept for rank in job.ranks}.difference(*(stay for _, stay in kept))
    spare = len(leaving - used) - wanted
    for job, stay in kept:
        least, nodes, unit = set(stay), {slot.node for slot in stay}, job.spec.unit
        units = [job.ranks[first : first + unit] for first in range(0, len(job.ranks), unit)]
        allowed = job.spec.size_at_most(min(len(least) + max(spare, 0), len(job.ranks)))
        for ranks in sorted(units, key=lambda ranks: ranks[0].slot.node not in nodes):
            slots = {rank.slot for rank in ranks}
            if len(least) < allowed and len(ranks) <= spare and slots.isdisjoint(least) and slots.isdisjoint(used):
                least |= slots
                spare -= len(ranks)
        yield job, tuple(rank.slot for rank in job.ranks if rank.slot in least)


def _split(job: Job) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Return (slots that the gang keeps at its minimum size, slots that it releases)."""
    on_node: dict[str, int] = {}
    for rank in job.ranks:
        on_node[rank.slot.node] = on_node.get(rank.slot.node, 0) + 1
    by_worth = sorted(job.ranks, key=lambda rank: (-on_node[rank.slot.node], rank.rank))
    least = job.spec.min_ranks or job.spec.ranks
    stay = {rank.rank for rank in by_worth[:least]}  # whole groups: a group is on one node, and its ranks are in a row
    return (
        tuple(rank.slot for rank in job.ranks if rank.rank in stay),
        tuple(rank.slot for rank in job.ranks if rank.rank not in stay),
    )
