"""What the overview says about all nodes, from one pass over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_feedback.core.cluster import Node, NodeState, tier_of


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Nodes of one snapshot, most of which are healthy. Readers must not change it."""

    present: list[str]
    """Names of the nodes that the backend reports."""
    absent: frozenset[str]
    """Names of the other nodes."""
    slots: int
    """Number of slots of present nodes."""
    closed: dict[str, int]
    """Number of slots of each present node that takes no jobs, by name."""
    doubtful: list[Node]
    """Absent nodes, and nodes that are not healthy."""

    @property
    def by_state(self) -> dict[str, int]:
        """Number of nodes in each state; 'absent' counts nodes that the backend does not report."""
        known = {one.value: 0 for one in (NodeState.HEALTHY, *NodeState)} | {"absent": len(self.absent)}
        bad = Counter(node.state.value for node in self.doubtful if node.present)
        return known | bad | {NodeState.HEALTHY.value: len(self.present) - bad.total()}


def summary_of(nodes: Iterable[Node]) -> NodeSummary:
    """Return the summary of the nodes."""
    present, absent, slots, closed, doubtful = list[str](), list[str](), 0, dict[str, int](), list[Node]()
    healthy = NodeState.HEALTHY
    for node in nodes:
        if not node.present:
            absent.append(node.name)
            doubtful.append(node)
            continue
        present.append(node.name)
        slots += node.slots
        if node.state is not healthy:
            doubtful.append(node)
            if tier_of(node) is None:
                closed[node.name] = node.slots
    return NodeSummary(present, frozenset(absent), slots, closed, doubtful)
