"""Constraints on a pod's nodes: selectors, required node affinity, taints; and refusal of unsupported ones. No I/O.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and .../taint-and-toleration/
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import (
    Affinity,
    Node,
    NodeTerm,
    Pod,
    Requirement,
    Taint,
    Toleration,
)
from scheduler_feedback.backends.kubernetes.objects.quantities import DEVICES, requests_of

OURS = "gangwatch.io/"
"""Prefix of every label, annotation and taint that we write."""

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_GPU = "nvidia.com/gpu"
_MIG = "nvidia.com/mig-"
SHARED = "nvidia.com/gpu.shared"
"""Resource of the replicas of shared GPUs (time slices or MPS), if NVIDIA's device plug-in renames them
(`renameByDefault`). Without the new name, the replicas count as whole GPUs."""


def is_accelerator(resource: str) -> bool:
    """Return whether the units of the resource are slots: whole GPUs, MIG profiles, replicas of shared GPUs,
    and such devices of claims."""
    return resource in (_GPU, SHARED, DEVICES) or resource.startswith(_MIG)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Conditions that a node must meet for a pod; gangs with equal conditions share one Constraint."""

    name: str
    """Name of the constraint: a digest of its other fields."""

    resource: str
    """Name of the accelerator's resource, for example 'nvidia.com/gpu'."""

    selector: tuple[tuple[str, str], ...]
    """Labels that the node must have."""

    terms: tuple[NodeTerm, ...] | None
    """Terms of the required node affinity. The node must meet one of them; None: no required affinity."""

    tolerations: tuple[Toleration, ...]
    """Tolerations of taints that keep pods away."""

    requests: tuple[tuple[str, int], ...]
    """Other resources that the pod requests, in the units of ``quantities``."""

    volumes: tuple[tuple[NodeTerm, ...], ...] = ()
    """Node affinity terms of each volume that has a node affinity. For each volume, the node must meet one term."""

    reach: tuple[tuple[NodeTerm, ...], ...] = ()
    """Nodes that can use the devices of claims which already have devices: terms as for volumes."""


def constraint_of(pod: Pod) -> Constraint:
    """Return the conditions that a node must meet for the pod."""
    requests = requests_of(pod)
    resource = next((name for name in sorted(requests) if is_accelerator(name)), "")
    required = _required_affinity(pod.spec.affinity)
    selector = tuple(sorted((pod.spec.node_selector or {}).items()))
    tolerations = tuple(t for t in pod.spec.tolerations or () if not t.effect or t.effect in _KEEPS_AWAY)
    rest = tuple(sorted((name, count) for name, count in requests.items() if not is_accelerator(name)))
    volumes = tuple(
        tuple(one.reach.terms)
        for one in pod.spec.volumes or ()
        if one.reach is not None and one.reach.terms is not None
    )
    claims = pod.spec.devices.claims if pod.spec.devices is not None else ()
    reach = tuple(one.reach for one in claims if one.reach is not None)
    asked = (resource, selector, required, tolerations, rest, volumes, *((reach,) if reach else ()))
    encoded = msgspec.json.encode(asked)
    known = _known.get(encoded)
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[encoded] = Constraint(f"c-{hashlib.sha256(encoded).hexdigest()[:10]}", *asked)
    return known


_MOST_KNOWN = 4096
"""Maximum number of constraints that are kept for sharing: far more than the kinds of gangs that run at one time."""

_known: dict[bytes, Constraint] = {}


def _required_affinity(affinity: Affinity | None) -> tuple[NodeTerm, ...] | None:
    if affinity is None or affinity.node_affinity is None:
        return None
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return None if required is None else tuple(required.node_selector_terms)


