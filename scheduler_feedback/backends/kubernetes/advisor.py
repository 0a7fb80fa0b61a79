"""The backend for a cluster with another scheduler: it observes running gangs and never places any.

It writes verdicts on nodes (``marks``) and on pods (``advice``); the other scheduler acts on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.cluster_backend import ClusterBackend
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.objects.objects import Node, Pod
from scheduler_feedback.backends.kubernetes.objects.other_schedulers import ExternalGangs
from scheduler_feedback.backends.kubernetes.objects.translate import Gang
from scheduler_feedback.backends.kubernetes.published.advice import Advice
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event, NodeSeen

_NOBODY = "\0"
"""Scheduler name that no pod has, so that the advisor places no pods."""


class AdvisorBackend(ClusterBackend):
    """Backend that observes the gangs of another scheduler and only advises it."""

    def __init__(self, folder: Path, settings: KubernetesSettings) -> None:
        super().__init__(folder, replace(settings, probes=None, memory=None), _NOBODY)
        self.external = ExternalGangs(self.cache, settings.settled_seconds)

    def _advice(self) -> Advice:
        return Advice(self.client, self.external.concerned, devices=self._settings.device_taints)

    def _watching(self, client: Client) -> Mapping[str, Watch[Any]]:
        return {
            "nodes": Watch(client, "/api/v1/nodes", Node, self.cache.node_changed),
            "pods": Watch(client, "/api/v1/pods", Pod, self._pod_changed),
        }

    def _pod_changed(self, key: str, before: Pod | None, after: Pod | None) -> None:
        with self.cache.lock:  # without the lock, the pod would briefly take slots that belong to no gang
            self.cache.pod_changed(key, before, after)
            self.external.pod_changed(before, after, time.monotonic())

    # --- Backend -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSeen]:
        self._connection.check()
        with self.cache.lock:
            self.cache.seen_changes()
            return self.cache.seen()

    def apply(self, action: Action) -> None:
        raise BackendError(f"{action.job_id}: another scheduler places and moves gangs here; gangwatch only advises")

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        self._connection.check()
        gangs = self.external.events(holding, time.monotonic())
        return [*self.cache.seen_changes(), *gangs]

    def gangs(self) -> list[Gang]:
        """Return no gangs: the advisor does not publish why a gang is pending."""
        return []

    def know(self, job_id: str, key: str) -> None:
        """Do nothing: the advisor places no gangs."""
