"""Placement: choose slots for a gang, on one node if possible, else in the narrowest network domain with enough slots.

A gang is as slow as its slowest rank and its longest link. So the order of preference is:

1. Healthy nodes. Suspect nodes come last, and a slow node only if the gang gains more than it loses
   (``slow_slots_pay``).
2. The narrowest level of domain: NVLink island, node, rail, rack, spine.
3. The fewest slots left over, which keeps large free areas for large gangs.

A gang that does not fit into one domain is divided into equal parts where possible, because a collective over unequal
parts waits for the largest. It uses the domains whose uplinks are expected to slow it least (``uplink_loss``), and
its ranks follow the order of the network. A gang runs on one type of GPU, the fastest that it may use. Ties are broken
by number, so equal states give equal placements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from scheduler_feedback.core.cluster import Limit, Node, NodeState, Tier, tier_of
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.job import Job, JobSpec, JobState, Slot, resized
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.data.near_data import nearer_to_data
from scheduler_feedback.policies.index.domains import numbers
from scheduler_feedback.policies.index.slot_plan import NOWHERE, TIERS, Plan
from scheduler_feedback.policies.queue.slot_assignment import barred_free, lay
from scheduler_feedback.policies.speeds.learnt_speeds import LearntSpeeds, given

Shape = tuple[Any, ...]

REQUIRED_LEVEL = 5
"""Index of the required network level in the tuple that ``shape_of`` returns."""

MIG_PROFILE = 13
"""Index of the MIG profile in the tuple that ``shape_of`` returns."""

NEVER = 1e6
"""Large number instead of infinity, for the wait of a gang whose start cannot be predicted. The unit of such a wait is
the gang's expected run time."""


def shape_of(job: Job) -> Shape:
    """Return the job's shape: all requirements that decide whether it fits. If one job of a shape fits, all do."""
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
        job.relaxed,
        spec.sizes,
        spec.mig_profile,
    )


def least_slots(shape: Shape) -> int:
    """Return the minimum number of slots of a job of this shape. All MIG instances of a job may be on one slot."""
    ranks: int = min(shape[0], shape[1] or shape[0])
    return 1 if shape[MIG_PROFILE] else ranks


def prefers_now(policy: Policy | None, job: Job) -> bool:
    """Return whether the job still waits for its preferred level, as if it required that level."""
    if policy is None or not policy.level_patience_seconds or job.relaxed or job.state is not JobState.PENDING:
        return False
    if job.spec.opportunistic:  # it uses any idle slots
        return False
    return job.spec.preferred_level is not None and job.spec.required_level is None


def relaxes_ns(policy: Policy, job: Job, learnt: LearntSpeeds, run_ns: int) -> int | None:
    """Return when the pending job has waited long enough for its preferred level, in ns.

    None if it does not wait, or if it waits for ever. It waits for at most the time that it would lose at the next
    wider level, if that was learnt. run_ns: its expected run time.
    """
    if not prefers_now(policy, job):
        return None
    patience = policy.level_patience_seconds
    if (slower := learnt.apart_slowdown(job)) is not None:
        patience = min(patience, (slower - 1) * run_ns / 1e9)
    if math.isinf(patience):
        return None
    since_ns = job.submitted_ns if job.attempt_ended_ns is None else job.attempt_ended_ns
    return since_ns + nanoseconds(max(patience, 0.0))


def within_preferred(spec: JobSpec) -> JobSpec:
    """Return the specification that requires the preferred level."""
    return structs.replace(spec, required_level=spec.preferred_level)


def barred_for(plan: Plan, job: Job, excluded: Collection[str] = ()) -> int:
    """Return the nodes that the job must not use, as a bit mask. `excluded` adds nodes to the job's own exclusions."""
    barred = plan.topology.refused.get(job.spec.constraint, 0)
    if excluded or job.excluded_nodes:
        barred |= plan.topology.bits_of((*excluded, *job.excluded_nodes))
    if job.spec.mig_profile:
        barred |= every(plan) & ~plan.topology.mig.get(job.spec.mig_profile, (0, 0))[0]
    return barred


def every(plan: Plan) -> int:
    """Return all nodes, as a bit mask."""
    return (1 << len(plan.topology.names)) - 1


