"""The state folder: all files of one gangwatch on this machine, and records of its live processes.

::

    token               the API's token, 0600         controller.json   pid, start time and URL of the controller
    lock                held by the controller        supervisor.lock   held by `gangwatch up`
    supervisor.json     the last `up`: what it runs   config.json       the configuration in force
    agents/NODE.json    each agent that listens       run/NODE.sock     each node's step socket
    log/NAME.log        log of each daemon            log/NAME.err      stderr of its latest start
    jobs/, ranks/       the local backend's           store.sqlite      the journal
    tokens.toml         hashes of named tokens        audit/            who did what, one line of JSON a step
    daemon-ends.json    the last unexpected end of each daemon

A process is identified by pid and start time (field 22 of /proc/PID/stat, clock ticks since boot), because pids are
reused.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.schema.errors import GangwatchError, StateFolderBusyError
from scheduler_feedback.backends.local.step_socket import step_socket


class NotRunningError(GangwatchError):
    """No controller or agent is running for this state folder."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process that is recorded in the state folder: its pid and start time."""

    pid: int
    start_time: int

    def alive(self) -> bool:
        """Return whether the process with this pid and start time still runs. A zombie does not count as running."""
        return start_time_of(self.pid) == self.start_time

    def signal(self, number: int) -> bool:
        """Send the signal to this process; return False if it has ended. Raises GangwatchError without permission."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor is opened before the start time is compared, so a reused pid is never signalled.
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            raise GangwatchError(f"no permission to signal process {self.pid}: it belongs to another user") from None
        finally:
            os.close(descriptor)
        return True


class ControllerRecord(ProcessRecord, frozen=True):
    """Content of controller.json, which the controller writes when it begins to listen."""

    url: str
    certificate: str = ""
    """Path of the controller's TLS certificate; '' if the controller does not use TLS."""


class AgentRecord(ProcessRecord, frozen=True):
    """Content of agents/NODE.json, which the node's agent writes when it begins to listen."""

    node: str
    url: str
    socket: str
    slots: int
    devices: tuple[str, ...] = ()
    """GPU UUIDs by slot; empty for CPU slots."""
    machine: str = ""
    """Boot id of the machine, which changes at every reboot."""
    certificate: str = ""
    """Path of the agent's TLS certificate; '' if the agent does not use TLS."""


class NodePlan(msgspec.Struct, frozen=True):
    """A node for which `gangwatch up` runs an agent."""

    name: str
    slots: int
    devices: tuple[str, ...] = ()
    """GPU UUIDs by slot; empty for CPU slots."""


class SupervisorRecord(ProcessRecord, frozen=True):
    """Content of supervisor.json: the supervisor and its daemons. The file remains if the supervisor is killed."""

    nodes: tuple[NodePlan, ...]
    port: int
    """Requested port of the controller; 0 for any free port."""
    config: str = ""
    """Path of the configuration file of the daemons; '' for none."""
    options: tuple[str, ...] = ()
    """Options on the command line of the latest `gangwatch up`."""
    daemons: dict[str, ProcessRecord] = {}
    """Latest process of each daemon, by daemon name. The process may not listen yet."""
    cluster: str = ""
    """The effective [cluster] section, as JSON, from which `nodes` were planned; '' if unknown."""

    def anything_alive(self) -> bool:
        """Return whether the supervisor or any of its daemons still runs."""
        return self.alive() or any(record.alive() for record in self.daemons.values())


Record = TypeVar("Record")


def start_time_of(pid: int) -> int | None:
    """Return the start time of a live process, in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command name, in parentheses, may contain any character: count the fields after it.
            fields = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def this_process() -> ProcessRecord:
    """Return the record of the calling process."""
    start_time = start_time_of(os.getpid())
    assert start_time is not None, "a running process has a start time"
    return ProcessRecord(os.getpid(), start_time)


def agent_name(node: str) -> str:
    """Return the name of a node's agent, as used in the list of daemons and in file names of logs."""
    return f"agent-{node}"


