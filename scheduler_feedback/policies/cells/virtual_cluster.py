"""Virtual clusters: the cells of each queue as a cluster of its own, which holds only the queue's guaranteed jobs.

A cell of up to a node's size is a node of the virtual cluster. A rack cell is several nodes of one rack. All queues
without cells share one virtual cluster: the whole nodes that no other queue has.
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
    """Return the virtual clusters by the name of the queue; that of all queues without cells is the last."""
    present = [node for node in state.nodes.values() if node.present]
    whole = node_size(present)
    in_rack = rack_size(present)
    types = {node.gpu_type for node in present}
    gpu_type = next(iter(types)) if len(types) == 1 else ""
    found: dict[str, VirtualCluster] = {}
    used, parts = 0, list[int]()
    for queue in state.policy.queues:
        if not queue.cells:
            continue
        found[queue.name] = _virtual(queue.name, queue.cells, whole, in_rack, gpu_type)
        used += queue.cells.get(Cell.NODE, 0) + queue.cells.get(Cell.RACK, 0) * in_rack
        parts += [size for kind, size in SIZES.items() for _ in range(queue.cells.get(kind, 0))]
    left = sum(node.slots == whole for node in present) - used - nodes_of_parts(parts, whole)
    found[SHARED] = _virtual(SHARED, {Cell.NODE: max(left, 0)}, whole, in_rack, gpu_type)
    return found


def needed_nodes(policy: Policy, whole: int, in_rack: int) -> int:
    """Return how many nodes with `whole` slots the cells of all queues need. in_rack: nodes of a rack cell."""
    cells: Counter[Cell] = Counter()
    for queue in policy.queues:
        cells.update(queue.cells)
    parts = [size for kind, size in SIZES.items() for _ in range(cells[kind])]
    return cells[Cell.NODE] + cells[Cell.RACK] * in_rack + nodes_of_parts(parts, whole)


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


def nodes_of_parts(sizes: Iterable[int], whole: int) -> int:
    """Return how many nodes with `whole` slots hold cells of these sizes, each at a multiple of its size."""
    nodes, free = 0, list[int]()  # free: slots left behind the last cell of each node
    for size in sorted(sizes, reverse=True):
        if size > whole:
            continue
        for index, left in enumerate(free):
            if left >= size:
                free[index] -= size
                break
        else:
            nodes += 1
            free.append(whole - size)
    return nodes


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
