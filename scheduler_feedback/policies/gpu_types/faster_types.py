"""Faster GPU types: a pending job waits for one, although a slower type is free, if it then ends earlier.

For each pending job, in queue order, the rule computes the expected end on each GPU type: the time at which enough
slots of the type are free of running jobs and of the jobs ahead, plus the job's run time there. The job gets the type
with the earliest end (minimum completion time: Ibarra and Kim, "Heuristic algorithms for scheduling independent tasks
on nonidentical processors", JACM 1977), and declines the types on which it would end later. So a long job goes to a
fast type, and a short job uses what is free.

Let w be the time by which it starts later on the faster type, and r the run time that it saves there. The job waits if
w < p r, with p = `Policy.type_patience`. Expectations can be wrong, so the whole wait has a limit, too: p r from the
moment at which the job first declined a free type. After that it uses any type until its next start. So a wait costs a
job at most as much as the faster type was expected to save, and no job waits forever.

Time alone changes no choice. The comparison is made as of the last change of its inputs (`State.types_ns`): free slots,
expected ends, the queue, expected run times, and jobs whose limit has passed. As of a later instant, types that are
free but that the job cannot use, such as slots reserved for the head, would seem to be free later and later.

The rule is off with one GPU type, and where a pass must not skip a job that could start: without backfill, and in
preemption passes of the orders other than `fair`, which give each job the fastest type that has room. It is off with
the order `themis`, which changes with time alone: so would the jobs ahead, and the choices. It is off for jobs of a
queue that owns slots of each type (``type_quotas``), because its slots of the slower types would be used by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from msgspec import structs
from msgspec.msgpack import encode

from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Backfilling, Order, Policy, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.gpu_types.type_backlog import TypeBacklog
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.placement import attempt_speed, barred_for, may_borrow, types_for
from scheduler_feedback.policies.remediation.gang_moves import at_limit

DEPTH = 2000
"""Maximum number of pending jobs, from the front of the queue, that are added to the backlog. Jobs behind them see the
backlog of these."""

FULL_DEPTH = 100
"""The same while no slot is free, so that no job can start now except by preemption."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The GPU type on which a job is expected to end first."""

    gpu_type: int
    """Number of the type."""
    start_ns: int
    """Expected start there."""
    end_ns: int
    """Expected end there."""
    declined: int
    """Numbers of the types that the job does not use meanwhile, as a bit mask."""
    saved_ns: int
    """Run time that the type saves against the fastest declined type that is free now; 0 if the job does not wait."""
    instead: int
    """Number of that free type; -1 if the job does not wait for a type although one is free."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the choice for one pending job depends on."""

    job: Job
    ranks: int
    """Least number of slots with which it starts."""
    waits: bool
    """Whether it may still wait for a type: its limit has not passed."""
    run_ns: tuple[tuple[int, int], ...]
    """(number of the type, expected run time there in ns), the fastest type first."""
    barred: int = 0
    """Nodes that it must not use, as a bit mask."""
    borrows: bool = False
    """Whether it may use spare nodes."""


def choose_types(context: CycleContext) -> None:
    """Decide which pending jobs decline free slots of a slower GPU type. Placement then leaves these types out.

    If the choice depends on nothing that has changed since it was last made, it stays.
    """
    index, state = context.index, context.state
    plan = index.plan
    if not _applies(state, index):
        plan.declined, plan.typed_for = {}, b""
        return
    requests = _requests(state, index, context.now_ns)
    first = _reserved_starts(index, requests[0]) if requests else None
    inputs = _digest(TypeBacklog(plan, index.ends, 0), requests, _barred(index, requests, 0), first, state.policy)
    if inputs != state.types_inputs:
        state.types_inputs, state.types_ns = inputs, context.now_ns
        context.evaluated = True
    elif inputs == plan.typed_for:
        return
    before, plan.declined, plan.typed_for = plan.declined, {}, inputs
    backlog, barred = TypeBacklog(plan, index.ends, state.types_ns), _barred(index, requests, state.types_ns)
    for position, request in enumerate(requests):
        exact = first if position == 0 else None
        found = choice(backlog, request, state.policy.type_patience, barred.get(request.barred), exact)
        if found is None:
            continue
        if position < DEPTH:
            backlog.take(found.gpu_type, request.ranks, found.start_ns, found.end_ns, request.borrows)
        _note(context, request.job, found)
    if plan.declined != {job_id: one for job_id, one in before.items() if job_id in index.line}:
        index.evaluate_all()  # a job that declined a type before may accept it now


