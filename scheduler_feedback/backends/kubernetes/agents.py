"""Announcements of the agents to the feed: one file for each pod of gangwatch's DaemonSet, as on other backends.

A pod is reached by a name in the agents' headless service, '10-0-0-5.SERVICE', so one certificate for '*.SERVICE' is
valid for all of them
(https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#a-aaaa-records).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Pod


def is_agent(pod: Pod) -> bool:
    """Return whether the pod belongs to the chart's DaemonSet."""
    metadata = pod.metadata
    return (
        metadata.label("app.kubernetes.io/name") == "gangwatch"
        and metadata.label("app.kubernetes.io/component") == "agent"
    )


def dashed(address: str) -> str:
    """Return the address with dashes, which is the pod's name in its headless service."""
    return address.replace(".", "-").replace(":", "-")


class AgentFiles:
    """Folder of the agents' files, which the feed reads. url: an agent's URL, with {} in place of the pod's name."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._written: dict[str, str] | None = None

    def write(self, agents: Mapping[str, str]) -> None:
        """Write a file for each agent (node -> address) and delete all other files."""
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
