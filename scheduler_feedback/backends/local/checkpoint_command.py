"""The checkpoint command: a program of the job that saves a checkpoint, run before the stop signal.

The shim of the gang's first node runs it next to rank 0: with rank 0's environment, in the job's folder, in its own
session, with its own log. The shims of the other nodes wait for the record of its end. It has a time limit. The
signal and the grace period follow even if the command fails. Standard library only: see local_processes.py.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from scheduler_feedback.backends.local import attempt_files, local_processes, rank_launch
else:  # in the shim's folder; the shim is run as a file
    import attempt_files
    import local_processes
    import rank_launch

if TYPE_CHECKING:
    from typing import Any, NoReturn

_RECORD_SECONDS = 2.0  # after the time limit, for the first node's record to reach the other nodes


class Checkpoint:
    """A running checkpoint command. over: whether the command has ended or has reached its time limit."""

    def __init__(
        self, plan: rank_launch.Plan, folder: str, node: str, request: dict[str, Any], cgroup: str | None
    ) -> None:
        self.pid: int | None = None
        self.over = False
        self.record: dict[str, Any] | None = None  # of the first node, once it is over
        self._folder = folder
        self._seconds: float = request["timeout_seconds"]
        self._began = time.monotonic()
        self._first = rank_launch.nodes_of(plan)[0] == node
        if self._first:
            try:
                self._run(plan, node, request["command"], cgroup)
            except OSError as error:
                self._end(None, f"{error.strerror}: {error.filename}" if error.filename else str(error))

    def _run(self, plan: rank_launch.Plan, node: str, command: list[str], cgroup: str | None) -> None:
        environment = rank_launch.rank_environment(plan, node, 0)
        directory = rank_launch.working_directory(plan, environment)
        program = rank_launch.find_program(command[0], environment, directory, "the checkpoint command")
        path = attempt_files.checkpoint_log(plan["state_folder"], plan["job_id"], plan["attempt"])
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _execute(parent, program, command, environment, directory, log, cgroup)
        os.close(log)

    def ended(self, code: int) -> None:
        """Record that the command has exited. code: its exit code; 128 + n for signal n."""
        self.pid = None
        if not self.over:
            self._end(code, "")

    def poll(self) -> None:
        """Update `over`, and kill the command at its time limit. On other nodes, check the first node's record."""
        late = time.monotonic() - self._began - self._seconds
        if self.over:
            return
        if not self._first:
            self.over = (
                late > _RECORD_SECONDS or attempt_files.read(f"{self._folder}/{attempt_files.SAVED}") is not None
            )
        elif late > 0:
            if self.pid is not None:
                try:
                    os.killpg(self.pid, signal.SIGKILL)
                except OSError:  # not the leader of its session yet
                    os.kill(self.pid, signal.SIGKILL)
            self._end(None, f"it did not end within {self._seconds:g} s")

    def _end(self, code: int | None, reason: str) -> None:
        self.over = True
        self.record = {"exit_code": code, "seconds": time.monotonic() - self._began, "reason": reason}


def _execute(
    parent: int,
    program: str,
    command: list[str],
    environment: dict[str, str],
    directory: str,
    log: int,
    cgroup: str | None,
) -> NoReturn:
    """Execute the command in the forked child process. Never returns."""
    try:
        if local_processes.settle(parent, log, directory, cgroup):
            local_processes.become(program, command, environment)
    except BaseException as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
    finally:
        os._exit(127)
