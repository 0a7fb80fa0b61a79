"""The Kubernetes backend: carries out the cycle's decisions about gangs over the API server, and reports the results.

The cycle's thread calls it; a thread with an event loop watches and writes. They share the informer cache,
the attempts (under its lock) and a list of events. ``apply`` and ``observe`` use only these, so neither waits for the
API server.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.attempts.attempt_lifecycle import AttemptLifecycle
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import (
    UNKNOWN_FAILURE,
    Attempt,
    Member,
    Phase,
    adopt,
    continues,
    last_attempt,
    place_of,
    rejected,
    renumbered,
    requests_by_node,
    scan_attempt,
)
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import is_probe
from scheduler_feedback.backends.kubernetes.cluster_backend import ClusterBackend
from scheduler_feedback.backends.kubernetes.devices.device_objects import API as DEVICES_API
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceClaim, ResourceSlice
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.objects.constraints import constraint_of
from scheduler_feedback.backends.kubernetes.objects.networks import API as NETWORKS_API
from scheduler_feedback.backends.kubernetes.objects.networks import NetworkAttachment
from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Node, Pod, PodGroup, Queue, StoredVolume
from scheduler_feedback.backends.kubernetes.objects.translate import (
    BEYOND,
    NETWORK_CLASS,
    Gang,
    group_of,
    is_complete,
    resource_of,
    slots_of,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API, UpstreamGroup
from scheduler_feedback.backends.kubernetes.published.rebuild import resumed
from scheduler_feedback.core.actions import Action, StartGang
from scheduler_feedback.core.events import (
    AttemptUnknown,
    CancelRequested,
    Event,
    NodeSeen,
    RankFailed,
    Submitted,
)
from scheduler_feedback.core.job import JobKind
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.intake.job_admission import unknown_queue
from scheduler_feedback.policies.network.network_class import VARIABLE

PATHS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "podgroups": "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    "upstream": f"/apis/{API}/podgroups",
    "claims": "/api/v1/persistentvolumeclaims",
    "volumes": "/api/v1/persistentvolumes",
    "queues": "/apis/gangwatch.io/v1alpha1/queues",
    "slices": f"/apis/{DEVICES_API}/resourceslices",
    "classes": f"/apis/{DEVICES_API}/deviceclasses",
    "networks": f"/apis/{NETWORKS_API}/network-attachment-definitions",
    "device_claims": f"/apis/{DEVICES_API}/resourceclaims",
}


_DELETED = "the API server, where the gang was deleted"
_CLAIMS = ("abandoned claims", 0)
"""Key of the work that frees the devices of abandoned claims."""


class KubernetesBackend(ClusterBackend):
    """Backend for Kubernetes. ``stop`` leaves every pod unchanged."""

    def __init__(self, folder: Path, settings: KubernetesSettings) -> None:
        super().__init__(folder, settings, settings.scheduler)
        self._may_act, self._probes = settings.may_act, settings.probes
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._gangs: dict[str, Gang] = {}  # by key, as of the last scan
        self._submitted: dict[str, str] = {}  # key -> job id that the core has
        self._keys: dict[str, str] = {}  # job id -> key
        self._slots_now: dict[str, int] = {}  # slots of changed nodes, for the attempts on them
        self._last_pods: dict[str, list[Pod]] = {}  # by job id: its latest pods, which name their owners
        self._events: list[Event] = []
        self._changed: set[tuple[str, int]] = set()  # attempts to scan
        self._by_gang: dict[str, tuple[str, int]] = {}  # newest attempt, by the gang's key
        self._without_queue: set[str] = set()  # keys of gangs that are not submitted, because their queue is unknown
        self._queues_checked: frozenset[str] = frozenset()  # the queues when these gangs were last checked
        self._lifecycle = AttemptLifecycle(self._connection, self.cache, self._emit, self._queue_scan, self._last_pods)

    @property
    def watches(self) -> Mapping[str, Watch[Any]]:
        return self._connection.watches

    def _watching(self, client: Client) -> dict[str, Watch[Any]]:
        cache = self.cache
        watches: dict[str, Watch[Any]] = {
            "nodes": Watch(client, PATHS["nodes"], Node, cache.node_changed),
            "pods": Watch(client, PATHS["pods"], Pod, cache.pod_changed),
            "claims": Watch(client, PATHS["claims"], Claim, cache.claim_changed),
            "volumes": Watch(client, PATHS["volumes"], StoredVolume, cache.volume_changed),
            "podgroups": Watch(client, PATHS["podgroups"], PodGroup, cache.group_changed, optional=True),
            "queues": Watch(client, PATHS["queues"], Queue, cache.queue_changed, optional=True),
            "slices": Watch(client, PATHS["slices"], ResourceSlice, cache.slice_changed, optional=True),
            "classes": Watch(client, PATHS["classes"], DeviceClass, cache.class_changed, optional=True),
            "networks": Watch(client, PATHS["networks"], NetworkAttachment, cache.network_changed, optional=True),
            "device_claims": Watch(
                client, PATHS["device_claims"], ResourceClaim, cache.device_claim_changed, optional=True
            ),
        }
        if self._settings.upstream_groups:
            watches["upstream"] = Watch(client, PATHS["upstream"], UpstreamGroup, cache.upstream_changed, optional=True)
        return watches

    def _once_synced(self) -> list[Coroutine[Any, Any, None]]:
        return [self._lifecycle.resume_left()]

    def _queue_scan(self, attempt: Attempt) -> None:
        with self.cache.lock:
            self._changed.add((attempt.job_id, attempt.number))

    def _emit(self, event: Event) -> None:
        with self.cache.lock:
            self._events.append(event)

    # --- Backend -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSeen]:
        self._connection.check()
        with self.cache.lock:
            self._slots_now |= {node.node: node.slots for node in self.cache.seen_changes()}
            return self.cache.seen()

    def apply(self, action: Action) -> None:
        self._connection.check()
        key = (action.job_id, action.attempt)
        with self.cache.lock:
            attempt = self._attempts.get(key)
            if isinstance(action, StartGang):
                if attempt is None:
                    attempt = self._adopted(key, action)
                    if attempt is None:
                        attempt = self._begin(key, action)
                    attempt.action_id = action.action_id
                return
            if attempt is None:
                return  # nothing is left to stop: ``observe`` reports it
            if attempt.phase is Phase.STOPPING:
                return
            attempt.phase, attempt.why_stopped = Phase.STOPPING, action.why.value
        self._connection.go(key, self._lifecycle.stop(attempt, action))

    def _begin(self, key: tuple[str, int], action: StartGang) -> Attempt:
        attempt = Attempt(*key, self._key_of(key), action.placement, probe=action.spec.kind is JobKind.PROBE)
        attempt.network_class = action.spec.environment.get(VARIABLE, "")
        if not attempt.probe:
            if (gang := self._gangs.get(attempt.key)) is not None:  # so that the nodes' next report includes it
                self.cache.plan(key, requests_by_node(gang.pods, action.placement))
            self._connection.go(key, self._lifecycle.start(attempt, action))
        else:
            node = self.cache.nodes.get(action.placement[0].node)
            if self._probes is None or node is None or not resource_of(node):
                raise BackendError(
                    "the node cannot be probed: it is gone, no probe image is configured, or only claims get its GPUs"
                )
            pod = self._probes.pod(action, resource_of(node))
            self._connection.go(key, self._lifecycle.start_probe(attempt, action, pod))
        self._take_up(attempt)
        return attempt

    def _key_of(self, key: tuple[str, int]) -> str:
        """Return the key of the gang of this attempt (job id, number).

        For a job that is no known gang, return the key of its probe pod, or '' if there are no probes.
        """
        known = self._keys.get(key[0], "")
        return known if known or self._probes is None else self._probes.key_of(*key)

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        self._connection.check()
        with self.cache.lock:
            if (claims := self.watches.get("device_claims")) and (networks := self.watches.get("networks")):
                self.cache.set_served(devices=not claims.absent, networks=not networks.absent)
            gangs = self._scan_gangs()
            events = self._scan_nodes()  # before the gangs: nodes then carry the gangs' constraints
            events += gangs
            # Most of thousands of held attempts have not changed, so only the changed ones are scanned.
            held = set(holding)
            events += [AttemptUnknown(*key) for key in held - self._attempts.keys() if self._adopted(key) is None]
            for key in self._changed & held:
                self._changed.discard(key)
                if (attempt := self._attempts.get(key)) is not None:
                    events += self._scan(key, attempt)
            for key in self._attempts.keys() - held:
                if not self._connection.busy(key):
                    self._drop(key)
            self._clear_probes()
            self._clear_claims()
            events += self._events
            self._events = []
            return events

    def _clear_probes(self) -> None:
        """Delete probe pods that the cycle does not have: pods of ended probes, and of an earlier controller."""
        for pod in self.cache.probes():
            key = (pod.metadata.uid, 0)
            if pod.metadata.key in self._by_gang or pod.metadata.deletion_timestamp or self._connection.busy(key):
                continue
            if self._may_act():
                self._connection.go(key, self._lifecycle.delete_probe(pod))

    def _clear_claims(self) -> None:
        """Free the devices of claims that an ended attempt, or an earlier controller, has written for unbound pods."""
        if not self._may_act() or self._connection.busy(_CLAIMS):
            return
        if abandoned := self.cache.abandoned_claims():
            self._connection.go(_CLAIMS, self._lifecycle.release_abandoned(abandoned))

    def _scan_nodes(self) -> list[Event]:
        """Return events for changed nodes, and for gangs that get new slot numbers because their old ones are gone."""
        changed = self.cache.seen_changes()
        slots = self._slots_now | {node.node: node.slots for node in changed}
        self._slots_now = {}
        return [*changed, *renumbered(self._attempts.values(), slots)] if slots else []

    # --- gangs -------------------------------------------------------------------------------------------------------

    def gangs(self) -> list[Gang]:
        """Return all gangs, as of the last scan."""
        with self.cache.lock:
            return list(self._gangs.values())

    def _scan_gangs(self) -> list[Event]:
        """Submit new gangs and cancel deleted ones."""
        events: list[Event] = []
        marked = self.cache.take_dirty() | self._take_without_queue()
        dirty = [key for key in sorted(marked, reverse=True) if not self._is_of_group(key)]
        while dirty:
            key = dirty.pop()
            if key in self._by_gang:
                self._changed.add(self._by_gang[key])
            gang = self.cache.gang(key)
            submitted = self._submitted.get(key)
            if gang is None or (submitted is not None and submitted != gang.job_id):
                self._gangs.pop(key, None)
                if submitted is not None:
                    events += self._ended_before(key)
                    del self._submitted[key]
                    self._keys.pop(submitted, None)
                    self._last_pods.pop(submitted, None)
                    events.append(CancelRequested(submitted, _DELETED))
            if gang is None:
                self._without_queue.discard(key)
                continue
            if gang.spec is not None and key not in self._submitted and (why := self._unknown_queue(gang.spec.queue)):
                self._without_queue.add(key)
                if gang.spec.queue in self.cache.queues:
                    continue  # a new queue, which the cycle gets first: it may have a limit
                gang = replace(gang, spec=None, refused=why)
            self._gangs[key], self._keys[gang.job_id] = gang, key
            dirty += [pod.metadata.key for pod in gang.beyond if pod.metadata.key not in self._gangs]
            if gang.constraint is not None:
                self.cache.want(gang.constraint, min(count for pod in gang.pods if (count := slots_of(pod))))
            if gang.spec is not None:
                self._last_pods[gang.job_id] = list(gang.pods)
                if key not in self._submitted:
                    self._submitted[key] = gang.job_id
                    number = last_attempt(self.cache.groups.get(key), self.cache.pods_of(key), gang.job_id)
                    events.append(Submitted(gang.job_id, gang.spec, gang.array_of, gang.array_index, attempt=number))
        return events

    def _unknown_queue(self, queue: str) -> str | None:
        """Return why a new gang cannot have this queue; None if it can. The policy has the queues of the cluster."""
        return unknown_queue(self._queue_names, queue)

    def _take_without_queue(self) -> set[str]:
        """Return the gangs whose queue did not exist, if the queues have changed since; else nothing."""
        if self._queues_checked == self._queue_names:
            return set()
        self._queues_checked = self._queue_names
        waiting, self._without_queue = self._without_queue, set()
        return waiting

    def _ended_before(self, key: str) -> list[Event]:
        """Return the end of a deleted gang's attempt if all of its pods have ended by themselves.

        An operator that makes the PodGroup deletes it when the pods have succeeded; the gang is then not cancelled.
        """
        attempt = self._attempts.get(self._by_gang.get(key, ("", 0)))
        if attempt is None or attempt.phase is not Phase.BOUND:
            return []
        pods = {pod.metadata.uid: pod for pod in self.cache.pods_of(key)}
        if not all(
            (pod := pods.get(member.uid)) and pod.over and not pod.metadata.deletion_timestamp
            for member in attempt.members
        ):
            return []
        self._changed.discard((attempt.job_id, attempt.number))
        return scan_attempt(attempt, pods)

    def _is_of_group(self, key: str) -> bool:
        """Return whether this is a pod that only its group may make a gang of one, and has not.

        A change of its volumes marks the pod itself, too.
        """
        pod = self.cache.pods.get(key)
        if pod is None or not group_of(pod) or pod.metadata.annotation(BEYOND):
            return False
        return key not in self._gangs and key not in self._submitted

    def know(self, job_id: str, key: str) -> None:
        """Record a gang that the cycle already has, because its state was rebuilt from the API's objects."""
        with self.cache.lock:
            self._submitted[key], self._keys[job_id] = job_id, key

    def resume(self, state: State) -> None:
        """Record the gangs of the journal, and cancel those that were deleted while no controller ran.

        Their attempts are adopted until their pods are gone: another gang may have the name now.
        """
        existing, deleted = resumed(self.cache, state.jobs.values())
        for job_id, key in existing.items():
            self.know(job_id, key)
        for job_id in deleted:
            with self.cache.lock:
                self._keys[job_id] = state.jobs[job_id].spec.command[0]
            self._emit(CancelRequested(job_id, _DELETED))

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _adopted(self, key: tuple[str, int], start: StartGang | None = None) -> Attempt | None:
        """Return the attempt that an earlier controller began, from the API's objects; None if there is none.

        start: the action that is carried out; an attempt that is not its result is not adopted.
        """
        gang_key = self._key_of(key)
        if not gang_key:
            return None
        places = ((pod, self.cache.place_of(pod.metadata.uid)) for pod in self.cache.pods_of(gang_key))
        pods = [pod for pod, place in places if place is None or place.gang == key[0]]
        attempt = adopt(*key, gang_key, pods, self.cache.groups.get(gang_key))
        if attempt is None or (start is not None and not continues(attempt, pods, start.placement)):
            return None
        attempt.probe = any(is_probe(pod) for pod in pods)
        attempt.beyond = any(pod.metadata.key == gang_key and group_of(pod) for pod in pods)
        attempt.network_class = max((pod.metadata.annotation(NETWORK_CLASS) for pod in pods), default="")
        self._take_up(attempt)
        self._lifecycle.hold(attempt)
        if attempt.phase is Phase.BINDING:
            by_uid = {pod.metadata.uid: pod for pod in pods}
            for member in attempt.members:
                if member.uid and not member.bound:
                    self.cache.assume(by_uid[member.uid], member.node, adopts=True)  # without devices the binding fails
            self._connection.go(key, self._lifecycle.bind(attempt))
        return attempt

    def _take_up(self, attempt: Attempt) -> None:
        key = (attempt.job_id, attempt.number)
        self._attempts[key], self._by_gang[attempt.key] = attempt, key
        self._changed.add(key)

    def _drop(self, key: tuple[str, int]) -> None:
        attempt = self._attempts.pop(key)
        self.cache.unplan(key, {slot.node for slot in attempt.placement})
        self._changed.discard(key)
        if self._by_gang.get(attempt.key) == key:
            del self._by_gang[attempt.key]
        gang = self._gangs.get(attempt.key)
        if attempt.job_id not in (self._submitted.get(attempt.key), gang and gang.job_id):
            self._keys.pop(attempt.job_id, None)
        for member in attempt.members:
            self.cache.release(member.uid, place_of(attempt, member))

    def _scan(self, key: tuple[str, int], attempt: Attempt) -> list[Event]:
        if attempt.phase is not Phase.BOUND:
            return []
        pods = {pod.metadata.uid: pod for pod in self.cache.pods_of(attempt.key)}
        # The cache may not show yet that a pod is bound; but a pod that is missing from it is gone.
        if not attempt.reported and (why := rejected(attempt, pods)):
            attempt.phase, attempt.failure = Phase.UNDOING, why
            self._connection.go(key, self._lifecycle.undo(attempt))
            return []
        events = scan_attempt(attempt, pods)
        if attempt.phase is Phase.BOUND and any(member.hole for member in attempt.members):
            events += self._fill_holes(key, attempt, pods)
        return events

    def _fill_holes(self, key: tuple[str, int], attempt: Attempt, pods: dict[str, Pod]) -> list[Event]:
        """Bind replacement pods in the places of lost pods.

        If the node of a place takes the pod no longer, for example because it is drained, the gang must be placed
        again: return the failure of the lost pod's rank, or undo a start. The pods of another gang of the same name,
        whose group was deleted and created again, are no replacements.
        """
        gang = self._gangs.get(attempt.key)
        if gang is None or gang.job_id != attempt.job_id:
            return []
        taken = {member.uid for member in attempt.members}
        fresh = [
            pod
            for pod in pods.values()
            if pod.metadata.uid not in taken
            and self.cache.place_of(pod.metadata.uid) is None
            and not pod.over
            and not pod.spec.node_name
            and is_complete(pod)
            and not pod.metadata.deletion_timestamp
        ]
        for member in attempt.members:
            if not member.hole:
                continue
            name = member.name
            same = [pod for pod in fresh if slots_of(pod) == len(member.ranks)]
            found = next((pod for pod in same if pod.metadata.key == name), None) or next(iter(same), None)
            if found is None:
                continue
            if why := self.cache.why_not(constraint_of(found), member.node):
                return self._place_again(key, attempt, member, why)
            if why := self.cache.assume(found, member.node):
                if self.cache.is_releasing(found, member.node):
                    continue  # the lost pod still has its devices; the change of their claim is seen again
                return self._place_again(key, attempt, member, why)
            fresh.remove(found)
            self.cache.dirty_gangs.add(found.metadata.key)  # until now it may have been one more than the gang needs
            member.name, member.uid, member.bound = found.metadata.key, found.metadata.uid, False
            self.cache.hold(member.uid, place_of(attempt, member))
            work = self._lifecycle.bind_in_place(attempt, member)
            self._connection.go((f"{key[0]}/{member.ranks.start}", key[1]), work)
        return []

    def _place_again(self, key: tuple[str, int], attempt: Attempt, member: Member, why: str) -> list[Event]:
        if attempt.failure:
            return []  # reported already
        attempt.failure = f"pod {member.name} was lost, and {member.node} takes no other: {why}"
        if attempt.reported:
            return [RankFailed(*key, member.ranks.start if len(member.ranks) else 0, UNKNOWN_FAILURE)]
        attempt.phase = Phase.UNDOING
        self._connection.go(key, self._lifecycle.undo(attempt))
        return []
