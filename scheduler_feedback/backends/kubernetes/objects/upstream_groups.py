"""Kubernetes' own gang API (scheduling.k8s.io, feature gate GenericWorkload), converted to coscheduling's groups.

The PodGroup of this API means the same as that of coscheduling, but has other fields: a least number of pods at once
(policy gang), or each pod on its own (policy basic). With TopologyAwareWorkloadScheduling a group can also require one
domain of a node label. Source: k8s.io/api/scheduling/v1beta1, types.go, of Kubernetes 1.37. Other versions are not
supported.
"""

from __future__ import annotations

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import (
    Metadata,
    Part,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
)
from scheduler_feedback.backends.kubernetes.objects.translate import REQUIRED_TOPOLOGY, TopologyLabels

API = "scheduling.k8s.io/v1beta1"


class Gang(Part):
    min_count: int = 1


class SchedulingPolicy(Part):
    gang: Gang | None = None


class TopologyConstraint(Part):
    key: str = ""


class Constraints(Part):
    topology: list[TopologyConstraint] | None = None


class UpstreamSpec(Part):
    scheduling_policy: SchedulingPolicy = msgspec.field(default_factory=SchedulingPolicy)
    scheduling_constraints: Constraints | None = None


class UpstreamGroup(Part):
    metadata: Metadata
    spec: UpstreamSpec = msgspec.field(default_factory=UpstreamSpec)
    status: PodGroupStatus = msgspec.field(default_factory=PodGroupStatus)


def as_group(group: UpstreamGroup, labels: TopologyLabels) -> PodGroup:
    """Convert the group. An unknown topology becomes a level of that name, which is refused later."""
    gang = group.spec.scheduling_policy.gang
    constraints = group.spec.scheduling_constraints
    required = [one.key for one in (constraints.topology if constraints is not None else None) or ()]
    metadata = group.metadata
    if required:
        level = _levels(labels).get(required[0], required[0]) if len(required) == 1 else " and ".join(required)
        annotations = {**(metadata.annotations or {}), REQUIRED_TOPOLOGY: level}
        metadata = msgspec.structs.replace(metadata, annotations=annotations)
    least = gang.min_count if gang is not None else 0
    return PodGroup(metadata, PodGroupSpec(min_member=least), group.status, of_api=API)


def _levels(labels: TopologyLabels) -> dict[str, str]:
    """Return the network level (such as 'rack') of each node label that names a node's place in the network."""
    by_label = {
        labels.spine: "spine",
        labels.rack: "rack",
        labels.rail: "rail",
        labels.island: "island",
        "kubernetes.io/hostname": "node",
    }
    return {key: level for key, level in by_label.items() if key}
