"""Base of both Kubernetes backends: the connection, names of gangs, and the work while the cycle runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.schema.errors import GangwatchError
from agent.schema.frame import AnyLayout, Frame
from agent.schema.sample import Sample
from scheduler_feedback.backends.backend import Backend, RunningCycle
from scheduler_feedback.backends.kubernetes.agents import AgentFiles
from scheduler_feedback.backends.kubernetes.api_server.api_connection import Connection
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.objects.rank_names import RankNames
from scheduler_feedback.backends.kubernetes.objects.translate import Gang, with_queues
from scheduler_feedback.backends.kubernetes.published.advice import Advice
from scheduler_feedback.backends.kubernetes.published.publish import Publisher
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild
from scheduler_feedback.backends.kubernetes.published.state_config_map import StateWriter, give_back, read
from scheduler_feedback.core.events import PolicySet
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.core.telemetry.placements import Placed, Refusal
from scheduler_feedback.part_failures import PartFailures

START_SECONDS = 900.0
"""Time limit of a start if policy.start_timeout_seconds is not set. A node pulls the image first: 20 GB at 1 Gbit/s
take three minutes, and several pods may share the link."""

LEADS = "gangwatch_leads"
"""Metric: 1 on the leading controller, 0 on a standby. The Prometheus target of a standby is up, so no alert fires."""

FOLLOW_SECONDS = 0.5
"""Seconds between two checks for changed agents and queues."""

REQUEST_SECONDS = 10.0
"""Seconds that a change of the queues waits for the cycle before it is sent again."""

_log = logging.getLogger(__name__)


class ClusterBackend(Backend):
    """Base class of the Kubernetes backends."""

    start_seconds = START_SECONDS

    def __init__(self, folder: Path, settings: KubernetesSettings, scheduler: str) -> None:
        self.cache = InformerCache(scheduler, settings.labels)
        self._settings = settings
        self._connection = Connection(settings.access, self._watching, self._once_synced, settings.may_act)
        self._names = RankNames(self.cache.place_of, lambda: self.cache.places_version)
        self._agents = AgentFiles(folder / "agents", settings.agents)
        self._configured = Policy()
        self._queues_version = -1
        self._queue_names: frozenset[str] = frozenset()  # queues that the cycle has
        self._detached = threading.Event()
        self._follower: threading.Thread | None = None
        self._publishing: list[Future[None]] = []

    # --- the two backends --------------------------------------------------------------------------------------------

    @abstractmethod
    def _watching(self, client: Client) -> Mapping[str, Watch[Any]]:
        """Return the watches of the cluster's objects, by name."""

    def _once_synced(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return coroutines to run once, after all watches have listed their objects."""
        return ()

    def _advice(self) -> Advice | None:
        """Return the writer of advice for another scheduler."""
        return None

    @abstractmethod
    def gangs(self) -> list[Gang]:
        """Return the gangs for which the backend writes on Kubernetes objects why they are pending."""

    @abstractmethod
    def know(self, job_id: str, key: str) -> None:
        """Record a gang that the cycle already has, because its state was rebuilt from the API's objects."""

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and list all watched objects. Raises BackendError if that takes too long."""
        self._connection.start()

    def stop(self) -> None:
        self._connection.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._connection.loop

    @property
    def client(self) -> Client:
        return self._connection.client

    def effective_policy(self, configured: Policy) -> Policy:
        """Return the policy with the cluster's queues and time for images, and without probes if nodes cannot be
        measured.
        """
        policy = self._policy_of(configured)
        self._queue_names = frozenset(queue.name for queue in policy.queues)
        return policy

    def _policy_of(self, configured: Policy) -> Policy:
        self._configured = configured
        with self.cache.lock:
            self._queues_version = self.cache.queues_version
            policy = with_queues(configured, self.cache.queues.values())
        policy = self._with_start_timeout(policy)
        probes = self._settings.probes
        return policy if probes is not None and probes.image else replace(policy, probe_command=())

    def rebuild_state(self, policy: Policy, now_ns: int) -> State | None:
        if not self._settings.rebuilds:
            return None
        state, keys = rebuild(self.cache, self.nodes(), policy, now_ns)
        for job_id, key in keys.items():
            self.know(job_id, key)
        if self._settings.memory is not None:
            reading = read(self.client, *self._settings.memory)
            saved = asyncio.run_coroutine_threadsafe(reading, self.loop).result()
            if saved:
                give_back(saved, state)
        return state

    def attach(self, cycle: RunningCycle, failures: PartFailures) -> None:
        """Start to publish the state on objects, to save the rest in a ConfigMap, and to follow agents and queues."""
        may_act = self._settings.may_act
        publisher = Publisher(
            self.client, self.cache, self.gangs, cycle.ask, may_act, self._advice(), evicts=self._settings.evicts
        )
        work = [publisher.run()]
        if self._settings.memory is not None:
            work.append(StateWriter(self.client, *self._settings.memory, cycle.ask, may_act).run())
        self._publishing = [asyncio.run_coroutine_threadsafe(one, self.loop) for one in work]
        self._follower = threading.Thread(target=self._follow, args=(cycle, failures), name="attend", daemon=True)
        self._follower.start()

    def detach(self) -> None:
        self._detached.set()
        if self._follower is not None:
            self._follower.join()
        for future in self._publishing:
            future.cancel()

    # --- agents and queues -------------------------------------------------------------------------------------------

    def _follow(self, cycle: RunningCycle, failures: PartFailures) -> None:
        while not self._detached.wait(FOLLOW_SECONDS):
            try:
                if self._settings.agents:
                    self._agents.write(self.cache.agents())
                self._follow_queues(cycle)
            except Exception as error:
                failures.report("feed", error, "the cluster's agents and queues")

    def _follow_queues(self, cycle: RunningCycle) -> None:
        """Send the cluster's queues to the cycle if they have changed."""
        followed = self._queues_version
        if self.cache.queues_version == followed:
            return
        policy = self._policy_of(self._configured)
        try:
            cycle.request(lambda _: PolicySet(policy, "the cluster's queues")).result(REQUEST_SECONDS)
        except (GangwatchError, TimeoutError) as error:
            self._queues_version = followed
            _log.error("could not apply the cluster's queues: %s", error)
        else:
            self._queue_names = frozenset(queue.name for queue in policy.queues)

    # --- telemetry ---------------------------------------------------------------------------------------------------

    def translate_frame(self, layout: AnyLayout, frame: Frame) -> tuple[AnyLayout, Frame]:
        return self._names(layout, frame)

    def attest(self, node: str, gang: str, received_ns: int) -> Placed | Refusal | None:  # noqa: ARG002
        return self.cache.attest(node, gang)

    def obstacle(self) -> str:
        return self._settings.missing_rights()

    def measures(self) -> Sequence[Sample]:
        return [(LEADS, (), float(self._settings.may_act()))]
