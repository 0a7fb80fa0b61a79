"""Placement of jobs that declare parts of slots, and of whole slots beside them, by the rule of `Policy.sharing`.

The rules `fgd` and `best-fit` place jobs that need one node: one rank on a part of a slot, or ranks on free slots of
one node. All other jobs are placed as always (``queue/placement``). A job that gets a part of a slot needs no measured
gain: the declared parts of all jobs on a slot add up to at most one slot. It is no guest of the other jobs, and stays
if they leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.job import Job, JobKind, JobSpec, Packing, Slot
from scheduler_feedback.core.state import Policy, Sharing, State
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, index_of
from scheduler_feedback.policies.index.slot_plan import TIERS
from scheduler_feedback.policies.mig import words
from scheduler_feedback.policies.mig.instances import place_instances
from scheduler_feedback.policies.queue.placement import (
    barred_for,
    may_borrow,
    most_pods,
    place,
    speed,
    usable_types,
    where,
)
from scheduler_feedback.policies.shares.declared_parts import Left, Part, cpu_milli_of, may_divide, part_of
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI
from scheduler_feedback.policies.shares.slot_parts import Request, allowed_nodes, kept_slots, parts_of
from scheduler_feedback.policies.sharing.pair_speeds import assumed_speed
from scheduler_feedback.policies.speeds.learnt_memory import gib

WHOLE = Part(0, 0)
"""Part of a job that uses whole slots."""

MOST_TRIES = 32
"""Maximum number of slots that are tried for a job that must slow no other down, so that a pass stays short. Then it
must be alone on its slot."""


def uses_part(policy: Policy, job: Job) -> bool:
    """Return whether the job is placed on parts of slots: declared ones, or MIG instances."""
    spec = job.spec
    if spec.mig_profile:
        return policy.mig
    return policy.sharing.divides and may_divide(spec) and spec.pinned_node is None and part_of(job) != WHOLE


def on_one_node(policy: Policy, spec: JobSpec) -> bool:
    """Return whether the rule of `Policy.sharing` places the job's whole slots on one node, if they fit there."""
    return (
        policy.sharing.divides
        and spec.kind is JobKind.TRAINING
        and spec.packing is Packing.PACK
        and all(one is None for one in (spec.pinned_node, spec.required_level, spec.preferred_level))
        and all(one is None for one in (spec.min_ranks, spec.max_ranks))
        and not (spec.groups or spec.dataset)
    )


def place_now(
    index: SchedulingIndex, job: Job, most: int | None = None, reserved: Collection[Slot] = (), slow_none: bool = False
) -> tuple[Slot, ...] | None:
    """Take slots for a job that starts now, one per rank; None if it does not fit.

    A part of a slot is taken only by the start. most: maximum number of ranks; None: the number that it asks for.
    reserved: slots that it must not use. slow_none: whether it joins other jobs only if none becomes slower, because
    their expected ends are promised to another job. Use it instead of ``placement.place`` if the rule divides slots.
    """
    policy, spec = index.state.policy, job.spec
    if spec.mig_profile:
        if most is not None and most < spec.ranks:
            return None
        return place_instances(index, job, reserved)
    if uses_part(policy, job):
        if most is not None and most < spec.ranks:
            return None
        mark, avoided = index.plan.checkpoint(), [*reserved]
        for _ in range(MOST_TRIES):
            slots = part_for(index, job, avoided)
            if slots is None or not slow_none or slows_none(index, job, slots):
                return slots
            index.plan.rollback(mark)
            avoided += slots
        return part_for(index, job, reserved, alone=True)
    if on_one_node(policy, spec) and (most is None or most >= spec.ranks):
        slots = _whole_slots(index, job, reserved)
        if slots is not None:
            return slots
    return None if reserved else place(index.plan, job, policy=policy, most=most)


def part_for(
    index: SchedulingIndex, job: Job, reserved: Collection[Slot] = (), shared_only: bool = False, alone: bool = False
) -> tuple[Slot, ...] | None:
    """Return the slot of which the job gets a part; None if it fits nowhere.

    It prefers fast GPU types, then healthy nodes. reserved: slots that it must not use. shared_only: whether it must
    join other jobs. alone: whether it must not.
    """
    if job.spec.mig_profile:
        return place_instances(index, job, reserved, divided_only=shared_only)
    parts = parts_of(index)
    request = Request(WHOLE if alone else part_of(job), 1, cpu_milli_of(job.spec), shared_only)
    barred, kept = barred_for(index.plan, job), kept_slots(index, reserved)
    for pools in _pools(index, job):
        found = _choose(index, job, request, allowed_nodes(index, pools) & ~barred, kept)
        if found is not None:
            number, left = found
            slot = parts.slot_of(number, left, kept.get(number, 0))
            index.plan.hold((slot,))
            return (slot,)
    return None


def slows_none(index: SchedulingIndex, job: Job, slots: Iterable[Slot]) -> bool:
    """Return whether the job and the jobs on these slots are expected to run as fast together as they do now.

    Jobs that declare only their memory share the computing power of a slot, so each of them takes longer. It is also
    False beside a job with several slots: all of them count as held until the latest end on any of them.
    """
    state = index.state
    if job.spec.mig_profile:  # an instance has slices of its own
        return True
    for slot in slots:
        there = {one: state.jobs[one].spec for one in partners_on(index, job, (slot,))}
        if any(len(index.held[one]) > 1 for one in there):
            return False
        if there and assumed_speed(state, job.spec, tuple(there.values())) < 1.0:
            return False
        for one, spec in there.items():
            others = [other for name, other in there.items() if name != one]
            if assumed_speed(state, spec, (*others, job.spec)) < assumed_speed(state, spec, others):
                return False
    return True


