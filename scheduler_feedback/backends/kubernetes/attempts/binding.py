"""Binding of a gang: all its pods, in parallel, or none; and deletion of bound pods if one cannot be bound.

A binding cannot be revoked. A pod that was bound and must not stay is deleted, and its owner recreates it unbound. If
the server does not respond, it is unknown whether a request took effect, so it is repeated until there is a response.
The uid in each request makes sure that it does not affect another pod of the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError, UnreachableError
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import Attempt, Member, written
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    BEYOND,
    JOB,
    NETWORK_CLASS,
    PLACEMENT,
    RANK,
    SLOTS,
    WORLD_SIZE,
)

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_pods = msgspec.json.Decoder(Pod)


async def write_placement(client: Client, path: str, attempt: Attempt, wanted: Callable[[], bool]) -> None:
    """Write the places of the attempt's pods on the group at this path, before the first pod is bound.

    wanted: returns whether the attempt is still to be started. Raises RefusedError if the server refuses the write.
    """
    pause = _PAUSE_SECONDS
    while wanted():
        try:
            await client.patch(path, {"metadata": {"annotations": {PLACEMENT: written(attempt)}}})
        except UnreachableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            continue
        except RefusedError as error:
            if error.code != 404:  # it was deleted in the meantime, which the binding will show
                raise
        return


async def bind_all(client: Client, attempt: Attempt, wanted: Callable[[], bool]) -> list[str]:
    """Bind every pod of the attempt that is not bound; return the error of each pod that could not be bound.

    wanted: returns whether the attempt is still to be started; if not, no further request is sent.
    """
    binding = [bind_one(client, attempt, member, wanted) for member in attempt.members if not member.bound]
    # Most gangs are single pods; another task for each would cost a tenth of the binding.
    failures = await asyncio.gather(*binding) if len(binding) > 1 else [await one for one in binding]
    return [failure for failure in failures if failure]


async def bind_one(client: Client, attempt: Attempt, member: Member, wanted: Callable[[], bool]) -> str:
    """Bind one pod; return '' if it is bound, else the error."""
    namespace, _, name = member.name.partition("/")
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    annotations = {JOB: attempt.job_id, ATTEMPT: str(attempt.number), SLOTS: ",".join(map(str, member.slots))}
    if attempt.beyond:
        annotations[BEYOND] = "true"
    if len(member.ranks):
        annotations[RANK] = str(member.ranks.start)
        annotations[WORLD_SIZE] = str(len(attempt.placement))
    if attempt.network_class:
        annotations[NETWORK_CLASS] = attempt.network_class
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": member.uid, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": member.node},
    }
    pause, unknown = _PAUSE_SECONDS, False
    while wanted():
        try:
            await client.create(f"{path}/binding", body)
        except UnreachableError:
            unknown = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            continue
        except RefusedError as error:
            if not await _is_ours(client, path, attempt, member):
                return f"pod {name}: {error.message or error.reason}"
        except BackendError as error:
            return f"pod {name}: {error}"
        member.bound = True
        return ""
    member.bound = unknown and await _is_ours(client, path, attempt, member)
    return "" if member.bound else f"pod {name}: the binding was cancelled"


async def _is_ours(client: Client, path: str, attempt: Attempt, member: Member) -> bool:
    """Return whether an earlier request, which got no response, has bound the pod as intended."""
    while True:
        try:
            pod = await client.get(path, _pods)
        except UnreachableError:
            await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
            continue
        except BackendError:
            return False
        return (
            pod.metadata.uid == member.uid
            and pod.spec.node_name == member.node
            and pod.metadata.annotation(ATTEMPT) == str(attempt.number)
            and pod.metadata.annotation(JOB) in ("", attempt.job_id)  # earlier versions did not write it
        )


async def has_node(client: Client, key: str, uid: str) -> bool:
    """Return whether the server has a node for the pod 'NAMESPACE/NAME' with this uid. Raises UnreachableError."""
    namespace, _, name = key.partition("/")
    try:
        pod = await client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", _pods)
    except RefusedError as error:
        if error.code != 404:
            raise
        return False
    return pod.metadata.uid == uid and bool(pod.spec.node_name)


async def create_once(client: Client, path: str, body: dict[str, Any], wanted: Callable[[], bool]) -> str:
    """Create a pod and return its uid. An existing pod of that name comes from an earlier request that got no response.

    wanted: returns whether the pod is still needed. Raises BackendError if the server refuses it, or if it is not.
    """
    pause = _PAUSE_SECONDS
    while wanted():
        try:
            answer = await client.create(path, body)
            return _pods.decode(answer).metadata.uid
        except UnreachableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except RefusedError as error:
            if error.code != 409:
                raise
            return (await client.get(f"{path}/{body['metadata']['name']}", _pods)).metadata.uid
    raise BackendError(f"{body['metadata']['name']}: its creation was cancelled")


async def delete_all(client: Client, members: Iterable[Member]) -> None:
    """Delete these pods and wait for the server's confirmation; a pod that is gone is not an error."""
    await asyncio.gather(*(_delete(client, member) for member in members if member.uid))


async def _delete(client: Client, member: Member) -> None:
    namespace, _, name = member.name.partition("/")
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": member.uid}}
    pause = _PAUSE_SECONDS
    while True:
        try:
            await client.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", body)
        except UnreachableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            continue
        except RefusedError as error:
            if error.code not in (404, 409):  # gone, or another pod has the name now
                raise
        return
