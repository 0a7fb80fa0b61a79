"""Placement: which slots a gang gets: one node, else the narrowest domain that holds it; the tightest fit in either.

A gang is as slow as its slowest member and as its longest wire. So nodes in doubt come last, and a slow one only where
it gives the gang more than it takes from it (``pays_beside``); then it goes by the level of the domain (NVLink island,
node, rail, rack, spine); then by how little is left over, which keeps large holes for large gangs. What does not fit
into one domain is cut into equal slices where that can be had (a collective over unequal halves waits for the larger
one), over the domains whose uplinks are expected to slow it least (``uplinks``); ranks go by the order of the wires. A
gang runs on one type of GPU: of those it can run on, the one on which it is fastest. Ties go by number, so that the
same state gives the same placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.domains import numbers
from scheduler_feedback.core.job import Job, JobSpec, Slot
from scheduler_feedback.core.slot_plan import NOWHERE, TIERS, Plan, Tier, tier_of
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.queue.slot_assignment import barred_free, lay

Shape = tuple[Any, ...]

REQUIRED_LEVEL = 5
"""Where in a shape the required level is."""

NEVER = 1e6
"""Patience (``pays_beside``) of a gang for which no place can be foreseen; an infinity would be none of a number."""


def shape_of(job: Job) -> Shape:
    """All that decides whether a place can be found: of two jobs of one shape, both or none can be placed."""
    spec = job.spec
    return (
        spec.ranks,
        spec.min_ranks,
        spec.pinned_node,
        job.excluded_nodes,
        spec.gpu_types,
        spec.required_level,
        spec.preferred_level,
        spec.packing,
        spec.groups,
        may_borrow(spec),
        spec.constraint,
    )


def barred_for(plan: Plan, job: Job, excluded: Collection[str] = ()) -> int:
    """The nodes that the job must not use, as bits: those it avoids, `excluded`, and those that miss its constraint."""
    barred = plan.topology.refused.get(job.spec.constraint, 0)
    if excluded or job.excluded_nodes:
        barred |= plan.topology.bits_of((*excluded, *job.excluded_nodes))
    return barred


def may_borrow(spec: JobSpec) -> bool:
    """Whether spares may be lent to the job: it gives them back when they are needed."""
    return spec.preemptible and spec.restartable


def place(
    plan: Plan,
    job: Job,
    excluded: Collection[str] = (),
    suspects: bool = True,
    policy: Policy | None = None,
    most: int | None = None,
    spares: bool = False,
    patience: float = 0.0,
) -> tuple[Slot, ...] | None:
    """Slots for the job, by rank, taken from the plan; or None, and the plan is as it was.

    Healthy nodes first; then one node on probation, if it can hold the whole gang; then suspect nodes for what healthy
    ones cannot hold (unless `suspects` is False). excluded: nodes that are not to be used, beside the job's own.
    policy: whose throughput matrix orders the GPU types. most: ranks that an elastic gang may have; None: what it asks
    for. An elastic gang gets as many as can be had, from its least on. spares: whether it may have spares' slots, which
    are lent only to those that may be stopped. patience: see ``pays_beside``.
    """
    spec = job.spec
    barred = barred_for(plan, job, excluded)
    ranks = spec.ranks if most is None else min(most, spec.max_ranks or spec.ranks)
    if ranks < (spec.min_ranks or spec.ranks):
        return None
    if spec.pinned_node is not None:
        number = plan.topology.number.get(spec.pinned_node, NOWHERE)
        if number == NOWHERE or plan.pool[number] == NOWHERE or barred >> number & 1 or plan.count[number] < ranks:
            return None
        return plan.take_from(number, ranks)
    spares = spares or may_borrow(spec)
    if (slots := _place(plan, spec, ranks, barred, suspects, policy, spares, patience)) is not None:
        return slots
    least = spec.min_ranks or spec.ranks
    if least >= ranks:
        return None
    # More ranks never fit where fewer do not: the largest number that fits is found by halving.
    beyond, best = ranks, None
    while least < beyond:
        middle = (least + beyond) // 2
        mark = plan.checkpoint()
        if (found := _place(plan, spec, middle, barred, suspects, policy, spares, patience)) is None:
            beyond = middle
        else:
            best, least = middle, middle + 1
        if found is not None:
            plan.rollback(mark)
    return None if best is None else _place(plan, spec, best, barred, suspects, policy, spares, patience)


def goes_anywhere(plan: Plan, job: Job) -> bool:
    """Whether the gang fits wherever there are slots enough: no level, type, node or group binds it."""
    spec = job.spec
    return (
        spec.required_level is None
        and not spec.groups
        and spec.pinned_node is None
        and not job.excluded_nodes
        and spec.constraint not in plan.topology.refused
        and len(plan.topology.type_names) == 1
        and (not spec.gpu_types or plan.topology.type_names[0] in spec.gpu_types)
        and not any(plan.with_free[Tier.PROBATION])
        and not any(plan.with_free[Tier.SPARE])
        and not plan.slowdown
    )


def _place(
    plan: Plan,
    spec: JobSpec,
    ranks: int,
    barred: int,
    suspects: bool,
    policy: Policy | None,
    spares: bool,
    patience: float,
) -> tuple[Slot, ...] | None:
    types = types_for(plan, spec, policy)
    free_in = plan.free_in
    for number in types:
        healthy = number * TIERS + Tier.HEALTHY
        if free_in[healthy][0] >= ranks and (slots := lay(plan, (healthy,), spec, ranks, barred)) is not None:
            return slots
    for number in types if spares else ():
        pools = (number * TIERS + Tier.HEALTHY, number * TIERS + Tier.SPARE)
        if not plan.slots_in[pools[1]] or free_in[pools[0]][0] + free_in[pools[1]][0] < ranks:
            continue
        if (slots := lay(plan, pools, spec, ranks, barred)) is not None:
            return slots
    for number in types:
        on_probation = plan.tightest(number * TIERS + Tier.PROBATION, ranks, barred)
        if on_probation != NOWHERE:
            return plan.take_from(on_probation, ranks)
    if suspects:
        for number in types:
            pools = (number * TIERS + Tier.HEALTHY, number * TIERS + Tier.SUSPECT)
            if not free_in[pools[1]][0] or free_in[pools[0]][0] + free_in[pools[1]][0] < ranks:
                continue
            if (slots := _lay_beside(plan, pools, spec, ranks, barred, patience)) is not None:
                return slots
    return None


def pays_beside(slow_slots: int, ranks: int, slowdown: float, patience: float = 0.0) -> bool:
    """Whether a gang of so many ranks may have so many of its slots on nodes that slow it down so much.

    It gets slots that others want less, and all of its work goes at 1/s: with k of g ranks there it takes g - k slots
    from others for s times its run time, instead of g of them for its run time. So it pays while (g - k) s < g, or
    k > g (1 - 1/s). What fits into the slow node alone may always have it; the wider the gang, the less it can bear.

    patience: how long it would wait for healthy slots, as a share of its run time. So long the g - k slots would lie
    idle, where nobody else can use them: what it takes from others is (g - k)(s - patience).
    """
    return (ranks - slow_slots) * (slowdown - patience) < ranks


def _lay_beside(
    plan: Plan, pools: tuple[int, int], spec: JobSpec, ranks: int, barred: int, patience: float
) -> tuple[Slot, ...] | None:
    """The gang, on suspect nodes too where it pays; whatever it costs where the healthy ones could never hold it."""
    bound = _needs_slow(plan, pools[0], spec, spec.min_ranks or ranks, barred)
    mark = plan.checkpoint()
    while (slots := lay(plan, pools, spec, ranks, barred)) is not None and plan.slowdown and not bound:
        slow: dict[int, int] = {}
        for slot in slots:
            if (number := plan.topology.number[slot.node]) in plan.slowdown:
                slow[number] = slow.get(number, 0) + 1
        worst = max(slow, key=lambda number: plan.slowdown[number], default=NOWHERE)
        if worst == NOWHERE or pays_beside(sum(slow.values()), ranks, plan.slowdown[worst], patience):
            return slots
        plan.rollback(mark)
        barred |= plan.topology.bits[worst]
    return slots


def attempt_speed(policy: Policy, spec: JobSpec, gpu_type: str, ranks: int) -> float:
    """At which so many ranks on that type work, as a share of what the estimates are for; in proportion to ranks."""
    if ranks == spec.ranks and not spec.throughput and not policy.throughput:
        return 1.0
    return ranks / spec.ranks * speed(policy, spec, gpu_type)


def _needs_slow(plan: Plan, pool: int, spec: JobSpec, ranks: int, barred: int) -> bool:
    """Whether the gang can not count on the healthy nodes of the pool alone, even if they were empty."""
    healthy = plan.slots_in[pool]
    if barred:
        healthy -= sum(plan.topology.sizes[n] for n in numbers(barred) if plan.pool[n] == pool)
    return spec.required_level is not None or bool(spec.groups) or healthy < ranks


def waits_for_healthy(plan: Plan, job: Job, policy: Policy | None) -> bool:
    """Whether a place that is kept for the gang is one on healthy nodes alone.

    Whether a slow node pays depends on what else is free at the moment, so it can not be promised beforehand.
    """
    if not plan.slowdown:
        return False
    spec = job.spec
    ranks = spec.min_ranks or spec.ranks
    barred = barred_for(plan, job)
    healthy = (number * TIERS + Tier.HEALTHY for number in types_for(plan, spec, policy))
    return any(not _needs_slow(plan, pool, spec, ranks, barred) for pool in healthy)


def types_for(plan: Plan, spec: JobSpec, policy: Policy | None) -> Collection[int]:
    """Numbers of the GPU types that the job can run on, the fastest first, else in the order that its user gave."""
    names = plan.topology.type_names
    if len(names) == 1:
        return (0,) if not spec.gpu_types or names[0] in spec.gpu_types else ()
    allowed = [name for name in (spec.gpu_types or names) if name in names]
    allowed.sort(key=lambda name: -speed(policy, spec, name))
    return [names.index(name) for name in allowed]


def speed(policy: Policy | None, spec: JobSpec, gpu_type: str) -> float:
    """Of the job on that type, as a share of its speed on the type that its estimates are for."""
    if (own := spec.throughput.get(gpu_type)) is not None:
        return own
    matrix: Mapping[str, Mapping[str, float]] = policy.throughput if policy is not None else {}
    row = matrix.get(spec.workload) or matrix.get("") or {}
    return row.get(gpu_type, 1.0)


def place_probe(plan: Plan, job: Job) -> tuple[Slot, ...] | None:
    """All slots of the node that the probe is to measure, whatever the node's state; None while any is in use."""
    name = job.spec.pinned_node
    if name is None or plan.free_on(name) < job.spec.ranks:
        return None
    return plan.take(name, job.spec.ranks)


