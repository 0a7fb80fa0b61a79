"""Fabric: by which switch each node, or each rail of it, goes out: what jobs share beyond their own machines.

Jobs below one leaf switch share its uplinks into the fabric. In a rail-optimised fabric each rail of a node goes to a
leaf of its own; else all NICs of a node go to one. Frames do not tell it: a file does (fabric_file.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ALL_RAILS = -1


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf switch. nodes: those below it. rail: the one whose NICs go to it, ALL_RAILS for whole nodes."""

    name: str
    nodes: tuple[str, ...]
    rail: int = ALL_RAILS


class Fabric:
    """Which leaf switch is whose. Empty: nothing is known."""

    def __init__(self, leaves: Iterable[Leaf] = ()) -> None:
        """Raises ValueError where a node's rail would go to two leaves."""
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
        """Name of the leaf whose uplinks this rail of the node shares; '' where that is not known."""
        return self._of.get((node, rail)) or self._of.get((node, ALL_RAILS), "")
