"""The informer cache: the API server's objects, kept current by watches and indexed for the backend.

The event loop's thread updates it and the cycle's thread reads it. Every method takes the lock and holds it briefly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from scheduler_feedback.backends.kubernetes.agents import is_agent
from scheduler_feedback.backends.kubernetes.api_server.node_cache import NodeCache
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import is_probe
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceClaim, ResourceSlice
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.networks import NETWORKS, NetworkAttachment, amounts_of, networks_of
from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Pod, PodGroup, Queue, StoredVolume
from scheduler_feedback.backends.kubernetes.objects.quantities import requests_of
from scheduler_feedback.backends.kubernetes.objects.rank_order import rank_key
from scheduler_feedback.backends.kubernetes.objects.translate import (
    BEYOND,
    PLACEMENT,
    Gang,
    TopologyLabels,
    beyond,
    gang_of,
    group_of,
    lone,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API, UpstreamGroup, as_group
from scheduler_feedback.backends.kubernetes.objects.volumes import claims_of, reached, users_of


class InformerCache(NodeCache):
    """Newest objects of the cluster, from the watches. `scheduler`: the schedulerName of pods that the cycle places."""

    def __init__(self, scheduler: str, labels: TopologyLabels) -> None:
        super().__init__(labels)
        self.scheduler = scheduler
        self.groups: dict[str, PodGroup] = {}
        self.queues: dict[str, Queue] = {}
        self.queues_version = 0  # changes with every change of a queue
        self.pods: dict[str, Pod] = {}  # ours alone, by 'NAMESPACE/NAME'
        self._ours: dict[str, str] = {}  # by uid of our pod, its key
        self.claims: dict[str, Claim] = {}
        self.volumes: dict[str, StoredVolume] = {}
        self._users: dict[str, set[str]] = {}  # by claim, the keys of our pods that use it
        self._members: dict[str, set[str]] = {}  # by gang key, the keys of its pods
        self._probes: set[str] = set()  # keys of our probe pods
        self.dirty_gangs: set[str] = set()
        self.networks: dict[str, NetworkAttachment] = {}
        self._networks_served = False
        self._unresolved = False  # whether slices, classes or networks have changed since all pods were resolved
        self._agents: dict[str, tuple[str, str]] = {}  # by the pod's key: its node and address
        self._lone: dict[str, Gang] = {}  # pods that are gangs of one, as of the last scan

    # --- from the watches --------------------------------------------------------------------------------------------

    def pod_changed(self, key: str, before: Pod | None, after: Pod | None) -> None:
        with self.lock:
            if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
                self._usage.leave(before.metadata.uid)
                self.release(before.metadata.uid)
                self._forget(key, before)
            if after is None:
                self._agents.pop(key, None)
                return
            ours = after.spec.scheduler_name == self.scheduler
            if ours and _needs_resolution(after):
                self._ours[after.metadata.uid] = key
                for other in self.devices.use(after, rank_key(after)):
                    self._resolve_again(other)
                after = self._resolved(after)
            if after.over:
                self._usage.leave(after.metadata.uid)
            elif after.spec.node_name:
                self._usage.take(after.metadata.uid, after.spec.node_name, requests_of(after), seen=True)
            if is_agent(after) and after.status.pod_ip and not after.metadata.deletion_timestamp:
                self._agents[key] = (after.spec.node_name, after.status.pod_ip)
            else:
                self._agents.pop(key, None)
            if ours:
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

    # --- claims for devices ------------------------------------------------------------------------------------------

    def device_claim_changed(self, key: str, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        with self.lock:
            self._mark_stale(self.devices.claim_changed(key, before, after))
            for user in self.devices.users(key):
                self._resolve_again(user)

    def slice_changed(self, key: str, before: ResourceSlice | None, after: ResourceSlice | None) -> None:
        with self.lock:
            self._mark_stale(self.devices.slice_changed(key, before, after))
            self._unresolved = True

    def class_changed(self, key: str, _before: DeviceClass | None, after: DeviceClass | None) -> None:
        with self.lock:
            self.devices.class_changed(key, after)
            self._mark_stale(("",))
            self._unresolved = True

    def set_served(self, *, devices: bool, networks: bool) -> None:
        """Record whether the API server has the API of claims for devices, and definitions of networks."""
        with self.lock:
            self._unresolved |= devices != self.devices.served or networks != self._networks_served
            self.devices.served, self._networks_served = devices, networks

    def network_changed(self, key: str, _before: NetworkAttachment | None, after: NetworkAttachment | None) -> None:
        with self.lock:
            if after is None:
                self.networks.pop(key, None)
            else:
                self.networks[key] = after
            self._unresolved = True

    def _resolved(self, pod: Pod) -> Pod:
        """Return the pod with the devices that its claims ask for, and those that its networks need."""
        devices, networks = self.devices.resolve(pod), amounts_of(pod, self.networks) or None
        absent = ""
        if self._networks_served:  # Multus would not start the pod; without Multus the annotation has no effect
            absent = next((key for key in networks_of(pod) if key not in self.networks), "")
        if (devices, networks, absent) == (pod.spec.devices, pod.spec.networks, pod.spec.absent_network):
            return pod
        spec = msgspec.structs.replace(pod.spec, devices=devices, networks=networks, absent_network=absent, asked=None)
        return msgspec.structs.replace(pod, spec=spec)

    def _resolve_again(self, key: str) -> None:
        known = self.pods.get(key)
        if known is None or (pod := self._resolved(known)) is known:
            return
        self.pods[key] = pod
        if pod.spec.node_name and not pod.over:
            self._usage.take(pod.metadata.uid, pod.spec.node_name, requests_of(pod), seen=True)
        self.dirty_gangs |= {key, group_of(pod) or key}

    def is_ours(self, uid: str) -> bool:
        return uid in self._ours

    def is_living(self, uid: str) -> bool:
        pod = self.pods.get(self._ours.get(uid, ""))
        return not pod.over if pod is not None else super().is_living(uid)

    def key_of(self, uid: str) -> str:
        """Return 'NAMESPACE/NAME' of our pod with this uid, if it has claims or networks; '' if there is none."""
        with self.lock:
            return self._ours.get(uid, "")

    def abandoned_claims(self) -> list[tuple[str, str]]:
        """Return (key of a claim, uid of a pod) for each of our pods that has a claim, no node, and no attempt.

        An attempt that ended or whose controller crashed before the binding left them. Claims of pods that are being
        bound are returned by a later call. The claims count as being released until ``claims_released``.
        """
        with self.lock:
            found, later = [], set()
            for key in self.devices.reserved:
                for uid in self.devices.claims[key].consumers:
                    pod = self.pods.get(self._ours.get(uid, ""))
                    if pod is None or pod.spec.node_name or pod.over:
                        continue
                    later.add(key)
                    if self.place_of(uid) is None:
                        found.append((key, uid))
            self.devices.reserved = later
            self.devices.releasing |= {key for key, _ in found}
            return found

    def claims_released(self, keys: Iterable[str]) -> None:
        """Allow the use of these claims, whose release has been tried."""
        with self.lock:
            self.devices.releasing.difference_update(keys)

    def is_releasing_any(self, keys: Iterable[str]) -> bool:
        """Return whether one of these claims is being released."""
        with self.lock:
            return not self.devices.releasing.isdisjoint(keys)

    # --- groups and queues -------------------------------------------------------------------------------------------

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
        self._ours.pop(pod.metadata.uid, None)
        if pod.spec.resource_claims:
            for other in self.devices.forget(pod):
                self._resolve_again(other)
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

    # --- gangs -------------------------------------------------------------------------------------------------------

    def take_dirty(self) -> set[str]:
        """Return the keys of the gangs that have changed since the last call."""
        with self.lock:
            if self._unresolved:  # a request for all devices depends on the slices, and every request on its class
                self._unresolved = False
                for key in [key for key, pod in self.pods.items() if _needs_resolution(pod)]:
                    self._resolve_again(key)
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

    def groups_of_pods(self) -> list[str]:
        """Return the keys of all groups that pods of this scheduler name, whether or not they exist."""
        return list(self._members)

    def probes(self) -> list[Pod]:
        """Return the pods that probe a node."""
        with self.lock:
            return [self.pods[key] for key in self._probes]

    def agents(self) -> dict[str, str]:
        """Return the address of the agent's pod, by node."""
        with self.lock:
            return dict(self._agents.values())


def _needs_resolution(pod: Pod) -> bool:
    """Return whether the pod's requests depend on other objects: its claims, or its networks."""
    return bool(pod.spec.resource_claims) or bool(pod.metadata.annotation(NETWORKS))


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
