"""Resources of nodes that pods of every scheduler request. Used under the informer cache's lock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_feedback.core.telemetry.placements import Refusal

MOST_LEFT = 1 << 16
"""Maximum number of ended pods whose node is remembered. An agent's last frames arrive after the end of a pod: they are
refused because the pod has ended, not kept as frames of a pod that is not known yet."""


@dataclass(slots=True)
class Placed:
    """A pod that uses a node's resources."""

    node: str
    requests: Mapping[str, int]
    seen: bool
    """True if the API server has the binding; False while only we have it, because we are binding the pod."""


@dataclass(slots=True)
class NodeUse:
    """Resources of a node that pods request."""

    used: dict[str, int] = field(default_factory=dict)
    by: set[str] = field(default_factory=set)
    """Uids of the pods that use the node."""


class NodeUsage:
    """Resources of all nodes that pods request.

    Attributes: `changed`, the nodes whose use has changed since the caller last cleared it.
    """

    def __init__(self) -> None:
        self._placed: dict[str, Placed] = {}  # by uid
        self._left: OrderedDict[str, str] = OrderedDict()  # by uid, the node of an ended pod
        self._use: dict[str, NodeUse] = {}
        self._planned: dict[str, dict[object, Mapping[str, int]]] = {}  # by node and attempt
        self.changed: set[str] = set()

    def take(self, uid: str, node: str, requests: Mapping[str, int], *, seen: bool) -> None:
        """Record that a pod uses the node. seen: whether the API server has the binding."""
        known = self._placed.get(uid)
        if known is not None and known.node == node and (known.requests is requests or known.requests == requests):
            known.seen |= seen
            return
        if known is not None:
            seen |= known.seen and known.node == node
            self.leave(uid)
        self._placed[uid] = Placed(node, requests, seen)
        use = self._use.setdefault(node, NodeUse())
        use.by.add(uid)
        for resource, count in requests.items():
            use.used[resource] = use.used.get(resource, 0) + count
        self.changed.add(node)

    def is_placed(self, uid: str) -> bool:
        """Return whether the pod uses a node."""
        return uid in self._placed

    def leave(self, uid: str) -> None:
        """Record that a pod no longer uses its node."""
        known = self._placed.pop(uid, None)
        if known is None:
            return
        self._left[uid] = known.node
        if len(self._left) > MOST_LEFT:
            self._left.popitem(last=False)
        use = self._use[known.node]
        use.by.discard(uid)
        for resource, count in known.requests.items():
            use.used[resource] -= count
        self.changed.add(known.node)

    def leave_unseen(self, uid: str) -> None:
        """Remove a pod that is assumed on a node, unless the API server has its binding."""
        known = self._placed.get(uid)
        if known is not None and not known.seen:
            self.leave(uid)

    def plan(self, attempt: object, by_node: Mapping[str, Mapping[str, int]]) -> None:
        """Reserve resources for an attempt whose pods have no nodes yet. by_node: amounts of all its pods there."""
        for node, requests in by_node.items():
            self._planned.setdefault(node, {})[attempt] = requests
            self.changed.add(node)

    def unplan(self, attempt: object, nodes: Iterable[str]) -> None:
        """Release what the attempt has reserved on these nodes."""
        for node in nodes:
            planned = self._planned.get(node, {})
            if planned.pop(attempt, None) is not None:
                self.changed.add(node)
            if not planned:
                self._planned.pop(node, None)

    def planned(self, node: str, resource: str) -> int:
        """Return the amount of the resource that is reserved for attempts whose pods have no nodes yet."""
        return sum(requests.get(resource, 0) for requests in self._planned.get(node, {}).values())

    def pods(self, node: str) -> set[str]:
        """Return the uids of the pods that use the node."""
        use = self._use.get(node)
        return use.by if use is not None else set()

    def requested(self, uid: str, resource: str) -> int:
        """Return the amount of the resource that the pod requests. The pod must use a node."""
        return self._placed[uid].requests.get(resource, 0)

    def free(self, node: str, allocatable: Mapping[str, int]) -> dict[str, int]:
        """Return the resources that no pod requests and no attempt has reserved; negative if other schedulers
        overcommitted the node.
        """
        use = self._use.get(node)
        used = use.used if use is not None else {}
        free = {resource: count - used.get(resource, 0) for resource, count in allocatable.items()}
        for requests in self._planned.get(node, {}).values():
            for resource, count in requests.items():
                if resource in free:
                    free[resource] -= count
        return free

    def free_of_others(self, node: str, allocatable: Mapping[str, int], ours: Container[str]) -> dict[str, int]:
        """Return the resources that no pod requests except those in `ours` (uids)."""
        free = dict(allocatable)
        for uid in self.pods(node):
            if uid not in ours:
                for resource, count in self._placed[uid].requests.items():
                    if resource in free:
                        free[resource] -= count
        return free

    def digest(self, node: str) -> int:
        """Return a number that changes when the resources in use on the node change."""
        use = self._use.get(node)
        return hash(tuple(sorted(use.used.items()))) if use is not None else 0

    def attest(self, node: str, uid: str) -> Refusal | None:
        """Return why the node may not report the pod; None if it may. Any thread may call it."""
        placed = self._placed.get(uid)
        if placed is not None:
            return None if placed.node == node else Refusal.NOT_PLACED
        left = self._left.get(uid)
        if left is not None:
            return Refusal.ENDED if left == node else Refusal.NOT_PLACED
        return Refusal.NOT_KNOWN_YET
