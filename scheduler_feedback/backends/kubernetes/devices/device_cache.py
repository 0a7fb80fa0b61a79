"""Devices and claims of the cluster, as part of the informer cache. Used under the informer cache's lock.

A device is taken if a claim in the API server has it, or if an attempt of ours is about to write it into a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.devices.allocation import ClaimRequests, Request, allocate, fulfils
from scheduler_feedback.backends.kubernetes.devices.counters import Left
from scheduler_feedback.backends.kubernetes.devices.device_objects import API, DeviceClass, ResourceClaim, ResourceSlice
from scheduler_feedback.backends.kubernetes.devices.inventory import DeviceId, Inventory, Published
from scheduler_feedback.backends.kubernetes.devices.pod_claims import (
    PodClaim,
    allocation_body,
    amounts_of,
    claims_of_pod,
    is_slot_class,
    needs_one_clique,
    requests_in,
)
from scheduler_feedback.backends.kubernetes.devices.selectors import SelectorError
from scheduler_feedback.backends.kubernetes.objects.constraints import holds
from scheduler_feedback.backends.kubernetes.objects.objects import Devices, Node, NodeTerm, Pod
from scheduler_feedback.backends.kubernetes.objects.quantities import DEVICES


@dataclass(slots=True)
class Assumed:
    """Devices that an attempt of ours is about to write into a claim."""

    claim_uid: str
    node: str
    body: dict[str, Any]
    """Value of the claim's `status.allocation`."""
    devices: frozenset[DeviceId]
    pods: set[str] = field(default_factory=set)
    """Uids of the pods that are being bound with the claim."""