def _requests(state: State, index: SchedulingIndex, now_ns: int) -> list[Request]:
    """Return the pending jobs that may start now, in queue order; the first ones only while no slot is free."""
    found = []
    free = any(inside[0] for inside in index.plan.free_in)
    for key in index.line.order[: None if free else FULL_DEPTH]:
        job = state.jobs[key[-1]]
        if job.spec.pinned_node is not None or job.not_before_ns > now_ns or at_limit(index, job):
            continue
        ranks = job.spec.min_ranks or job.spec.ranks
        length_ns = index.line.places[job.job_id].length_ns
        run_ns = tuple(
            (number, _run_ns(state.policy, index, job, number, ranks, length_ns))
            for number in types_for(index.plan, job, state.policy)
            if _could_hold(index, job, number)
        )
        waits = not 0 < job.awaited_until_ns <= now_ns and not _owns_slots(index, job)
        barred = barred_for(index.plan, job)
        slots = index.plan.topology.slots_needed(job.spec)
        found.append(Request(job, slots, waits, run_ns, barred, may_borrow(job.spec)))
    return found


def _barred(index: SchedulingIndex, requests: Sequence[Request], now_ns: int) -> dict[int, TypeBacklog]:
    """Return the backlog of the nodes that jobs must not use, by their bit mask, for each mask of the requests."""
    return {
        mask: TypeBacklog(index.plan, index.ends, now_ns, mask) for mask in {one.barred for one in requests} if mask
    }


def _reserved_starts(index: SchedulingIndex, request: Request) -> dict[int, int] | None:
    """Return when the job could start on each GPU type in ns, as for a reservation; 0: it fits now.

    It is computed for the first job only. Slots that become free on several nodes are of no use to a job that needs one
    node. None: all slots of a type are of equal use to the job, and their number decides.
    """
    job, plan = request.job, index.plan
    if not _is_limited(job):
        return None
    found, before = {}, plan.declined
    plan.declined = {}
    for number, _ in request.run_ns:
        typed = structs.replace(job, spec=structs.replace(job.spec, gpu_types=(plan.topology.type_names[number],)))
        if (reservation := reserve(plan, index.ends, typed, 0, index.state.policy)) is not None:
            found[number] = reservation.from_ns
    plan.declined = before
    return found


def _owns_slots(index: SchedulingIndex, job: Job) -> bool:
    """Return whether the job's queue owns slots of each GPU type. Its jobs use these, and wait for no faster ones."""
    types = index.shares.types
    return types is not None and index.shares.owner(job.spec.queue) in types.entitled


def _digest(
    backlog: TypeBacklog,
    requests: Sequence[Request],
    barred: dict[int, TypeBacklog],
    first: dict[int, int] | None,
    policy: Policy,
) -> bytes:
    """Return a digest of what the choice depends on. backlog, barred: with the free slots at time 0."""
    masks = {mask: place for place, mask in enumerate(sorted(barred))}
    jobs = [(one.job.job_id, one.ranks, one.waits, one.run_ns, masks.get(one.barred), one.borrows) for one in requests]
    slots = [(one.free_ns, one.spare_ns) for one in (backlog, *(barred[mask] for mask in masks))]
    return blake2b(encode((slots, jobs, first, policy.type_patience)), digest_size=8).digest()


def _applies(state: State, index: SchedulingIndex) -> bool:
    policy = state.policy
    if len(index.plan.topology.type_names) == 1 or not policy.type_patience or state.frozen or not index.line.order:
        return False
    if (
        policy.backfill is Backfilling.NONE
        or policy.order is Order.THEMIS
        or (policy.preempt and policy.order is not Order.FAIR)
    ):
        return False
    if policy.throughput or (state.speeds and policy.learn_speeds):
        return True
    return any(state.jobs[key[-1]].spec.throughput for key in index.line.order)


