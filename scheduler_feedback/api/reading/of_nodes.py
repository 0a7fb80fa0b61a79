"""A value that depends on the nodes of a snapshot only, kept until they change.

Snapshots of a state share their nodes while none of them changes (core/state_copy.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from scheduler_feedback.core.cluster import Node

T = TypeVar("T")


class OfNodes(Generic[T]):
    """The newest value. Only the thread that computes answers may use it, and only for snapshots: in a state that
    cycles change, the nodes change in place."""

    def __init__(self) -> None:
        self._known: tuple[Mapping[str, Node], T] | None = None

    def of(self, nodes: Mapping[str, Node], make: Callable[[], T]) -> T:
        """Return `make()` for these nodes, or its earlier result. The caller must not change it."""
        if self._known is None or self._known[0] is not nodes:
            self._known = nodes, make()
        return self._known[1]
