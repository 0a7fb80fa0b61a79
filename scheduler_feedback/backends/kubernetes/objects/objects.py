"""Kubernetes objects as partial structs, with only the fields that gangwatch uses, to save memory in large clusters.

Field names and meanings: https://kubernetes.io/docs/reference/kubernetes-api/. Fields that are not listed here are
skipped while decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

import msgspec


class Part(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """Base class of Kubernetes objects and their parts, with the field names of Kubernetes."""


class OwnerReference(Part):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False

    def names_another(self, found: Metadata) -> str:
        """Return why the object of this name is not the owner; '' if it is.

        The uid decides. An object of the same name may have been created after the owner was deleted, and a user may
        create a pod that names another user's object.
        """
        if found.uid == self.uid:
            return ""
        return f"{self.kind} {self.name} has uid {found.uid}, and what it should own names uid {self.uid}"


class Metadata(Part):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None

    def label(self, key: str, default: str = "") -> str:
        return (self.labels or {}).get(key, default)

    def annotation(self, key: str, default: str = "") -> str:
        return (self.annotations or {}).get(key, default)

    @property
    def key(self) -> str:
        """'NAMESPACE/NAME', or 'NAME' without a namespace; interned."""
        return intern(f"{self.namespace}/{self.name}" if self.namespace else self.name)


class Condition(Part):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


# --- nodes -----------------------------------------------------------------------------------------------------------


class Taint(Part):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part):
    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(Part):
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class Node(Part):
    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


# --- pods ------------------------------------------------------------------------------------------------------------


class Resources(Part):
    requests: dict[str, str] | None = None
    limits: dict[str, str] | None = None


class Port(Part):
    host_port: int = 0


class Container(Part):
    name: str = ""
    resources: Resources | None = None
    ports: list[Port] | None = None
    restart_policy: str = ""


class Toleration(Part):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(Part):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(Part):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Part):
    node_selector_terms: list[NodeTerm] = msgspec.field(default_factory=list)


class NodeAffinity(Part):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinity(Part):
    required_during_scheduling_ignored_during_execution: list[Any] | None = None


class Affinity(Part):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SchedulingGate(Part):
    name: str = ""


class SpreadConstraint(Part):
    when_unsatisfiable: str = ""


class ClaimSource(Part):
    claim_name: str = ""


class Reach(Part):
    """Nodes from which a claimed volume can be reached. Computed; not an object of the API."""

    refused: str = ""
    """Reason why the nodes are unknown; '' if they are known."""

    terms: list[NodeTerm] | None = None
    """Terms of the volume's node affinity, one of which must hold; None: reachable from every node."""


class Volume(Part):
    """A volume of a pod."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    reach: Reach | None = None
    """Nodes that can reach the claimed volume; computed, not a field of the object."""


class PodResourceClaim(Part):
    """A claim of a pod for devices: one that exists, or one that is made from a template."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class ClaimMade(Part):
    """Name of the claim that was made from a template; None if the pod needs none."""

    name: str = ""
    resource_claim_name: str | None = None


class Devices(Part):
    """What the claims of a pod ask for. Computed; not an object of the API."""

    claims: tuple[Any, ...] = ()
    """The pod's claims (``pod_claims.PodClaim``)."""
    amounts: dict[str, int] = {}
    """Number of devices that count for this pod, by their signature, and the number of slots among them."""
    missing: bool = False
    """Whether a claim has not been made from its template yet."""
    refused: str = ""
    """Reason why the claims cannot be scheduled; '' if they can."""
    channel: bool = False
    """Whether a claim asks for a channel of a ComputeDomain, so that the gang must lie in one NVLink domain."""


class SchedulingGroup(Part):
    pod_group_name: str = ""


class PodSpec(Part):
    """Specification of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] = msgspec.field(default_factory=list)
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    volumes: list[Volume] | None = None
    priority: int = 0
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int = 30
    scheduling_group: SchedulingGroup | None = None
    asked: Mapping[str, int] | None = None
    """Result of ``quantities.requests_of``, once computed; not a field of the object."""
    devices: Devices | None = None
    """Devices that the pod's claims ask for, once resolved; not a field of the object."""
    networks: dict[str, int] | None = None
    """Devices that the pod's networks need, by extended resource; not a field of the object."""
    absent_network: str = ""
    """'NAMESPACE/NAME' of a network of the pod that does not exist; not a field of the object."""