def choice(
    backlog: TypeBacklog,
    request: Request,
    patience: float,
    barred: TypeBacklog | None = None,
    exact: Mapping[int, int] | None = None,
) -> Choice | None:
    """Return the GPU type on which the job is expected to end first, and which types it declines for that.

    None if no type has enough slots. The faster of two types with the same end is chosen. patience: `type_patience`.
    barred: backlog of the nodes that the job must not use. exact: its expected starts (``_reserved_starts``), if known.
    """
    ranks, ends = request.ranks, []
    for number, takes_ns in request.run_ns:
        if exact is not None:
            if number in exact:
                start_ns = max(exact[number], backlog.now_ns)
                ends.append((start_ns + takes_ns, start_ns, number, takes_ns))
        elif (at_ns := backlog.start_ns(number, ranks, barred, request.borrows)) is not None:
            ends.append((at_ns + takes_ns, at_ns, number, takes_ns))
    if not ends:
        return None
    end_ns, start_ns, best, best_ns = min(ends, key=lambda one: one[0])
    if not request.waits:
        return Choice(best, start_ns, end_ns, 0, 0, -1)
    declined, saved_ns, instead = 0, 0, -1
    for _, earlier_ns, number, takes_ns in ends:  # the fastest first
        if number == best or start_ns - earlier_ns >= patience * (takes_ns - best_ns):
            continue
        declined |= 1 << number
        if instead < 0 and start_ns > backlog.now_ns and earlier_ns == backlog.now_ns:
            instead, saved_ns = number, takes_ns - best_ns
    return Choice(best, start_ns, end_ns, declined, saved_ns, instead)


def _could_hold(index: SchedulingIndex, job: Job, number: int) -> bool:
    """Return whether the job would fit on empty nodes of this GPU type."""
    spec = job.spec
    if not _is_limited(job):
        return True  # the number of slots decides
    name = index.plan.topology.type_names[number]
    return index.capacity.could_hold(structs.replace(job, spec=structs.replace(spec, gpu_types=(name,))))


def _is_limited(job: Job) -> bool:
    """Return whether not all slots of a GPU type are of equal use to the job."""
    spec = job.spec
    return any((spec.required_level, spec.groups, spec.constraint, spec.mig_profile, job.excluded_nodes))


def _run_ns(policy: Policy, index: SchedulingIndex, job: Job, number: int, ranks: int, length_ns: int) -> int:
    """Return the job's expected remaining run time on this GPU type in ns. length_ns: at speed 1."""
    speed = attempt_speed(policy, job, index.plan.topology.type_names[number], ranks, index.plan.learnt)
    return round(length_ns / max(speed, SLOWEST))


LONGEST_NS = 10 * 365 * 86_400 * 1_000_000_000
"""Longest wait in ns (ten years), so that an infinite patience has an end that the journal can store."""

SLOWEST = 1e-6
"""Least speed that counts, so that a type on which the job hardly runs does not lead to a number without bound."""


def _note(context: CycleContext, job: Job, found: Choice) -> None:
    """Store the declined types in the plan, and in the job what it waits for. Log a first wait."""
    names = context.index.plan.topology.type_names
    if found.declined:
        context.index.plan.declined[job.job_id] = (found.declined, found.start_ns)
    if found.instead < 0:
        if job.awaited_type:
            context.index.await_type(job, "", job.awaited_until_ns)
            job.expected_start_ns = None
            context.evaluated = True
        return
    job.expected_start_ns = found.start_ns
    now_ns, until_ns = context.state.types_ns, job.awaited_until_ns
    wanted, free = names[found.gpu_type], names[found.instead]
    if not until_ns:
        until_ns = now_ns + round(min(context.state.policy.type_patience * found.saved_ns, LONGEST_NS))
        wait_ns = found.start_ns - now_ns
        context.decide(
            job.job_id,
            "awaits-type",
            f"waits for {wanted}, although {free} is free: expected to start in {span(wait_ns / 1e9)} and to end "
            f"{span((found.saved_ns - wait_ns) / 1e9)} earlier; waits {span((until_ns - now_ns) / 1e9)} at most",
        )
    if wanted != job.awaited_type or until_ns != job.awaited_until_ns:
        context.index.await_type(job, wanted, until_ns)
        context.evaluated = True
