"""Elastic gangs: the declared bounds of the number of their pods. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import FIXED_SIZE, RESIZABLE
from scheduler_feedback.backends.kubernetes.objects.rank_order import whole
from scheduler_feedback.core.job import Group, JobSpec
from scheduler_feedback.policies.intake.job_admission import malformed

LEAST_MEMBERS = f"{OURS}min-members"
MOST_MEMBERS = f"{OURS}max-members"
"""Annotations of the group of an elastic gang: the numbers of pods between which its owner may be resized."""

MEMBERS = f"{OURS}members"
"""Annotation that we write on the group of an elastic gang: the number of pods to which its owner was resized."""


MOST_PODS = 1 << 14
"""Maximum number of pods of an elastic gang, more than the nodes of a cluster with 100,000 GPUs. Every user may
declare a number, and a gang has an object for each of its pods."""


def is_elastic(group: PodGroup) -> bool:
    """Return whether the group declares that its owner may be resized."""
    return bool(group.metadata.annotation(LEAST_MEMBERS) or group.metadata.annotation(MOST_MEMBERS))


def bounded(spec: JobSpec, pods: Sequence[Pod], slots: Sequence[int], declared: Metadata, requested: int) -> JobSpec:
    """Return the job's specification with the bounds of its size. Raises BackendError if the gang cannot be resized.

    spec: of the present pods. slots: GPUs of each pod. declared: metadata of the group. requested: number of pods that
    the group requests.
    """
    least = _members(declared, LEAST_MEMBERS) or requested
    most = _members(declared, MOST_MEMBERS) or requested
    if max(most, requested) > MOST_PODS:
        raise BackendError(f"an elastic gang has at most {MOST_PODS} pods, not {max(most, requested)}")
    owners = {pod.owner.uid if pod.owner is not None else "" for pod in pods}
    owner, each = pods[0].owner, slots[0]
    kinds = sorted({pod.owner.kind for pod in pods if pod.owner is not None} - RESIZABLE)
    if kinds:
        reason = f": {FIXED_SIZE[kinds[0]]}" if kinds[0] in FIXED_SIZE else ""
        raise BackendError(f"gangwatch can resize {', '.join(sorted(RESIZABLE))} and JobSet, but no {kinds[0]}{reason}")
    if any(count != each for count in slots):
        raise BackendError("an elastic gang's pods must all request the same number of GPUs")
    if owner is None or len(owners) > 1:
        raise BackendError("an elastic gang's pods must all belong to one Job, PyTorchJob or RayCluster")
    if not spec.restartable:
        raise BackendError(f'an elastic gang needs the annotation {OURS}restartable: "true"')
    groups = tuple(Group(f"pod-{n}", each, same_node=True) for n in range(requested)) if each > 1 else ()
    changed = structs.replace(
        spec, ranks=requested * each, min_ranks=least * each, max_ranks=most * each, groups=groups
    )
    if why := malformed(changed):
        raise BackendError(why)
    return changed


def _members(declared: Metadata, key: str) -> int:
    text = declared.annotation(key)
    count = whole(text) if text else 0
    if count is None:
        raise BackendError(f"annotation {key}: {text[:40]!r} is not a number of pods")
    return count
