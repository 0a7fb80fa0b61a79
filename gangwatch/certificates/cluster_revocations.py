"""Revoked certificates of a Kubernetes cluster, in a ConfigMap that the controller mounts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from agent.schema.errors import ConfigError
from agent.schema.identity import Revocations, of_node, read_revocations
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Part

FILE = "revoked.json"


class _ConfigMap(Part):
    metadata: Metadata
    data: dict[str, str] | None = None


_maps = msgspec.json.Decoder(_ConfigMap)


async def change(access: Access, namespace: str, release: str, nodes: Iterable[str], reason: str | None) -> list[str]:
    """Revoke the certificates of these nodes' agents, or allow new ones if `reason` is None. Return a message per node.

    release: name of the chart's release. Raises ConfigError for a node that is not revoked and for a damaged list,
    BackendError if the API server refuses.
    """
    name = f"{release}-revoked"
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with Client(access, agent="gangwatch-revoke") as client:
        try:
            present = await client.get(f"{path}/{name}", _maps)
        except RefusedError as error:
            if error.code != 404:
                raise
            present = None
        text = ((present.data or {}) if present is not None else {}).get(FILE, "")
        known, lines = read_revocations(text.encode(), f"ConfigMap {namespace}/{name}"), []
        before = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        for node in nodes:
            known = _changed(known, of_node(node), before, reason)
            lines.append(f"node {node}: {'may have a new certificate' if reason is None else 'revoked'}")
        data = {FILE: known.encode().decode()}
        if present is None:
            labels = {"app.kubernetes.io/name": "gangwatch", "app.kubernetes.io/instance": release}
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": data}
            await client.create(path, made)
        else:
            # Replace only the version read above: two concurrent revocations must not undo each other.
            version = {"resourceVersion": present.metadata.resource_version}
            await client.patch(f"{path}/{name}", {"metadata": version, "data": data})
    return lines


def _changed(known: Revocations, name: str, before: datetime, reason: str | None) -> Revocations:
    if reason is not None:
        return known.revoking(name, before, reason)
    if name not in known.by_name:
        raise ConfigError(f"{name} is not revoked")
    return known.admitting(name)
