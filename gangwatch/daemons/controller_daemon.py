"""The controller daemon for every backend: its process, its server for API and metrics, and its push of metrics."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from agent.schema.errors import StateFolderBusyError
from gangwatch.configuration.config_file import Config, selected_backend
from gangwatch.configuration.in_force import InForce, write_in_force
from gangwatch.daemons.process_limits import ShortCollections, allow_descriptors, use_one_arena
from gangwatch.logs import configure_logging
from gangwatch.state_folder import NodePlan, StateFolder
from gangwatch.supervisor.daemon_ends import read_ends
from gangwatch.supervisor.service_manager import heartbeats, notify

if TYPE_CHECKING:
    from agent.schema.sample import AnySample
    from exporter.serving.asgi import App, Receive, Scope, Send
    from exporter.serving.limits import Limits
    from gangwatch.daemons.otlp_push import OtlpPush
    from scheduler_feedback.controller.controller import Controller
    from scheduler_feedback.controller.controller_settings import ControllerSettings
    from scheduler_feedback.core.state import Policy
    from scheduler_feedback.feed.credentials import Credentials

_RECENT_NS = 60_000_000_000
"""A start of the controller counts as a restart after a failure if the previous controller ended unexpectedly less than
this number of nanoseconds ago. The supervisor restarts a controller within ten seconds."""

SWITCH_SECONDS = 0.0005
"""Interval in seconds at which Python switches between the controller's threads (sys.setswitchinterval). The cycle's
thread releases the interpreter at each SQLite statement. With Python's default, the thread could wait 5 ms to get the
interpreter back."""

CONTROLLER_DESCRIPTORS = 65_536
"""Maximum number of open files of a controller: one per agent of the largest cluster (12,500), and clients."""

_log = logging.getLogger("gangwatch.daemons.controller_daemon")


def run_controller(
    state: StateFolder, config: Config, overrides: dict[str, int | str], planned: tuple[NodePlan, ...] | None = None
) -> None:
    """Run the controller until SIGTERM; SIGHUP reads the configuration again.

    planned: the nodes of this machine; None: as in the configuration. overrides: values from the command line, by
    key; they override the configuration file. Raises StateFolderBusyError if the folder has a controller,
    ConfigError if the port can't be bound, StoreError if the journal can't be used, and any exception that ended one
    of its threads.
    """
    backend = selected_backend(config)
    backend_settings = _local_nodes(config, planned) if backend == "local" else config.backend_section(backend)
    stop = prepare_process(state)
    if (other := state.controller()) is not None:
        raise StateFolderBusyError(f"a controller (pid {other.pid}) is already running for {state}")
    configuration = _Configuration(state, config, overrides)
    with ControllerServer(state, config) as server:
        stop.pass_to(server)
        controller = server.compose(config.policy, backend, backend_settings, configuration.reload)
        ended = read_ends(state).get("controller")
        if ended is not None and ended.exit_code != 0 and time.time_ns() - ended.ended_ns < _RECENT_NS:
            controller.failures.started_again(ended.reason, ended.ended_ns)
        server.run(controller, started=configuration.write)
    _log.info("the controller stopped")


def prepare_process(state: StateFolder) -> StopRequest:
    """Prepare a controller's state folder, log and limits. Return the StopRequest that SIGTERM and SIGINT trigger."""
    state.prepare()
    configure_logging(state, "controller")
    allow_descriptors(CONTROLLER_DESCRIPTORS)
    use_one_arena()
    ShortCollections().start()
    sys.setswitchinterval(SWITCH_SECONDS)
    # Ignore SIGHUP until the event loop handles it: an early reload request must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.make())
    return stop


class StopRequest:
    """Request to stop the controller. It may be made before the server exists."""

    def __init__(self) -> None:
        self.made = False
        """Whether the process shall end."""
        self.restarts = False
        """Whether the controller stops and the process continues with a new one."""
        self._server: ControllerServer | None = None

    def make(self) -> None:
        """Request the stop. The server stops at once, or as soon as it exists. Any thread may call this function."""
        self.made = True
        if self._server is not None:
            self._server.stop()

    def restart(self) -> None:
        """Request the stop of the controller, but not the end of its process. Any thread may call this function."""
        self.restarts = True
        if self._server is not None:
            self._server.stop(restarts=not self.made)

    def pass_to(self, server: ControllerServer) -> None:
        """Set the server to stop. If a stop was already requested, stop it at once."""
        self._server = server
        if self.made or self.restarts:
            server.stop(restarts=not self.made)


