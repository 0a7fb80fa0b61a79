"""The supervisor of `gangwatch up`: it runs one process per agent and one for the controller, and restarts them.

If the supervisor is killed with SIGKILL, daemons and jobs continue. The next `up` with this state folder adopts the
daemons that still run and starts the missing ones.

It waits for daemons by pidfd (pidfd_open(2), Linux 5.3), which works for adopted processes too.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.state_folder import (
    NodePlan,
    ProcessRecord,
    StateFolder,
    SupervisorRecord,
    agent_name,
    start_time_of,
    this_process,
    write_atomically,
)
from gangwatch.supervisor.daemon_ends import (
    CONTROLLER,
    MOST_WORDS,
    DaemonEnd,
    forget_ends,
    read_ends,
    write_end,
)
from gangwatch.supervisor.heartbeats import WATCHDOG_SECONDS, Heartbeats, is_stopped, where_it_waits
from gangwatch.supervisor.readiness import in_words, not_ready, readiness

READY_SECONDS = 60.0
"""Maximum time in seconds until all daemons are ready at the start. A loaded machine needs more than a second."""

STOP_SECONDS = 10.0
"""Maximum time in seconds for the clean stop of a daemon. After this time the daemon is killed."""

STUCK_CHECK_SECONDS = 5.0
"""Seconds between two checks for stuck daemons."""

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MOST_SECONDS = 10.0
"""Longest delay before a daemon is restarted. A daemon that ends again and again is restarted after 0.2, 0.4, ... 10 s.
The delay is reset to 0.2 s once the daemon has run for more than 10 s."""

_log = logging.getLogger("gangwatch.supervisor.supervisor")


@dataclass(slots=True)
class Daemon:
    """A daemon (agent or controller) that the supervisor keeps running."""

    name: str
    arguments: tuple[str, ...]
    record: ProcessRecord | None = None
    """The daemon's running process; None while the daemon waits for its restart."""
    pidfd: int | None = None
    ours: bool = False
    """Whether this supervisor has started the process; False if an earlier supervisor has started it."""
    started_s: float = 0.0
    stuck: str = ""
    """Why the supervisor decided that the process was stuck and killed it; '' if it did not kill the process."""
    backoff_seconds: float = BACKOFF_FIRST_SECONDS
    again_at_s: float = 0.0


