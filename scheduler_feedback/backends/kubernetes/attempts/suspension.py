"""The object to suspend so that all pods of a gang stop and come back: the topmost owner of the pods.

A Job of a JobSet must not be suspended alone, because the JobSet's controller would resume it. So the search goes from
a pod's owner to the owner's controller, and so on, to an object without a controller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, OwnerReference, Part, Pod
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import OwnerKind, kind_of, path_of
from scheduler_feedback.backends.kubernetes.objects.translate import group_of

MOST_OWNERS = 5
"""Maximum length of a chain of owners; the longest known one is pod, Job, JobSet, TrainJob."""


class _Spec(Part):
    shutdown_after_job_finishes: bool = False


class _Owner(Part):
    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Pods(Part):
    items: list[Pod]


_owners = msgspec.json.Decoder(_Owner)
_pods = msgspec.json.Decoder(_Pods)


@dataclass(frozen=True, slots=True)
class Suspendable:
    """Result of the search: the object to suspend, or why there is none."""

    path: str
    """Path of the object; '' if there is none."""

    why: str = ""
    """Why there is none; '' if the owner's kind cannot be suspended at all."""


async def suspendable(client: Client, namespace: str, owner: OwnerReference, pods: Collection[Pod]) -> Suspendable:
    """Return the topmost owner of a gang's pods that can be suspended. pods: the gang's pods.

    Raises BackendError if the API server does not respond.
    """
    kind = kind_of(owner)
    if kind is None:
        return Suspendable("")
    for _ in range(MOST_OWNERS):
        path = path_of(owner, namespace, kind)
        try:
            found = await client.get(path, _owners)
        except RefusedError as error:
            return Suspendable("", f"{owner.kind} {owner.name} cannot be read: {error}")
        if why := owner.names_another(found.metadata):
            return Suspendable("", why)
        parent = next((one for one in found.metadata.owner_references or () if one.controller), None)
        if parent is None:
            why = await _why_not(client, found, owner, kind, pods)
            return Suspendable("", why) if why else Suspendable(path)
        known = kind_of(parent) if parent.api_version else None
        if known is None:
            return Suspendable("", f"{owner.kind} {owner.name} belongs to {parent.kind} {parent.name}")
        owner, kind = parent, known
    return Suspendable("", f"more than {MOST_OWNERS} objects own each other, up to {owner.kind} {owner.name}")


async def _why_not(client: Client, found: _Owner, owner: OwnerReference, kind: OwnerKind, pods: Collection[Pod]) -> str:
    """Return why the object must not be suspended; '' if it may be."""
    if owner.kind == "RayJob" and not found.spec.shutdown_after_job_finishes:
        return f"RayJob {owner.name} can be suspended only with shutdownAfterJobFinishes"  # KubeRay validates this
    if not kind.pods:
        return ""
    namespace = found.metadata.namespace
    try:
        listed = await client.get(
            f"/api/v1/namespaces/{namespace}/pods", _pods, labelSelector=f"{kind.pods}={owner.name}"
        )
    except RefusedError as error:
        raise BackendError(f"the pods of {owner.kind} {owner.name} cannot be listed: {error}") from error
    groups = {group_of(pod) for pod in pods}
    own = {pod.metadata.uid for pod in pods}
    for pod in listed.items:
        if pod.metadata.uid not in own and not pod.over and not (group_of(pod) and group_of(pod) in groups):
            return f"{owner.kind} {owner.name} also has pod {pod.metadata.name}, which is not of the gang"
    return ""
