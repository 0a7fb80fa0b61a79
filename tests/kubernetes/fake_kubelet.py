"""Fake kubelet for all nodes. It starts no containers: it reports bound pods as running and removes deleted pods.

It replaces the kubelets of a cluster in tests: it reads bound pods and patches their status. `rejects`: nodes that
reject their pods as a real kubelet does, with phase Failed, a reason and no container. `pulls`: nodes whose new pods
stay Pending, as while an image is pulled. `exits`: returns the exit code with which a pod ends at once, or None if the
pod continues to run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import STRATEGIC_PATCH, Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.objects.objects import Pod


class FakeKubelet:
    """Fake kubelet. Its thread runs inside the ``with``."""

    def __init__(self, access: Access) -> None:
        self.rejects: dict[str, str] = {}
        self.pulls: set[str] = set()
        self.exits: Callable[[Pod], int | None] = lambda _: None
        self.binds: list[tuple[str, str, str]] = []  # (pod, uid, node) as first seen bound
        self._access = access
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="fake-kubelet", daemon=True)
        self._started: set[str] = set()
        self._removed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> FakeKubelet:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._ending is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(10)

    async def _live(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        async with Client(self._access, agent="fake-kubelet") as client:

            def on_change(_key: str, _before: Pod | None, after: Pod | None) -> None:
                if after is not None and after.spec.node_name:
                    self._take(client, after)

            watch = Watch(client, "/api/v1/pods", Pod, on_change, {"fieldSelector": "spec.nodeName!="})
            watching = asyncio.create_task(watch.run())
            await watch.synced.wait()
            self._ready.set()
            await self._ending.wait()
            for task in (watching, *self._tasks):
                task.cancel()
            await asyncio.gather(watching, *self._tasks, return_exceptions=True)

    def _take(self, client: Client, pod: Pod) -> None:
        uid = pod.metadata.uid
        if pod.metadata.deletion_timestamp:
            if uid in self._removed:
                return
            self._removed.add(uid)
            work = self._remove(client, pod)
        elif uid not in self._started:
            self._started.add(uid)
            self.binds.append((pod.metadata.key, uid, pod.spec.node_name))
            work = self._start(client, pod)
        else:
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, client: Client, pod: Pod) -> None:
        if pod.spec.node_name in self.pulls:
            return
        reason = self.rejects.get(pod.spec.node_name)
        if reason is not None:
            status: dict[str, Any] = {"phase": "Failed", "reason": reason, "message": "Pod was rejected"}
        else:
            running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            containers = [
                {"name": c.name, "state": running, "ready": True, "image": "none", "imageID": "", "restartCount": 0}
                for c in pod.spec.containers
            ]
            conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "Initialized")]
            status = {"phase": "Running", "containerStatuses": containers, "conditions": conditions}
        await self._patch(client, pod, status)
        if reason is None and (code := self.exits(pod)) is not None:
            await self._patch(client, pod, ended(pod, code))

    async def _patch(self, client: Client, pod: Pod, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        while True:
            try:
                await client.patch(f"{_path(pod)}/status", body, STRATEGIC_PATCH)
            except RefusedError:
                pass  # gone meanwhile
            except BackendError:
                await asyncio.sleep(0.2)
                continue
            return

    async def _remove(self, client: Client, pod: Pod) -> None:
        """End a deleted pod as a kubelet does after its containers: write its final status, then delete the object.

        Since Kubernetes 1.27 a deleted pod first gets a final phase; a Job with a podFailurePolicy waits for it.
        """
        if not pod.over:
            await self._patch(client, pod, ended(pod, 143))
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        while True:
            try:
                await client.delete(_path(pod), body)
            except RefusedError:
                pass
            except BackendError:
                await asyncio.sleep(0.2)
                continue
            return


def ended(pod: Pod, exit_code: int) -> dict[str, Any]:
    """Return the pod status that a kubelet writes after all containers have ended with this exit code."""
    state = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
    containers = [
        {"name": c.name, "state": state, "ready": False, "image": "none", "imageID": "", "restartCount": 0}
        for c in pod.spec.containers
    ]
    return {"phase": "Failed" if exit_code else "Succeeded", "containerStatuses": containers}


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
