"""Uninstallation: removes everything that gangwatch wrote on the cluster's objects."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.api_server.client import MERGE_PATCH, STRATEGIC_PATCH, Client, RefusedError
from scheduler_feedback.backends.kubernetes.attempts.gang_stop import left_suspended, resume
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import is_probe
from scheduler_feedback.backends.kubernetes.objects.declared_keys import EXPECTED_START
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import MEMBERS
from scheduler_feedback.backends.kubernetes.objects.objects import COSCHEDULING, Node, Part, Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    BEYOND,
    JOB,
    PLACEMENT,
    RANK,
    SLOTS,
    WORLD_SIZE,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API
from scheduler_feedback.backends.kubernetes.published.advice import Rule, remove_rule, rules_of
from scheduler_feedback.backends.kubernetes.published.marks import Marks, changes
from scheduler_feedback.backends.kubernetes.published.publish import SCHEDULED
from scheduler_feedback.backends.kubernetes.published.state_config_map import memory_name

_AT_ONCE = 32


class _Nodes(Part):
    items: list[Node]


class _Pods(Part):
    items: list[Pod]


class _Groups(Part):
    items: list[PodGroup]


async def remove_all(client: Client, namespace: str, lease: str) -> dict[str, int]:
    """Remove all data of gangwatch from objects; return the number of changed objects by kind. Users' annotations
    stay.
    """
    nodes = await client.get("/api/v1/nodes", msgspec.json.Decoder(_Nodes))
    pods = await client.get("/api/v1/pods", msgspec.json.Decoder(_Pods))
    work: dict[str, list[Any]] = {
        "nodes": [],
        "pods": [],
        "probes": [],
        "groups": [],
        "suspended Jobs": [],
        "leases": [],
    }
    for node in nodes.items:
        body, status = changes(node, Marks())
        if body is not None or status is not None:
            work["nodes"].append(_clear_node(client, node.metadata.name, body, status))
    for pod in pods.items:
        if is_probe(pod):
            work["probes"].append(
                _remove(client, f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}")
            )
        elif any(pod.metadata.annotation(key) for key in (ATTEMPT, SLOTS, RANK, BEYOND)):
            path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
            work["pods"].append(_strip(client, path, ATTEMPT, JOB, SLOTS, RANK, BEYOND, WORLD_SIZE))
    for group in await _groups(client):
        written = any(group.metadata.annotation(key) for key in (PLACEMENT, EXPECTED_START, MEMBERS))
        if written or any(one.type == SCHEDULED for one in group.status.conditions or ()):
            work["groups"].append(_clear_group(client, group))
    work["device rules"] = [remove_rule(client, rule.metadata.name) for rule in await _rules(client)]
    for path in await left_suspended(client):
        work["suspended Jobs"].append(resume(client, path))
    memory = f"/api/v1/namespaces/{namespace}/configmaps/{memory_name(lease)}"
    work["memories"] = [_remove(client, memory)]
    # Of `gangwatch kubernetes revoke`. The lease is named after the release.
    work["revocations"] = [_remove(client, f"/api/v1/namespaces/{namespace}/configmaps/{lease}-revoked")]
    work["leases"].append(_remove(client, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}"))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(job: Any) -> bool:
        async with gate:
            return (await job) is not False

    return {what: sum(await asyncio.gather(*map(one, jobs))) for what, jobs in work.items()}


async def _rules(client: Client) -> list[Rule]:
    """Return gangwatch's taint rules for devices; none if the server does not serve this kind."""
    try:
        return await rules_of(client)
    except RefusedError as error:
        if error.code != 404:
            raise
        return []


async def _clear_node(client: Client, name: str, body: dict[str, Any] | None, status: dict[str, Any] | None) -> None:
    if body is not None:
        await client.patch(f"/api/v1/nodes/{name}", body, MERGE_PATCH)
    if status is not None:
        await client.patch(f"/api/v1/nodes/{name}/status", status, STRATEGIC_PATCH)


async def _strip(client: Client, path: str, *annotations: str) -> None:
    try:
        await client.patch(path, {"metadata": {"annotations": dict.fromkeys(annotations)}})
    except RefusedError as error:
        if error.code != 404:
            raise


async def _groups(client: Client) -> list[PodGroup]:
    """Return all pod groups: of the coscheduling plugin and of Kubernetes. The server may lack either kind."""
    found: list[PodGroup] = []
    for api in (COSCHEDULING, API):
        try:
            listed = await client.get(f"/apis/{api}/podgroups", msgspec.json.Decoder(_Groups))
        except RefusedError as error:
            if error.code != 404:
                raise
        else:
            found += [msgspec.structs.replace(group, of_api=api) for group in listed.items]
    return found


async def _clear_group(client: Client, group: PodGroup) -> None:
    await _strip(client, group.path, PLACEMENT, EXPECTED_START, MEMBERS)
    try:
        if group.of_api == COSCHEDULING:
            await client.patch(f"{group.path}/status", {"status": {"conditions": None, "phase": None}})
        else:
            body = {"status": {"conditions": [{"type": SCHEDULED, "$patch": "delete"}]}}
            await client.patch(f"{group.path}/status", body, STRATEGIC_PATCH)
    except RefusedError as error:
        if error.code != 404:
            raise


async def _remove(client: Client, path: str) -> bool:
    try:
        await client.delete(path)
    except RefusedError as error:
        if error.code != 404:
            raise
        return False
    return True