class DeviceCache:
    """Devices, device classes and claims; which devices are taken, and which claims our pods use.

    is_living: returns whether a pod with this uid has not ended. is_ours: returns whether gangwatch places the pod with
    this uid.
    """

    def __init__(self, is_living: Callable[[str], bool], is_ours: Callable[[str], bool]) -> None:
        self.inventory = Inventory()
        self.served = True
        """Whether the API server has resource.k8s.io/v1."""
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self._is_living, self._is_ours = is_living, is_ours
        self._taken: dict[DeviceId, str] = {}  # key of the claim that has the device, from the API server
        self._assumed: dict[str, Assumed] = {}  # by the claim's key
        self._pending: set[DeviceId] = set()  # devices of all assumed allocations
        self._users: dict[str, dict[str, tuple[Any, ...]]] = {}  # by claim: our pods, with the key that orders them
        self._signatures: dict[str, Request] = {}  # of the requests of our pods' claims
        self._unsupported: dict[str, str] = {}  # by signature, why no device that matches can be allocated
        self.reserved: set[str] = set()
        """Keys of claims that are reserved for at least one pod and have not been checked since they changed."""
        self.releasing: set[str] = set()
        """Keys of claims that this controller is about to release. No pod is bound with one of them meanwhile."""

    # --- from the watches --------------------------------------------------------------------------------------------

    def slice_changed(self, key: str, before: ResourceSlice | None, after: ResourceSlice | None) -> set[str]:
        """Update the inventory. Return the nodes whose devices may have changed; '' among them means all nodes."""
        self._unsupported.clear()
        return self.inventory.change(key, before, after)

    def class_changed(self, key: str, after: DeviceClass | None) -> None:
        self._unsupported.clear()
        if after is None:
            self.classes.pop(key, None)
        else:
            self.classes[key] = after

    def claim_changed(self, key: str, before: ResourceClaim | None, after: ResourceClaim | None) -> set[str]:
        """Update a claim and its devices. Return the nodes on which it has or had devices."""
        nodes: set[str] = set()
        if before is not None:
            nodes |= _nodes_of(before)
            for device in devices_of(before):
                if self._taken.get(device) == key:
                    del self._taken[device]
        if after is None:
            self.claims.pop(key, None)
            self._drop(key)
            self.reserved.discard(key)
            return nodes
        self.claims[key] = after
        for device in devices_of(after):
            self._taken[device] = key
        assumed = self._assumed.get(key)
        if assumed is not None and (after.status.allocation is not None or assumed.claim_uid != after.metadata.uid):
            self._drop(key)
        if after.status.reserved_for:
            self.reserved.add(key)
        return nodes | _nodes_of(after)

    # --- pods --------------------------------------------------------------------------------------------------------

    def use(self, pod: Pod, order: tuple[Any, ...]) -> set[str]:
        """Record the claims of our pod. order: key by which pods that share a claim are ordered.

        Return the keys of our other pods that share a claim with it: their amounts may change.
        """
        others: set[str] = set()
        for claim in (claims_of_pod(pod) or {}).values():
            users = self._users.setdefault(claim, {})
            if pod.metadata.key not in users:
                others |= users.keys()
            users[pod.metadata.key] = order
        return others

    def forget(self, pod: Pod) -> set[str]:
        """Forget the claims of our pod. Return the keys of our other pods that shared a claim with it."""
        others: set[str] = set()
        for claim in (claims_of_pod(pod) or {}).values():
            users = self._users.get(claim, {})
            users.pop(pod.metadata.key, None)
            others |= users.keys()
            if not users:
                self._users.pop(claim, None)
        return others

    def users(self, claim: str) -> set[str]:
        """Return the keys of our pods that use the claim."""
        return set(self._users.get(claim, ()))

    def resolve(self, pod: Pod) -> Devices | None:
        """Return what the pod's claims ask for; None if it has no claims."""
        if not pod.spec.resource_claims:
            return None
        if not self.served:
            return Devices(refused=f"its claims need {API}, which the API server serves from Kubernetes 1.34 on")
        names = claims_of_pod(pod)
        if names is None:
            return Devices(missing=True)
        found: list[PodClaim] = []
        for key in names.values():
            claim = self.claims.get(key)
            if claim is None or ((owner := claim.pod_owner) is not None and owner.uid != pod.metadata.uid):
                made = not any(one.resource_claim_name == key.partition("/")[2] for one in pod.spec.resource_claims)
                if made:  # the watch of claims lags behind that of pods
                    return Devices(missing=True)
                return Devices(refused=f"claim {key.partition('/')[2]} does not exist, or is that of another pod")
            try:
                found.append(self._pod_claim(pod, key, claim))
            except BackendError as error:
                return Devices(refused=f"claim {claim.metadata.name}: {error}")
        try:
            amounts = amounts_of((one.requests for one in found if one.counted), self.classes, self._count_of_all)
        except BackendError as error:
            return Devices(refused=f"its claims: {error}")
        for one in found:
            self._signatures.update({request.signature: request for request in one.requests.requests})
        return Devices(tuple(found), amounts, channel=needs_one_clique(found))

    def _pod_claim(self, pod: Pod, key: str, claim: ResourceClaim) -> PodClaim:
        requests = requests_in(claim, self.classes)
        if claim.status.allocation is None and (why := self._why_unsupported(requests)):
            raise BackendError(why)
        living = [uid for uid in claim.consumers if uid != pod.metadata.uid and self._is_living(uid)]
        users = self._users.get(key, {})
        first = min(users, key=lambda name: (users[name], name), default=pod.metadata.key) == pod.metadata.key
        reach: tuple[NodeTerm, ...] | None = None
        allocation = claim.status.allocation
        joins = living and pod.metadata.uid not in claim.consumers
        if joins and allocation is not None and allocation.node_selector is not None:
            reach = tuple(allocation.node_selector.node_selector_terms)
        return PodClaim(key, requests, counted=first and all(map(self._is_ours, living)), reach=reach)

    def _why_unsupported(self, requests: ClaimRequests) -> str:
        """Return which request only devices match that gangwatch does not allocate, and why not; '' if there is none.

        A request that no device matches waits for a driver that publishes one.
        """
        for request in requests.requests:
            key = request.signature
            if key not in self._unsupported:
                why = next((why for one, why in self.inventory.unusable() if self._fulfils(request, one)), "")
                if why and any(self._fulfils(request, one) for one in self.inventory.usable()):
                    why = ""
                self._unsupported[key] = why
            if why := self._unsupported[key]:
                return (
                    f"request {request.name}: only devices of class {request.device_class} match that gangwatch does "
                    f"not allocate: each {why}"
                )
        return ""

    def _count_of_all(self, request: Request) -> int:
        """Return how many devices of a node match a request for all. Raises BackendError if nodes differ."""
        counts = {
            count
            for devices in self.inventory.per_node()
            if (count := sum(1 for one in devices if fulfils(request, one, self.classes)))
        }
        if len(counts) > 1:
            raise BackendError(
                f"request {request.name} asks for all devices of class {request.device_class}, "
                f"of which nodes have different numbers: {', '.join(map(str, sorted(counts)))}"
            )
        return counts.pop() if counts else 1

    # --- nodes -------------------------------------------------------------------------------------------------------

    def amounts(self, node: Node) -> dict[str, int]:
        """Return the number of the node's devices that our pods may have, by signature; and how many are slots.

        Devices of claims of others are not included, devices of our own pods are.
        """
        if not self.inventory:
            return {}
        devices = [one for one in self.inventory.devices_on(node) if not self._is_of_others(one.id)]
        if not devices:
            return {}
        slots = [Request("", name, ()) for name, declared in self.classes.items() if is_slot_class(declared)]
        found = {
            signature: self._count(node, [one for one in devices if self._fulfils(request, one)])
            for signature, request in self._signatures.items()
        }
        found[DEVICES] = self._count(
            node, [one for one in devices if any(self._fulfils(request, one) for request in slots)]
        )
        return found

    def _count(self, node: Node, devices: list[Published]) -> int:
        """Return how many of these devices of the node our pods have or could get together.

        Those that share counters count if one of our pods has them, or as far as the counters are left.
        """
        sharing = [one for one in devices if one.uses]
        if not sharing:
            return len(devices)
        free = [one for one in sharing if not self._is_taken(one.id)]
        count = len(devices) - len(free)
        return count + self._left(node).together(free)

    def _is_taken(self, device: DeviceId) -> bool:
        return device in self._taken or device in self._pending

    def _left(self, node: Node) -> Left:
        """Return what is left of the counters that devices of the node share."""
        name = node.metadata.name
        taken = (one for one in self.inventory.sharing_on(name) if self._is_taken(one.id))
        return Left(self.inventory.counters_on(name), taken)

    def _fulfils(self, request: Request, device: Published) -> bool:
        try:
            return fulfils(request, device, self.classes)
        except SelectorError:  # the claims that use the class are refused
            return False

    def _is_of_others(self, device: DeviceId) -> bool:
        """Return whether a living consumer that is not ours has the device.

        The claim controller frees the devices of consumers that have ended within a moment.
        """
        key = self._taken.get(device)
        claim = self.claims.get(key) if key is not None else None
        if claim is None:
            return False
        return any(
            one.resource != "pods" or (self._is_living(one.uid) and not self._is_ours(one.uid))
            for one in claim.status.reserved_for or ()
        )

    # --- allocation --------------------------------------------------------------------------------------------------

    def assume(self, pod: Pod, node: Node, *, adopts: bool = False) -> str:
        """Choose devices of the node for the pod's claims and take them. Return '' or why that is not possible.

        adopts: whether to keep devices that an interrupted start has written into the pod's claims.
        """
        resolved = pod.spec.devices
        if resolved is None:
            return ""
        new: list[PodClaim] = []
        for one in resolved.claims:
            if why := self._joins(one, node):
                return why
            claim = self.claims[one.key]
            if one.key not in self._assumed and pod.metadata.uid in claim.consumers and not adopts:
                return f"claim {claim.metadata.name} still has the devices of an earlier attempt"
            if one.key not in self._assumed and claim.status.allocation is None:
                new.append(one)
        devices = self.inventory.devices_on(node) if new else []
        taken = {one.id for one in devices if self._is_taken(one.id)}
        found = allocate([one.requests for one in new], devices, taken, self.classes, self._left(node) if new else None)
        if isinstance(found, str):
            pool = self.inventory.updating_on(node)
            return f"{found} (pool {pool} is being updated)" if pool else found
        for number, one in enumerate(new):
            claim, chosen = self.claims[one.key], [choice for choice in found if choice.claim == number]
            self._assumed[one.key] = Assumed(
                claim.metadata.uid,
                node.metadata.name,
                allocation_body(claim, chosen, self.classes),
                frozenset(choice.device.id for choice in chosen if not choice.request.admin),
            )
            self._pending |= self._assumed[one.key].devices
        for one in resolved.claims:
            if one.key in self._assumed:
                self._assumed[one.key].pods.add(pod.metadata.uid)
        return ""

    def _joins(self, one: PodClaim, node: Node) -> str:
        """Return why the pod cannot use the devices on this node that the claim already has; '' if it can."""
        name = one.key.partition("/")[2]
        claim, assumed = self.claims.get(one.key), self._assumed.get(one.key)
        if claim is None:
            return f"claim {name} does not exist any more"
        if assumed is not None and assumed.node != node.metadata.name:
            selector = assumed.body.get("nodeSelector")
            return f"claim {name} gets devices on {assumed.node}" if selector is not None else ""
        allocation = claim.status.allocation
        if assumed is not None or allocation is None:
            return ""
        if not any(map(self._is_living, claim.consumers)):
            return f"claim {name} still has the devices of pods that have ended"
        terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else None
        if terms is not None and not any(holds(term, node) for term in terms):
            return f"claim {name} has devices on other nodes"
        return ""

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        names = (claims_of_pod(pod) or {}).values()
        return [claim for key in names if (claim := self.claims.get(key)) is not None]

    def _drop(self, claim: str) -> None:
        if (assumed := self._assumed.pop(claim, None)) is not None:
            self._pending -= assumed.devices

    def unassume(self, uid: str) -> set[str]:
        """Give back what was taken for the pod with this uid and is not in the API server. Return the nodes."""
        nodes: set[str] = set()
        for key, one in list(self._assumed.items()):
            one.pods.discard(uid)
            if not one.pods:
                nodes.add(one.node)
                self._drop(key)
        return nodes

    def claims_for(self, uids: Collection[str]) -> list[tuple[str, str]]:
        """Return (key of a claim, uid) for each claim that these pods have, or are about to get."""
        found = [(key, uid) for key, one in self._assumed.items() for uid in one.pods if uid in uids]
        for key in self.reserved:
            found += [(key, uid) for uid in self.claims[key].consumers if uid in uids]
        return sorted(set(found))

    def assumed(self, claim: str) -> dict[str, Any] | None:
        """Return the allocation to write into the claim; None if none is taken for it."""
        found = self._assumed.get(claim)
        return found.body if found is not None else None

    def is_releasing(self, pod: Pod, node: Node) -> bool:
        """Return whether the node has devices of claims whose consumers have all ended, or the pod those of an attempt.

        Both are freed within a moment: by the claim controller, and by this controller (``abandoned_claims``).
        """
        if any(pod.metadata.uid in claim.consumers for claim in self._claims_of(pod)):
            return True
        for one in self.inventory.devices_on(node):
            claim = self.claims.get(self._taken.get(one.id, ""))
            if claim is not None and not any(map(self._is_living, claim.consumers)):
                return True
        return False


def devices_of(claim: ResourceClaim) -> Iterable[DeviceId]:
    """Return the devices that the claim has. A device that it has only for administration is not taken by it."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else None
    return [DeviceId(one.driver, one.pool, one.device) for one in results or () if not one.admin_access]


def _nodes_of(claim: ResourceClaim) -> set[str]:
    """Return the nodes of the claim's devices; '' among them if other nodes may have them, too."""
    allocation = claim.status.allocation
    if allocation is None:
        return set()
    selector = allocation.node_selector
    if selector is None:
        return {""}
    names: set[str] = set()
    for term in selector.node_selector_terms:
        values = [value for one in term.match_fields or () for value in one.values or ()]
        names |= set(values) or {""}
    return names