def why_not(constraint: Constraint, node: Node, free: Mapping[str, int]) -> str:
    """Return why a pod of the constraint cannot go to the node; '' if it can.

    free: resources of the node that the pod may use. The accelerator is not checked, because the cycle counts it.
    """
    labels = node.metadata.labels or {}
    for key, value in constraint.selector:
        if labels.get(key) != value:
            return f"label {key} is not {value!r}"
    if constraint.terms is not None and not any(holds(term, node) for term in constraint.terms):
        return "required node affinity is not met"
    if not all(any(holds(term, node) for term in terms) for terms in constraint.volumes):
        return "one of its volumes cannot be reached from there"
    if not all(any(holds(term, node) for term in terms) for terms in constraint.reach):
        return "one of its claims has devices that cannot be used there"
    for taint in node.spec.taints or ():
        if _keeps_away(taint, constraint.tolerations):
            return f"taint {taint.key}:{taint.effect} is not tolerated"
    for resource, count in constraint.requests:
        if free.get(resource, 0) < count:
            return f"{resource}: {count} requested, {max(free.get(resource, 0), 0)} free"
    return ""


def room_for(constraint: Constraint, free: Mapping[str, int]) -> int:
    """Return for how many pods of the constraint these resources suffice. The accelerator is not counted."""
    return min((max(free.get(name, 0), 0) // count for name, count in constraint.requests if count), default=_NO_LIMIT)


def share_of(constraint: Constraint, emptied: Mapping[str, int]) -> float:
    """Return the largest part of any of these resources that one pod of the constraint requests: 1 is all of it."""
    parts = (count / emptied[name] for name, count in constraint.requests if count and emptied.get(name, 0) > 0)
    return max(parts, default=0.0)


_NO_LIMIT = 1 << 31


def _keeps_away(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Return whether the taint keeps the pod away from its node.

    Taints of gangwatch do not count: the cycle places only probes on nodes with these taints.
    """
    if taint.effect not in _KEEPS_AWAY or taint.key.startswith(OURS):
        return False
    return not any(tolerates(toleration, taint) for toleration in tolerations)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return not toleration.key or toleration.key == taint.key
    return toleration.key == taint.key and toleration.value == taint.value


def holds(term: NodeTerm, node: Node) -> bool:
    """Return whether all requirements of the term hold. An empty term never holds."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    labels = node.metadata.labels or {}
    named = {"metadata.name": node.metadata.name}
    return all(meets(one, labels) for one in expressions) and all(meets(one, named) for one in fields)


def meets(requirement: Requirement, values: Mapping[str, str]) -> bool:
    value, wanted = values.get(requirement.key), requirement.values or []
    match requirement.operator:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                number, bound = int(value or ""), int(wanted[0])
            except (ValueError, IndexError):
                return False
            return number > bound if requirement.operator == "Gt" else number < bound
        case _:
            return False


def refusal(pod: Pod) -> str:
    """Return which requirement of the pod is not implemented; '' if there is none.

    Preferences are ignored: preferred affinity and ScheduleAnyway.
    """
    spec = pod.spec
    if spec.resource_claims and spec.devices is None:
        return "its resource claims are unknown"
    if spec.devices is not None and spec.devices.refused:
        return spec.devices.refused
    if spec.absent_network:
        return f"its network {spec.absent_network} (NetworkAttachmentDefinition) does not exist"
    affinity = spec.affinity
    for one, what in (
        (affinity and affinity.pod_affinity, "pod affinity"),
        (affinity and affinity.pod_anti_affinity, "pod anti-affinity"),
    ):
        if one and one.required_during_scheduling_ignored_during_execution:
            return f"required {what} is not implemented"
    if any(spread.when_unsatisfiable != "ScheduleAnyway" for spread in spec.topology_spread_constraints or ()):
        return "topology spread constraints (DoNotSchedule) are not implemented"
    for volume in spec.volumes or ():
        if volume.persistent_volume_claim is not None and (volume.reach is None or volume.reach.refused):
            why = volume.reach.refused if volume.reach is not None else "its claim is unknown"
            return f"volume {volume.name}: {why}"
        if volume.ephemeral is not None:
            return f"volume {volume.name}: generic ephemeral volumes are not implemented"
    for container in (*spec.containers, *(spec.init_containers or ())):
        if any(port.host_port for port in container.ports or ()):
            return f"container {container.name}: host ports are not implemented"
    accelerators = sorted(resource for resource in requests_of(pod) if is_accelerator(resource))
    if len(accelerators) > 1:
        return f"one pod requests several kinds of accelerator: {', '.join(accelerators)}"
    return ""
