"""Agents of the cluster: each node's is a pod of our DaemonSet, told to the feed by a file as on every other backend.

A pod is reached by its name below the agents' headless service, '10-0-0-5.SERVICE', so that one certificate for
'*.SERVICE' does for all of them
(https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#a-aaaa-records).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Pod


def is_agent(pod: Pod) -> bool:
    """Whether the pod is of the chart's DaemonSet."""
    metadata = pod.metadata
    return (
        metadata.label("app.kubernetes.io/name") == "gangwatch"
        and metadata.label("app.kubernetes.io/component") == "agent"
    )


def dashed(address: str) -> str:
    """The name that a pod of this address has below its headless service."""
    return address.replace(".", "-").replace(":", "-")


class AgentFiles:
    """The folder that the feed looks at. url: with {} where the pod's name goes."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._written: dict[str, str] | None = None

    def write(self, agents: Mapping[str, str]) -> None:
        """Let there be a file for each of these agents, address by node, and for no other."""
        if self._written == agents:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = self._written or {}
        for node, address in agents.items():
            if known.get(node) != address:
                record = {"pid": 0, "start_time": 0, "node": node, "url": self._url.format(dashed(address))}
                temporary = self._folder / f".{node}.new"
                temporary.write_bytes(msgspec.json.encode(record))
                temporary.replace(self._folder / f"{node}.json")
        for file in self._folder.glob("*.json"):
            if file.stem not in agents:
                file.unlink(missing_ok=True)
        self._written = dict(agents)
