"""Node of each GPU, from the layouts of all nodes. An agent may only report about parts (GPUs) of its own node.

If two nodes list the same GPU, it belongs to the node that listed it first, as long as that node reports and lists it.
The GPU of the other node is renamed to 'NODE/UUID', so that its reports do not mix with those about the first GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

STALE_NS = 600_000_000_000
"""Time without reports from a node (ten minutes) after which another node may list the node's GPUs as its own."""


class Parts:
    """The node to which each part (GPU) belongs. received_ns: returns when a node's last frame was received (receiver's
    clock); 0 for never."""

    def __init__(self, received_ns: Callable[[str], int]) -> None:
        self._received_ns = received_ns
        self._owner: dict[str, str] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._sole: set[str] = set()  # nodes that own all the parts that they list
        self.changes = 0
        """Number of lists that differed from the node's last one, or had parts of another node."""

    def list(self, node: str, parts: Iterable[str], now_ns: int) -> frozenset[str]:
        """Record that the node lists exactly these parts. Returns the parts that belong to another node."""
        listed = frozenset(parts)
        if self.owns(node, listed):
            return frozenset()  # the usual case: every node, once a second
        self.changes += 1
        for part in self._listed.get(node, frozenset()) - listed:
            if self._owner.get(part) == node:
                del self._owner[part]
        self._listed[node] = listed
        disputed = set()
        for part in listed:
            owner = self._owner.get(part)
            if owner is None or (owner != node and now_ns - self._received_ns(owner) > STALE_NS):
                self._owner[part] = node
                if owner is not None:
                    self._sole.discard(owner)
            elif owner != node:
                disputed.add(part)
        (self._sole.discard if disputed else self._sole.add)(node)
        return frozenset(disputed)

    def owns(self, node: str, parts: frozenset[str]) -> bool:
        """Return whether the node's last list was this object, and all of these parts belong to the node."""
        return node in self._sole and self._listed[node] is parts

    def name(self, node: str, part: str) -> str:
        """Return the name of a part in a report of this node: 'NODE/PART' if the part belongs to another node."""
        return part if self._owner.get(part, node) == node else f"{node}/{part}"
