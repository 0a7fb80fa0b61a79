"""Objects of dynamic resource allocation (resource.k8s.io/v1) as partial structs.

Source: https://kubernetes.io/docs/reference/kubernetes-api/resource/
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, NodeSelector, OwnerReference, Part

API = "resource.k8s.io/v1"

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Finalizer of an allocated claim (resource/v1 types.go, Finalizer). The claim controller removes it with the
allocation."""

# --- devices ---------------------------------------------------------------------------------------------------------


class DeviceAttribute(Part):
    """Value of an attribute; exactly one field is set."""

    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    text: str | None = msgspec.field(default=None, name="string")
    version: str | None = None


class DeviceCapacity(Part):
    value: str = "0"


class DeviceTaint(Part):
    key: str = ""
    value: str = ""
    effect: str = ""


class DeviceToleration(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Counter(Part):
    value: str = "0"


class CounterSet(Part):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, Counter] | None = None


class CounterConsumption(Part):
    """What a device uses of a set of counters."""

    counter_set: str = ""
    counters: dict[str, Counter] | None = None


class Device(Part):
    """A device of a ResourceSlice."""

    name: str
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    taints: list[DeviceTaint] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    binding_conditions: list[str] | None = None
    allow_multiple_allocations: bool = False
    node_allocatable_resources: dict[str, Any] | None = None


class Pool(Part):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Part):
    driver: str = ""
    pool: Pool = msgspec.field(default_factory=Pool)
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[Device] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(Part):
    """Devices of one pool, as a driver publishes them."""

    metadata: Metadata
    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


# --- classes ---------------------------------------------------------------------------------------------------------


class CelSelector(Part):
    expression: str = ""


class DeviceSelector(Part):
    cel: CelSelector | None = None

    @property
    def expression(self) -> str:
        """The CEL expression; '' for a selector of another kind."""
        return self.cel.expression if self.cel is not None else ""


class ClassSpec(Part):
    selectors: list[DeviceSelector] | None = None
    config: list[dict[str, Any]] | None = None
    extended_resource_name: str = ""


class DeviceClass(Part):
    metadata: Metadata
    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)


# --- claims ----------------------------------------------------------------------------------------------------------


class CapacityRequirements(Part):
    """Amounts of a device's capacities that a request needs, by name, as quantities."""

    requests: dict[str, str] | None = None


class ExactRequest(Part):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None
    derived_attributes: list[Any] | None = None


class SubRequest(ExactRequest):
    """An alternative of a request with `firstAvailable`. It has no admin access."""

    name: str = ""


class DeviceRequest(Part):
    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[SubRequest] | None = None


class DeviceConstraint(Part):
    requests: list[str] | None = None
    match_attribute: str = ""
    distinct_attribute: str = ""


class DeviceClaim(Part):
    requests: list[DeviceRequest] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[dict[str, Any]] | None = None


class ResourceClaimSpec(Part):
    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(Part):
    """Result of one request: a device that the claim has."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class AllocatedDevices(Part):
    results: list[AllocatedDevice] | None = None


class Allocation(Part):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)
    node_selector: NodeSelector | None = None


class Consumer(Part):
    """An object that may use the claim; `resource` is its kind in the plural, such as 'pods'."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""


class ResourceClaimStatus(Part):
    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None


class ClaimMetadata(Metadata):
    finalizers: list[str] | None = None


class ResourceClaim(Part):
    """A ResourceClaim: requests for devices, and the devices that it has."""

    metadata: ClaimMetadata
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def path(self) -> str:
        return claim_path(self.metadata.key)

    @property
    def consumers(self) -> list[str]:
        """Uids of the objects for which the claim is reserved."""
        return [one.uid for one in self.status.reserved_for or ()]

    @property
    def pod_owner(self) -> OwnerReference | None:
        """The pod for which the claim controller made the claim from a template; None for a claim of a user."""
        return next((one for one in self.metadata.owner_references or () if one.controller and one.kind == "Pod"), None)


def claim_path(key: str) -> str:
    """Return the API path of the claim 'NAMESPACE/NAME'."""
    namespace, _, name = key.partition("/")
    return f"/apis/{API}/namespaces/{namespace}/resourceclaims/{name}"
