"""Joint choice of sizes: elastic gangs are resized, and pending jobs started, so that the slots do the most work.

Which jobs run is the order of the policy: pending jobs join while the least sizes of all jobs fit. How many ranks, and
which GPU type, each gets follows from ``choosing``. A running gang is resized only if that pays for its restart within
the time ahead: its remaining run time, at most ``resize_horizon_seconds``. Gangs that may not be moved now keep their
slots. The pass runs at events while jobs are pending, and every ``sizes_seconds``. ``Sizes.IDLE`` turns it off. A
preemption pass of an order other than `fair` takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import Job, Slot, StopReason
from scheduler_feedback.core.state import Sizes, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.runtime_estimate import left_at_full_speed_ns, left_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import TIERS
from scheduler_feedback.policies.queue.placement import place, where
from scheduler_feedback.policies.queue.starting import start
from scheduler_feedback.policies.remediation.gang_moves import at_limit, may_be_moved, proposed
from scheduler_feedback.policies.remediation.move_cost import moving_seconds, resizing_seconds
from scheduler_feedback.policies.sizes.choosing import choose
from scheduler_feedback.policies.sizes.options import Option, options_of
from scheduler_feedback.policies.sizes.value import reduced, valued

Target = tuple[Job, Option, tuple[Slot, ...]]


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to choose the sizes again."""
    if state.policy.sizes is not Sizes.IDLE and not state.frozen and (index.elastic or index.line.order):
        yield _next_ns(state)


def _next_ns(state: State) -> int:
    """Return when to choose the sizes again without an event, in ns: at least a second after the last choice."""
    return state.sized_ns + nanoseconds(max(state.policy.sizes_seconds, 1.0))


def reallocate(context: CycleContext, happened: bool) -> None:
    """Choose the sizes of all elastic gangs together, and start the pending jobs that fit.

    happened: whether an event occurred. Without one, only the timeout leads to another choice.
    """
    state, index, now_ns = context.state, context.index, context.now_ns
    policy = state.policy
    if policy.sizes is Sizes.IDLE or state.frozen:
        return
    context.evaluated = True  # the journal needs every pass: whether one is left over decides when the next one runs
    if now_ns < _next_ns(state) and not (happened and index.line.order):
        return
    state.sized_ns = now_ns
    gangs = _movable(state, index, now_ns)
    slots = [
        index.plan.free_in[number * TIERS + Tier.HEALTHY][0] for number in range(len(index.plan.topology.type_names))
    ]
    for job in gangs:
        slots[_type_of(index, job)] += len(job.ranks)
    jobs = [*gangs, *_joining(context, gangs, slots)]
    options = [_options(state, index, job, now_ns) for job in jobs]
    chosen = choose(options, slots)
    changes = [
        (job, one) for job, one in zip(jobs, chosen, strict=True) if one is not None and not _is_now(index, job, one)
    ]
    targets = _placed(context, _within_limits(index, changes))
    _apply(context, targets)


def _movable(state: State, index: SchedulingIndex, now_ns: int) -> list[Job]:
    """Return the running elastic gangs that may be resized now, by job id. All their slots are on healthy nodes."""
    plan, found = index.plan, []
    for job_id in sorted(index.elastic):
        job = state.jobs[job_id]
        if not may_be_moved(state, job, now_ns):
            continue
        numbers = [plan.topology.number.get(rank.slot.node) for rank in job.ranks]
        if all(
            number is not None and plan.pool[number] % TIERS == Tier.HEALTHY and plan.pool[number] >= 0
            for number in numbers
        ):
            found.append(job)
    return found


def _type_of(index: SchedulingIndex, job: Job) -> int:
    topology = index.plan.topology
    return topology.types[topology.number[job.ranks[0].slot.node]]


def _is_now(index: SchedulingIndex, job: Job, option: Option) -> bool:
    """Return whether the running job has this option now."""
    return bool(job.state.holds_slots) and len(job.ranks) == option.ranks and _type_of(index, job) == option.type_number


def _joining(context: CycleContext, gangs: Sequence[Job], slots: Sequence[int]) -> list[Job]:
    """Return the pending jobs, in order, that fit at their least sizes beside the least sizes of the gangs."""
    state, index = context.state, context.index
    free = sum(slots)
    for job in gangs:
        free -= job.spec.min_ranks or job.spec.ranks
    found = []
    for key in index.line.order:
        job = state.jobs[key[-1]]
        least = job.spec.min_ranks or job.spec.ranks
        if at_limit(index, job) or job.not_before_ns > context.now_ns or job.spec.pinned_node is not None:
            continue
        if least > free:
            break
        free -= least
        found.append(job)
    return found


def _options(state: State, index: SchedulingIndex, job: Job, now_ns: int) -> list[Option]:
    """Return the options of the job with their values, after the cost of the restart that each needs."""
    policy = state.policy
    left = left_at_full_speed_ns(policy, job, now_ns) / 1e9
    options, most = options_of(index.plan, job, policy), index.capacity.most
    if most is not None:  # the power budget allows no more ranks
        options = [one for one in options if one.ranks <= max(most, len(job.ranks))]
    found = valued(policy.sizes, job, options, max(left, 1.0))
    if not job.state.holds_slots:
        return found
    ahead = min(max(left_ns(policy, job, now_ns) / 1e9, 1.0), policy.resize_horizon_seconds)
    moving = resizing_seconds(state, job, now_ns)
    share = 1 - (1 + policy.migration_margin) * moving / ahead
    kept = [one for one in found if _is_now(index, job, one)]
    if share <= 0 and kept:
        return kept
    return [one if _is_now(index, job, one) else reduced(policy.sizes, one, max(share, SHORT)) for one in found]


