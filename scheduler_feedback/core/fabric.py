"""Fabric: the leaf switch of each node, or of each rail of a node.

Jobs below one leaf switch share its uplinks into the fabric. In a rail-optimised fabric each rail of a node connects to
its own leaf; otherwise all NICs of a node connect to one leaf. A file contains the names of leaf switches
(fabric_file.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ALL_RAILS = -1


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf switch."""

    name: str
    """Name of the switch."""
    nodes: tuple[str, ...]
    """Names of the nodes below the switch."""
    rail: int = ALL_RAILS
    """Number of the rail whose NICs connect to the switch; ALL_RAILS if all NICs of the nodes connect to it."""


class Fabric:
    """Leaf switches by node and rail. Empty if the fabric is unknown."""

    def __init__(self, leaves: Iterable[Leaf] = ()) -> None:
        """Create the fabric. Raises ValueError if a rail of a node has two leaf switches."""
        self._of: dict[tuple[str, int], str] = {}
        for leaf in leaves:
            for node in leaf.nodes:
                other = self._of.setdefault((node, leaf.rail), leaf.name)
                if other != leaf.name:
                    rail = "" if leaf.rail == ALL_RAILS else f", rail {leaf.rail},"
                    raise ValueError(f"node {node}{rail} is below {other} and below {leaf.name}")

    def __len__(self) -> int:
        return len(self._of)

    def uplink(self, node: str, rail: int = ALL_RAILS) -> str:
        """Return the name of the leaf switch to which this rail of the node connects; '' if unknown."""
        return self._of.get((node, rail)) or self._of.get((node, ALL_RAILS), "")