class Terminated(Part):
    exit_code: int = 0
    finished_at: str | None = None


class Waiting(Part):
    reason: str = ""


class ContainerState(Part):
    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(Part):
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodStatus(Part):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[ClaimMade] | None = None


_MOST_SHARED = 4096
"""Maximum number of lists and mappings that are kept so that equal pods can share them. At the limit all are dropped,
which costs little memory: the API server lists a gang's pods one after the other."""

_shared: dict[tuple[type, bytes], Any] = {}


def _share(parts: Any) -> Any:
    """Return an equal list or mapping that other pods already have, if there is one. Pods of a gang share their parts,
    which saves most of their memory.
    """
    if not parts:
        return parts
    key = type(next(iter(parts))), msgspec.msgpack.encode(parts)
    if len(_shared) > _MOST_SHARED:
        _shared.clear()
    return _shared.setdefault(key, parts)


class Pod(Part):
    """A pod. Its lists and mappings may be shared with other pods: never modify them, make new ones."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def __post_init__(self) -> None:
        metadata, spec, status = self.metadata, self.spec, self.status
        metadata.labels, metadata.annotations = _share(metadata.labels), _share(metadata.annotations)
        metadata.owner_references = _share(metadata.owner_references)
        metadata.namespace = intern(metadata.namespace)
        metadata.creation_timestamp = intern(metadata.creation_timestamp)
        spec.containers, spec.init_containers = _share(spec.containers), _share(spec.init_containers)
        spec.tolerations, spec.volumes = _share(spec.tolerations), _share(spec.volumes)
        spec.node_name, spec.scheduler_name = intern(spec.node_name), intern(spec.scheduler_name)
        status.container_statuses = _share(status.container_statuses)
        status.phase, status.start_time = intern(status.phase), intern(status.start_time)

    @property
    def over(self) -> bool:
        """Whether the pod has ended and holds no resources of its node."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def owner(self) -> OwnerReference | None:
        """The controller that would recreate the pod; None if there is none."""
        return next((owner for owner in self.metadata.owner_references or () if owner.controller), None)


# --- volumes ---------------------------------------------------------------------------------------------------------


class ClaimSpec(Part):
    volume_name: str = ""
    access_modes: list[str] | None = None


class ClaimStatus(Part):
    phase: str = ""


class Claim(Part):
    """A PersistentVolumeClaim of Kubernetes."""

    metadata: Metadata
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class VolumeAffinity(Part):
    required: NodeSelector | None = None


class StoredVolumeSpec(Part):
    node_affinity: VolumeAffinity | None = None


class StoredVolume(Part):
    """A PersistentVolume of Kubernetes."""

    metadata: Metadata
    spec: StoredVolumeSpec = msgspec.field(default_factory=StoredVolumeSpec)


# --- groups, queues, leases ------------------------------------------------------------------------------------------


COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"


class PodGroupSpec(Part):
    min_member: int | None = None


class GroupCondition(Condition):
    last_transition_time: str = ""


class PodGroupStatus(Part):
    phase: str = ""
    conditions: list[GroupCondition] | None = None


class PodGroup(Part):
    """Coscheduling's PodGroup (scheduling.x-k8s.io/v1alpha1), or Kubernetes' own converted to it.

    of_api: its API group and version; not a field of the object. If the least number of pods is 0, each pod is a
    separate gang.
    """

    metadata: Metadata
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
    status: PodGroupStatus = msgspec.field(default_factory=PodGroupStatus)
    of_api: str = COSCHEDULING

    @property
    def path(self) -> str:
        return f"/apis/{self.of_api}/namespaces/{self.metadata.namespace}/podgroups/{self.metadata.name}"


class QueueSpec(Part):
    parent: str = ""
    weight: float = 1.0
    quota: int | None = None
    limit: int | None = None
    borrow: bool = True


class Queue(Part):
    """A queue that an object of gangwatch (queues.gangwatch.io) defines in the cluster."""

    metadata: Metadata
    spec: QueueSpec = msgspec.field(default_factory=QueueSpec)


class LeaseSpec(Part):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Part):
    metadata: Metadata
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
