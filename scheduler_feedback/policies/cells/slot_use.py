"""Slot use: the slots of the cluster during one pass, by what holds them, and the choice of slots for cells.

A cell is bound to slots while a guaranteed job runs in it. Slots for another cell are chosen as a buddy allocator
does: first in a node, or rack, that is already divided. Thus the unbound cells of all queues always fit, if they fitted
into the empty cluster and no node failed (HiveD, Zhao et al., OSDI'20, section 3.3). Among equal choices, the one whose
jobs lose the least slot time is first (Lyra, Li et al., EuroSys'23, section 4, reclaims the servers with the least
preemption cost). A gang loses it whole, also if it holds only some of the slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_feedback.core.cluster import Node, Tier, tier_of
from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cells.virtual_cluster import VirtualCluster, node_size, rack_of, rack_size
from scheduler_feedback.policies.remediation.move_cost import recall_slot_seconds

_TIERS = (Tier.HEALTHY, Tier.SUSPECT)
"""Tiers of nodes on which cells may be bound."""


@dataclass(slots=True)
class SlotUse:
    """Slots of all nodes. Every mask has one bit per slot of a node."""

    state: State
    """Present state."""
    bound: dict[str, int] = field(default_factory=dict)
    """Slots of bound cells, by node."""
    blocked: dict[str, int] = field(default_factory=dict)
    """Slots outside of their cells that cannot be freed: by jobs that may not be stopped, and reserved ones."""
    movable: dict[str, int] = field(default_factory=dict)
    """Slots of jobs that leave when the owner of the cell needs it."""
    leaving: dict[Slot, list[str]] = field(default_factory=dict)
    """Ids of the jobs on each of these slots."""
    losses: dict[str, float] = field(default_factory=dict)
    """Slot time in seconds that each of these jobs loses when it leaves; none for a job that is being stopped."""
    splits_racks: bool = False
    """Whether a queue has rack cells, so that other cells must use racks that are already divided."""

    def bind(self, cluster: VirtualCluster, cells: Collection[str], barred: Collection[str]) -> dict[str, Slot] | None:
        """Choose slots for these unbound cells, and return the first slot of each. None if the cluster has none left.

        barred: names of nodes that must not be used.
        """
        before = dict(self.bound)
        found: dict[str, Slot] = {}
        for cell in sorted(cells, key=lambda one: (one not in cluster.groups, -cluster.size(one))):
            if cell in found:
                continue
            group = cluster.groups.get(cell)
            chosen = self._rack(group, barred) if group else self._block(cell, cluster.size(cell), barred)
            if chosen is None:
                self.bound = before
                return None
            for name, slot in chosen.items():
                self.keep(slot, cluster.size(name))
            found |= chosen
        return found

    def keep(self, first: Slot, size: int) -> None:
        """Record that a cell with this first slot is bound."""
        self.bound[first.node] = self.bound.get(first.node, 0) | mask_of(first.slot, size)

    def loss(self, slots: Iterable[Slot]) -> float:
        """Return the slot time in seconds that is lost if all jobs leave that hold one of these slots."""
        if not self.losses:
            return 0.0
        jobs = {job_id for slot in slots for job_id in self.leaving.get(slot, ())}
        return sum(self.losses.get(job_id, 0.0) for job_id in sorted(jobs))

    def unbind(self, cluster: VirtualCluster, found: Mapping[str, Slot]) -> None:
        """Undo a choice of slots for cells. found: first slot of each cell, as ``bind`` returned it."""
        for cell, first in found.items():
            self.bound[first.node] &= ~mask_of(first.slot, cluster.size(cell))

    def _block(self, cell: str, size: int, barred: Collection[str]) -> dict[str, Slot] | None:
        nodes = self.state.nodes
        whole = node_size(node for node in nodes.values() if node.present and not node.spare)
        divided = {rack_of(nodes[name]) for name, mask in self.bound.items() if mask and name in nodes}
        best: tuple[tuple[float, ...], str, int] | None = None
        for name in sorted(nodes):
            node = nodes[name]
            if name in barred or tier_of(node) not in _TIERS or (size == whole and node.slots != whole):
                continue
            taken = self.bound.get(name, 0) | self.blocked.get(name, 0)
            for first in range(0, node.slots - size + 1, size):
                if taken & (mask := mask_of(first, size)):
                    continue
                cost = (
                    int(tier_of(node) or 0),
                    int(self.splits_racks and rack_of(node) not in divided),
                    self._undivided(node, first, size),
                    self.loss([Slot(name, slot) for slot in range(first, first + size)]),
                    (self.movable.get(name, 0) & mask).bit_count(),
                )
                if best is None or cost < best[0]:
                    best = cost, name, first
        return None if best is None else {cell: Slot(best[1], best[2])}

    def _undivided(self, node: Node, first: int, size: int) -> int:
        """Return the size of the largest block around these slots that holds no bound cell."""
        bound = self.bound.get(node.name, 0)
        if not bound:
            return node.slots
        while size < node.slots:
            wider = first - first % (2 * size)
            if bound & mask_of(wider, 2 * size):
                break
            first, size = wider, 2 * size
        return min(size, node.slots)

    def _rack(self, group: tuple[str, ...], barred: Collection[str]) -> dict[str, Slot] | None:
        nodes = self.state.nodes
        whole = node_size(node for node in nodes.values() if node.present and not node.spare)
        racks: dict[tuple[str, str], list[str]] = {}
        for name in sorted(nodes):
            if nodes[name].rack:
                racks.setdefault(rack_of(nodes[name]), []).append(name)
        found: list[tuple[float, int, list[str]]] = []
        for names in racks.values():
            if any(self.bound.get(name) for name in names):
                continue
            usable = [
                name
                for name in names
                if name not in barred
                and nodes[name].slots == whole
                and tier_of(nodes[name]) in _TIERS
                and not self.blocked.get(name)
            ]
            if len(usable) >= len(group):
                many = {name: self.movable.get(name, 0).bit_count() for name in usable}
                usable.sort(key=lambda name: (self.loss(_slots_of(nodes[name])), many[name]))
                chosen = usable[: len(group)]
                loss = self.loss([slot for name in chosen for slot in _slots_of(nodes[name])])
                found.append((loss, sum(many[name] for name in chosen), sorted(chosen)))
        if not found:
            return None
        return {cell: Slot(name, 0) for cell, name in zip(group, min(found)[2], strict=True)}


def _slots_of(node: Node) -> list[Slot]:
    return [Slot(node.name, slot) for slot in range(node.slots)]


def mask_of(first: int, size: int) -> int:
    """Return the bit mask of `size` slots from the slot `first`."""
    return (1 << size) - 1 << first


def bound_slots(bound: Mapping[str, Slot], cell_slots: Iterable[Slot]) -> tuple[Slot, ...] | None:
    """Return the slots of the cluster to which these slots of cells are bound; None if one of the cells is not."""
    found: list[Slot] = []
    for slot in cell_slots:
        if (first := bound.get(slot.node)) is None:
            return None
        found.append(Slot(first.node, first.slot + slot.slot))
    return tuple(found)


def in_own_cells(bound: Mapping[str, Slot], job: Job) -> bool:
    """Return whether the job holds, or has reserved, exactly its slots within the cells of its queue."""
    if not job.cell_slots:
        return False
    own = bound_slots(bound, job.cell_slots)
    return own is not None and own == (tuple(job.claim) or tuple(rank.slot for rank in job.ranks))


def may_leave(job: Job) -> bool:
    """Return whether the job may run in cells of other queues: it can be stopped whenever they are needed."""
    return job.spec.preemptible and job.spec.restartable


def slot_use_of(state: State, clusters: Mapping[str, VirtualCluster], active: Iterable[str]) -> SlotUse:
    """Return the present use of all slots. It also unbinds the cells in which no guaranteed job is.

    active: ids of the jobs that hold or have reserved slots.
    """
    jobs, bound = state.jobs, state.bound_cells
    slot_use = SlotUse(state, splits_racks=any(cluster.groups for cluster in clusters.values()) and _racks(state) > 0)
    groups = {cell: group for cluster in clusters.values() for cell, group in cluster.groups.items()}
    used: set[str] = set()
    for job_id in active:
        job = jobs[job_id]
        if in_own_cells(bound, job):
            for cell in {slot.node for slot in job.cell_slots}:
                used.update(groups.get(cell, (cell,)))
            continue
        leaves = job.stop_reason is not None or (may_leave(job) and not job.guest_of)
        held = slot_use.movable if leaves else slot_use.blocked
        for slot in [rank.slot for rank in job.ranks] if job.state.holds_slots else ():
            held[slot.node] = held.get(slot.node, 0) | 1 << slot.slot
            if leaves:
                slot_use.leaving.setdefault(slot, []).append(job_id)
        if leaves and job.stop_reason is None:
            slot_use.losses[job_id] = recall_slot_seconds(state, job)
        for slot in job.claim:
            slot_use.blocked[slot.node] = slot_use.blocked.get(slot.node, 0) | 1 << slot.slot
    for cell in [cell for cell in bound if cell not in used]:
        del bound[cell]
    for cluster in clusters.values():
        for cell in cluster.empty.topology.names:
            if cell in bound:
                slot_use.keep(bound[cell], cluster.size(cell))
    return slot_use


def _racks(state: State) -> int:
    return rack_size(node for node in state.nodes.values() if node.present and not node.spare)
