"""The backend for a cluster with another scheduler: it observes running gangs and never places any.

It writes verdicts on nodes (``marks``) and on pods (``advice``); the other scheduler acts on them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.api_connection import Connection
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.objects.objects import Node, Pod
from scheduler_feedback.backends.kubernetes.objects.other_schedulers import SETTLED_SECONDS, Foreign
from scheduler_feedback.backends.kubernetes.objects.translate import Gang, TopologyLabels
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event, NodeSeen

_NOBODY = "\0"
"""Name of the scheduler whose pods we would place: no pod has it."""


class AdvisorBackend:
    """Backend that only advises. Call ``start`` before use; ``stop`` ends its thread."""

    def __init__(
        self, access: Access, *, labels: TopologyLabels | None = None, settled_seconds: float = SETTLED_SECONDS
    ) -> None:
        self.world = InformerCache(_NOBODY, labels or TopologyLabels())
        self.foreign = Foreign(self.world, settled_seconds)
        self._connection = Connection(access, self._watching, lambda: ())

    def start(self) -> None:
        """Connect and list everything once. Raises BackendError if that takes too long."""
        self._connection.start()

    def stop(self) -> None:
        self._connection.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._connection.loop

    @property
    def client(self) -> Client:
        return self._connection.client

    def _watching(self, client: Client) -> Mapping[str, Watch[Any]]:
        return {
            "nodes": Watch(client, "/api/v1/nodes", Node, self.world.node_changed),
            "pods": Watch(client, "/api/v1/pods", Pod, self._pod_changed),
        }

    def _pod_changed(self, key: str, before: Pod | None, after: Pod | None) -> None:
        with self.world.lock:  # without the lock, the pod would briefly take slots that belong to no gang
            self.world.pod_changed(key, before, after)
            self.foreign.pod_changed(before, after, time.monotonic())

    # --- Backend -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSeen]:
        self._connection.check()
        with self.world.lock:
            self.world.seen_changes()
            return self.world.seen()

    def apply(self, action: Action) -> None:
        raise BackendError(f"{action.job_id}: another scheduler places and moves gangs here; gangwatch only advises")

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        self._connection.check()
        gangs = self.foreign.events(holding, time.monotonic())
        return [*self.world.seen_changes(), *gangs]

    def gangs(self) -> list[Gang]:
        """Return the gangs whose waiting we explain: none."""
        return []

    def know(self, job_id: str, key: str) -> None:
        """Do nothing: none of the gangs in the API's objects is ours."""
