"""The informer cache: the API server's objects, kept current by watches and indexed for the backend.

The event loop's thread updates it and the cycle's thread reads it. Every method takes the lock and holds it briefly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from scheduler_feedback.backends.kubernetes.agents import is_agent
from scheduler_feedback.backends.kubernetes.api_server.node_limits import Wanted, limits_of
from scheduler_feedback.backends.kubernetes.api_server.node_usage import NodeUsage
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import is_probe
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS, Constraint, why_not
from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Node, Pod, PodGroup, Queue, StoredVolume
from scheduler_feedback.backends.kubernetes.objects.quantities import requests_of
from scheduler_feedback.backends.kubernetes.objects.rank_names import POD, Place
from scheduler_feedback.backends.kubernetes.objects.translate import (
    BEYOND,
    PLACEMENT,
    Gang,
    TopologyLabels,
    allocatable_of,
    beyond,
    gang_of,
    group_of,
    lone,
    node_seen,
    resource_of,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API, UpstreamGroup, as_group
from scheduler_feedback.backends.kubernetes.objects.volumes import claims_of, reached, users_of
from scheduler_feedback.core.cluster import Limit
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.telemetry.placements import Refusal


class InformerCache:
    """Newest objects of the cluster, from the watches. `scheduler`: the schedulerName of pods that the cycle places."""

    def __init__(self, scheduler: str, labels: TopologyLabels) -> None:
        self.lock = threading.RLock()
        self._scheduler, self._labels = scheduler, labels
        self.nodes: dict[str, Node] = {}
        self.groups: dict[str, PodGroup] = {}
        self.queues: dict[str, Queue] = {}
        self.queues_version = 0  # changes with every change of a queue
        self.pods: dict[str, Pod] = {}  # ours alone, by 'NAMESPACE/NAME'
        self.claims: dict[str, Claim] = {}
        self.volumes: dict[str, StoredVolume] = {}
        self._users: dict[str, set[str]] = {}  # by claim, the keys of our pods that use it
        self._members: dict[str, set[str]] = {}  # by gang key, the keys of its pods
        self._probes: set[str] = set()  # keys of our probe pods
        self._usage = NodeUsage()
        self._allocatable: dict[str, dict[str, int]] = {}
        self._wanted: dict[str, Wanted] = {}  # constraints of gangs, by name
        self._refusals: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, Place] = {}  # by uid, the place of a pod in an attempt that the core holds
        self.places_version = 0  # changes with every change of _held
        self._barred: dict[tuple[str, str], int] = {}  # (constraint, node) that did not fit -> digest of its use then
        self._stale = self._usage.changed  # nodes to scan
        self._seen: dict[str, NodeSeen] = {}
        self._unreported: dict[str, NodeSeen] = {}  # nodes whose change has not been reported yet
        self.dirty_gangs: set[str] = set()
        self._agents: dict[str, tuple[str, str]] = {}  # by the pod's key: its node and address
        self._lone: dict[str, Gang] = {}  # pods that are gangs of one, as of the last scan

    # --- from the watches --------------------------------------------------------------------------------------------

    def node_changed(self, key: str, _before: Node | None, after: Node | None) -> None:
        with self.lock:
            if after is None:
                self.nodes.pop(key, None)
                self._allocatable.pop(key, None)
                self._refusals.pop(key, None)
                self._seen.pop(key, None)
                self._unreported.pop(key, None)
                self._stale.discard(key)
                return
            self._allocatable[key] = allocatable_of(after)
            self.nodes[key] = after
            self._stale.add(key)

    def pod_changed(self, key: str, before: Pod | None, after: Pod | None) -> None:
        with self.lock:
            if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
                self._usage.leave(before.metadata.uid)
                self.release(before.metadata.uid)
                self._forget(key, before)
            if after is None:
                self._agents.pop(key, None)
                return
            if after.over:
                self._usage.leave(after.metadata.uid)
            elif after.spec.node_name:
                self._usage.take(after.metadata.uid, after.spec.node_name, requests_of(after), seen=True)
            if is_agent(after) and after.status.pod_ip and not after.metadata.deletion_timestamp:
                self._agents[key] = (after.spec.node_name, after.status.pod_ip)
            else:
                self._agents.pop(key, None)
            if after.spec.scheduler_name == self._scheduler:
                for claim in claims_of(after):
                    self._users.setdefault(claim, set()).add(key)
                self.pods[key] = after = reached(after, self.claims, self.volumes)
                gang = group_of(after) or key
                self._members.setdefault(gang, set()).add(key)
                if after.metadata.annotation(BEYOND):
                    self.dirty_gangs.add(key)
                if is_probe(after):
                    self._probes.add(key)
                self.dirty_gangs.add(gang)

    def claim_changed(self, key: str, _before: Claim | None, after: Claim | None) -> None:
        with self.lock:
            if after is None:
                self.claims.pop(key, None)
            else:
                self.claims[key] = after
            self._reach_again((key,))

    def volume_changed(self, key: str, _before: StoredVolume | None, after: StoredVolume | None) -> None:
        with self.lock:
            if after is None:
                self.volumes.pop(key, None)
            else:
                self.volumes[key] = after
            self._reach_again(users_of(key, self.claims.items()))

    def _reach_again(self, claims: Iterable[str]) -> None:
        """For each pod that uses one of these claims, recompute the nodes that can reach the pod's volumes."""
        for key in {user for claim in claims for user in self._users.get(claim, ())}:
            if key in self.pods:
                pod = self.pods[key] = reached(self.pods[key], self.claims, self.volumes)
                self.dirty_gangs |= {key, group_of(pod) or key}

    def group_changed(self, key: str, before: PodGroup | None, after: PodGroup | None) -> None:
        with self.lock:
            if after is None:
                self.groups.pop(key, None)
            else:
                self.groups[key] = after
            if before is None or after is None or before.spec != after.spec or _declared(before) != _declared(after):
                self.dirty_gangs.add(key)

    def upstream_changed(self, key: str, before: UpstreamGroup | None, after: UpstreamGroup | None) -> None:
        """Update a PodGroup of Kubernetes itself; a PodGroup of coscheduling with the same name takes precedence."""
        known = self.groups.get(key)
        if known is not None and known.of_api != API:
            return
        self.group_changed(key, *(None if one is None else as_group(one, self._labels) for one in (before, after)))

    def queue_changed(self, key: str, before: Queue | None, after: Queue | None) -> None:
        with self.lock:
            if before is None or after is None or before.spec != after.spec:
                self.queues_version += 1
            if after is None:
                self.queues.pop(key, None)
            else:
                self.queues[key] = after

    def _forget(self, key: str, pod: Pod) -> None:
        if self.pods.pop(key, None) is None:
            return
        self._probes.discard(key)
        for claim in claims_of(pod):
            users = self._users.get(claim, set())
            users.discard(key)
            if not users:
                self._users.pop(claim, None)
        gang = group_of(pod) or key
        members = self._members.get(gang, set())
        members.discard(key)
        if not members:
            self._members.pop(gang, None)
        self.dirty_gangs |= {gang, key}

    # --- use of nodes ------------------------------------------------------------------------------------------------

    def free_of(self, node: str) -> dict[str, int]:
        """Return the resources that no pod requests; negative if other schedulers overcommitted the node."""
        return self._usage.free(node, self._allocatable.get(node, {}))

    def assume(self, pod: Pod, node: str) -> None:
        """Reserve the resources of a pod that is about to be bound."""
        with self.lock:
            self._usage.take(pod.metadata.uid, node, requests_of(pod), seen=False)

    def unassume(self, uid: str) -> None:
        """Release the reservation of a pod that was not bound."""
        with self.lock:
            self._usage.leave_unseen(uid)

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

    # --- gangs -------------------------------------------------------------------------------------------------------

    def take_dirty(self) -> set[str]:
        """Return the keys of the gangs that have changed since the last call."""
        with self.lock:
            dirty, self.dirty_gangs = self.dirty_gangs, set()
            return dirty

    def pods_of(self, gang: str) -> list[Pod]:
        """Return all pods of the gang with this key that the cycle places."""
        with self.lock:
            found = self._members.get(gang, (gang,) if gang in self.pods else ())
            return [self.pods[key] for key in sorted(found)]

    def gang(self, key: str) -> Gang | None:
        """Return the gang with this key, with its pending and running pods; None if there is no such gang."""
        with self.lock:
            group = self.groups.get(key)
            if group is not None:
                return gang_of(group, [pod for pod in self.pods_of(key) if not pod.over])
            alone = self.pods.get(key)
            if alone is None or is_probe(alone):
                self._lone.pop(key, None)
                return None
            if group_of(alone):
                return self._beyond(alone)
            found = self._lone[key] = _alone(alone, self._lone.get(key))
            return replace(found, spec=None) if alone.over else found

    def _beyond(self, pod: Pod) -> Gang | None:
        """Return the pod as a gang of one; None if its group does not exist, or if it is bound as a member of it."""
        group = self.groups.get(group_of(pod))
        if group is None or (pod.spec.node_name and not pod.metadata.annotation(BEYOND)):
            return None
        found = beyond(pod, group)
        return replace(found, spec=None) if pod.over else found

    def probes(self) -> list[Pod]:
        """Return the pods that probe a node."""
        with self.lock:
            return [self.pods[key] for key in self._probes]

    def agents(self) -> dict[str, str]:
        """Return the address of the agent's pod, by node."""
        with self.lock:
            return dict(self._agents.values())

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
        with self.lock:
            place = self.nodes.get(node)
            return "there is no such node" if place is None else why_not(constraint, place, self.free_of(node))

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
        node = self.nodes[name]
        resource = resource_of(node)
        total = self._allocatable[name].get(resource, 0)
        others = held = 0
        for uid in self._usage.pods(name):
            count = self._usage.requested(uid, resource)
            if uid in self._held:
                held += count
            else:
                others += count
        held += self._usage.planned(name, resource)
        slots = max(total - others, held, 0)
        refuses: tuple[str, ...] = ()
        limits: tuple[Limit, ...] = ()
        free: tuple[tuple[str, int], ...] = ()
        if resource and self._wanted:
            emptied = self._usage.free_of_others(name, self._allocatable[name], self._held)
            refuses = tuple(self._refused_by(node, resource, emptied))
            now = self.free_of(name)
            limits, free = limits_of(self._wanted.values(), resource, slots, slots - held, now, emptied)
        seen = node_seen(node, slots, refuses, self._labels, limits, free)
        if self._seen.get(name) != seen:
            self._seen[name] = self._unreported[name] = seen

    def _refused_by(self, node: Node, resource: str, emptied: Mapping[str, int]) -> Iterator[str]:
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
            if wanted.resource != resource or barred is not None or why_not(wanted, node, emptied):
                yield constraint


def _alone(pod: Pod, before: Gang | None) -> Gang:
    """Return the pod as a gang of one. before: the same gang before the change."""
    if before is None or before.pods[0].metadata.uid != pod.metadata.uid:
        return lone(pod)
    if before.pods[0] is pod:
        return before
    return replace(before, pods=(pod,)) if pod.spec.node_name and before.spec is not None else lone(pod)


def _declared(group: PodGroup) -> dict[str, str]:
    return {
        key: value
        for source in (group.metadata.annotations, group.metadata.labels)
        for key, value in (source or {}).items()
        if key.startswith(OURS) and key not in _WRITTEN_BY_US
    }


_WRITTEN_BY_US = frozenset({PLACEMENT, f"{OURS}expected-start"})
"""Annotations that we write on a group; they do not change what its user declares."""