class ControllerServer:
    """Server of one controller: API, page and metrics.

    The constructor binds the port, and raises ConfigError if that fails.
    """

    def __init__(self, state: StateFolder, config: Config) -> None:
        from exporter.plugins.plugins import Plugins
        from exporter.security.security import Security
        from exporter.serving.asgi import create_server
        from gangwatch.daemons.agent_daemon import textfile_folder_of
        from gangwatch.daemons.controller_access import authentication_of, delegating

        self._state, self._config = state, config
        self._access = authentication_of(state, config)
        self._push = otlp_push_of(config, socket.gethostname())
        self._plugins = Plugins(textfile_folder_of(config.exporter), config.exporter.deny)
        self._controller: Controller | None = None
        self._app: App | None = None
        self._restarts = False
        host, port = config.controller.address()
        web_config = config.controller.web_config
        proves = delegating(self._access)
        self._security = Security(Path(web_config), proves=proves) if web_config is not None else None
        self._server, self._listener = create_server(
            self._serve_request, host, port, (self._end_streams,), self._security, limits_of(config),
            self._access.is_operators,
        )  # fmt: skip

    def __enter__(self) -> ControllerServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def stop(self, *, restarts: bool = False) -> None:
        """Stop ``run``. If ``run`` is called later, it returns at once. Any thread may call this function.

        restarts: the process continues, so the service manager is not informed of a stop.
        """
        self._restarts = restarts
        self._server.should_exit = True

    def compose(
        self, policy: Policy, backend: str, backend_settings: object, reload: Callable[[], Policy] | None = None
    ) -> Controller:
        """Create the controller and return it without starting it."""
        from scheduler_feedback.controller.composition import ControllerConfiguration, compose

        self._controller = compose(
            ControllerConfiguration(
                self._state.path,
                policy,
                backend,
                backend_settings,
                self._settings(),
                reload,
                self._push.add_entries,
            )
        )
        return self._controller

    def _settings(self) -> ControllerSettings:
        from gangwatch.daemons.controller_access import audit_of
        from scheduler_feedback.controller.controller_settings import ControllerSettings
        from scheduler_feedback.fabric_file import read_fabric
        from scheduler_feedback.journal.store import Retention

        config, section = self._config, self._config.controller
        return ControllerSettings(
            snapshot_seconds=config.store.snapshot_seconds,
            retention=Retention(config.store.keep_days, config.store.journal_bytes),
            fabric=read_fabric(Path(section.topology_file)) if section.topology_file is not None else None,
            credentials=credentials_of(config),
            feed_processes=config.feed.processes if config.feed.processes >= 0 else None,
            streams=(section.streams, section.streams_per_peer),
            access=self._access,
            audit=audit_of(self._state, config),
        )

    def run(
        self,
        controller: Controller,
        sources: Iterable[Callable[[], Iterable[AnySample]]] = (),
        started: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the controller, and serve its API until it is stopped.

        sources: functions that return further metric samples. started: function that is called once the controller
        runs. Raises the exception that ended a thread of the controller.
        """
        from exporter.serving.asgi import local_socket
        from exporter.serving.listening import certificate_of, url_of

        with controller:
            started()
            self._app = self._app_of(controller, sources)
            url = url_of(self._listener, self._security)
            controller.announce(url, str(certificate_of(self._security) or ""))
            _log.info("the controller listens at %s", url)
            notify("READY=1", f"STATUS=controller at {url}")
            self._push.start(controller)
            self._plugins.start()
            try:
                with (
                    heartbeats(lambda: controller.alive()[0]),
                    local_socket(self._state.path / "api.sock") as unix,
                ):
                    self._server.run(sockets=[self._listener, *unix])
            finally:
                notify("STATUS=stopped, starts again" if self._restarts else "STOPPING=1")
                self._push.stop()
                self._plugins.stop()
        if controller.failure is not None:
            raise controller.failure

    def _app_of(self, controller: Controller, more: Iterable[Callable[[], Iterable[AnySample]]]) -> App:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Mount, Route

        from gangwatch.daemons.controller_metrics import ControllerMetrics

        sources = [controller.measures, self._server.measures, self._push.measures, *more]
        if self._security is not None:
            sources.append(self._security.measures)

        page = ControllerMetrics(controller.failures, sources, self._plugins)

        def metrics(request: Request) -> Response:
            body, headers = page.answer(request.headers)
            return Response(body, headers=headers)

        routes = [Mount("/", controller.api([Route("/metrics", metrics)]))]
        return Starlette(routes=routes, lifespan=lambda _: controller.serving(self.stop))

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "the server runs"
        await self._app(scope, receive, send)

    def _end_streams(self) -> None:
        if self._controller is not None:
            self._controller.end_streams()


def _local_nodes(config: Config, planned: tuple[NodePlan, ...] | None) -> object:
    """Return the nodes of the local backend.

    They are those in `planned`, else those of [cluster]; if it sets neither number nor names, this machine is one
    node.
    """
    from gangwatch.supervisor.launcher import plan
    from scheduler_feedback.backends.local.local_backend import LocalNode, LocalSettings

    cluster = config.cluster
    if cluster.nodes is None and cluster.names is None:
        config = msgspec.structs.replace(config, cluster=msgspec.structs.replace(cluster, nodes=1))
    nodes = plan(config) if planned is None else planned
    many, memory = cluster.jobs_per_slot, cluster.slot_memory_mib
    found = tuple(LocalNode(node.name, node.slots, node.devices, many, memory) for node in nodes)
    if not cluster.mig:
        return LocalSettings(found)
    from agent.sources.nvml.nvml_mig import MigGpus

    return LocalSettings(found, MigGpus(config.agent.nvml_library))


def limits_of(config: Config) -> Limits:
    """Return the limits on connections and requests per client of the controller's server."""
    from exporter.serving.limits import Limits

    section = config.controller
    return Limits(
        connections=section.connections,
        connections_each=section.connections_per_peer,
        requests_per_second=section.requests_per_second,
    )


def credentials_of(config: Config) -> Credentials | None:
    """Return the TLS credentials with which the controller connects to agents.

    None: trust the system's authorities and send no certificate.
    """
    from scheduler_feedback.feed.credentials import Credentials

    section = config.feed
    ca_file, cert_file, key_file, password_file = (
        Path(file) if file is not None else None
        for file in (section.ca_file, section.cert_file, section.key_file, section.password_file)
    )
    revoked_file = Path(section.revoked_file) if section.revoked_file is not None else None
    if ca_file is cert_file is password_file is revoked_file is None and section.verify == "node":
        return None
    return Credentials(ca_file, cert_file, key_file, section.username, password_file, section.verify, revoked_file)


def otlp_push_of(config: Config, node: str) -> OtlpPush:
    """Return the thread that pushes the controller's metrics and traces. node: name of this host.

    Raises ConfigError.
    """
    from exporter.otlp.resource import resource_of_controller
    from gangwatch.daemons.agent_daemon import pushes_of, traces_push_of
    from gangwatch.daemons.otlp_push import OtlpPush

    metrics = pushes_of(config).get("otlp")
    return OtlpPush(metrics, traces_push_of(config), resource_of_controller(node))


class _Configuration:
    """The active configuration of the controller. It can be reloaded."""

    def __init__(self, state: StateFolder, config: Config, overrides: dict[str, int | str]) -> None:
        self._state = state
        self._in_force = InForce(config.source, overrides, config)

    def write(self) -> None:
        """Write the active configuration to config.json for the command line, and log settings that have no effect."""
        from gangwatch.configuration.notices import notices_of  # only the controller needs it, not the agent

        write_in_force(self._state, self._in_force)
        config = self._in_force.config
        for notice in notices_of(config):
            _log.warning("%s", notice)

    def reload(self) -> Policy:
        """Read the file again and apply the reloadable settings.

        Raises ConfigError and changes nothing if it is invalid.
        """
        self._in_force = self._in_force.reloaded()
        self.write()
        return self._in_force.config.policy