def may_borrow(spec: JobSpec) -> bool:
    """Return whether the job may use spare nodes, because it can be stopped when a move needs them."""
    return spec.preemptible and spec.restartable


def in_parts(policy: Policy, spec: JobSpec) -> bool:
    """Return whether the job may run beside others that stay when it leaves: in MIG instances or declared parts."""
    return bool(spec.mig_profile) or (spec.shareable and policy.sharing.divides)


def place(
    plan: Plan,
    job: Job,
    excluded: Collection[str] = (),
    suspects: bool = True,
    policy: Policy | None = None,
    most: int | None = None,
    spares: bool = False,
    patience: float = 0.0,
    emptied: Container[str] = (),
) -> tuple[Slot, ...] | None:
    """Take slots for the job from the plan, one per rank. If it does not fit, return None and change nothing.

    It tries healthy nodes; then one node on probation that can hold the whole gang; then suspect nodes for the rest,
    unless `suspects` is False. excluded: nodes to avoid in addition to the job's own exclusions. policy: its throughput
    matrix orders the GPU types. most: maximum number of ranks of an elastic gang; None: the number it asks for. An
    elastic gang gets as many ranks as fit, but at least its minimum. spares: whether it may use spare nodes even if it
    is not preemptible. patience: see ``slow_slots_pay``. emptied: nodes on which gangs are assumed to have ended, which
    frees their CPU and memory. Nodes that have the job's dataset are preferred (``nearer_to_data``).
    A job in MIG instances gets idle slots that are enough for them.
    """
    if job.spec.mig_profile:
        if most is not None and most < job.spec.ranks:
            return None
        needed = plan.topology.slots_needed(job.spec)
        job, most = structs.replace(job, spec=structs.replace(job.spec, ranks=needed)), None
        return _place_anywhere(plan, job, excluded, suspects, policy, most, spares, patience, emptied)
    if not job.spec.dataset or not plan.datasets:
        return _place_anywhere(plan, job, excluded, suspects, policy, most, spares, patience, emptied)

    def without(cold: tuple[str, ...]) -> tuple[Slot, ...] | None:
        avoided = (*excluded, *cold)
        return _place_anywhere(plan, job, avoided, suspects, policy, most, spares, patience, emptied)

    mark = plan.checkpoint()
    slots = without(())
    return slots if slots is None else nearer_to_data(plan, job.spec.dataset, slots, mark, without)


def _place_anywhere(
    plan: Plan,
    job: Job,
    excluded: Collection[str],
    suspects: bool,
    policy: Policy | None,
    most: int | None,
    spares: bool,
    patience: float,
    emptied: Container[str],
) -> tuple[Slot, ...] | None:
    """Take slots for the job, as ``place`` does, without regard to its data."""
    limits = plan.topology.limits.get(job.spec.constraint, {})
    if not limits and not (plan.unreported and job.spec.requests):
        return _place_by_slots(plan, job, excluded, suspects, policy, most, spares, patience)
    mark = plan.checkpoint()
    beyond = _hold_beyond(plan, limits, job.spec, emptied)
    slots = _place_by_slots(plan, job, excluded, suspects, policy, most, spares, patience)
    if slots is None:
        plan.rollback(mark)
    else:
        plan.give(beyond)
    return slots


def _hold_beyond(plan: Plan, limits: Mapping[int, Limit], spec: JobSpec, emptied: Container[str]) -> list[Slot]:
    """Take the free slots that the job cannot use because the nodes lack CPU, memory or other resources."""
    slots_a_pod = min((group.ranks for group in spec.groups if group.same_node), default=1)
    held: list[Slot] = []
    for number in dict.fromkeys((*limits, *plan.unreported)):
        pods = most_pods(plan, number, limits.get(number), spec, emptied)
        if pods is not None and (beyond := plan.count[number] - pods * slots_a_pod) > 0:
            held += plan.take_from(number, beyond)
    return held


def most_pods(plan: Plan, number: int, limit: Limit | None, spec: JobSpec, emptied: Container[str]) -> int | None:
    """Return for how many pods of the job the node has other resources than slots; None: slots are the tighter limit.

    limit: the limit that the node reported for the job's constraint. It does not include gangs that have started since,
    or that are assumed to leave the node.
    """
    if plan.topology.names[number] in emptied:
        return None if limit is None else limit.most_pods
    if number in plan.unreported and number in plan.topology.free and spec.requests:
        return plan.pods_left(number, spec.requests)
    return None if limit is None else limit.pods


