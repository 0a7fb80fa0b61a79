"""Placement: which slots a gang gets: the fewest nodes, the tightest fit, healthy nodes before suspect ones.

A gang is as slow as its slowest member and as its longest wire, so nodes in doubt come last and few nodes come first. A
tight fit keeps the large holes for large gangs. Ties go by name, so that the same state gives the same placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.plan import Plan, Tier, tier_of


def place(plan: Plan, job: Job, excluded: Collection[str] = (), suspects: bool = True) -> tuple[Slot, ...] | None:
    """Slots for all ranks of the job, by rank, taken from the plan; or None, and the plan is as it was.

    Healthy nodes first; then one node on probation, if it can hold the whole gang; then suspect nodes for what healthy
    ones cannot hold (unless `suspects` is False). excluded: nodes that are not to be used, beside the job's own.
    """
    ranks, barred = job.spec.ranks, {*excluded, *job.excluded_nodes}
    if job.spec.pinned_node is not None:
        name = job.spec.pinned_node
        fits = plan.usable(name) and name not in barred and plan.free_on(name) >= ranks
        return plan.take(name, ranks) if fits else None
    healthy = plan.free(Tier.HEALTHY, barred)
    if healthy >= ranks:
        return _fill(plan, Tier.HEALTHY, ranks, barred)
    if (name_on_probation := plan.tightest(Tier.PROBATION, ranks, barred)) is not None:
        return plan.take(name_on_probation, ranks)
    if suspects and healthy + plan.free(Tier.SUSPECT, barred) >= ranks:
        return _fill(plan, Tier.HEALTHY, healthy, barred) + _fill(plan, Tier.SUSPECT, ranks - healthy, barred)
    return None


def _fill(plan: Plan, tier: Tier, ranks: int, barred: Collection[str]) -> tuple[Slot, ...]:
    """Take `ranks` slots of the tier, which has them: the largest holes first, the last ranks where they fit tightest.

    Largest first uses the fewest nodes that are possible.
    """
    taken: list[Slot] = []
    while len(taken) < ranks:
        missing = ranks - len(taken)
        name = plan.tightest(tier, missing, barred) or plan.emptiest(tier, barred)
        assert name is not None, "the tier's total says that there is room"
        taken.extend(plan.take(name, min(missing, plan.free_on(name))))
    return tuple(taken)


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
    """What the nodes that are usable now could hold if nothing ran on them; made once a cycle, asked for every job.

    slots: of nodes that may share a gang. unusable: names of the nodes that take nothing.
    """

    __slots__ = ("_nodes", "_probation", "slots", "unusable")

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._probation: list[Node] = []
        self.slots = 0
        self.unusable: list[str] = []
        for node in nodes.values():
            tier = tier_of(node)
            if tier is None:
                self.unusable.append(node.name)
            elif tier is Tier.PROBATION:
                self._probation.append(node)
            else:
                self.slots += node.slots

    def shared(self, job: Job) -> int:
        """Slots that a gang over several nodes could have, without the job's excluded nodes."""
        barred = [self._nodes[name] for name in job.excluded_nodes if name in self._nodes]
        return self.slots - sum(node.slots for node in barred if tier_of(node) in (Tier.HEALTHY, Tier.SUSPECT))

    def could_hold(self, job: Job) -> bool:
        """Whether the job would fit into an empty cluster as its nodes are now."""
        ranks = job.spec.ranks
        if job.spec.pinned_node is not None:
            node = self._nodes.get(job.spec.pinned_node)
            return (
                node is not None
                and tier_of(node) is not None
                and node.name not in job.excluded_nodes
                and node.slots >= ranks
            )
        return self.shared(job) >= ranks or any(
            node.slots >= ranks and node.name not in job.excluded_nodes for node in self._probation
        )


def where(slots: Iterable[Slot]) -> str:
    """The slots for a person: 'n1:0,1 n2:0'."""
    by_node: dict[str, list[str]] = {}
    for slot in slots:
        by_node.setdefault(slot.node, []).append(str(slot.slot))
    return " ".join(f"{name}:{','.join(numbers)}" for name, numbers in by_node.items())