def still_usable(plan: Plan, nodes: Mapping[str, Node], slots: Iterable[Slot]) -> bool:
    """Whether every one of the claimed slots is still on a node that may be used."""
    return all(slot.node in nodes and slot.slot < nodes[slot.node].slots and plan.usable(slot.node) for slot in slots)


class Capacity:
    """What the nodes that are usable now could hold if nothing ran on them; made anew when a node changes.

    slots: of nodes that may share a gang. unusable: names of the nodes that take nothing. spares: of those that take
    only what may be stopped. spare_slots: of those.
    """

    __slots__ = ("_empty", "_held", "_nodes", "slots", "spare_slots", "spares", "unusable")

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._empty = Plan(nodes.values())
        self._held: dict[Shape, bool] = {}
        self.slots = self._empty.free(Tier.HEALTHY) + self._empty.free(Tier.SUSPECT)
        self.spares = [node.name for node in nodes.values() if tier_of(node) is Tier.SPARE]
        self.spare_slots = self._empty.free(Tier.SPARE)
        self.unusable = [node.name for node in nodes.values() if tier_of(node) is None]

    def shared(self, job: Job) -> int:
        """Slots that a gang over several nodes could have, without the job's excluded nodes, on one type of GPU."""
        plan, barred = self._empty, barred_for(self._empty, job)
        most = 0
        for number in types_for(plan, job.spec, None):
            pools = [number * TIERS + Tier.HEALTHY, number * TIERS + Tier.SUSPECT]
            if may_borrow(job.spec):
                pools.append(number * TIERS + Tier.SPARE)
            free = sum(plan.free_in[pool][0] for pool in pools) - barred_free(plan, pools, barred, 0)
            most = max(most, free)
        return most

    def could_hold(self, job: Job, shape: Shape | None = None) -> bool:
        """Whether the job would fit into an empty cluster as its nodes are now; asked once a shape."""
        shape = shape_of(job) if shape is None else shape
        held = self._held.get(shape)
        if held is None:
            mark = self._empty.checkpoint()
            held = self._held[shape] = place(self._empty, job) is not None
            self._empty.rollback(mark)
        return held


def where(slots: Iterable[Slot]) -> str:
    """The slots for a person: 'n1:0,1 n2:0'."""
    by_node: dict[str, list[str]] = {}
    last, numbers = "", [""]
    for slot in slots:
        if slot.node != last:
            last = slot.node
            numbers = by_node.setdefault(last, [])
        numbers.append(f"{slot.slot}")
    return " ".join([f"{name}:{','.join(numbers)}" for name, numbers in by_node.items()])