def _whole_slots(index: SchedulingIndex, job: Job, reserved: Collection[Slot]) -> tuple[Slot, ...] | None:
    """Take free slots of one healthy node; None if no node has enough, or if its slots form several islands."""
    plan, ranks = index.plan, job.spec.ranks
    if ranks > plan.topology.largest:
        return None
    request = Request(WHOLE, ranks, ranks * cpu_milli_of(job.spec))
    barred, kept = barred_for(plan, job), kept_slots(index, reserved)
    for pools in _pools(index, job, (Tier.HEALTHY,)):
        found = _choose(index, job, request, allowed_nodes(index, pools) & ~barred, kept)
        if found is None:
            continue
        number = found[0]
        if plan.topology.islands[number]:
            return None
        free = plan.free_slots(number) & ~kept.get(number, 0)
        slots = [slot for position, slot in enumerate(plan.topology.slots[number]) if free >> position & 1]
        plan.hold(slots[:ranks])
        return tuple(slots[:ranks])
    return None


def _pools(index: SchedulingIndex, job: Job, tiers: Iterable[Tier] = tuple(Tier)) -> Iterator[list[int]]:
    """Yield the pools (nodes with one tier and GPU type) in the order in which the job uses them.

    Healthy nodes go first, and of these the fastest GPU types; types of equal speed are one pool.
    """
    plan, policy = index.plan, index.state.policy

    def speed_of(number: int) -> float:
        return speed(policy, job, plan.topology.type_names[number], plan.learnt)

    types = [list(same) for _, same in groupby(usable_types(plan, job, policy), key=speed_of)]
    order = [one for one in (Tier.HEALTHY, Tier.SPARE, Tier.PROBATION, Tier.SUSPECT) if one in tiers]
    for tier in order:
        if tier is Tier.SPARE and not may_borrow(job.spec):
            continue
        for same in types:
            yield [number * TIERS + tier for number in same]


def _choose(
    index: SchedulingIndex, job: Job, request: Request, nodes: int, kept: dict[int, int]
) -> tuple[int, Left] | None:
    """Return the best of these nodes that has enough of all resources, and the free part of the slot; None if none has.

    nodes: as a bit mask. kept: slots not to use, as bit masks by number of the node.
    """
    plan, spec, parts = index.plan, job.spec, parts_of(index)
    limits = plan.topology.limits.get(spec.constraint, {})
    while nodes and (found := parts.choose(request, nodes, kept)) is not None:
        pods = most_pods(plan, found[0], limits.get(found[0]), spec, ())
        if pods is None or pods >= spec.ranks:
            return found
        nodes &= ~plan.topology.bits[found[0]]  # its host memory, for example, is too small
    return None


# --- in words --------------------------------------------------------------------------------------------------------


def partners_on(index: SchedulingIndex, job: Job, slots: Iterable[Slot]) -> list[str]:
    """Return the ids of the other jobs that hold one of these slots, sorted."""
    return sorted({one for slot in slots for one in index.sharers.get(slot, ()) if one != job.job_id})


def in_words(state: State, index: SchedulingIndex, job: Job, slots: Collection[Slot]) -> str:
    """Return which part of a slot the job uses, and beside which jobs, to append to a sentence; '' if it uses none."""
    policy = state.policy
    if job.spec.mig_profile:
        return words.present(index, job, slots)
    if not uses_part(policy, job):
        return ""
    device = min((state.nodes[slot.node].slot_memory_mib for slot in slots if slot.node in state.nodes), default=0)
    part = part_of(job)
    if not part.known_on(device):
        if part.learnt and device:
            return f"; it uses {where(slots)} alone: it may need more than {gib(device)}"
        missing = "slot_memory_mib" if device else "slot_share"
        return f"; it uses {where(slots)} alone: it declares no {missing}"
    others = partners_on(index, job, slots)
    text = f"; it uses {_amount(job)} of {where(slots)}"
    if not others:
        return text
    names = ", ".join(f"{one} ({_amount(state.jobs[one])})" for one in others)
    rule = "fragmentation grows least there" if policy.sharing is Sharing.FGD else "the fullest that it fits"
    return f"{text} beside {names}, {rule}"


def waits_in_words(state: State, job: Job) -> str:
    """Return of which part of a slot the pending job has found none, to append to a sentence; '' if it uses none."""
    if job.spec.mig_profile:
        return words.waits_in_words(state, index_of(state), job)
    if not uses_part(state.policy, job):
        return ""
    return f"; no slot that it may use now has {_amount(job)} left"


def _amount(job: Job) -> str:
    """Return the part of a slot that the job needs as text, such as '0.3 and 8000 MiB'."""
    part = part_of(job)
    found = [f"{part.share_milli / GPU_MILLI:g}"] if part.share_milli else []
    learnt = " (learnt)" if part.learnt else ""
    found += [f"{part.memory_mib} MiB{learnt}"] if part.memory_mib else []
    return " and ".join(found)
