"""The agent daemon: it runs the collectors of a node and serves their samples over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.schema.errors import ConfigError, GangwatchError
from gangwatch.configuration.config_file import Config, changes
from gangwatch.configuration.node_plan import NODE_NAME
from gangwatch.configuration.sections import AgentSection, ExporterSection, OtlpSection, PushSection, parse_listen
from gangwatch.daemons.process_limits import allow_descriptors, use_one_arena
from gangwatch.logs import configure_logging
from gangwatch.state_folder import AgentRecord, StateFolder, agent_name, this_process, write_atomically
from gangwatch.supervisor.service_manager import notify, reloading, watchdog_seconds

if TYPE_CHECKING:
    from agent.power_leases import PowerLeases
    from agent.sources.steps.shift_orders import ShiftOrders
    from exporter.prometheus.exposition import Settings
    from exporter.push.target import PushTarget
    from exporter.security.frame_readers import FrameReaders
    from exporter.server import Limit, Shifting
    from exporter.serving.http_messages import Request
    from gangwatch.certificates.renewal import Renewal

LOOPBACK = "127.0.0.1"

_CYCLES_AFTER = 20_000
"""Number of new objects after which Python's garbage collector runs (gc.set_threshold). Python's default of 700 would
cost 5 % of the agent's processor time, and an agent creates almost no reference cycles."""

AGENT_DESCRIPTORS = 16384
"""Maximum number of open files of an agent. It needs at most 6,000: two for each of 1,024 step reporters (the default
quota), the same number for reporters that start or end, and the files of processes and devices."""

_log = logging.getLogger("gangwatch.daemons.agent_daemon")


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

    devices: GPU UUIDs by slot; () for CPU slots. position: index of the node on this machine; added to the configured
    port. reload: returns the new configuration; called on SIGHUP.

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


class _Agent:
    """Agent of one node, with its servers and signal handlers."""

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
        from agent.sources.steps.shift_orders import ShiftOrders
        from agent.sources.steps.tenants import Quotas
        from exporter.publisher import Publisher

        self._state, self._config, self._name = state, config, node_name
        self._slots, self._devices, self._reload = slots, devices, reload
        section = config.agent
        self._socket_path = _step_socket(config.agent, state, node_name)
        host, port = self._address(position)
        readers = _readers_of(section, host)
        self._leases = _leases_of(section, state, node_name, readers)
        shifts = None if readers is None or section.web_config is None else ShiftOrders()
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
            power_leases=self._leases,
            shift_orders=shifts,
            quotas=Quotas(**msgspec.structs.asdict(config.step_quotas)),
            collectors=section.collectors,
            node=node_name,
            pod_label_names=section.pod_label_names,
        )
        collectors, left_out = make_collectors(machine)
        for reason in left_out:
            _log.info("collector not started: %s", reason)
        self._node = Node(node_name, collectors, interval_seconds=section.interval_seconds, proc_root=section.proc_root)
        web_config = Path(section.web_config) if section.web_config is not None else None
        self._renewal = _renewal_of(section, web_config, node_name)
        if self._renewal is not None and not self._renewal.first(lambda: bool(signal.sigpending() & _ENDS)):
            raise GangwatchError("stopped before a certificate was available")
        self._publisher = Publisher(
            self._node, host, port, web_config, settings_of(config), pushes_of(config), readers,
            _limit_with(self._leases, readers), _shift_with(shifts, readers),
        )  # fmt: skip
        self._warn_without_frame_readers()

    def _warn_without_frame_readers(self) -> None:
        """Log a warning if the TLS settings let no client read frames. Prometheus can still read /metrics."""
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
        from exporter.serving.listening import certificate_of

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
        """Handle signals until a signal ends the process."""
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
        """Read the configuration again and apply the settings that need no restart. An invalid configuration changes
        nothing."""
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
    """Return the path of the step socket. Raises ConfigError if another user owns the folder."""
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
    """Return the clients that may read frames over TLS. None: every client that may read metrics.

    Raises ConfigError for a damaged revocation list.
    """
    from exporter.security.frame_readers import FrameReaders
    from exporter.security.loopback import is_loopback

    if is_loopback(host) or not section.frame_readers:
        return None
    return FrameReaders(section.frame_readers, Path(section.revoked_file) if section.revoked_file else None)


