"""Users of resources: which hosts, NICs, switches and uplinks ranks of several jobs use.

With a thousand jobs, one of them starts or ends before most ticks. Only jobs whose shape has changed are then counted
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from scheduler_feedback.core.telemetry.telemetry import Shape

Resource = tuple[str, str]
"""Kind and name of a resource, for example ('host', 'node-0')."""


class ResourceUsers:
    """Number of jobs that use each resource. Owned by one thread.

    kind: kind of the counted resources; '' for all.
    """

    def __init__(self, kind: str = "") -> None:
        self._kind = kind
        self._shapes: dict[int, Shape] = {}  # by identity
        self._order: tuple[Shape, ...] = ()
        self._users: Counter[Resource] = Counter()
        self.shared: set[Resource] = set()
        """Resources that several jobs use."""

    def take(self, shapes: Sequence[Shape]) -> bool:
        """Count the users of these shapes' resources. Return False if they are the shapes of the last call."""
        if len(shapes) == len(self._order) and all(map(_is_same, shapes, self._order)):
            return False
        self._order = tuple(shapes)
        before, self._shapes = self._shapes, {id(shape): shape for shape in shapes}
        for shape in [shape for key, shape in before.items() if key not in self._shapes]:
            self._end(self._of(shape))
        for shape in [shape for key, shape in self._shapes.items() if key not in before]:
            self._begin(self._of(shape))
        return True

    def names(self) -> set[str]:
        """Return the names of the resources that several jobs use."""
        return {name for _, name in self.shared}

    def _of(self, shape: Shape) -> Collection[Resource]:
        if not self._kind:
            return shape.resources
        return {(self._kind, name) for name in shape.sharing.get(self._kind, ()) if name}

    def _begin(self, resources: Iterable[Resource]) -> None:
        users = self._users
        for resource in resources:
            users[resource] += 1
            if users[resource] == 2:
                self.shared.add(resource)

    def _end(self, resources: Collection[Resource]) -> None:
        users = self._users
        for resource in resources:
            users[resource] -= 1
            if users[resource] == 1:
                self.shared.discard(resource)
            elif not users[resource]:
                del users[resource]


def _is_same(one: Shape, other: Shape) -> bool:
    return one is other