def _place_by_slots(
    plan: Plan,
    job: Job,
    excluded: Collection[str],
    suspects: bool,
    policy: Policy | None,
    most: int | None,
    spares: bool,
    patience: float,
) -> tuple[Slot, ...] | None:
    """Take slots for the job, as ``place`` does, for nodes that have enough of all other resources."""
    spec = within_preferred(job.spec) if prefers_now(policy, job) else job.spec
    barred = barred_for(plan, job, excluded)
    ranks = spec.ranks if most is None else min(most, spec.max_ranks or spec.ranks)
    if ranks != spec.ranks:
        ranks = spec.size_at_most(ranks)
    if ranks < (spec.min_ranks or spec.ranks):
        return None
    if spec.pinned_node is not None:
        number = plan.topology.number.get(spec.pinned_node, NOWHERE)
        if number == NOWHERE or plan.pool[number] == NOWHERE or barred >> number & 1 or plan.count[number] < ranks:
            return None
        return plan.take_from(number, ranks)
    spares = spares or may_borrow(spec)
    types = usable_types(plan, job, policy)
    if (slots := _place(plan, spec, ranks, barred, suspects, types, spares, patience)) is not None:
        return slots
    least = spec.min_ranks or spec.ranks
    if least >= ranks:
        return None
    # If a number of ranks does not fit, no larger one does: find the largest that fits by bisection.
    sizes = spec.sizes_between(least, ranks)
    best, low, high = 0, 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        mark = plan.checkpoint()
        if (found := _place(plan, spec, sizes[middle], barred, suspects, types, spares, patience)) is None:
            high = middle
        else:
            best, low = sizes[middle], middle + 1
        if found is not None:
            plan.rollback(mark)
    return _place(plan, spec, best, barred, suspects, types, spares, patience) if best else None


def pods_on(spec: JobSpec, slots: Sequence[Slot]) -> dict[str, int]:
    """Return how many pods of the job are on each node. slots: those of all ranks, by rank.

    A group of ranks that must be on one node is one pod; every other rank is a pod of its own.
    """
    firsts: list[int] = []
    rank = 0
    for group in resized(spec, len(slots)).groups:
        firsts += [rank] if group.same_node else range(rank, rank + group.ranks)
        rank += group.ranks
    counts: dict[str, int] = {}
    for first in (*firsts, *range(rank, len(slots))):
        if first < len(slots):
            counts[slots[first].node] = counts.get(slots[first].node, 0) + 1
    return counts


def goes_anywhere(plan: Plan, job: Job) -> bool:
    """Return whether the gang may use any free slots: no level, GPU type, node, group or constraint restricts it."""
    spec = job.spec
    return (
        spec.required_level is None
        and not spec.groups
        and not spec.mig_profile
        and spec.pinned_node is None
        and not job.excluded_nodes
        and spec.constraint not in plan.topology.refused
        and spec.constraint not in plan.topology.limits
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
    types: Collection[int],
    spares: bool,
    patience: float,
) -> tuple[Slot, ...] | None:
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
            if (slots := _assign_with_slow_nodes(plan, pools, spec, ranks, barred, patience)) is not None:
                return slots
    return None


def slow_slots_pay(slow_slots: int, ranks: int, slowdown: float, patience: float = 0.0) -> bool:
    """Return whether a gang should start with `slow_slots` of its `ranks` on slow nodes.

    Let g be the number of ranks, k the number of slow slots, and s the slowdown of the slow nodes. The whole
    gang then runs at speed 1/s: it holds g - k healthy slots for s times its run time, instead of g healthy slots for
    its run time. So it pays if (g - k) s < g, or k > g (1 - 1/s). A gang that fits on the slow nodes alone may
    always use them.

    patience: the gang's wait for healthy slots, as a share of its run time. During that wait the g - k healthy slots
    would be idle, so the gang takes only (g - k)(s - patience) from other jobs.
    """
    return (ranks - slow_slots) * (slowdown - patience) < ranks


