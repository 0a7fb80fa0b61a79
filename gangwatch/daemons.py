"""The daemons put together: an agent is a node's collectors behind a server, a controller the cycle behind its API."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from agent.schema.errors import ConfigError, GangwatchError, StateFolderBusyError
from gangwatch.config import NODE_NAME, Config
from gangwatch.in_force import InForce, write_in_force
from gangwatch.logs import configure_logging
from gangwatch.state_folder import AgentRecord, StateFolder, this_process, write_atomically
from gangwatch.supervisor import agent_name

if TYPE_CHECKING:
    import uvicorn

    from exporter.server import App, Receive, Scope, Send
    from scheduler_feedback.core.state import Policy

LOOPBACK = "127.0.0.1"

_log = logging.getLogger("gangwatch.daemons")


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop the server, also before it runs, and then let this process end by itself.

    While it serves, uvicorn takes the signals; afterwards it raises them again, for handlers such as these.
    """

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


# --- agent -----------------------------------------------------------------------------------------------------------


def run_agent(
    state: StateFolder, config: Config, node_name: str, slots: int, devices: tuple[str, ...], position: int = 0
) -> None:
    """Be the agent of one node until SIGTERM. devices: GPU UUIDs by slot, () for slots of CPU. position: of the node
    among this machine's, which is added to the configured port.

    Raises StateFolderBusyError where the node has an agent already, GangwatchError where it can't start.
    """
    from agent.attribution import Attribution
    from agent.collectors import Machine, make_collectors
    from agent.node import Node
    from exporter.server import agent_app, create_server, url_of

    if NODE_NAME.fullmatch(node_name) is None:
        raise GangwatchError(f"{node_name!r} is no node name")
    state.prepare()
    configure_logging(state, agent_name(node_name))
    with state.hold(f"run/{node_name}.lock", f"an agent of node {node_name}"):
        attribution = Attribution(str(state.path / "ranks" / node_name))
        socket_path = state.socket_path(node_name)
        interval_seconds = config.agent.interval_seconds
        machine = Machine(attribution, str(socket_path), gpus=devices, interval_seconds=interval_seconds)
        collectors, left_out = make_collectors(machine)
        for reason in left_out:
            _log.info("left out: %s", reason)
        node = Node(node_name, collectors, interval_seconds=interval_seconds)
        port = config.agent.port + position if config.agent.port else 0
        if port > 65535:
            raise ConfigError(f"agent.port {config.agent.port}: none is left for this machine's node {position + 1}")
        server, listener = create_server(agent_app(node.newest, node.add_listener), LOOPBACK, port)
        this = this_process()
        record = AgentRecord(
            this.pid, this.start_time, node_name, url_of(listener), str(socket_path), slots, devices, node.boot_id
        )
        with _stopped_by_signals(server):
            node.start()
            try:
                write_atomically(state.agent_file(node_name), msgspec.json.encode(record))
                _log.info("node %s listens at %s", node_name, record.url)
                server.run(sockets=[listener])
            finally:
                state.agent_file(node_name).unlink(missing_ok=True)
                listener.close()
                node.stop()
        _log.info("node %s stopped", node_name)


# --- controller ------------------------------------------------------------------------------------------------------


def run_controller(state: StateFolder, config: Config, overrides: dict[str, int]) -> None:
    """Be the controller until SIGTERM; SIGHUP reads the configuration again.

    overrides: the command line's keys, which go over the file at every reading. Raises StateFolderBusyError where the
    folder has a controller, ConfigError where the port can't be had, StoreError where the journal can't be used, and
    whatever bug ended one of its threads.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from exporter.prometheus import CONTENT_TYPE, expose_families
    from exporter.server import create_server, url_of
    from gangwatch.launcher import plan
    from scheduler_feedback.backends.local import LocalBackend, LocalNode
    from scheduler_feedback.controller import Controller
    from scheduler_feedback.store import Retention

    nodes = plan(config)
    state.prepare()
    configure_logging(state, "controller")
    # Until the loop takes it, a reload asked for too early must not end us.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if (other := state.controller()) is not None:
        raise StateFolderBusyError(f"a controller (pid {other.pid}) already runs for {state}")
    configuration = _Configuration(state, config, overrides)
    backend = LocalBackend(state.path, [LocalNode(node.name, node.slots, node.devices) for node in nodes])
    mounted: list[App] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await mounted[0](scope, receive, send)

    # The port first: where it can't be had, no cycle has begun and nothing was started.
    server, listener = create_server(app, LOOPBACK, config.controller.port, (lambda: controller.end_streams(),))
    with listener, _stopped_by_signals(server):
        controller = Controller(
            state.path,
            backend,
            config.policy,
            reload=configuration.reload,
            snapshot_seconds=config.store.snapshot_seconds,
            retention=Retention(config.store.keep_days, config.store.journal_bytes),
        )

        def failed() -> None:
            server.should_exit = True

        def metrics(_request: Request) -> Response:
            return Response(expose_families(controller.measures()), media_type=CONTENT_TYPE)

        with controller:
            configuration.write()
            mounted.append(
                Starlette(
                    routes=[Route("/metrics", metrics), Mount("/", controller.api())],
                    lifespan=lambda _: controller.serving(failed),
                )
            )
            controller.announce(url_of(listener))
            _log.info("the controller listens at %s", url_of(listener))
            server.run(sockets=[listener])
        if controller.failure is not None:
            raise controller.failure
    _log.info("the controller stopped")


class _Configuration:
    """The configuration in force, and how it is read again."""

    def __init__(self, state: StateFolder, config: Config, overrides: dict[str, int]) -> None:
        self._state = state
        self._in_force = InForce(config.source, overrides, config)

    def write(self) -> None:
        write_in_force(self._state, self._in_force)

    def reload(self) -> Policy:
        """Read the file again and take over what can be. Raises ConfigError, and all stays as it was."""
        self._in_force = self._in_force.reloaded()
        self.write()
        return self._in_force.config.policy
