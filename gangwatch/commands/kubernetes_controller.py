"""The cluster's controller put together: lease, backend, cycle and API; and what it starts from."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.schema.errors import GangwatchError
from gangwatch.config import Config
from gangwatch.logs import configure_logging
from gangwatch.state_folder import StateFolder
from scheduler_feedback.backends.kubernetes import Access, KubernetesBackend
from scheduler_feedback.backends.kubernetes.advice import Advice
from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.agents import AgentFiles
from scheduler_feedback.backends.kubernetes.lease import Leadership
from scheduler_feedback.backends.kubernetes.naming import Naming
from scheduler_feedback.backends.kubernetes.probing import Probes
from scheduler_feedback.backends.kubernetes.publish import Publisher
from scheduler_feedback.backends.kubernetes.rebuild import rebuild
from scheduler_feedback.backends.kubernetes.translate import TopologyLabels, with_queues

if TYPE_CHECKING:
    from exporter.asgi import App, Receive, Scope, Send
    from scheduler_feedback.controller import Controller
    from scheduler_feedback.core.state import Policy

_WAIT_SECONDS = 0.5
_STORE_FILES = ("store.sqlite", "store.sqlite-wal", "store.sqlite-shm")
_log = logging.getLogger("gangwatch.kubernetes")


@dataclass(frozen=True, slots=True)
class Settings:
    """advise: nothing is bound or evicted. agents: URL of an agent, with {} for its pod's dashed address; '': none.

    evicts: quarantine's taint is NoExecute. device_taints: an advisor writes DeviceTaintRules. probe_image: what nodes
    are measured with; '': they are not.
    """

    access: Access
    namespace: str
    lease: str
    scheduler: str
    labels: TopologyLabels
    advise: bool = False
    agents: str = ""
    evicts: bool = False
    device_taints: bool = False
    probe_image: str = ""


def run(state: StateFolder, config: Config, settings: Settings) -> None:
    """Wait until we lead, then be the controller until SIGTERM, or until we lead no more.

    Raises GangwatchError where the cluster can't be reached or leadership was lost: what is started anew waits for it.
    """
    state.prepare()
    configure_logging(state, "controller")
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ending.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    identity = _identity(state.path)
    lost = threading.Event()
    leadership = Leadership(settings.access, settings.namespace, settings.lease, identity, lost=lost.set)
    leadership.start()
    try:
        while not leadership.wait(_WAIT_SECONDS):
            if ending.is_set():
                return
        _lead(state.path, config, settings, leadership, identity, ending, lost)
    finally:
        leadership.stop()
    if lost.is_set():
        raise GangwatchError(f"lease {settings.namespace}/{settings.lease} was lost: another controller leads")


def _lead(
    folder: Path,
    config: Config,
    settings: Settings,
    leadership: Leadership,
    identity: str,
    ending: threading.Event,
    lost: threading.Event,
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
        )
    backend.start()
    try:
        policy = with_queues(config.policy, backend.world.queues.values())
        if settings.advise or not settings.probe_image:
            policy = replace(policy, probe_command=())  # an advisor starts nothing
        if leadership.before != identity:
            begin_anew(folder, backend, policy)
        _log.info("%s leads %s", identity, settings.access.url)
        _serve(folder, config, backend, policy, settings, leadership, lambda: ending.is_set() or lost.is_set())
    finally:
        backend.stop()


def _serve(
    folder: Path,
    config: Config,
    backend: KubernetesBackend | AdvisorBackend,
    policy: Policy,
    settings: Settings,
    leadership: Leadership,
    over: Callable[[], bool],
) -> None:
    """Be the controller, with its API and metrics, until it is over."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from exporter.asgi import create_server
    from exporter.prometheus import TEXT_TYPE, expose_samples
    from exporter.security import Security
    from exporter.server import certificate_of, url_of
    from gangwatch.daemons import credentials_of
    from scheduler_feedback.controller import Controller

    mounted: list[App] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await mounted[0](scope, receive, send)

    host, port = config.controller.address()
    web_config = config.controller.web_config
    security = Security(Path(web_config), token=lambda: controller.token) if web_config is not None else None
    server, listener = create_server(app, host, port, (lambda: controller.end_streams(),), security)
    credentials, named = credentials_of(config), naming(backend)
    with listener, Controller(folder, backend, policy, credentials=credentials, named=named) as controller:

        def failed() -> None:
            server.should_exit = True

        def metrics(_request: Request) -> Response:
            return Response(expose_samples(controller.measures()), media_type=TEXT_TYPE)

        routes = [Route("/metrics", metrics), Mount("/", controller.api())]
        mounted.append(Starlette(routes=routes, lifespan=lambda _: controller.serving(failed)))
        controller.announce(url_of(listener, security), str(certificate_of(security) or ""))
        publishing = Publishing(
            backend, controller, leadership.may_act, evicts=settings.evicts, device_taints=settings.device_taints
        )
        files = AgentFiles(folder / "agents", settings.agents)
        done = threading.Event()

        def attend() -> None:
            while not done.wait(_WAIT_SECONDS):
                if settings.agents:
                    files.write(backend.world.agents())
                if over():
                    server.should_exit = True

        attending = threading.Thread(target=attend, name="attend", daemon=True)
        attending.start()
        try:
            server.run(sockets=[listener])
        finally:
            done.set()
            attending.join()
            publishing.stop()
        if controller.failure is not None:
            raise controller.failure


def naming(backend: KubernetesBackend | AdvisorBackend) -> Naming:
    """Says of the agents' frames which gangs their pods are of."""
    return Naming(backend.world.place_of, lambda: backend.world.places_version)


def begin_anew(folder: Path, backend: KubernetesBackend | AdvisorBackend, policy: Policy) -> None:
    """Set the folder's journal aside, and write one whose first state is what the API's objects say.

    To be done whenever somebody else may have led since this folder did: what it knows is no longer so.
    """
    from agent.schema.clock import SystemClock
    from scheduler_feedback.store import Store

    now_ns = SystemClock().wall_ns()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in _STORE_FILES:
        file = folder / name
        if file.exists():
            file.rename(folder / f"{name}.before-{now_ns // 1_000_000_000}")
    state, keys = rebuild(backend.world, backend.nodes(), policy, now_ns)
    for job_id, key in keys.items():
        backend.know(job_id, key)
    store = Store(folder / "store.sqlite")
    try:
        store.snapshot(state.cycle, now_ns, state, {}, list(state.jobs))
    finally:
        store.close()
    _log.info("begun from the API's objects: %d nodes, %d gangs", len(state.nodes), len(state.jobs))


class Publishing:
    """The publisher, at work in the backend's loop until it is stopped."""

    def __init__(
        self,
        backend: KubernetesBackend | AdvisorBackend,
        controller: Controller,
        may_act: Callable[[], bool],
        *,
        evicts: bool = False,
        device_taints: bool = False,
    ) -> None:
        client, ask = backend.client, controller.cycle.ask
        advice = None
        if isinstance(backend, AdvisorBackend):
            advice = Advice(client, backend.foreign.concerned, devices=device_taints)
        publisher = Publisher(client, backend.world, backend.gangs, ask, may_act, advice, evicts=evicts)
        self.publisher = publisher
        self._future: Future[Any] = asyncio.run_coroutine_threadsafe(publisher.run(), backend.loop)

    def stop(self) -> None:
        self._future.cancel()


def _identity(folder: Path) -> str:
    """A name that stays with the state folder: who finds his own in the lease may go on from his journal."""
    path = folder / "identity"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        identity = f"{socket.gethostname()}_{os.urandom(6).hex()}"
        path.write_text(identity)
        return identity