def _assign_with_slow_nodes(
    plan: Plan, pools: tuple[int, int], spec: JobSpec, ranks: int, barred: int, patience: float
) -> tuple[Slot, ...] | None:
    """Take slots on healthy and slow nodes if that pays, or if the gang cannot run on healthy nodes alone."""
    bound = _needs_slow(plan, pools[0], spec, spec.min_ranks or ranks, barred)
    mark = plan.checkpoint()
    while (slots := lay(plan, pools, spec, ranks, barred)) is not None and plan.slowdown and not bound:
        slow: dict[int, int] = {}
        for slot in slots:
            if (number := plan.topology.number[slot.node]) in plan.slowdown:
                slow[number] = slow.get(number, 0) + 1
        worst = max(slow, key=lambda number: plan.slowdown[number], default=NOWHERE)
        if worst == NOWHERE or slow_slots_pay(sum(slow.values()), ranks, plan.slowdown[worst], patience):
            return slots
        plan.rollback(mark)
        barred |= plan.topology.bits[worst]
    return slots


def attempt_speed(policy: Policy, job: Job, gpu_type: str, ranks: int, learnt: LearntSpeeds | None = None) -> float:
    """Return the job's speed with this GPU type and number of ranks; 1 is the speed that its estimates assume."""
    spec = job.spec
    if learnt is not None and learnt.knows(job.job_id, spec):
        return learnt.speed(job.job_id, spec, gpu_type, ranks)
    if ranks == spec.ranks and not spec.throughput and not policy.throughput:
        return 1.0
    return ranks / spec.ranks * given(policy, spec, gpu_type)


def _needs_slow(plan: Plan, pool: int, spec: JobSpec, ranks: int, barred: int) -> bool:
    """Return whether the gang may need slow nodes, because the pool's healthy nodes may be too few even if empty."""
    healthy = plan.slots_in[pool]
    if barred:
        healthy -= sum(plan.topology.sizes[n] for n in numbers(barred) if plan.pool[n] == pool)
    return spec.required_level is not None or bool(spec.groups) or healthy < ranks


def waits_for_healthy(plan: Plan, job: Job, policy: Policy | None) -> bool:
    """Return whether a reservation for the gang must leave out slow nodes.

    If healthy nodes suffice, slow ones are used only if that pays at the start, when the free slots are known.
    """
    if not plan.slowdown:
        return False
    spec = job.spec
    ranks = spec.min_ranks or spec.ranks
    barred = barred_for(plan, job)
    healthy = (number * TIERS + Tier.HEALTHY for number in usable_types(plan, job, policy))
    return any(not _needs_slow(plan, pool, spec, ranks, barred) for pool in healthy)


def types_for(plan: Plan, job: Job, policy: Policy | None) -> Sequence[int]:
    """Return the numbers of the GPU types that the job can use, the fastest first."""
    names, spec = plan.topology.type_names, job.spec
    if len(names) == 1:
        return (0,) if not spec.gpu_types or names[0] in spec.gpu_types else ()
    allowed = [name for name in (spec.gpu_types or names) if name in names]
    allowed.sort(key=lambda name: -speed(policy, job, name, plan.learnt))
    return [names.index(name) for name in allowed]


def usable_types(plan: Plan, job: Job, policy: Policy | None) -> Sequence[int]:
    """Return the numbers of the GPU types that the job can use now, the fastest first.

    If quotas apply to each type, the types of which its queue has slots left are first. The types that it declines,
    because it waits for a faster one, are left out.
    """
    types = types_for(plan, job, policy)
    if plan.shares is not None and plan.shares.types is not None and len(types) > 1:
        owner, ranks = plan.shares.owner(job.spec.queue), job.spec.min_ranks or job.spec.ranks
        types = plan.shares.types.own_first(owner, ranks, types, plan.topology.type_names)
    if not plan.declined or (found := plan.declined.get(job.job_id)) is None:
        return types
    return [number for number in types if not found[0] >> number & 1]


def speed(policy: Policy | None, job: Job, gpu_type: str, learnt: LearntSpeeds | None = None) -> float:
    """Return the job's speed on this GPU type with the ranks that it requests; 1 is the speed that its estimates
    assume."""
    if policy is not None and learnt is not None and learnt.knows(job.job_id, job.spec):
        return learnt.speed(job.job_id, job.spec, gpu_type, job.spec.ranks)
    return given(policy, job.spec, gpu_type)


