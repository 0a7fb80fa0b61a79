"""The Kubernetes controller: lease, backend, cycle and API, and its first state."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.schema.errors import GangwatchError
from gangwatch.commands.kubernetes_standby import LEADS, standing_by
from gangwatch.configuration.config_file import Config
from gangwatch.daemons import CONTROLLER_DESCRIPTORS, SWITCH_SECONDS, allow_descriptors
from gangwatch.logs import configure_logging
from gangwatch.state_folder import StateFolder
from scheduler_feedback.backends.kubernetes import Access, KubernetesBackend
from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.agents import AgentFiles
from scheduler_feedback.backends.kubernetes.api_server.lease import Leadership
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes
from scheduler_feedback.backends.kubernetes.objects.rank_names import RankNames
from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels, with_queues
from scheduler_feedback.backends.kubernetes.published.advice import Advice
from scheduler_feedback.backends.kubernetes.published.publish import Publisher
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild
from scheduler_feedback.backends.kubernetes.published.state_config_map import StateWriter, give_back, memory_name, read

if TYPE_CHECKING:
    from exporter.serving.asgi import App, Receive, Scope, Send
    from gangwatch.certificates.signer import Signer
    from scheduler_feedback.controller.controller import Controller
    from scheduler_feedback.core.state import Policy
    from scheduler_feedback.core.telemetry.fleet import Sample

_WAIT_SECONDS = 0.5
_REQUEST_SECONDS = 10.0
_CYCLES_AFTER = 50_000
"""Threshold of the garbage collector: binding a pod creates hundreds of short-lived objects and no cycles."""

_STORE_FILES = ("store.sqlite", "store.sqlite-wal", "store.sqlite-shm")
_log = logging.getLogger("gangwatch.kubernetes")


@dataclass(frozen=True, slots=True)
class Signing:
    """Settings for the certificates of agents."""

    account: str
    """Name of the agents' service account."""
    hosts: tuple[str, ...]
    """DNS names that every certificate contains."""
    signer: str
    folder: str | None
    """Folder with ca.crt and ca.key; None if another signer signs the approved requests."""
    days: int
    revoked: str | None
    """File of revoked certificates."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the Kubernetes controller."""

    access: Access
    namespace: str
    lease: str
    scheduler: str
    labels: TopologyLabels
    advise: bool = False
    """Bind and evict nothing."""
    agents: str = ""
    """URL of an agent, with {} for its pod's dashed address; '' reads no agents."""
    evicts: bool = False
    """The quarantine taint is NoExecute."""
    device_taints: bool = False
    """The advisor writes DeviceTaintRules."""
    probe_image: str = ""
    """Image that measures nodes; '' measures none."""
    upstream_groups: bool = False
    """Also schedule PodGroups of scheduling.k8s.io."""
    signing: Signing | None = None


def run(state: StateFolder, config: Config, settings: Settings) -> None:
    """Wait for leadership, then run the controller until SIGTERM or until leadership is lost.

    Raises GangwatchError if the cluster can't be reached or leadership was lost; a restarted process waits for it
    again.
    """
    state.prepare()
    configure_logging(state, "controller")
    allow_descriptors(CONTROLLER_DESCRIPTORS)
    sys.setswitchinterval(SWITCH_SECONDS)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ending.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    identity = _identity(state.path)
    lost = threading.Event()
    leadership = Leadership(settings.access, settings.namespace, settings.lease, identity, lost=lost.set)
    leadership.start()
    signer = _signer_of(settings)
    if signer is not None:
        signer.start()  # on every replica: certificates must be available while the leader changes
    try:
        if not _stand_by(config, leadership, ending):
            return
        _lead(state.path, config, settings, leadership, identity, ending, lost, signer)
    finally:
        leadership.stop()
        if signer is not None:
            signer.stop()
    if lost.is_set():
        raise GangwatchError(
            f"lost lease {settings.namespace}/{settings.lease}: another controller leads, or this one could not finish "
            "its cycles in time"
        )


def _signer_of(settings: Settings) -> Signer | None:
    """Return the signer of the agents' certificates; None if another component signs them."""
    signing = settings.signing
    if signing is None:
        return None
    from gangwatch.certificates.signer import Rules, Signer

    rules = Rules(f"{settings.namespace}:{signing.account}", signing.hosts, signing.signer, float(signing.days))
    folder, revoked = (Path(one) if one is not None else None for one in (signing.folder, signing.revoked))
    return Signer(settings.access, rules, folder, revoked)


