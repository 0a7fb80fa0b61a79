"""Virtual clusters: the cells of each queue as a cluster of its own, which holds only the queue's guaranteed jobs.

A cell of up to a node's size is a node of the virtual cluster. A rack cell is several nodes of one rack. All queues
without cells share one virtual cluster: what no other queue has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import Cell, Policy, State
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.index.slot_plan import Plan

SIZES = {Cell.GPU: 1, Cell.PAIR: 2, Cell.QUAD: 4}
"""Number of slots of the kinds of cells that are smaller than a node."""

SHARED = ""
"""Name of the virtual cluster of all queues without cells."""


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """Cells of one queue."""

    queue: str
    """Name of the queue; SHARED for all queues without cells."""
    empty: Plan
    """All slots of the cells, free. Callers copy it."""
    groups: dict[str, tuple[str, ...]]
    """Cells that are bound together, because they are in one rack: by the name of each."""

    def valid(self, slots: Iterable[Slot]) -> bool:
        """Return whether all of these slots exist in the cells."""
        number, sizes = self.empty.topology.number, self.empty.topology.sizes
        return all(slot.node in number and slot.slot < sizes[number[slot.node]] for slot in slots)

    def size(self, cell: str) -> int:
        """Return the number of slots of the cell."""
        return self.empty.topology.sizes[self.empty.topology.number[cell]]


def uses_cells(policy: Policy) -> bool:
    """Return whether any queue has cells."""
    return any(queue.cells for queue in policy.queues)


def owner_of(shares: Shares, queue: str) -> str:
    """Return the name of the queue, or of its nearest parent queue, that has cells; SHARED if none has."""
    return next((name for name in shares.chain(queue) if shares.queues[name].cells), SHARED)


def virtual_clusters(state: State) -> dict[str, VirtualCluster]:
    """Return the virtual clusters by the name of the queue; that of all queues without cells is the last.

    Cells for which the cluster has no nodes are left out, first those of the last queues. Spare nodes are no cells.
    """
    present = [node for node in state.nodes.values() if node.present and not node.spare]
    whole, in_rack = node_size(present), rack_size(present)
    types = {node.gpu_type for node in present}
    gpu_type = next(iter(types)) if len(types) == 1 else ""
    owners = [queue for queue in state.policy.queues if queue.cells]
    granted: dict[str, dict[Cell, int]] = {queue.name: {} for queue in owners}
    racks = len({rack_of(node) for node in present if node.rack and node.slots == whole})
    free = Counter(node.slots for node in present)
    for kind in reversed(Cell):
        for queue in owners:
            granted[queue.name][kind] = count = _grant(free, kind, queue.cells.get(kind, 0), whole, in_rack, racks)
            racks -= count if kind is Cell.RACK else 0
    found = {name: _virtual(name, cells, whole, in_rack, gpu_type) for name, cells in granted.items()}
    left = {kind: _grant(free, kind, sum(free.values()) * whole, whole, 0, 0) for kind in reversed(Cell)}
    found[SHARED] = _virtual(SHARED, left, whole, in_rack, gpu_type)
    return found


def _grant(free: Counter[int], kind: Cell, count: int, whole: int, in_rack: int, racks: int) -> int:
    """Subtract up to `count` cells of the kind from the free blocks of nodes (number by size). Return how many."""
    if kind is Cell.RACK:
        count = min(count, racks, free[whole] // in_rack) if in_rack else 0
        free[whole] -= count * in_rack
        return count
    if kind is Cell.NODE:
        count = min(count, free[whole])
        free[whole] -= count
        return count
    size = SIZES[kind]
    for number in range(count):
        block = min((one for one in free if one >= size and free[one] > 0), default=0)
        if not block:
            return number
        free[block] -= 1
        if block > size:
            free[block - size] += 1
    return count


def node_size(nodes: Iterable[Node]) -> int:
    """Return the number of slots of a node cell: that of the largest node."""
    return max((node.slots for node in nodes), default=0)


def rack_size(nodes: Iterable[Node]) -> int:
    """Return the number of nodes of a rack cell: the least number of whole nodes that a rack has; 0 without racks."""
    nodes = list(nodes)
    whole = node_size(nodes)
    counts = Counter(rack_of(node) for node in nodes if node.rack and node.slots == whole)
    return min(counts.values(), default=0)


def rack_of(node: Node) -> tuple[str, str]:
    """Return the rack of the node, unique in the cluster."""
    return node.spine, node.rack


def _virtual(queue: str, cells: Mapping[Cell, int], whole: int, in_rack: int, gpu_type: str) -> VirtualCluster:
    nodes: list[Node] = []
    groups: dict[str, tuple[str, ...]] = {}
    for kind in Cell:
        for index in range(cells.get(kind, 0)):
            name = f"{queue}/{kind.value}-{index}"
            if kind is Cell.RACK:
                inside = tuple(f"{name}/{number}" for number in range(in_rack))
                nodes += [Node(one, whole, rack=name, gpu_type=gpu_type) for one in inside]
                groups |= dict.fromkeys(inside, inside)
            elif (size := SIZES.get(kind, whole)) <= whole:
                nodes.append(Node(name, size, gpu_type=gpu_type))
    return VirtualCluster(queue, Plan(nodes), groups)