def daemon_commands(
    state: StateFolder, nodes: Sequence[NodePlan], config: str, options: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the command line of every daemon, by daemon name.

    config: configuration file. options: options of `up`, which are passed to the controller.
    """
    # -P: a file in the current folder must not replace a module of gangwatch.
    program = (sys.executable, "-P", "-m", "gangwatch")
    common = ("--state", str(state), *(("--config", config) if config else ()))
    commands = {
        agent_name(node.name): (
            *(*program, "agent", *common, "--node", node.name, "--slots", str(node.slots), "--position", str(position)),
            *(part for device in node.devices for part in ("--device", device)),
        )
        for position, node in enumerate(nodes)
    }
    # The controller must use these nodes and not plan its own: they may be those of an earlier `up`.
    planned = ("--planned", msgspec.json.encode(nodes).decode())
    return {**commands, CONTROLLER: (*program, "controller", *common, *options, *planned)}


class StartError(GangwatchError):
    """A daemon could not be started. The error text is the daemon's own message."""


@dataclass(slots=True)
class Supervisor:
    """Supervisor of the daemons of one state folder."""

    state: StateFolder
    nodes: tuple[NodePlan, ...]
    port: int
    config: str
    """Path of the configuration file of the daemons; '' for none."""
    options: tuple[str, ...]
    """Command-line options that the controller is started with."""
    report: Callable[[str], None]
    """Function that shows a progress message during the start."""
    cluster: str = ""
    """The [cluster] section, as JSON, from which the nodes were planned."""
    _daemons: dict[str, Daemon] = field(default_factory=dict)
    _signals: set[int] = field(default_factory=set)
    _statuses: dict[int, int] = field(default_factory=dict)
    _heartbeats: Heartbeats | None = None

    def run(self, on_ready: Callable[[], None]) -> None:
        """Start or adopt every daemon, call `on_ready`, and keep them running until SIGTERM or SIGINT.

        Raises StateFolderBusyError if another supervisor runs. If a daemon can't be started, stop the other daemons and
        raise StartError.
        """
        with self.state.hold("supervisor.lock", "a supervisor"):
            commands = daemon_commands(self.state, self.nodes, self.config, self.options)
            self._daemons = {name: Daemon(name, command) for name, command in commands.items()}
            wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
            earlier = {number: signal.signal(number, self._on_signal) for number in handled}
            signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
            try:
                self._supervise(wake_read, on_ready)
            finally:
                if self._heartbeats is not None:
                    self._heartbeats.close()
                    self._notify_path.unlink(missing_ok=True)
                signal.set_wakeup_fd(-1)
                for number, handler in earlier.items():
                    signal.signal(number, handler)
                os.close(wake_read)
                os.close(wake_write)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.add(number)

    def _supervise(self, wake: int, on_ready: Callable[[], None]) -> None:
        before = self.state.supervisor_left()
        self._listen()
        self._adopt()
        self._write_record()
        try:
            for daemon in self._daemons.values():
                if daemon.record is None:
                    self._start(daemon)
            self._wait_until_ready(wake)
        except BaseException:
            self._stop([daemon for daemon in self._daemons.values() if daemon.ours])
            if not any(daemon.record for daemon in self._daemons.values()):
                self._put_back(before)
            raise
        if not self._stop_requested():
            on_ready()
        while not self._stop_requested():
            self._wait(wake, self._seconds_to_next_check())
            self._restart_due()
            self._end_stuck()
        _log.info("stopping")
        # Stop the controller first: it would report agents that stop before it as lost.
        self._stop([self._daemons[CONTROLLER]])
        self._stop(list(self._daemons.values()))
        forget_ends(self.state)
        # Keep the record: after a reboot, the next `up` restores the cluster from it. `down` deletes it.

    def _put_back(self, before: SupervisorRecord | None) -> None:
        """Restore the previous supervisor's record in the state folder after a failed start, for the next `up`."""
        if before is None:
            self.state.supervisor_file.unlink(missing_ok=True)
        else:
            write_atomically(self.state.supervisor_file, msgspec.json.encode(before))

    def _stop_requested(self) -> bool:
        return bool(self._signals & {signal.SIGTERM, signal.SIGINT})

    @property
    def _notify_path(self) -> Path:
        return self.state.socket_path(".heartbeats")  # no node's name begins with a dot

    def _listen(self) -> None:
        """Open the socket for heartbeats.

        If that fails, daemons are still restarted, but stuck daemons are not detected.
        """
        path = self._notify_path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._heartbeats = Heartbeats(path)
        except OSError as error:
            _log.warning("%s: can't receive heartbeats, so stuck daemons are not detected: %s", path, error)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        left = self.state.supervisor_left()
        spawned = left.daemons if left is not None else {}
        announced: dict[str, ProcessRecord | None] = {
            agent_name(node.name): self.state.agent(node.name) for node in self.nodes
        }
        announced[CONTROLLER] = self.state.controller()
        for name, daemon in self._daemons.items():
            record = announced[name] or spawned.get(name)
            if record is not None and record.alive():
                self._watch(daemon, ProcessRecord(record.pid, record.start_time))
                self.report(f"{name} is already running (pid {record.pid})")

    def _watch(self, daemon: Daemon, record: ProcessRecord) -> None:
        """Begin to supervise the process of the daemon. If the process has already ended, ``_wait`` detects that."""
        try:
            descriptor = os.pidfd_open(record.pid)
        except ProcessLookupError:
            return
        # The pidfd was opened by pid. Only the start time, read afterwards, proves that the pid was not reused.
        if not record.alive() and not daemon.ours:
            os.close(descriptor)
            return
        daemon.record, daemon.pidfd = record, descriptor

    def _start(self, daemon: Daemon) -> None:
        log = self.state.error_file(daemon.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        pid = os.posix_spawn(
            daemon.arguments[0],
            daemon.arguments,
            {**os.environ, **(self._heartbeats.environment(self._notify_path) if self._heartbeats is not None else {})},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            # A separate session: Ctrl-C on `up --foreground` must stop the daemons in order, not all at once.
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        start_time = _child_start_time(pid)
        daemon.ours = True
        daemon.started_s = time.monotonic()
        self._watch(daemon, ProcessRecord(pid, start_time))
        self._write_record()
        _log.info("started %s (pid %d)", daemon.name, pid)

    def _write_record(self) -> None:
        this = this_process()
        record = SupervisorRecord(
            this.pid,
            this.start_time,
            self.nodes,
            self.port,
            self.config,
            self.options,
            {daemon.name: daemon.record for daemon in self._daemons.values() if daemon.record is not None},
            self.cluster,
        )
        write_atomically(self.state.supervisor_file, msgspec.json.encode(record))

    def _wait_until_ready(self, wake: int) -> None:
        deadline_s = time.monotonic() + READY_SECONDS
        waiting = dict.fromkeys(self._daemons, "")
        while waiting and not self._stop_requested():
            self._wait(wake, 0.05)
            for daemon in self._daemons.values():
                if daemon.record is None and daemon.ours:
                    words = self._last_words(daemon.name) or "ended without an error message"
                    raise StartError(f"{daemon.name}: {words}")
            self._restart_due()
            still = not_ready(self.state, self.nodes)
            for name in waiting:
                record = self._daemons[name].record
                if name not in still and record is not None:
                    self.report(f"{name} is ready (pid {record.pid})")
                    if name == CONTROLLER and (broken := self._broken_parts()):
                        self.report(f"warning: failed parts of the controller: {broken}; jobs are still scheduled")
            waiting = still
            if waiting and time.monotonic() > deadline_s:
                raise StartError(f"not ready after {READY_SECONDS:.0f} s: {in_words(waiting)}; see {self.state}/log")

    def _broken_parts(self) -> str:
        controller = self.state.controller()
        return readiness(controller)[1] if controller is not None else ""

    def _last_words(self, name: str) -> str:
        """Return the last line that the daemon wrote on stderr before it ended; '' for none."""
        file = self.state.error_file(name)
        try:
            lines = file.read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        words = next((line for line in reversed(lines) if line.strip()), "")
        return words.removeprefix("Error: ")

    # --- keeping -----------------------------------------------------------------------------------------------------

    def _wait(self, wake: int, seconds: float | None) -> None:
        """Wait for a signal, the end of a daemon, or at most `seconds`. Record the daemons that ended."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        by_descriptor = {daemon.pidfd: daemon for daemon in self._daemons.values() if daemon.pidfd is not None}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        self._reap()
        for descriptor, _ in ready:
            if descriptor == wake:
                os.read(wake, 512)
            else:
                self._ended(by_descriptor[descriptor])
        if signal.SIGHUP in self._signals:
            self._signals.discard(signal.SIGHUP)
            self._signal(self._daemons[CONTROLLER], signal.SIGHUP)

    def _reap(self) -> None:
        """Collect the exit status of every child that ended.

        In a container, this includes processes without a parent.
        """
        ours = {daemon.record.pid for daemon in self._daemons.values() if daemon.record is not None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in ours:
                self._statuses[pid] = status

    def _ended(self, daemon: Daemon) -> None:
        assert daemon.record is not None and daemon.pidfd is not None
        status = self._statuses.pop(daemon.record.pid, None)
        code = None if status is None else os.waitstatus_to_exitcode(status)
        how = "ended" if code is None else f"ended with {code}"
        os.close(daemon.pidfd)
        lived_seconds = time.monotonic() - daemon.started_s
        if lived_seconds > BACKOFF_MOST_SECONDS:
            daemon.backoff_seconds = BACKOFF_FIRST_SECONDS
        words = daemon.stuck or self._last_words(daemon.name)
        daemon.stuck = ""
        level = logging.INFO if self._stop_requested() else logging.WARNING
        _log.log(level, "%s (pid %d) %s%s", daemon.name, daemon.record.pid, how, f": {words}" if words else "")
        pid = daemon.record.pid
        if self._heartbeats is not None:
            self._heartbeats.forget(pid)
        daemon.record = daemon.pidfd = None
        daemon.again_at_s = time.monotonic() + daemon.backoff_seconds
        if not self._stop_requested():
            self._keep_end(daemon, pid, code, words, lived_seconds)
        daemon.backoff_seconds = min(BACKOFF_MOST_SECONDS, 2 * daemon.backoff_seconds)

    def _keep_end(self, daemon: Daemon, pid: int, code: int | None, words: str, lived_seconds: float) -> None:
        """Store how the daemon ended. Later error messages explain with it why the daemon is not running."""
        before = read_ends(self.state).get(daemon.name)
        in_a_row = before.in_a_row + 1 if before is not None and lived_seconds <= BACKOFF_MOST_SECONDS else 1
        now_ns = time.time_ns()
        next_ns = now_ns + int(daemon.backoff_seconds * 1e9)
        try:
            write_end(self.state, daemon.name, DaemonEnd(pid, now_ns, next_ns, code, words[:MOST_WORDS], in_a_row))
        except OSError as error:
            _log.warning("%s: can't record how it ended: %s", daemon.name, error)

    def _seconds_to_next_check(self) -> float:
        due = [daemon.again_at_s for daemon in self._daemons.values() if daemon.record is None]
        return min([STUCK_CHECK_SECONDS, *(at_s - time.monotonic() for at_s in due)])

    def _end_stuck(self) -> None:
        """Kill every daemon whose heartbeats are missing, so that it is restarted. Jobs continue."""
        if self._heartbeats is None:
            return
        now_s = time.monotonic()
        self._heartbeats.take(now_s)
        for daemon in self._daemons.values():
            if daemon.record is None or daemon.stuck:
                continue
            pid = daemon.record.pid
            seconds_since = self._heartbeats.seconds_since(pid, now_s)
            # A user has stopped this process on purpose: its timeout starts again when it continues.
            if seconds_since > WATCHDOG_SECONDS / 4 and is_stopped(pid):
                self._heartbeats.excuse(pid, now_s)
                continue
            if seconds_since < WATCHDOG_SECONDS:
                continue
            waits = where_it_waits(pid)
            daemon.stuck = f"stuck: no progress for {seconds_since:.0f} s{': ' + waits if waits else ''}"
            _log.error("%s (pid %d): %s; killing and restarting it", daemon.name, pid, daemon.stuck)
            self._signal(daemon, signal.SIGKILL)

    def _restart_due(self) -> None:
        for daemon in self._daemons.values():
            if daemon.record is None and daemon.again_at_s <= time.monotonic() and not self._stop_requested():
                self._start(daemon)

    # --- stopping ----------------------------------------------------------------------------------------------------

    def _signal(self, daemon: Daemon, number: signal.Signals) -> None:
        if daemon.pidfd is not None:
            try:
                signal.pidfd_send_signal(daemon.pidfd, number)
            except ProcessLookupError:
                pass

    def _stop(self, daemons: Sequence[Daemon]) -> None:
        """Stop the daemons with SIGTERM, then with SIGKILL those that still run. Return when all have ended."""
        wake, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
                for daemon in daemons:
                    self._signal(daemon, number)
                deadline_s = time.monotonic() + seconds
                while any(daemon.record for daemon in daemons) and time.monotonic() < deadline_s:
                    self._wait(wake, deadline_s - time.monotonic())
        finally:
            os.close(wake)
            os.close(end)


def _child_start_time(pid: int) -> int:
    """Return the start time of a child process, in clock ticks since boot.

    This works for an ended child too, because its pid can't be reused before waitpid.
    """
    return start_time_of(pid) or 0