def _stand_by(config: Config, leadership: Leadership, ending: threading.Event) -> bool:
    """Wait until this controller leads or is stopped; return whether it leads.

    The standby endpoints are served only if the lease is not available at once.
    """
    if leadership.wait(_WAIT_SECONDS):
        return True
    with standing_by(config) as url:
        _log.info("standby: another controller leads; metrics at %s/metrics", url)
        while not leadership.wait(_WAIT_SECONDS):
            if ending.is_set():
                return False
    return True


def _lead(
    folder: Path,
    config: Config,
    settings: Settings,
    leadership: Leadership,
    identity: str,
    ending: threading.Event,
    lost: threading.Event,
    signer: Signer | None = None,
) -> None:
    backend: KubernetesBackend | AdvisorBackend
    if settings.advise:
        backend = AdvisorBackend(settings.access, labels=settings.labels)
    else:
        backend = KubernetesBackend(
            settings.access,
            scheduler=settings.scheduler,
            labels=settings.labels,
            may_act=leadership.may_act,
            probes=Probes(settings.probe_image, settings.namespace, settings.scheduler),
            upstream=settings.upstream_groups,
        )
    backend.start()
    gc.freeze()  # modules and the informer cache, whose structs are in no reference cycle
    gc.set_threshold(_CYCLES_AFTER)
    try:
        policy = _policy(config, settings, backend)
        if leadership.before != identity:
            rebuild_journal(folder, backend, policy, kept=_kept(backend, settings))
        _log.info("%s leads %s", identity, settings.access.url)
        _serve(folder, config, backend, policy, settings, leadership, lambda: ending.is_set() or lost.is_set(), signer)
    finally:
        backend.stop()


def _policy(config: Config, settings: Settings, backend: KubernetesBackend | AdvisorBackend) -> Policy:
    """Return the configured policy with the cluster's queues, and without probes if probes can't run."""
    with backend.world.lock:
        policy = with_queues(config.policy, backend.world.queues.values())
    return replace(policy, probe_command=()) if settings.advise or not settings.probe_image else policy


def _memory(settings: Settings) -> tuple[str, str] | None:
    """Return the namespace and name of the ConfigMap for usage and run times; None for an advisor."""
    return None if settings.advise else (settings.namespace, memory_name(settings.lease))


def _kept(backend: KubernetesBackend | AdvisorBackend, settings: Settings) -> bytes:
    memory = _memory(settings)
    if memory is None:
        return b""
    return asyncio.run_coroutine_threadsafe(read(backend.client, *memory), backend.loop).result()


class Queues:
    """Follower of the cluster's Queue objects. A change takes effect in the next cycle."""

    def __init__(self, policy: Callable[[], Policy], version: Callable[[], int], controller: Controller) -> None:
        self._policy, self._version, self._controller = policy, version, controller
        self._followed = -1

    def follow(self) -> None:
        """Send the current queues to the cycle if they changed."""
        from scheduler_feedback.core.events import PolicySet

        version = self._version()
        if version == self._followed:
            return
        request = self._controller.cycle.request(lambda _: PolicySet(self._policy(), "the cluster's queues"))
        try:
            request.result(_REQUEST_SECONDS)
        except (GangwatchError, TimeoutError) as error:
            _log.error("could not apply the cluster's queues: %s", error)
        else:
            self._followed = version


