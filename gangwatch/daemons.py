"""The daemons put together: an agent is a node's collectors behind a server, a controller the cycle behind its API."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.config import NODE_NAME, Config
from gangwatch.logs import configure_logging
from gangwatch.state_folder import AgentRecord, StateFolder, this_process, write_atomically
from gangwatch.supervisor import agent_name

if TYPE_CHECKING:
    import uvicorn

    from agent.attribution import Attribution
    from agent.collectors.block import Collector

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


def run_agent(state: StateFolder, config: Config, node_name: str, slots: int, devices: tuple[str, ...]) -> None:
    """Be the agent of one node until SIGTERM. devices: GPU UUIDs by slot, () for slots of CPU.

    Raises StateFolderBusyError where the node has an agent already, GangwatchError where it can't start.
    """
    from agent.attribution import Attribution
    from agent.node import Node
    from exporter.server import agent_app, create_server, url_of

    if NODE_NAME.fullmatch(node_name) is None:
        raise GangwatchError(f"{node_name!r} is no node name")
    state.prepare()
    configure_logging(state, agent_name(node_name))
    with state.hold(f"run/{node_name}.lock", f"an agent of node {node_name}"):
        attribution = Attribution(str(state.path / "ranks" / node_name))
        socket_path = state.socket_path(node_name)
        node = Node(
            node_name,
            _collectors(str(socket_path), attribution, config.agent.interval_seconds),
            interval_seconds=config.agent.interval_seconds,
        )
        server, listener = create_server(agent_app(node.newest, node.add_listener), LOOPBACK, 0)
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


def _collectors(socket_path: str, attribution: Attribution, interval_seconds: float) -> list[Collector]:
    """The collectors of a node on this machine. Steps and processes are sampled twice a frame, the rest once."""
    from agent.collectors.gpu import GpuCollector
    from agent.collectors.host import HostCollector
    from agent.collectors.process import ProcessCollector
    from agent.collectors.steps import StepCollector

    return [
        HostCollector(interval_seconds=interval_seconds),
        ProcessCollector(attribution, interval_seconds=interval_seconds / 2),
        StepCollector(socket_path, attribution, interval_seconds=interval_seconds / 2),
        # Leaves itself out where there is no NVML.
        GpuCollector(interval_seconds=interval_seconds),
    ]


# --- controller ------------------------------------------------------------------------------------------------------


def run_controller(state: StateFolder, config: Config, overrides: dict[str, int]) -> None:
    """Be the controller until SIGTERM; SIGHUP reads the configuration again."""
    raise NotImplementedError


_ = os