SHORT = 1e-3
"""Least share of progress in the time ahead that counts, for a gang that must be moved in any case."""


def _within_limits(index: SchedulingIndex, changes: list[tuple[Job, Option]]) -> list[tuple[Job, Option]]:
    """Return the changes that the limits of the queues allow, in order."""
    if not index.shares.limited:
        return changes
    found, used = [], []
    for job, option in sorted(changes, key=lambda one: one[1].ranks - len(one[0].ranks)):
        more = option.ranks - (len(job.ranks) if job.state.holds_slots else 0)
        if more > 0:  # slots that gangs of the queue give back are not free yet
            if index.shares.room(job.spec.queue, more) is not None:
                continue
            index.shares.use(job.spec.queue, more)
            used.append((job.spec.queue, more))
        found.append((job, option))
    for queue, more in used:
        index.shares.use(queue, -more)
    return found


def _placed(context: CycleContext, changes: list[tuple[Job, Option]]) -> list[Target]:
    """Return the changes with slots. Changes for which there are no slots are left out, and their gangs stay."""
    index, state = context.index, context.state
    plan = index.plan
    while changes:
        mark = plan.checkpoint()
        for job, _ in changes:
            if job.state.holds_slots:
                index.vacate(job)
        found: list[Target] = []
        failed: set[str] = set()
        for change in sorted(changes, key=lambda one: (-one[1].ranks, one[0].job_id)):
            slots = _slots(state, index, *change)
            if slots is not None:
                found.append((*change, slots))
            else:
                failed.add(change[0].job_id)
        plan.rollback(mark)
        if not any(job.state.holds_slots for job, _ in changes if job.job_id in failed):
            return found
        changes = [change for change in changes if change[0].job_id not in failed]  # a gang that stays needs its slots
    return []


def _slots(state: State, index: SchedulingIndex, job: Job, option: Option) -> tuple[Slot, ...] | None:
    """Take exactly the option's ranks on its GPU type from the plan; None if they do not fit."""
    names = index.plan.topology.type_names
    spec = job.spec
    if len(names) > 1:
        spec = replace(spec, gpu_types=(names[option.type_number],))
    if spec.min_ranks is not None or spec.max_ranks is not None:
        spec = replace(spec, min_ranks=option.ranks)
    return place(index.plan, replace(job, spec=spec), suspects=False, policy=state.policy, most=option.ranks)


def _apply(context: CycleContext, targets: list[Target]) -> None:
    index, state = context.index, context.state
    running = [target for target in targets if target[0].state.holds_slots]
    held = {slot for job, _, _ in running for slot in (rank.slot for rank in job.ranks)}
    for job, option, slots in running:
        _resize(context, job, option, slots)
    kept = {slot for job, _, _ in running for slot in job.claim} if running else set()
    for job, _, slots in targets:
        if job.state.holds_slots:
            continue
        if kept.isdisjoint(slots) and held.isdisjoint(slots):
            start(context, job, slots, "started", f"with {_ranks(len(slots))}, {_aim(state.policy.sizes)}")
        elif all(one.claim for one, _, _ in running):  # observe mode moves no gang
            index.reserve(job, slots)
            text = f"reserves {where(slots)}, which resized gangs free for it"
            context.record(job.job_id, "room-made", text)


def _resize(context: CycleContext, job: Job, option: Option, slots: tuple[Slot, ...]) -> None:
    """Move the gang to these slots, and say why."""
    state, index = context.state, context.index
    names = index.plan.topology.type_names
    before, after = names[_type_of(index, job)], names[option.type_number]
    ranks = len(job.ranks)
    kind = "grow" if option.ranks > ranks else "shrink" if option.ranks < ranks else "faster-type"
    on = f" on {after} instead of {before}" if after != before else ""
    faster = option.speed / job.speed if job.speed > 0 else 1.0
    learnt = index.plan.learnt is not None and index.plan.learnt.knows(job.job_id, job.spec)
    how = "measured speeds of its class give" if learnt else "without measurements, proportional speed gives"
    text = f"continue with {_ranks(option.ranks)} instead of {ranks}{on}, {_aim(state.policy.sizes)}"
    text += f": {how} {faster:.2f} times its speed"
    cost = (moving_seconds if option.ranks == ranks else resizing_seconds)(state, job, context.now_ns)
    detail = (
        ("ranks", f"{ranks} -> {option.ranks}"),
        ("gpu_type", after),
        ("speed", f"{job.speed:.3f} -> {option.speed:.3f}"),
        ("cost_seconds", f"{cost:.1f}"),
        ("to", where(slots)),
    )
    if proposed(context, job, f"resize {option.ranks} {after}", kind, f"would {text}", detail):
        return
    index.move(job, slots, StopReason.RESIZE, f"restarts with {_ranks(option.ranks)}")
    context.decide(job.job_id, kind, f"will {text}", detail)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


def _aim(sizes: Sizes) -> str:
    """Return the aim of the choice, in words."""
    match sizes:
        case Sizes.REMAINING:
            return "so that its slots save the most remaining run time"
        case Sizes.GOODPUT:
            return "so that all jobs together progress best, slow ones first"
    return "so that all slots together do the most work"
