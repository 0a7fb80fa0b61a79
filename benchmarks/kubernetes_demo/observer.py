"""Pods and steps of the demo, read from the API server and the agents, and not from the controller."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_demo.manifests import GROUP_LABEL, NAMESPACE
from gangwatch.demo.listener import Listener, SeenStep
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT, RANK

_LOOK_SECONDS = 0.3
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that gangwatch bound, as of its latest sight."""

    uid: str
    name: str
    group: str
    attempt: int
    rank: int
    node: str
    running: bool


class Observer:
    """Reader of all pods of the demo's namespace, with a thread, until closed.

    get: returns an object of the API server.
    """

    def __init__(self, get: Callable[[str], Any]) -> None:
        self._get = get
        self._lock = threading.Lock()
        self._pods: dict[str, SeenPod] = {}
        self._present: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def pods(self, group: str) -> list[SeenPod]:
        """Return the present pods of the group that are bound, by rank."""
        with self._lock:
            found = [pod for uid, pod in self._pods.items() if uid in self._present and pod.group == group]
        return sorted(found, key=lambda pod: pod.rank)

    def on(self, node: str) -> set[str]:
        """Return the uids of all present pods on the node."""
        with self._lock:
            return {uid for uid in self._present if self._pods[uid].node == node}

    def named(self, steps: list[SeenStep], job_ids: dict[str, str]) -> list[SeenStep]:
        """Return the steps with the names of the gangs, attempts and ranks of their pods. Agents name pods alone.

        job_ids: id of each group's job.
        """
        with self._lock:
            pods = {f"pod-{uid}": pod for uid, pod in self._pods.items()}
        return [
            replace(step, gang=job_ids.get(pod.group, pod.group), attempt=pod.attempt, rank=pod.rank)
            for step in steps
            if (pod := pods.get(step.gang)) is not None
        ]

    def _work(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            found = [_seen(pod) for pod in self._get(_PODS)["items"]]
            bound = {pod.uid: pod for pod in found if pod is not None}
            with self._lock:
                self._pods |= bound
                self._present = set(bound)


def _seen(pod: Any) -> SeenPod | None:
    """Return the pod; None if gangwatch has not bound it."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations", {})
    if ATTEMPT not in annotations or "nodeName" not in pod["spec"]:
        return None
    return SeenPod(
        metadata["uid"],
        metadata["name"],
        metadata["labels"].get(GROUP_LABEL, ""),
        int(annotations[ATTEMPT]),
        int(annotations.get(RANK, "0")),
        pod["spec"]["nodeName"],
        pod["status"].get("phase") == "Running",
    )


def listen(listener: Listener, agents: dict[str, str], secret: dict[str, str], folder: Path) -> None:
    """Subscribe to the steps of all agents. agents: address by node. secret: data of the controller's certificate.

    Agents send frames only to the controller's certificate. It is written to `folder`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (folder / name).write_bytes(base64.b64decode(secret[name]))
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    for node, address in agents.items():
        listener.listen_with(node, _connector(context, f"{node}.node.gangwatch.internal", address))


def _connector(context: ssl.SSLContext, name: str, address: str) -> Callable[[], http.client.HTTPConnection]:
    def connect() -> http.client.HTTPConnection:
        connection = http.client.HTTPSConnection(address, 9400, timeout=10, context=context)
        plain = socket.create_connection((address, 9400), timeout=10)
        connection.sock = context.wrap_socket(plain, server_hostname=name)
        return connection

    return connect
