"""Slot assignment: how a gang's ranks are arranged on the nodes that ``placement`` permits.

It uses the narrowest network domain with enough free slots, and there the nodes with the fewest free slots. If no
domain has enough, it divides the gang into equal parts over several domains, else over any free slots. Groups of ranks
are placed one after the other, in the order of their ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import JobSpec, Packing, Slot, resized
from scheduler_feedback.policies.index.domains import WIDTH, numbers
from scheduler_feedback.policies.index.slot_plan import NOWHERE, Crossing, Plan
from scheduler_feedback.policies.index.uplink_loss import least_burdened
from scheduler_feedback.policies.network.rails import on_quiet_rails
from scheduler_feedback.policies.speeds.learnt_speeds import class_of

_NARROW_FIRST = (Level.ISLAND, Level.RAIL, Level.RACK, Level.SPINE)
Pieces = list[tuple[int, tuple[Slot, ...]]]
"""Taken slots, as a list of (node number, slots on that node)."""


def lay(plan: Plan, pools: tuple[int, ...], spec: JobSpec, ranks: int, barred: int) -> tuple[Slot, ...] | None:
    """Take slots for the gang in the narrowest network domain with enough free slots; None if it does not fit."""
    if spec.groups and ranks != spec.ranks:
        spec = resized(spec, ranks)
    required = spec.required_level
    if spec.packing is Packing.PACK and not spec.groups:
        if ranks <= plan.topology.largest:
            for pool in pools:
                number = _one_node(plan, pool, ranks, barred, required is Level.ISLAND)
                if number != NOWHERE:
                    return plan.take_from(number, ranks)
    elif required is Level.NODE and ranks <= plan.topology.largest:
        for pool in pools:
            if (number := plan.tightest(pool, ranks, barred)) != NOWHERE:
                return plan.take_from(number, ranks)
    for domain in _domains(plan, pools, spec, ranks, barred):
        if not spec.groups:
            gang = Crossing(class_of("", spec), ranks)
            pieces = _fill(plan, pools, ranks, barred, domain, spec.packing, gang)
            if len(pieces) > 1:
                pieces.sort()
            return tuple(slot for _, slots in pieces for slot in slots)
        if (by_group := _fill_groups(plan, pools, spec, barred, domain)) is not None:
            return by_group
    return None


def _one_node(plan: Plan, pool: int, ranks: int, barred: int, whole_island: bool) -> int:
    """Return the number of the fullest node that has enough slots. Nodes with enough in one NVLink island go first."""
    first = number = plan.tightest(pool, ranks, barred)
    if number == NOWHERE or not (plan.topology.islands[number] or whole_island):
        return number
    while number != NOWHERE and not plan.island(number, ranks):
        barred |= plan.topology.bits[number]
        number = plan.tightest(pool, ranks, barred)
    return number if number != NOWHERE or whole_island else first


def _domains(plan: Plan, pools: tuple[int, ...], spec: JobSpec, ranks: int, barred: int) -> Iterable[int]:
    """Yield network domains with enough free slots, the narrowest level first, then the fewest free slots first."""
    topology, required, preferred = plan.topology, spec.required_level, spec.preferred_level
    if required is not None:
        levels = [(required, topology.narrow(required))] if WIDTH[required] != 1 else []
    elif spec.packing is Packing.SPREAD:
        levels = []
    else:
        least = WIDTH[preferred] if preferred is not None else 0
        levels = [(level, topology.by_level[level]) for level in _NARROW_FIRST if WIDTH[level] >= least]
    free_in = [plan.free_in[pool] for pool in pools]
    for _, domains in levels:
        found = []
        for domain in domains:
            free = sum(inside[domain] for inside in free_in)
            if free >= ranks and (not barred or free - barred_free(plan, pools, barred, domain) >= ranks):
                found.append((free, domain))
        found.sort()
        for _, domain in found:
            yield domain
    if required is None:
        free = sum(inside[0] for inside in free_in)
        if free - (barred_free(plan, pools, barred, 0) if barred else 0) >= ranks:
            yield 0


def barred_free(plan: Plan, pools: Collection[int], barred: int, domain: int) -> int:
    """Count the free slots in the domain on nodes of these pools that the job must not use (bit mask `barred`)."""
    inside = numbers(barred & plan.topology.domains[domain].nodes)
    return sum(plan.count[number] for number in inside if plan.pool[number] in pools)


def _fill(
    plan: Plan, pools: tuple[int, ...], ranks: int, barred: int, domain: int, packing: Packing, gang: Crossing
) -> Pieces:
    """Take `ranks` slots in the domain, which must have enough free slots. gang: the gang of these ranks."""
    pieces: Pieces = []
    for pool in pools:
        free = plan.free_in[pool][domain] - (barred_free(plan, (pool,), barred, domain) if barred else 0)
        part = min(free, ranks)
        if part:
            if packing is Packing.SPREAD:
                pieces += _spread(plan, pool, part, barred, domain)
            else:
                pieces += _pack(plan, pool, part, barred, domain, gang)
            ranks -= part
    assert not ranks, "the domain's total must cover the ranks"
    return on_quiet_rails(plan, pieces, gang)


def _pack(plan: Plan, pool: int, ranks: int, barred: int, domain: int, gang: Crossing) -> Pieces:
    """Take slots in one sub-domain of the domain if one has enough; else in equal parts in as few sub-domains as
    possible."""
    children = plan.topology.domains[domain].children
    if not children:
        return _pack_nodes(plan, pool, ranks, barred, domain)
    inside = plan.free_in[pool]
    holes = []
    for child in children:
        free = inside[child] - (barred_free(plan, (pool,), barred, child) if barred else 0)
        if free:
            holes.append((free, child))
    if sum(free for free, _ in holes) < ranks:  # some nodes belong to no sub-domain
        return _pack_nodes(plan, pool, ranks, barred, domain)
    fitting = [hole for hole in holes if hole[0] >= ranks]
    if fitting:
        return _pack(plan, pool, ranks, barred, min(fitting)[1], gang)
    holes = least_burdened(plan, holes, ranks, gang)
    holes.sort(key=lambda hole: (-hole[0], hole[1]))
    pieces: Pieces = []
    for child, part in _slices(plan, holes, ranks):
        pieces += _pack(plan, pool, part, barred, child, gang)
    return pieces


def _slices(plan: Plan, holes: list[tuple[int, int]], ranks: int) -> list[tuple[int, int]]:
    """Divide the ranks over as few domains as possible. Return (number of the domain, number of ranks) of each part.

    The parts are equal if possible. If uplinks have a cost, they fill all domains but the last, instead: no other gang
    can use the uplink of a rack that one gang fills.

    holes: (number of free slots, number of the domain) of each possible domain, the one with most free slots first.
    """
    room, fewest = 0, 0
    while room < ranks:
        room += holes[fewest][0]
        fewest += 1
    unit = plan.topology.largest
    whole, rest = divmod(ranks, unit)
    each, more = divmod(whole, fewest)
    equal = [each * unit + (unit if number < more else 0) for number in range(fewest)]
    equal[min(more, fewest - 1)] += rest
    if not plan.uplink_slowdown and all(part <= hole[0] for part, hole in zip(equal, holes, strict=False)):
        return [(hole[1], part) for part, hole in zip(equal, holes, strict=False) if part]
    parts = [(domain, free) for free, domain in holes[: fewest - 1]]
    last = ranks - sum(free for _, free in parts)
    return [*parts, (min(hole for hole in holes[fewest - 1 :] if hole[0] >= last)[1], last)]


def _pack_nodes(plan: Plan, pool: int, ranks: int, barred: int, domain: int) -> Pieces:
    """Take slots on as few nodes as possible. The last part goes to the fullest node that has enough slots."""
    pieces: Pieces = []
    while ranks:
        number = plan.tightest(pool, ranks, barred, domain)
        if number == NOWHERE:
            number = plan.emptiest(pool, barred, domain)
        part = min(ranks, plan.count[number])
        pieces.append((number, plan.take_from(number, part)))
        ranks -= part
    return pieces


def _spread(plan: Plan, pool: int, ranks: int, barred: int, domain: int) -> Pieces:
    """Take slots on as many nodes as possible, with as few ranks on each node as possible."""
    share: dict[int, int] = {}
    nodes = plan.topology.domains[domain].nodes & ~barred
    holes = sorted(
        (-plan.count[number], number) for sets in plan.with_free[pool][1:] for number in numbers(sets & nodes)
    )
    while ranks:
        for free, number in holes:
            if ranks and share.get(number, 0) < -free:
                share[number] = share.get(number, 0) + 1
                ranks -= 1
    return [(number, plan.take_from(number, part)) for number, part in share.items()]


def _fill_groups(
    plan: Plan, pools: tuple[int, ...], spec: JobSpec, barred: int, domain: int
) -> tuple[Slot, ...] | None:
    """Take slots for each group of ranks, and return them in the order of ranks; None if a group does not fit.

    Groups that must be on one node are placed first, the largest first, because only they can fail to fit. If one does
    not fit, no slots are taken.
    """
    mark = plan.checkpoint()
    placed: dict[int, tuple[Slot, ...]] = {}
    single = sorted((-group.ranks, n) for n, group in enumerate(spec.groups) if group.same_node)
    for ranks, number in single:
        for pool in pools:
            if (node := plan.tightest(pool, -ranks, barred, domain)) != NOWHERE:
                placed[number] = plan.take_from(node, -ranks)
                break
        else:
            plan.rollback(mark)
            return None
    gang = Crossing(class_of("", spec), spec.ranks)
    for number, group in enumerate(spec.groups):
        if number not in placed:
            pieces = sorted(_fill(plan, pools, group.ranks, barred, domain, spec.packing, gang))
            placed[number] = tuple(slot for _, slots in pieces for slot in slots)
    return tuple(slot for number in range(len(spec.groups)) for slot in placed[number])
