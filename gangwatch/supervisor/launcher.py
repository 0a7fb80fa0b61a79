"""Functions that `gangwatch up` uses: plan the nodes, start the supervisor process, and print its progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import Config
from gangwatch.configuration.node_plan import plan_nodes
from gangwatch.health.machine import find_gpus, host_name, usable_processors
from gangwatch.logs import configure_logging
from gangwatch.state_folder import NodePlan, StateFolder, SupervisorRecord
from gangwatch.supervisor.readiness import in_words, not_ready
from gangwatch.supervisor.supervisor import READY_SECONDS, StartError, Supervisor

Say = Callable[[str], None]


def plan(config: Config) -> tuple[NodePlan, ...]:
    """Return the nodes that this configuration describes on this machine. Raises ConfigError."""
    gpus = tuple(gpu.uuid for gpu in find_gpus(config.agent.nvml_library)) if config.cluster.gpus else ()
    return plan_nodes(config.cluster, host_name(), usable_processors(), gpus)


@dataclass(frozen=True, slots=True)
class Order:
    """Description of the cluster that `gangwatch up` starts."""

    state: StateFolder
    nodes: tuple[NodePlan, ...]
    port: int
    config: str = ""
    """Path of the configuration file; '' for none."""
    options: tuple[str, ...] = ()
    """Command-line options of `gangwatch up`, which are passed to the controller."""
    cluster: str = ""
    """The [cluster] section, as JSON, from which the nodes were planned."""


Load = Callable[[Path | None, tuple[str, ...]], Config]


def make_order(state: StateFolder, config_file: Path | None, options: tuple[str, ...], load: Load, say: Say) -> Order:
    """Return the cluster to start: that of the last `gangwatch up`, changed by the new options.

    If `gangwatch down` was called since, only the new options apply.

    load: returns the effective configuration of a file and options. say: prints a message to the user.

    Raises ConfigError if this machine can't run the cluster, GangwatchError if daemons of the state folder already
    run with other nodes or another port.
    """
    left = state.supervisor_left()
    file: Path | None
    if left is not None and config_file is not None and str(config_file) != left.config:
        say(f"the last `gangwatch up` had another configuration ({left.config or 'none'}): its options are ignored")
        file, merged = config_file, options
    elif left is not None:
        file, merged = _file_again(left, config_file, say), merge_options(left.options, options)
    else:
        file, merged = config_file, options
    config = load(file, merged)
    cluster = msgspec.json.encode(config.cluster).decode()
    port = config.controller.address()[1]
    same = left is not None and (left.cluster == cluster or (not left.cluster and left.options == merged))
    nodes = left.nodes if left is not None and same else plan(config)
    order = Order(state, nodes, port, config.source, merged, cluster)
    if left is None:
        return order
    if left.anything_alive():
        if (left.nodes, left.port) != (nodes, port):
            raise GangwatchError(
                f"{state} already runs with other nodes, slots or port (nodes {_named(left.nodes)}; port {left.port}): "
                "run `gangwatch down` first, with --keep-jobs to keep jobs running"
            )
    elif left.nodes == nodes:
        say(f"restoring the cluster of the last `gangwatch up`: {_named(nodes)}")
        _warn_of_lost_gpus(nodes, config, say)
    else:
        say(f"nodes differ from the last `gangwatch up`: now {_named(nodes)}, before {_named(left.nodes)}")
    if left.port != port:
        say(f"the controller's port differs from the last `gangwatch up`: now {port}, before {left.port}")
    return order


def _file_again(left: SupervisorRecord, given: Path | None, say: Say) -> Path | None:
    """Return the configuration file: `given`, else that of the last `up`, if it still exists."""
    if given is not None or not left.config:
        return given
    if not Path(left.config).exists():
        say(f"the configuration of the last `gangwatch up` no longer exists: {left.config}")
        return None
    return Path(left.config)


def merge_options(earlier: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the merged options of two command lines of `gangwatch up`; `given` overrides `earlier`."""
    found: dict[str, tuple[str, ...]] = {}
    for options in (earlier, given):
        words = iter(options)
        for word in words:
            found[word] = () if word in FLAGS else (next(words),)
    return tuple(part for name, value in found.items() for part in (name, *value))


