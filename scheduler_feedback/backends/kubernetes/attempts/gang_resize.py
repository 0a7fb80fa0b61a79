"""Resizing of an elastic gang: the number of pods of the Job or PyTorchJob that owns it.

An Indexed Job is resized by changing `completions` and `parallelism` together
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#elastic-indexed-jobs); its controller deletes the pods
with the highest indices. A PyTorchJob is resized by the replicas of its workers; the training operator deletes workers
whose index is too high (kubeflow/training-operator, pkg/controller.v1/common/pod.go).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import MEMBERS
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, OwnerReference, Part, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import kind_of, path_of


class _Replicas(Part):
    replicas: int = 1


class _Spec(Part):
    completion_mode: str = "NonIndexed"
    completions: int | None = None
    parallelism: int | None = None
    pytorch_replica_specs: dict[str, _Replicas] | None = None


class _Owner(Part):
    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_owners = msgspec.json.Decoder(_Owner)


async def resize(client: Client, group: PodGroup, pods: Sequence[Pod], members: int) -> None:
    """Give the gang this number of pods. pods: some of its present pods. Does nothing if it has that number already.

    The annotation on the group and the owner are changed in the order in which a gang is never without enough pods for
    its annotation, because a controller that then takes over could not start it. Raises BackendError with the reason if
    the owner cannot be resized.
    """
    owner = next((pod.owner for pod in pods if pod.owner is not None), None)
    if owner is None:
        raise BackendError("it cannot be resized: its pods have no owner")
    kind = kind_of(owner)
    if kind is None:
        raise BackendError(f"it cannot be resized: its pods belong to {owner.kind} {owner.name}")
    path = path_of(owner, group.metadata.namespace, kind)
    found = await client.get(path, _owners)
    if why := owner.names_another(found.metadata):
        raise BackendError(f"it cannot be resized: {why}")
    now, patch = _job(owner, found, members) if owner.kind == "Job" else _pytorch(owner, found, members)
    annotation = {"metadata": {"annotations": {MEMBERS: str(members)}}}
    written = group.metadata.annotation(MEMBERS) in (str(members), "" if group.spec.min_member == members else None)
    if not written and members < now:
        await client.patch(group.path, annotation)
    if members != now:
        await client.patch(path, {"spec": patch})
    if not written and members >= now:
        await client.patch(group.path, annotation)


def _job(owner: OwnerReference, found: _Owner, members: int) -> tuple[int, dict[str, Any]]:
    """Return (present number of pods, patch of the spec) of a Job."""
    spec = found.spec
    parent = next((one for one in found.metadata.owner_references or () if one.controller), None)
    if parent is not None:
        raise BackendError(f"Job {owner.name} cannot be resized: it belongs to {parent.kind} {parent.name}")
    if spec.completion_mode != "Indexed" or spec.completions is None or spec.completions != spec.parallelism:
        raise BackendError(
            f"Job {owner.name} cannot be resized: it needs completionMode Indexed, and completions equal to parallelism"
        )
    return spec.completions, {"completions": members, "parallelism": members}


def _pytorch(owner: OwnerReference, found: _Owner, members: int) -> tuple[int, dict[str, Any]]:
    """Return (present number of pods, patch of the spec) of a PyTorchJob. It keeps its master."""
    replicas = found.spec.pytorch_replica_specs or {}
    if "Worker" not in replicas:
        raise BackendError(f"{owner.kind} {owner.name} cannot be resized: it has no workers")
    others = sum(one.replicas for role, one in replicas.items() if role != "Worker")
    if members <= others:
        raise BackendError(f"{owner.kind} {owner.name} cannot be resized to {members} pods: {others} are no workers")
    return others + replicas["Worker"].replicas, {"pytorchReplicaSpecs": {"Worker": {"replicas": members - others}}}