def default_state_folder() -> Path:
    """Return $GANGWATCH_STATE, else the folder `gangwatch` in $XDG_STATE_HOME, else in ~/.local/state."""
    if named := os.environ.get("GANGWATCH_STATE"):
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gangwatch"


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the file atomically: a reader gets the old content or the new, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class StateFolder:
    """Paths and records of one state folder. named: whether the user gave the folder (--state or $GANGWATCH_STATE)."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.named = path is not None or bool(os.environ.get("GANGWATCH_STATE"))
        self.path = (Path(path) if path is not None else default_state_folder()).resolve()

    def __str__(self) -> str:
        return str(self.path)

    # --- paths -------------------------------------------------------------------------------------------------------

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def tokens_file(self) -> Path:
        """Path of the file with hashes of the tokens that `gangwatch token` created."""
        return self.path / "tokens.toml"

    @property
    def audit_file(self) -> Path:
        return self.path / "audit" / "audit.jsonl"

    @property
    def controller_file(self) -> Path:
        return self.path / "controller.json"

    @property
    def supervisor_file(self) -> Path:
        return self.path / "supervisor.json"

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    def agent_file(self, node: str) -> Path:
        return self.path / "agents" / f"{node}.json"

    def log_file(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def error_file(self, name: str) -> Path:
        """Path of the file with the standard error of the daemon's latest start: its error message, or a traceback."""
        return self.path / "log" / f"{name}.err"

    def socket_path(self, node: str) -> Path:
        """Return the path of the node's step socket in the state folder.

        If this path is too long, return one in /tmp.
        """
        return Path(step_socket(self.path, node))

    # --- making it ready ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the folder (0700), its subfolders and the token. Raises GangwatchError if that fails."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise GangwatchError(f"state folder {self}: belongs to uid {found.st_uid}, not to uid {os.geteuid()}")
            if found.st_mode & 0o077:
                self.path.chmod(0o700)
            for part in ("agents", "log", "run", "ranks", "jobs"):
                (self.path / part).mkdir(exist_ok=True, mode=0o700)
            self._make_token()
        except OSError as error:
            raise GangwatchError(f"state folder {self}: {error.strerror} ({error.filename or self})") from None

    def _make_token(self) -> None:
        if self.token_file.exists():
            return
        # Link a finished file: two processes that start at once use the same token, and none reads a partial one.
        temporary = self.path / f".token.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, secrets.token_urlsafe(32).encode())
        finally:
            os.close(descriptor)
        try:
            os.link(temporary, self.token_file)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()

    def token(self) -> str:
        """Return the API's token. Raises NotRunningError if there is none, GangwatchError if it can't be read."""
        try:
            return self.token_file.read_text().strip()
        except FileNotFoundError:
            raise NotRunningError(f"gangwatch has never run for {self}: start it with `gangwatch up`") from None
        except OSError as error:
            raise GangwatchError(f"{self.token_file}: {error.strerror}") from None

    # --- live processes ----------------------------------------------------------------------------------------------

    def controller(self) -> ControllerRecord | None:
        """Return the record of the controller if it is alive and listening, else None."""
        return _alive(_read(self.controller_file, ControllerRecord))

    def agent(self, node: str) -> AgentRecord | None:
        """Return the record of the node's agent if it is alive and listening, else None."""
        return _alive(_read(self.agent_file(node), AgentRecord))

    def agents(self) -> dict[str, AgentRecord]:
        """Return the records of all agents that are alive and listening, by node name."""
        return {
            path.stem: record
            for path in sorted((self.path / "agents").glob("*.json"))
            if (record := self.agent(path.stem)) is not None
        }

    def supervisor(self) -> SupervisorRecord | None:
        """Return the record of the supervisor if it is alive, else None."""
        return _alive(self.supervisor_left())

    def supervisor_left(self) -> SupervisorRecord | None:
        """Return the record of the latest supervisor, even if it has ended; None if there is no record."""
        return _read(self.supervisor_file, SupervisorRecord)

    @contextmanager
    def hold(self, name: str, what: str) -> Iterator[None]:
        """Lock the file `name` inside the context, and write this process's pid into it.

        Raises StateFolderBusyError with the pid of the process that holds the lock. what: name of this daemon for the
        error message.
        """
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise StateFolderBusyError(f"{what} (pid {holder}) is already running for {self}") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise GangwatchError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GangwatchError(f"{path}: not a record of gangwatch: {error}") from None


AliveRecord = TypeVar("AliveRecord", bound=ProcessRecord)


def _alive(record: AliveRecord | None) -> AliveRecord | None:
    return record if record is not None and record.alive() else None
