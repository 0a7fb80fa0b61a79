"""Composition of the daemons: the agent (collectors and their server) and the controller (cycle and API)."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.schema.errors import ConfigError, GangwatchError, StateFolderBusyError
from gangwatch.configuration.config_file import Config, changes
from gangwatch.configuration.in_force import InForce, write_in_force
from gangwatch.configuration.node_plan import NODE_NAME
from gangwatch.configuration.sections import AgentSection, parse_listen
from gangwatch.logs import configure_logging
from gangwatch.state_folder import AgentRecord, NodePlan, StateFolder, agent_name, this_process, write_atomically
from gangwatch.supervisor.daemon_ends import read_ends
from gangwatch.supervisor.service_manager import heartbeats, notify, reloading, watchdog_seconds

if TYPE_CHECKING:
    import uvicorn

    from exporter.prometheus.exposition import Settings
    from exporter.push.push import PushTarget
    from exporter.security.frame_readers import FrameReaders
    from exporter.serving.asgi import App, Receive, Scope, Send
    from exporter.serving.limits import Limits
    from gangwatch.certificates.renewal import Renewal
    from gangwatch.otlp_push import OtlpPush
    from scheduler_feedback.backends.slurm import SlurmBackend
    from scheduler_feedback.core.state import Policy
    from scheduler_feedback.core.telemetry.fleet import Sample
    from scheduler_feedback.feed.credentials import Credentials

LOOPBACK = "127.0.0.1"

SUBMIT_TO_SLURM = (
    "Slurm schedules the jobs of this cluster: submit with `sbatch`, or with `gangwatch slurm submit`, which also "
    "declares the job restartable"
)

_CYCLES_AFTER = 20_000
"""Threshold of the garbage collector (gc.set_threshold). An agent creates almost no reference cycles, and Python's
default of 700 objects costs a twentieth of its processor time."""

_RECENT_NS = 60_000_000_000
"""An end longer ago than this did not cause this start: a supervisor restarts a controller within ten seconds."""

SWITCH_SECONDS = 0.0005
"""Interpreter switch interval of the controller (Python's default: 5 ms). The cycle's thread releases the interpreter
at each SQLite statement and fsync, and with busy readers would wait 5 ms each time to get it back."""

CONTROLLER_DESCRIPTORS = 65_536
"""One per agent of the largest cluster (12,500), plus connections of clients."""

AGENT_DESCRIPTORS = 16384
"""Two per step reporter of the default quota (1,024), as many for reporters that come and go, and the files of
processes and devices: at most 6,000, with reserve."""

_M_ARENA_MAX = -8
"""malloc.h."""

_log = logging.getLogger("gangwatch.daemons")


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop the server, even before it runs; the process then ends normally.

    uvicorn handles the signals while it serves, and raises them again afterwards for handlers such as these.
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

_ENDS = frozenset({signal.SIGTERM, signal.SIGINT})
_ASKS = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


def run_agent(
    state: StateFolder,
    config: Config,
    node_name: str,
    slots: int,
    devices: tuple[str, ...],
    position: int = 0,
    reload: Callable[[], Config] | None = None,
) -> None:
    """Run the agent of one node until SIGTERM.

    devices: GPU UUIDs by slot; () for CPU slots. position: index of the node on this machine, which is added to the
    configured port. reload: reads the configuration again, on SIGHUP.

    SIGUSR1 releases the GPUs, so that they can be reset or their driver can be unloaded; SIGUSR2 opens them again.

    Raises StateFolderBusyError if the node already has an agent, GangwatchError if it can't start.
    """
    if NODE_NAME.fullmatch(node_name) is None:
        raise GangwatchError(f"{node_name!r} is not a valid node name")
    # Block the signals before any thread starts, so in all threads: only the main thread receives them, by sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS | _ASKS)
    use_one_arena()
    state.prepare()
    configure_logging(state, agent_name(node_name))
    allow_descriptors(AGENT_DESCRIPTORS)
    with state.hold(f"run/{node_name}.lock", f"an agent of node {node_name}"):
        _Agent(state, config, node_name, slots, devices, position, reload).run()


def allow_descriptors(most: int) -> None:
    """Raise the limit of open files to `most`, or to the hard limit. The usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def use_one_arena() -> None:
    """Make glibc use one heap for all threads (mallopt(3)): one per thread would add a megabyte of fragments.

    Call it before threads start. Other C libraries have no such heaps; there it does nothing.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


class _Agent:
    """A node with its publisher, and the handling of signals."""

    def __init__(
        self,
        state: StateFolder,
        config: Config,
        node_name: str,
        slots: int,
        devices: tuple[str, ...],
        position: int,
        reload: Callable[[], Config] | None,
    ) -> None:
        from agent.collectors import Machine, make_collectors
        from agent.node import Node
        from agent.rank_attribution import Attribution
        from agent.sources.steps.tenants import Quotas
        from exporter.publisher import Publisher

        self._state, self._config, self._name = state, config, node_name
        self._slots, self._devices, self._reload = slots, devices, reload
        section = config.agent
        self._socket_path = _step_socket(config.agent, state, node_name)
        machine = Machine(
            Attribution(str(state.path / "ranks" / node_name), section.proc_root),
            str(self._socket_path),
            section.proc_root,
            section.sysfs_root,
            section.nvml_library,
            devices,
            section.interval_seconds,
            kubelet_socket=section.kubelet_socket or None,
            job_files=section.job_files,
            rdma_excluded=section.rdma_excluded,
            kernel_log=section.kernel_log,
            gpu_burst=section.gpu_burst,
            kubelet_pods=section.kubelet_pods or None,
            quotas=Quotas(**msgspec.structs.asdict(config.step_quotas)),
        )
        collectors, left_out = make_collectors(machine)
        for reason in left_out:
            _log.info("collector not started: %s", reason)
        self._node = Node(node_name, collectors, interval_seconds=section.interval_seconds, proc_root=section.proc_root)
        host, port = self._address(position)
        web_config = Path(section.web_config) if section.web_config is not None else None
        self._renewal = _renewal_of(section, web_config, node_name)
        if self._renewal is not None and not self._renewal.first(lambda: bool(signal.sigpending() & _ENDS)):
            raise GangwatchError("stopped before a certificate was available")
        self._publisher = Publisher(
            self._node, host, port, web_config, settings_of(config), pushes_of(config), _readers_of(section, host)
        )
        self._warn_without_frame_readers()

    def _warn_without_frame_readers(self) -> None:
        """Log a warning if no client can read frames. It is no error: an agent may only be scraped."""
        security = self._publisher.security
        if security is not None and not security.has_frame_readers:
            _log.warning(
                "no client can read frames: %s does not verify client certificates, and the controller needs one to "
                "read frames (set client_ca_file and client_auth_type: VerifyClientCertIfGiven)",
                security.config.file,
            )

    def _address(self, position: int) -> tuple[str, int]:
        section = self._config.agent
        host, port = (
            parse_listen(section.listen, "agent.listen") if section.listen is not None else (LOOPBACK, section.port)
        )
        if port and port + position > 65535:
            raise ConfigError(f"agent.port {port}: no port below 65536 is left for node {position + 1} of this machine")
        return host, port + position if port else 0

    def run(self) -> None:
        from exporter.server import certificate_of

        this = this_process()
        record = AgentRecord(
            this.pid,
            this.start_time,
            self._name,
            self._publisher.url,
            str(self._socket_path),
            self._slots,
            self._devices,
            self._node.boot_id,
            str(certificate_of(self._publisher.security) or ""),
        )
        self._node.start()
        try:
            self._publisher.start()
            if self._renewal is not None:
                self._renewal.start()
            write_atomically(self._state.agent_file(self._name), msgspec.json.encode(record))
            _log.info("node %s listens at %s", self._name, record.url)
            notify("READY=1", f"STATUS=node {self._name} at {record.url}")
            gc.freeze()  # modules and configuration live until the end
            gc.set_threshold(_CYCLES_AFTER)
            self._take_signals()
        finally:
            notify("STOPPING=1")
            self._state.agent_file(self._name).unlink(missing_ok=True)
            if self._renewal is not None:
                self._renewal.stop()
            self._publisher.stop()
            self._node.stop()
        _log.info("node %s stopped", self._name)

    def _take_signals(self) -> None:
        """Handle signals until one that ends the process."""
        heartbeat_seconds = watchdog_seconds()
        while True:
            if heartbeat_seconds is None:
                number: int = signal.sigwait(_ENDS | _ASKS)
            else:
                taken = signal.sigtimedwait(_ENDS | _ASKS, heartbeat_seconds)
                if taken is None:
                    # Only while frames are made: an agent whose thread is stuck must be restarted.
                    if self._publisher.healthy():
                        notify("WATCHDOG=1")
                    continue
                number = taken.si_signo
            if number in _ENDS:
                return
            if number == signal.SIGUSR1:
                _log.info("released the GPUs: they can be reset now (SIGUSR2 opens them again)")
                self._node.release()
            elif number == signal.SIGUSR2:
                _log.info("opening the GPUs again")
                self._node.acquire()
            else:
                self._read_again()

    def _read_again(self) -> None:
        """Apply the reloadable settings of a changed configuration. If it is invalid, log that and change nothing."""
        notify(*reloading())
        try:
            if self._reload is not None:
                wanted = self._reload()
                self._publisher.use(settings_of(wanted), pushes_of(wanted))
                for key in (change.key for change in changes(self._config, wanted)):
                    if key.startswith(("agent.", "cluster.")):
                        _log.warning("%s has changed but needs a restart of the agent: not applied", key)
            self._publisher.reload_web_config()
            _log.info("configuration reloaded")
        except ConfigError as error:
            _log.error("invalid configuration, the old one stays active: %s", error)
        notify("READY=1")


def _step_socket(section: AgentSection, state: StateFolder, node: str) -> Path:
    """Return the path of the step socket. Raises ConfigError if the agent can't own its folder."""
    if section.step_folder is not None:
        if section.step_socket is not None:
            raise ConfigError("agent.step_folder: agent.step_socket is also set; use only one of them")
        folder = Path(section.step_folder).absolute()
        try:
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.geteuid() or folder.is_symlink():
                raise ConfigError(f"agent.step_folder: {folder}: belongs to another user")
            folder.chmod(0o711)  # every user may enter it, but only the owner may list or change it
        except OSError as error:
            raise ConfigError(f"agent.step_folder: {folder}: {error.strerror}") from None
        return folder / "agent.sock"
    named = section.step_socket
    return state.socket_path(node) if named is None else Path(named.replace("{node}", node)).absolute()


def _readers_of(section: AgentSection, host: str) -> FrameReaders | None:
    """Return the clients that may read frames over TLS; None if all readers of metrics may.

    Raises ConfigError for a damaged revocation list.
    """
    from exporter.security.frame_readers import FrameReaders
    from exporter.security.loopback import is_loopback

    if is_loopback(host) or not section.frame_readers:
        return None
    return FrameReaders(section.frame_readers, Path(section.revoked_file) if section.revoked_file else None)


def _renewal_of(section: AgentSection, web_config: Path | None, node: str) -> Renewal | None:
    """Return the renewal of the agent's certificate. Raises ConfigError if no certificate file is configured."""
    if not section.certificate_command:
        return None
    from exporter.security.web_config import certificate_path
    from gangwatch.certificates.renewal import Renewal

    path = certificate_path(web_config) if web_config is not None else None
    if path is None:
        raise ConfigError("agent.certificate_command: agent.web_config has no cert_file for the command to write")
    return Renewal(section.certificate_command, path, node)


def settings_of(config: Config) -> Settings:
    """Return the settings of the exposition."""
    from exporter.prometheus.exposition import Settings

    section = config.exporter
    return Settings(
        section.profile,
        section.allow,
        section.deny,
        section.series_limit,
        section.compatibility,
        section.hostname_label,
        section.owner_labels,
    )


def pushes_of(config: Config) -> dict[str, PushTarget]:
    """Return the exporter's push targets by sink name."""
    from exporter.push.push import PushTarget

    return {
        name: PushTarget(
            section.endpoint,
            section.interval_seconds,
            Path(section.headers_file) if section.headers_file is not None else None,
            Path(section.ca_file) if section.ca_file is not None else None,
            section.queue_frames,
        )
        for name, section in (("otlp", config.otlp), ("remote_write", config.remote_write))
        if section.endpoint
    }


def otlp_push_of(config: Config, node: str) -> OtlpPush:
    """Return the controller's OTLP push. node: this host's name. Raises ConfigError."""
    from gangwatch.otlp_push import OtlpPush

    metrics = pushes_of(config).get("otlp")
    section = msgspec.structs.replace(config.otlp, endpoint=config.otlp.traces_endpoint)
    traces = pushes_of(msgspec.structs.replace(config, otlp=section)).get("otlp")
    return OtlpPush(metrics, traces, {"service.instance.id": "controller", "host.name": node})


# --- controller ------------------------------------------------------------------------------------------------------


def run_controller(
    state: StateFolder, config: Config, overrides: dict[str, int | str], planned: tuple[NodePlan, ...] | None = None
) -> None:
    """Run the controller until SIGTERM; SIGHUP reads the configuration again.

    planned: the nodes; None plans them from the configuration. overrides: keys of the command line, which override the
    file at every read. Raises StateFolderBusyError if the folder has a controller, ConfigError if the port can't be
    bound, StoreError if the journal can't be used, and any exception that ended one of its threads.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    from exporter.prometheus.text_format import TEXT_TYPE
    from exporter.security.security import Security
    from exporter.server import certificate_of, url_of
    from exporter.serving.asgi import create_server, local_socket
    from gangwatch.controller_access import audit_of, authentication_of, delegating
    from gangwatch.controller_metrics import exposition
    from gangwatch.supervisor.launcher import plan
    from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode
    from scheduler_feedback.controller.controller import Controller
    from scheduler_feedback.fabric_file import read_fabric
    from scheduler_feedback.journal.store import Retention

    nodes = () if config.slurm.enabled else plan(_as_one_node(config)) if planned is None else planned
    state.prepare()
    configure_logging(state, "controller")
    allow_descriptors(CONTROLLER_DESCRIPTORS)
    sys.setswitchinterval(SWITCH_SECONDS)
    # Ignore SIGHUP until the event loop handles it: an early reload request must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if (other := state.controller()) is not None:
        raise StateFolderBusyError(f"a controller (pid {other.pid}) is already running for {state}")
    configuration = _Configuration(state, config, overrides)
    slurm = slurm_backend(state, config) if config.slurm.enabled else None
    local = LocalBackend(state.path, [LocalNode(node.name, node.slots, node.devices) for node in nodes])
    mounted: list[App] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await mounted[0](scope, receive, send)

    topology_file = config.controller.topology_file
    fabric = read_fabric(Path(topology_file)) if topology_file is not None else None
    # Bind the port first: if that fails, no cycle has run and nothing was started.
    host, port = config.controller.address()
    web_config = config.controller.web_config
    access = authentication_of(state, config)
    security = Security(Path(web_config), proves=delegating(access)) if web_config is not None else None
    server, listener = create_server(
        app, host, port, (lambda: controller.end_streams(),), security, limits_of(config), access.is_operators,
    )  # fmt: skip
    push = otlp_push_of(config, socket.gethostname())
    with listener, _stopped_by_signals(server):
        controller = Controller(
            state.path,
            slurm or local,
            config.policy,
            reload=configuration.reload,
            snapshot_seconds=config.store.snapshot_seconds,
            retention=Retention(config.store.keep_days, config.store.journal_bytes),
            credentials=credentials_of(config),
            fabric=fabric,
            attest=slurm.attest if slurm is not None else None,
            translate_events=slurm.heard if slurm is not None else None,
            on_entries=push.add_entries,
            elsewhere=SUBMIT_TO_SLURM if slurm is not None else "",
            streams=(config.controller.streams, config.controller.streams_per_peer),
            access=access,
            audit=audit_of(state, config),
        )

        def failed() -> None:
            server.should_exit = True

        sources: list[Callable[[], Iterable[Sample]]] = [controller.measures, server.measures, push.measures]
        sources += [part.measures for part in (slurm, security) if part is not None]

        def metrics(_request: Request) -> Response:
            return Response(exposition(controller.failures, sources), media_type=TEXT_TYPE)

        ended = read_ends(state).get("controller")
        if ended is not None and ended.exit_code != 0 and time.time_ns() - ended.ended_ns < _RECENT_NS:
            controller.failures.started_again(ended.reason, ended.ended_ns)
        with slurm or nullcontext(), controller:
            if slurm is not None:
                slurm.attend(controller.cycle.ask)
            configuration.write()
            mounted.append(
                Starlette(
                    routes=[Mount("/", controller.api([Route("/metrics", metrics)]))],
                    lifespan=lambda _: controller.serving(failed),
                )
            )
            controller.announce(url_of(listener, security), str(certificate_of(security) or ""))
            _log.info("the controller listens at %s", url_of(listener, security))
            notify("READY=1", f"STATUS=controller at {url_of(listener, security)}")
            push.start(controller)
            try:
                with heartbeats(lambda: controller.alive()[0]), local_socket(state.path / "api.sock") as unix:
                    server.run(sockets=[listener, *unix])
            finally:
                notify("STOPPING=1")
                push.stop()
        if controller.failure is not None:
            raise controller.failure
    _log.info("the controller stopped")


def limits_of(config: Config) -> Limits:
    """Return the limits per peer of the controller's server."""
    from exporter.serving.limits import Limits

    section = config.controller
    return Limits(
        connections=section.connections,
        connections_each=section.connections_per_peer,
        requests_per_second=section.requests_per_second,
    )


def _as_one_node(config: Config) -> Config:
    """Return the configuration with one node, the default node of `gangwatch agent`, unless nodes are configured."""
    cluster = config.cluster
    if cluster.nodes is not None or cluster.names is not None:
        return config
    return msgspec.structs.replace(config, cluster=msgspec.structs.replace(cluster, nodes=1))


def slurm_backend(state: StateFolder, config: Config) -> SlurmBackend:
    """Return the Slurm backend as configured. Raises BackendError if its saved state can't be read."""
    from scheduler_feedback.backends.slurm import Commands, Settings, SlurmBackend

    section = config.slurm
    commands = Commands(section.programs, section.configuration, section.timeout_seconds, section.text)
    settings = Settings(
        section.partition_share,
        section.requeues_per_hour,
        section.changes_per_minute,
        section.idle_seconds,
        section.attentive_seconds,
        section.comments,
    )
    return SlurmBackend(state.path, commands, settings, agents=section.agents)


def credentials_of(config: Config) -> Credentials | None:
    """Return the feed's TLS credentials for agents; None for the system's authorities and no own certificate."""
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


class _Configuration:
    """The active configuration, and its reload."""

    def __init__(self, state: StateFolder, config: Config, overrides: dict[str, int | str]) -> None:
        self._state = state
        self._in_force = InForce(config.source, overrides, config)

    def write(self) -> None:
        """Write the configuration for the command line, and log settings that have no effect."""
        from gangwatch.configuration.notices import notices  # only the controller needs it, not the agent

        write_in_force(self._state, self._in_force)
        for notice in notices(self._in_force.config.policy):
            _log.warning("%s", notice)

    def reload(self) -> Policy:
        """Read the file again and apply the reloadable settings. Raises ConfigError; then nothing changes."""
        self._in_force = self._in_force.reloaded()
        self.write()
        return self._in_force.config.policy
