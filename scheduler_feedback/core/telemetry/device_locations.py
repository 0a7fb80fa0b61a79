"""Which node each GPU is in, by the layouts of all nodes: an agent may report about the parts of its own node only.

A GPU that two nodes list is the part of the node that listed it first, for as long as that node reports and lists it.
The other node's claim gets a name of that node's own, 'NODE/UUID', so that nothing it reports meets the real part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

SILENT_NS = 600_000_000_000
"""A node that has not reported for ten minutes may have lost its parts to another one."""


class Parts:
    """Owners of parts. received_ns: when a node was last heard, on the receiver's clock; 0 where it never was."""

    def __init__(self, received_ns: Callable[[str], int]) -> None:
        self._received_ns = received_ns
        self._owner: dict[str, str] = {}
        self._listed: dict[str, frozenset[str]] = {}

    def list(self, node: str, parts: Iterable[str], now_ns: int) -> frozenset[str]:
        """The node lists these parts, and no others any more; those among them that are another node's."""
        listed = frozenset(parts)
        for part in self._listed.get(node, frozenset()) - listed:
            if self._owner.get(part) == node:
                del self._owner[part]
        self._listed[node] = listed
        disputed = set()
        for part in listed:
            owner = self._owner.get(part)
            if owner is None or (owner != node and now_ns - self._received_ns(owner) > SILENT_NS):
                self._owner[part] = node
            elif owner != node:
                disputed.add(part)
        return frozenset(disputed)

    def name(self, node: str, part: str) -> str:
        """The part's name in what this node reports."""
        return part if self._owner.get(part, node) == node else f"{node}/{part}"