def place_probe(plan: Plan, job: Job) -> tuple[Slot, ...] | None:
    """Take all slots of the node that the probe measures, in any state of the node; None while a slot is in use."""
    name = job.spec.pinned_node
    if name is None or plan.free_on(name) < job.spec.ranks:
        return None
    return plan.take(name, job.spec.ranks)


def still_usable(plan: Plan, nodes: Mapping[str, Node], slots: Sequence[Slot]) -> bool:
    """Return whether a gang may use all of these reserved slots now. A node on probation takes no part of a gang."""
    if not all(one.node in nodes and one.slot < nodes[one.node].slots and plan.usable(one.node) for one in slots):
        return False
    names = {one.node for one in slots}
    return len(names) == 1 or not any(nodes[name].state is NodeState.PROBATION for name in names)


class Capacity:
    """Capacity of the nodes as if no job were running. Create a new object after a change of a node.

    slots: number of slots on healthy and suspect nodes. unusable: names of unavailable nodes. spares: names of the
    spare nodes. slots_of, spare_slots_of: number of slots of each GPU type, the latter on spare nodes. exceeds: returns
    whether a gang on these slots would exceed another limit of the cluster (its power budget), even if no other job
    ran. most: with how many ranks that limit lets a gang run; None: with any.
    """

    __slots__ = (
        "_empty",
        "_exceeds",
        "_held",
        "_nodes",
        "most",
        "slots",
        "slots_of",
        "spare_slots_of",
        "spares",
        "unusable",
    )

    def __init__(
        self,
        nodes: Mapping[str, Node],
        exceeds: Callable[[Sequence[Slot]], bool] = lambda _slots: False,
        most: int | None = None,
    ) -> None:
        self._nodes, self._exceeds, self.most = nodes, exceeds, most
        self._empty = Plan(nodes.values())
        self._held: dict[Shape, bool] = {}
        by_tier = [[one[0] for one in self._empty.free_in[tier::TIERS]] for tier in range(TIERS)]
        self.slots_of = [sum(one) for one in zip(by_tier[Tier.HEALTHY], by_tier[Tier.SUSPECT], strict=True)]
        self.spare_slots_of = by_tier[Tier.SPARE]
        self.slots = sum(self.slots_of)
        self.spares = [node.name for node in nodes.values() if tier_of(node) is Tier.SPARE]
        self.unusable = [node.name for node in nodes.values() if tier_of(node) is None]

    def shared(self, job: Job) -> int:
        """Return the maximum number of slots, all with one GPU type, that the job could use on several nodes if no job
        ran."""
        plan, barred = self._empty, barred_for(self._empty, job)
        most = 0
        for number in types_for(plan, job, None):
            pools = [number * TIERS + Tier.HEALTHY, number * TIERS + Tier.SUSPECT]
            if may_borrow(job.spec):
                pools.append(number * TIERS + Tier.SPARE)
            free = sum(plan.free_in[pool][0] for pool in pools) - barred_free(plan, pools, barred, 0)
            most = max(most, free)
        return most

    def could_hold(self, job: Job, shape: Shape | None = None) -> bool:
        """Return whether the job would fit if all nodes were empty. The result is cached by the job's shape."""
        shape = shape_of(job) if shape is None else shape
        held = self._held.get(shape)
        if held is None:
            slots = self._placed(job)
            held = self._held[shape] = slots is not None and not self._exceeds(slots[: job.spec.min_ranks])
        return held

    def exceeds(self, job: Job) -> bool:
        """Return whether the job has enough slots, but would exceed another limit of the cluster."""
        slots = self._placed(job)
        return slots is not None and self._exceeds(slots[: job.spec.min_ranks])

    def _placed(self, job: Job) -> Sequence[Slot] | None:
        """Return slots for the job if all nodes were empty; None if it does not fit."""
        mark = self._empty.checkpoint()
        slots = place(self._empty, job, emptied=self._nodes)
        self._empty.rollback(mark)
        return slots


def where(slots: Iterable[Slot]) -> str:
    """Format slots as text by node, such as 'n1:0,1 n2:0'."""
    by_node: dict[str, list[str]] = {}
    last, numbers = "", [""]
    for slot in slots:
        if slot.node != last:
            last = slot.node
            numbers = by_node.setdefault(last, [])
        numbers.append(f"{slot.slot}")
    return " ".join([f"{name}:{','.join(numbers)}" for name, numbers in by_node.items()])
