"""Placement of jobs in MIG instances: which GPU is used, which one is divided next, and where each instance starts.

A job starts with instances for all of its ranks, or not at all. It uses GPUs that are divided already; of these, the
one where its instance takes least room from typical requests (``starts``). If none has room, an idle GPU is divided, on
the node with the fewest idle slots. A GPU is whole again when its last instance ends. No running instance is moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from scheduler_feedback.core.cluster import Tier
from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.mig import named
from scheduler_feedback.policies.index.domains import lowest, numbers
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS
from scheduler_feedback.policies.mig.starts import best_start
from scheduler_feedback.policies.queue.placement import barred_for, may_borrow, usable_types
from scheduler_feedback.policies.shares.slot_parts import allowed_nodes, kept_slots


def place_instances(
    index: SchedulingIndex,
    job: Job,
    reserved: Collection[Slot] = (),
    divided_only: bool = False,
) -> tuple[Slot, ...] | None:
    """Take the slots of the instances of all ranks, by rank; None if they do not fit now.

    A slot occurs once for each instance on its GPU. reserved: slots that the job must not use. divided_only: whether no
    idle GPU may be divided.
    """
    if not index.places_instances():
        return None
    barred, kept = barred_for(index.plan, job), kept_slots(index, reserved)
    for pools in _pools(index, job):
        nodes = allowed_nodes(index, pools) & ~barred
        single = pools[0] % TIERS == Tier.PROBATION  # such a node takes no part of a larger gang
        for part in [1 << number for number in numbers(nodes)] if single else [nodes] * bool(nodes):
            mark = index.plan.checkpoint()
            slots = _place(index, job, pools, part, kept, divided_only)
            if slots is not None:
                return slots
            index.plan.rollback(mark)
    return None


def _place(
    index: SchedulingIndex,
    job: Job,
    pools: Sequence[int],
    nodes: int,
    kept: Mapping[int, int],
    divided_only: bool,
) -> tuple[Slot, ...] | None:
    """Take slots on these nodes. nodes: as a bit mask. kept: slots not to use, as bit masks by number of the node."""
    number, state, name = index.plan.topology.number, index.state, job.spec.mig_profile
    busy = {
        slot: slices
        for slot, slices in index.divided.items()
        if nodes >> number[slot.node] & 1 and not kept.get(number[slot.node], 0) >> slot.slot & 1
    }
    found: list[Slot] = []
    while len(found) < job.spec.ranks:
        chosen = _best(index, busy, name)
        if chosen is None:
            slot = None if divided_only else _idle(index, pools, nodes, kept)
            if slot is None:
                return None
            index.plan.hold((slot,))
            busy[slot] = 0
            chosen = slot
        profiles = state.nodes[chosen.node].mig_profiles
        start, profile = best_start(profiles, busy[chosen], name, state.mig_requests), named(profiles, name)
        if start is None or profile is None:
            return None
        busy[chosen] |= profile.mask(start[1])
        found.append(chosen)
    return tuple(found)


def _best(index: SchedulingIndex, busy: Mapping[Slot, int], name: str) -> Slot | None:
    """Return the divided GPU on which an instance takes least room from typical requests; None if it fits on none.

    Ties go to the fullest GPU, then to the lowest number of node and slot. Equal GPUs are compared once.
    """
    nodes, number, demand = index.state.nodes, index.plan.topology.number, index.state.mig_requests
    first: dict[tuple[int, str], tuple[int, int, Slot]] = {}
    for slot, slices in busy.items():
        kind, place = (slices, nodes[slot.node].gpu_type), (number[slot.node], slot.slot, slot)
        if kind not in first or place < first[kind]:
            first[kind] = place
    best: tuple[float, int, int, int] | None = None
    chosen = None
    for (slices, _), (at, position, slot) in first.items():
        found = best_start(nodes[slot.node].mig_profiles, slices, name, demand)
        if found is None:
            continue
        key = (found[0], -slices.bit_count(), at, position)
        if best is None or key < best:
            best, chosen = key, slot
    return chosen


def _idle(index: SchedulingIndex, pools: Iterable[int], nodes: int, kept: Mapping[int, int]) -> Slot | None:
    """Return the idle slot whose GPU is divided next: of the node with the fewest idle slots; None if none is idle."""
    plan = index.plan
    every = (1 << len(plan.topology.names)) - 1
    for pool in pools:
        barred = every & ~nodes
        while (node := plan.tightest(pool, 1, barred)) != NOWHERE:
            if free := plan.free_slots(node) & ~kept.get(node, 0):
                return plan.topology.slots[node][lowest(free)]
            barred |= plan.topology.bits[node]
    return None


def _pools(index: SchedulingIndex, job: Job) -> Iterator[list[int]]:
    """Yield the pools (nodes with one tier and GPU type) that the job may use together, in order of preference.

    As for whole slots: healthy nodes of the fastest type first, and slow nodes last.
    """
    types = usable_types(index.plan, job, index.state.policy)
    tiers = [[Tier.HEALTHY], [Tier.PROBATION], [Tier.HEALTHY, Tier.SUSPECT]]
    if may_borrow(job.spec):
        tiers.insert(1, [Tier.HEALTHY, Tier.SPARE])
    for tier in tiers:
        for number in types:
            yield [number * TIERS + one for one in tier]


def laid_out(
    index: SchedulingIndex, job: Job, slots: Sequence[Slot]
) -> tuple[tuple[Slot, ...], tuple[int, ...]] | None:
    """Return (slot, first memory slice) of the instance of each rank on these slots, as two tuples; None if they do not
    fit.

    slots: one per rank, or fewer idle slots that are filled one after the other. Idle slots that it does not need are
    given back.
    """
    name, demand = job.spec.mig_profile, index.state.mig_requests
    by_rank = len(slots) == job.spec.ranks
    busy = {slot: index.divided.get(slot, 0) for slot in slots}
    found: list[tuple[Slot, int]] = []
    for rank in range(job.spec.ranks):
        for slot in (slots[rank],) if by_rank else slots:
            profiles = index.state.nodes[slot.node].mig_profiles
            start, profile = best_start(profiles, busy[slot], name, demand), named(profiles, name)
            if start is not None and profile is not None:
                busy[slot] |= profile.mask(start[1])
                found.append((slot, start[1]))
                break
        else:
            return None
    used = {slot for slot, _ in found}
    index.plan.give([slot for slot in busy if slot not in used and slot not in index.divided])
    return tuple(slot for slot, _ in found), tuple(start for _, start in found)
