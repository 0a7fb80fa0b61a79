"""What we read of Kubernetes' objects: partial structs, so that fifty thousand pods cost no more than what we look at.

Field names and meanings: https://kubernetes.io/docs/reference/kubernetes-api/. What is not named here is skipped as the
bytes are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

import msgspec


class Part(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """A part of an object, in Kubernetes' spelling. Nothing in it refers back: no cycles to look for."""


class OwnerReference(Part):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


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
        """'NAMESPACE/NAME', or 'NAME' of what has no namespace; the same string for all who ask."""
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
    """From where a claimed volume can be reached; no object of the API. refused: why that is not known, '' where it is.

    terms: of its node affinity, any of which must hold; None: from everywhere.
    """

    refused: str = ""
    terms: list[NodeTerm] | None = None


class Volume(Part):
    """reach: of a claimed one, written by us; no field of the object."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    reach: Reach | None = None


class SchedulingGroup(Part):
    pod_group_name: str = ""


class PodSpec(Part):
    """asked: what ``quantities.requests_of`` found that the pod asks for, once it was looked for; no field of the
    object."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] = msgspec.field(default_factory=list)
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    resource_claims: list[Any] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    volumes: list[Volume] | None = None
    priority: int = 0
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int = 30
    scheduling_group: SchedulingGroup | None = None
    asked: Mapping[str, int] | None = None


class Terminated(Part):
    exit_code: int = 0


class ContainerState(Part):
    terminated: Terminated | None = None


class ContainerStatus(Part):
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodStatus(Part):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[ContainerStatus] | None = None


_MOST_SHARED = 4096
"""Parts that are kept to be shared: far more than kinds of pod run at once, and a gang's pods are listed together."""

_shared: dict[tuple[type, bytes], Any] = {}


def _share(parts: Any) -> Any:
    """The same list or mapping for pods that have equal ones, as all of a gang do: most of fifty thousand is that."""
    if not parts:
        return parts
    key = type(next(iter(parts))), msgspec.msgpack.encode(parts)
    if len(_shared) > _MOST_SHARED:
        _shared.clear()
    return _shared.setdefault(key, parts)


class Pod(Part):
    """What is in its lists and mappings may be other pods', too: whoever wants to change one makes another."""

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
        """Whether it has ended for good: it holds nothing of its node any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def owner(self) -> OwnerReference | None:
        """The controller that would make it anew, if there is one."""
        return next((owner for owner in self.metadata.owner_references or () if owner.controller), None)


# --- volumes ---------------------------------------------------------------------------------------------------------


class ClaimSpec(Part):
    volume_name: str = ""
    access_modes: list[str] | None = None


class ClaimStatus(Part):
    phase: str = ""


class Claim(Part):
    """PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class VolumeAffinity(Part):
    required: NodeSelector | None = None


class StoredVolumeSpec(Part):
    node_affinity: VolumeAffinity | None = None


class StoredVolume(Part):
    """PersistentVolume."""

    metadata: Metadata
    spec: StoredVolumeSpec = msgspec.field(default_factory=StoredVolumeSpec)


# --- groups, queues, leases ------------------------------------------------------------------------------------------


COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"


class PodGroupSpec(Part):
    min_member: int | None = None
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(Part):
    phase: str = ""
    conditions: list[Condition] | None = None


class PodGroup(Part):
    """Coscheduling's PodGroup (scheduling.x-k8s.io/v1alpha1); or Kubernetes' own, said in its words.

    of_api: group and version that it is served under; no field of the object. A least number of 0: each pod by itself.
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
    """Ours (queues.gangwatch.io): a queue of the cluster."""

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
