"""Resizing of an elastic gang: the number of pods of the object that owns it (``objects.owner_sizes``)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import MEMBERS
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import kind_of, path_of
from scheduler_feedback.backends.kubernetes.objects.owner_sizes import SizedOwner, size_change

_owners = msgspec.json.Decoder(SizedOwner)


async def resize(client: Client, group: PodGroup, pods: Sequence[Pod], members: int) -> None:
    """Give the gang this number of pods. Does nothing if it has that number already.

    pods: its present pods in the order of their ranks.

    The annotation on the group and the owner are changed in the order in which a gang is never without enough pods for
    its annotation, because a controller that then takes over could not start it. Raises BackendError with the reason if
    the owner cannot be resized.
    """
    owner = next((pod.owner for pod in pods if pod.owner is not None), None)
    if owner is None:
        raise BackendError("it cannot be resized: its pods have no owner")
    while True:
        kind = kind_of(owner)
        if kind is None:
            raise BackendError(f"it cannot be resized: its pods belong to {owner.kind} {owner.name}")
        path = path_of(owner, group.metadata.namespace, kind)
        found = await client.get(path, _owners)
        if why := owner.names_another(found.metadata):
            raise BackendError(f"it cannot be resized: {why}")
        parent = next((one for one in found.metadata.owner_references or () if one.controller), None)
        if parent is None:
            break
        if (owner.kind, parent.kind) != ("Job", "JobSet"):
            above = f"{parent.kind} {parent.name}"
            raise BackendError(f"{owner.kind} {owner.name} cannot be resized: it belongs to {above}")
        owner = parent
    change = size_change(owner.kind, found, pods, members)
    if owner.kind == "JobSet" and members == change.now:
        # Without its feature gate, JobSet refuses every change. Then the gang must not start: it would be stopped for
        # a change that is refused, and not start again.
        trial = size_change(owner.kind, found, pods, members + 1)
        await client.patch(f"{path}?dryRun=All", trial.patch, trial.kind)
    annotation = {"metadata": {"annotations": {MEMBERS: str(members)}}}
    written = group.metadata.annotation(MEMBERS) in (str(members), "" if group.spec.min_member == members else None)
    if not written and members < change.now:
        await client.patch(group.path, annotation)
    if members != change.now:
        await client.patch(path, change.patch, change.kind)
    if not written and members >= change.now:
        await client.patch(group.path, annotation)
