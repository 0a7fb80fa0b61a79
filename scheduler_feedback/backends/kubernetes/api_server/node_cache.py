"""Nodes of the informer cache: their resources, who uses them, and which constraints they meet.

Every method takes the lock and holds it briefly.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping

from scheduler_feedback.backends.kubernetes.api_server.node_limits import Wanted, limits_of
from scheduler_feedback.backends.kubernetes.api_server.node_usage import NodeUsage
from scheduler_feedback.backends.kubernetes.devices.device_cache import DeviceCache
from scheduler_feedback.backends.kubernetes.objects.constraints import Constraint, is_accelerator, why_not
from scheduler_feedback.backends.kubernetes.objects.objects import Node, Pod
from scheduler_feedback.backends.kubernetes.objects.quantities import requests_of
from scheduler_feedback.backends.kubernetes.objects.rank_names import POD, Place
from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels, allocatable_of, node_seen
from scheduler_feedback.core.cluster import Limit
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.telemetry.placements import Refusal


class NodeCache:
    """Newest nodes of the cluster, and the use of their resources."""

    def __init__(self, labels: TopologyLabels) -> None:
        self.lock = threading.RLock()
        self._labels = labels
        self.nodes: dict[str, Node] = {}
        self.devices = DeviceCache(self.is_living, self.is_ours)
        self._usage = NodeUsage()
        self._allocatable: dict[str, dict[str, int]] = {}
        self._wanted: dict[str, Wanted] = {}  # constraints of gangs, by name
        self._held: dict[str, Place] = {}  # by uid, the place of a pod in an attempt that the core holds
        self.places_version = 0  # changes with every change of _held
        self._barred: dict[tuple[str, str], int] = {}  # (constraint, node) that did not fit -> digest of its use then
        self._stale = self._usage.changed  # nodes to scan
        self._seen: dict[str, NodeSeen] = {}
        self._unreported: dict[str, NodeSeen] = {}  # nodes whose change has not been reported yet

    def is_ours(self, uid: str) -> bool:
        """Return whether the cycle places the pod with this uid."""
        raise NotImplementedError

    def is_living(self, uid: str) -> bool:
        """Return whether a pod with this uid uses a node."""
        return self._usage.is_placed(uid)

    def node_changed(self, key: str, _before: Node | None, after: Node | None) -> None:
        with self.lock:
            if after is None:
                self.nodes.pop(key, None)
                self._allocatable.pop(key, None)
                self._seen.pop(key, None)
                self._unreported.pop(key, None)
                self._stale.discard(key)
                return
            self._allocatable[key] = allocatable_of(after)
            self.nodes[key] = after
            self._stale.add(key)

    # --- use of nodes ------------------------------------------------------------------------------------------------

    def free_of(self, node: str) -> dict[str, int]:
        """Return the resources that no pod requests; negative if other schedulers overcommitted the node."""
        return self._usage.free(node, self._available(node))

    def _available(self, node: str) -> dict[str, int]:
        """Return the resources of the node, and its devices that no consumer of others has."""
        allocatable, place = self._allocatable.get(node, {}), self.nodes.get(node)
        amounts = self.devices.amounts(place) if place is not None else {}
        return {**allocatable, **amounts} if amounts else allocatable

    def assume(self, pod: Pod, node: str, *, adopts: bool = False) -> str:
        """Reserve the resources of a pod that is about to be bound, and devices for its claims.

        Return '' or why there are no devices for it; then nothing is reserved. adopts: see ``DeviceCache.assume``.
        """
        with self.lock:
            if pod.spec.devices is not None:
                place = self.nodes.get(node)
                if why := "there is no such node" if place is None else self.devices.assume(pod, place, adopts=adopts):
                    return why
            self._usage.take(pod.metadata.uid, node, requests_of(pod), seen=False)
            return ""

    def is_releasing(self, pod: Pod, node: str) -> bool:
        """Return whether devices that the pod may get on the node are about to be freed."""
        with self.lock:
            place = self.nodes.get(node)
            return place is not None and self.devices.is_releasing(pod, place)

    def unassume(self, uid: str) -> None:
        """Release the reservation of a pod that was not bound."""
        with self.lock:
            self._usage.leave_unseen(uid)
            self._mark_stale(self.devices.unassume(uid))

    def _mark_stale(self, nodes: Iterable[str]) -> None:
        """Scan these nodes again; '' among them means all nodes."""
        for name in nodes:
            self._stale.update((name,) if name else self.nodes)

    def plan(self, attempt: tuple[str, int], by_node: Mapping[str, Mapping[str, int]]) -> None:
        """Reserve resources for an attempt (job id, number) until its pods are assumed on their nodes.

        by_node: amounts of all its pods on each node.
        """
        with self.lock:
            self._usage.plan(attempt, by_node)

    def unplan(self, attempt: tuple[str, int], nodes: Iterable[str]) -> None:
        """Release what the attempt has reserved on these nodes."""
        with self.lock:
            self._usage.unplan(attempt, nodes)

    def hold(self, uid: str, place: Place) -> None:
        """Record that the pod belongs to an attempt of the cycle. The cycle itself counts the pod's slots."""
        with self.lock:
            if self._held.get(uid) != place:
                self._held[uid] = place
                self.places_version += 1
                self._stale.add(place.node)

    def release(self, uid: str, place: Place | None = None) -> None:
        """Record the end of a pod's attempt, unless a later attempt already has the pod.

        place: its place in the attempt.
        """
        with self.lock:
            held = self._held.get(uid)
            if held is not None and place in (None, held):
                del self._held[uid]
                self.places_version += 1
                self._stale.add(held.node)

    def place_of(self, uid: str) -> Place | None:
        """Return the pod's place in its gang; None if no attempt of the cycle has the pod. Any thread may call it."""
        return self._held.get(uid)

    def attest(self, node: str, gang: str) -> Refusal | None:
        """Return why the node may not report the pod `gang`; None if it may, or if `gang` is not a pod.

        Any thread may call it. The API server has the node of every pod, bound by any scheduler.
        """
        if not gang.startswith(POD):
            return None
        return self._usage.attest(node, gang.removeprefix(POD))

    def bar(self, constraint: str, node: str) -> None:
        """Exclude the node for pods of this constraint, because one did not fit, until the use of its resources
        changes.
        """
        with self.lock:
            self._barred[constraint, node] = self._usage.digest(node)
            self._stale.add(node)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def want(self, constraint: Constraint, slots_a_pod: int = 1) -> None:
        """Evaluate this constraint on all nodes from now on. slots_a_pod: least number of GPUs of one of its pods."""
        with self.lock:
            known = self._wanted.get(constraint.name)
            if known is None or slots_a_pod < known.slots_a_pod:
                self._wanted[constraint.name] = Wanted(constraint, slots_a_pod)
                self._stale.update(self.nodes)

    def why_not(self, constraint: Constraint, node: str) -> str:
        """Return why a pod of the constraint cannot go to the node now; '' if it can."""
        return self.fit(constraint, node)[0]

    def fit(self, constraint: Constraint, node: str) -> tuple[str, int]:
        """Return why a pod of the constraint cannot go to the node now ('' if it can), and the node's free slots."""
        with self.lock:
            place = self.nodes.get(node)
            if place is None:
                return "there is no such node", 0
            free = self.free_of(node)
            return why_not(constraint, place, free), free.get(constraint.resource, 0)

    def refusals(self, constraint: Constraint) -> Iterator[tuple[str, str]]:
        """Yield (node, reason) for every node that cannot take a pod of the constraint now."""
        with self.lock:
            for name in self.nodes:
                if why := self.why_not(constraint, name):
                    yield name, why

    def seen(self) -> list[NodeSeen]:
        """Return every node, converted to the cycle's type."""
        with self.lock:
            self._update_stale()
            return list(self._seen.values())

    def seen_changes(self) -> list[NodeSeen]:
        """Return the nodes that have changed since the last call."""
        with self.lock:
            self._update_stale()
            changes, self._unreported = self._unreported, {}
            return list(changes.values())

    def _update_stale(self) -> None:
        for name in self._stale:
            if name in self.nodes:
                self._scan(name)
        self._stale.clear()

    def _scan(self, name: str) -> None:
        node, available = self.nodes[name], self._available(name)
        accelerators = {one: count for one, count in available.items() if count > 0 and is_accelerator(one)}
        total = sum(accelerators.values())
        others = held = 0
        for uid in self._usage.pods(name):
            count = sum(self._usage.requested(uid, resource) for resource in accelerators)
            if uid in self._held:
                held += count
            else:
                others += count
        held += sum(self._usage.planned(name, resource) for resource in accelerators)
        slots = max(total - others, held, 0)
        refuses: tuple[str, ...] = ()
        limits: tuple[Limit, ...] = ()
        free: tuple[tuple[str, int], ...] = ()
        if accelerators and self._wanted:
            emptied = self._usage.free_of_others(name, available, self._held)
            refuses = tuple(self._refused_by(node, accelerators, emptied))
            now = self._usage.free(name, available)
            limits, free = limits_of(self._wanted.values(), accelerators, slots, slots - held, now, emptied)
        seen = node_seen(node, slots, refuses, self._labels, limits, free, accelerators)
        if self._seen.get(name) != seen:
            self._seen[name] = self._unreported[name] = seen

    def _refused_by(self, node: Node, accelerators: Collection[str], emptied: Mapping[str, int]) -> Iterator[str]:
        """Yield the names of the constraints that the node would not meet if all gangs of the cycle had ended.

        emptied: resources of the node that pods of others do not request.
        """
        name = node.metadata.name
        print_now = self._usage.digest(name)
        for constraint in sorted(self._wanted):
            wanted = self._wanted[constraint].constraint
            barred = self._barred.get((constraint, name))
            if barred is not None and barred != print_now:
                del self._barred[constraint, name]
                barred = None
            if wanted.resource not in accelerators or barred is not None or why_not(wanted, node, emptied):
                yield constraint