FLAGS = frozenset({"--no-gpus"})
"""Options of `up` that take no value."""


def _named(nodes: Iterable[NodePlan]) -> str:
    return ", ".join(f"{node.name} ({node.slots})" for node in nodes)


def _warn_of_lost_gpus(nodes: tuple[NodePlan, ...], config: Config, say: Say) -> None:
    wanted = [uuid for node in nodes for uuid in node.devices]
    if wanted and (lost := sorted(set(wanted) - {gpu.uuid for gpu in find_gpus(config.agent.nvml_library)})):
        say(f"warning: the driver no longer lists {', '.join(lost)}; `gangwatch down` deletes the saved cluster")


def run_in_foreground(order: Order, say: Say, on_ready: Callable[[], None]) -> None:
    """Run the supervisor until a signal stops it.

    If it can't start, raise GangwatchError and leave no daemon running.
    """
    order.state.prepare()
    configure_logging(order.state, "supervisor")
    Supervisor(order.state, order.nodes, order.port, order.config, order.options, say, order.cluster).run(on_ready)


def start_detached(order: Order, say: Say) -> None:
    """Start the supervisor as a separate process and wait until all daemons are ready.

    If a daemon can't start, raise GangwatchError with the daemon's error. No process is then left running.
    """
    order.state.prepare()
    lives = order.state.supervisor()
    if lives is not None:
        _join(order.state, lives, say)
        return
    read_end, write_end = os.pipe()
    command = [sys.executable, "-P", "-m", "gangwatch", "up", "--foreground", "--report-to", str(write_end)]
    command += ["--state", str(order.state), *order.options]
    if order.config:
        command += ["--config", order.config]
    with open(order.state.error_file("supervisor"), "wb") as errors:
        supervisor = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(write_end,),
            start_new_session=True,
            cwd="/",
        )
    os.close(write_end)
    try:
        with open(read_end, encoding="utf-8") as lines:
            _listen(lines, order.state, say)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait(timeout=READY_SECONDS)
        raise
    except GangwatchError:
        supervisor.wait(timeout=READY_SECONDS)
        raise
    # The supervisor outlives this process and becomes a child of init, so do not wait for its end.
    supervisor.returncode = 0


def _listen(lines: Iterable[str], state: StateFolder, say: Say) -> None:
    """Print the supervisor's progress until it is ready. Raises StartError if the start fails."""
    for line in lines:
        report = json.loads(line)
        if "failed" in report:
            raise StartError(report["failed"])
        if "ready" in report:
            return
        say(report["progress"])
    raise StartError(f"the supervisor ended: see {state.error_file('supervisor')}")


def _join(state: StateFolder, lives: SupervisorRecord, say: Say) -> None:
    """Handle `up` while another supervisor already runs this cluster. Raises StartError if a daemon is not ready."""
    say(f"already running: supervisor {lives.pid}")
    waiting = not_ready(state, lives.nodes)
    if waiting:
        raise StartError(
            f"supervisor {lives.pid} is running, but these daemons are not ready: {in_words(waiting)}; see {state}/log"
        )


class Reporter:
    """Sender of progress reports through a pipe, from the supervisor to the `gangwatch up` that started it.

    If `gangwatch up` no longer reads the pipe, reports are dropped.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor: int | None = descriptor

    def progress(self, text: str) -> None:
        self._send({"progress": text})

    def ready(self) -> None:
        self._send({"ready": True})
        self.close()

    def failed(self, reason: str) -> None:
        self._send({"failed": reason})
        self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _send(self, report: dict[str, object]) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps(report).encode() + b"\n")
        except BrokenPipeError:
            self.close()