def _serve(
    folder: Path,
    config: Config,
    backend: KubernetesBackend | AdvisorBackend,
    policy: Policy,
    settings: Settings,
    leadership: Leadership,
    over: Callable[[], bool],
    signer: Signer | None = None,
) -> None:
    """Run the controller with its API and metrics until `over` returns True."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from exporter.prometheus.text_format import TEXT_TYPE
    from exporter.security.security import Security
    from exporter.server import certificate_of, url_of
    from exporter.serving.asgi import create_server, local_socket
    from gangwatch.access import audit_of, authentication_of, delegating
    from gangwatch.controller_metrics import exposition
    from gangwatch.daemons import credentials_of, limits_of
    from scheduler_feedback.controller.controller import Controller

    mounted: list[App] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await mounted[0](scope, receive, send)

    host, port = config.controller.address()
    web_config = config.controller.web_config
    state = StateFolder(folder)
    access = authentication_of(state, config)
    security = Security(Path(web_config), proves=delegating(access)) if web_config is not None else None
    server, listener = create_server(
        app, host, port, (lambda: controller.end_streams(),), security, limits_of(config), access.is_operators,
    )  # fmt: skip
    credentials, named = credentials_of(config), naming(backend)
    streams = config.controller.streams, config.controller.streams_per_peer
    attest, audit = backend.world.attest, audit_of(state, config)
    with (
        listener,
        Controller(
            folder,
            backend,
            policy,
            credentials=credentials,
            translate_frames=named,
            attest=attest,
            streams=streams,
            access=access,
            audit=audit,
        ) as controller,
    ):

        def failed() -> None:
            server.should_exit = True

        def leads() -> list[Sample]:
            return [(LEADS, (), float(leadership.may_act()))]

        sources: list[Callable[[], Iterable[Sample]]] = [controller.measures, server.measures, leads]
        sources += [part.measures for part in (security, signer) if part is not None]

        def metrics(_request: Request) -> Response:
            return Response(exposition(controller.failures, sources), media_type=TEXT_TYPE)

        routes = [Mount("/", controller.api([Route("/metrics", metrics)]))]
        mounted.append(Starlette(routes=routes, lifespan=lambda _: controller.serving(failed)))
        controller.announce(url_of(listener, security), str(certificate_of(security) or ""))
        leadership.follow(lambda: controller.cycle.progress.cycles)
        publishing = Publishing(
            backend,
            controller,
            leadership.may_act,
            evicts=settings.evicts,
            device_taints=settings.device_taints,
            memory=_memory(settings),
        )
        queues = Queues(lambda: _policy(config, settings, backend), lambda: backend.world.queues_version, controller)
        files = AgentFiles(folder / "agents", settings.agents)
        done = threading.Event()

        def attend() -> None:
            while not done.wait(_WAIT_SECONDS):
                if over() or controller.failure is not None:
                    server.should_exit = True
                    continue
                try:
                    if settings.agents:
                        files.write(backend.world.agents())
                    queues.follow()
                except Exception as error:  # this thread also detects the loss of leadership: it must not end
                    controller.failures.report("feed", error, "the cluster's agents and queues")

        attending = threading.Thread(target=attend, name="attend", daemon=True)
        attending.start()
        try:
            with local_socket(state.path / "api.sock") as local:
                server.run(sockets=[listener, *local])
        finally:
            done.set()
            attending.join()
            publishing.stop()
        if controller.failure is not None:
            raise controller.failure


def naming(backend: KubernetesBackend | AdvisorBackend) -> RankNames:
    """Return the map from the pods in agents' frames to their gangs."""
    return RankNames(backend.world.place_of, lambda: backend.world.places_version)


def rebuild_journal(
    folder: Path, backend: KubernetesBackend | AdvisorBackend, policy: Policy, *, kept: bytes = b""
) -> None:
    """Rename the folder's journal, and write a new one whose first state is built from the API objects.

    Required if another controller may have led since this folder was last used: its journal is then out of date.

    kept: saved usage of queues and run times of jobs; b'' if none was saved.
    """
    from agent.schema.clock import SystemClock
    from scheduler_feedback.journal.store import Store

    now_ns = SystemClock().wall_ns()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in _STORE_FILES:
        file = folder / name
        if file.exists():
            file.rename(folder / f"{name}.before-{now_ns // 1_000_000_000}")
    state, keys = rebuild(backend.world, backend.nodes(), policy, now_ns)
    for job_id, key in keys.items():
        backend.know(job_id, key)
    if kept:
        give_back(kept, state)
    store = Store(folder / "store.sqlite")
    try:
        store.snapshot(state.cycle, now_ns, state, {}, list(state.jobs))
    finally:
        store.close()
    _log.info("rebuilt the state from the API objects: %d nodes, %d gangs", len(state.nodes), len(state.jobs))


class Publishing:
    """The publisher, as a task in the backend's event loop, and the keeper of the state ConfigMap.

    memory: namespace and name of the ConfigMap; None runs no keeper.
    """

    def __init__(
        self,
        backend: KubernetesBackend | AdvisorBackend,
        controller: Controller,
        may_act: Callable[[], bool],
        *,
        evicts: bool = False,
        device_taints: bool = False,
        memory: tuple[str, str] | None = None,
    ) -> None:
        client, ask = backend.client, controller.cycle.ask
        advice = None
        if isinstance(backend, AdvisorBackend):
            advice = Advice(client, backend.foreign.concerned, devices=device_taints)
        publisher = Publisher(client, backend.world, backend.gangs, ask, may_act, advice, evicts=evicts)
        self.publisher = publisher
        work = [publisher.run()]
        if memory is not None:
            work.append(StateWriter(client, *memory, ask, may_act).run())
        self._futures = [asyncio.run_coroutine_threadsafe(one, backend.loop) for one in work]

    def stop(self) -> None:
        for future in self._futures:
            future.cancel()


def _identity(folder: Path) -> str:
    """Return the name that this state folder uses in the lease.

    A controller that finds its own name in the lease may continue from its journal. The file is written atomically:
    with a partial name, two controllers could lead under the same name.
    """
    path = folder / "identity"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        identity = f"{socket.gethostname()}_{os.urandom(6).hex()}"
        unfinished = path.with_name(f".identity.{os.getpid()}")
        unfinished.write_text(identity)
        unfinished.replace(path)
        return identity