def _leases_of(
    section: AgentSection, state: StateFolder, node: str, readers: FrameReaders | None
) -> PowerLeases | None:
    """Return the power limits that the controller may set; None if agent.power_limits is not set.

    Raises ConfigError for an invalid range, and if anyone but the controller could set limits.
    """
    from agent.power_leases import PowerLeases, parse_allowed
    from agent.sources.proc.proc import read_boot_id

    allowed = parse_allowed(section.power_limits)
    if allowed is None:
        return None
    if readers is None or section.web_config is None:
        raise ConfigError(
            "agent.power_limits: only the controller's certificate may set limits, so it needs agent.listen off "
            "loopback, agent.web_config with TLS and client_ca_file, and agent.frame_readers"
        )
    return PowerLeases(allowed, state.path / "power" / f"{node}.json", read_boot_id(section.proc_root))


def _limit_with(leases: PowerLeases | None, readers: FrameReaders | None) -> Limit | None:
    """Return the function that takes orders of the controller; None if it may set no limits."""
    if leases is None or readers is None:
        return None

    def limit(request: Request, limits: Mapping[str, float]) -> bool:
        if readers.refusal(request) is not None:  # its certificate was revoked during the stream
            return False
        leases.order(limits)
        return True

    return limit


def _shift_with(orders: ShiftOrders | None, readers: FrameReaders | None) -> Shifting | None:
    """Return the function that takes time shifts of the controller; None if anyone else could order them, too."""
    if orders is None or readers is None:
        return None

    def shift(request: Request, shifts: Mapping[str, tuple[int, int]]) -> bool:
        if readers.refusal(request) is not None:  # its certificate was revoked during the stream
            return False
        orders.order(shifts)
        return True

    return shift


def _renewal_of(section: AgentSection, web_config: Path | None, node: str) -> Renewal | None:
    """Return the thread that renews the agent's certificate; None if agent.certificate_command is not set.

    Raises ConfigError if the web configuration names no certificate file.
    """
    if not section.certificate_command:
        return None
    from exporter.security.web_config import certificate_path
    from gangwatch.certificates.renewal import Renewal

    path = certificate_path(web_config) if web_config is not None else None
    if path is None:
        raise ConfigError("agent.certificate_command: agent.web_config has no cert_file for the command to write")
    return Renewal(section.certificate_command, path, node)


def settings_of(config: Config) -> Settings:
    """Return the settings of the agent's /metrics, from the section [exporter].

    Raises ConfigError if exporter.metrics_file is invalid.
    """
    from exporter.prometheus.exposition import Settings
    from exporter.prometheus.metrics_file import compatibility_of, read_metrics_file

    section = config.exporter
    metrics = read_metrics_file(Path(section.metrics_file)) if section.metrics_file is not None else None
    others = [name for name in compatibility_of(metrics or {}) if name not in section.compatibility]
    return Settings(
        section.profile,
        section.allow,
        section.deny,
        section.series_limit,
        (*section.compatibility, *others),
        section.hostname_label,
        section.owner_labels,
        section.pod_labels,
        metrics,
        textfile_folder_of(section),
    )


def textfile_folder_of(section: ExporterSection) -> str:
    """Return the absolute path of exporter.textfile_folder, the folder of *.prom files; '' if it is not set."""
    return str(Path(section.textfile_folder).absolute()) if section.textfile_folder else ""


def pushes_of(config: Config) -> dict[str, PushTarget]:
    """Return the receivers to which metrics are pushed, by name of the protocol ('otlp', 'remote_write')."""
    from exporter.otlp.environment import otlp_target
    from exporter.otlp.signals import METRICS

    targets = {
        "otlp": otlp_target(_target_of(config.otlp, config.otlp.endpoint), METRICS, os.environ),
        "remote_write": _target_of(config.remote_write, config.remote_write.endpoint),
    }
    return {name: target for name, target in targets.items() if target is not None and target.endpoint}


def traces_push_of(config: Config) -> PushTarget | None:
    """Return the receiver of the controller's traces; None for none."""
    from exporter.otlp.environment import otlp_target
    from exporter.otlp.signals import TRACES

    return otlp_target(_target_of(config.otlp, config.otlp.traces_endpoint), TRACES, os.environ)


def _target_of(section: PushSection, endpoint: str) -> PushTarget:
    from exporter.push.target import PushTarget

    target = PushTarget(
        endpoint,
        section.interval_seconds,
        Path(section.headers_file) if section.headers_file is not None else None,
        Path(section.ca_file) if section.ca_file is not None else None,
        section.queue_frames,
    )
    if isinstance(section, OtlpSection):
        return replace(target, protocol=section.protocol, exporter=section.exporter)
    return target
