"""Implementation of `gangwatch down`: stop all processes of a state folder, and verify that none is left.

1. Cancel the jobs through the controller, if one is running, so that the journal records why they ended.
2. Stop the supervisor and its daemons, then daemons that an earlier supervisor left.
3. Stop attempts that still run, through the files of the local backend, with their grace period.
4. Search for remaining processes of attempts, by their environment variables. There must be none.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from agent.schema.errors import BackendError, GangwatchError
from gangwatch.configuration.in_force import read_in_force
from gangwatch.controller_client import Client, RefusedError
from gangwatch.state_folder import NotRunningError, ProcessRecord, StateFolder
from gangwatch.supervisor.daemon_ends import forget_ends
from gangwatch.supervisor.supervisor import STOP_SECONDS
from scheduler_feedback.api.web.words import count
from scheduler_feedback.backends.local import attempt_files as records
from scheduler_feedback.backends.local import local_processes, process_trees
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.events import AttemptEnded, AttemptUnknown
from scheduler_feedback.core.job import StopReason

if TYPE_CHECKING:
    from scheduler_feedback.backends.local.mig_instances import MigDriver

KILL_SECONDS = 15.0
"""Extra seconds to wait for the end of an attempt after its grace period. Shims kill within a second or two."""

POLL_SECONDS = 0.1
SAY_SECONDS = 2.0

Say = Callable[[str], None]


def stop_everything(state: StateFolder, keep_jobs: bool, say: Say) -> dict[str, int]:
    """Stop all jobs and daemons, and return the number of each that was stopped, as {"jobs": n, "daemons": n}.

    keep_jobs: stop only the daemons.

    Raises GangwatchError with the pids if a process could not be stopped.
    """
    if not state.path.is_dir():
        return {"jobs": 0, "daemons": 0}
    stopped_jobs = 0 if keep_jobs else _cancel_jobs(state, say)
    stopped_daemons = _stop_daemons(state, say)
    if not keep_jobs:  # else the next `up` restores the nodes that the jobs are on
        state.supervisor_file.unlink(missing_ok=True)
    if not keep_jobs:
        stopped_jobs += _end_attempts(state, say)
        _prove_nothing_left(state)
    return {"jobs": stopped_jobs, "daemons": stopped_daemons}


# --- jobs, through the controller ------------------------------------------------------------------------------------


def _cancel_jobs(state: StateFolder, say: Say) -> int:
    """Cancel all active jobs through the controller, wait for their ends, and return the number of ended jobs.

    Return 0 if the controller does not respond or its actions are frozen.
    """
    client = Client(state)
    try:
        waiting = _unended(client)
        for job in waiting:
            try:
                client.post(f"/api/jobs/{job}/cancel", {"by": "gangwatch down"})
            except RefusedError:
                pass  # it ended meanwhile
        if waiting:
            say(f"stopping {count(len(waiting), 'job')}")
        if client.get("/api/queue?limit=1")["frozen"]:
            # A frozen controller accepts the requests but does not act on them: step 3 ends the jobs.
            return 0
        graces = [attempt.grace_seconds for attempt in open_attempts(state)]
        deadline_s = time.monotonic() + max(graces, default=0.0) + KILL_SECONDS
        progress = _Progress(say)
        left = list(waiting)
        while left and time.monotonic() < deadline_s:
            time.sleep(POLL_SECONDS)
            left = _unended(client)
            progress.say(f"waiting for {', '.join(left)}" if left else "")
    except (NotRunningError, RefusedError) as error:
        # Steps 2 and 3 need no controller.
        if state.controller() is not None:
            say(f"the controller can't stop the jobs ({error}); stopping them without it")
        return 0
    return len(set(waiting) - set(left))


def _unended(client: Client) -> list[str]:
    listed: list[dict[str, Any]] = client.get_all("/api/jobs?active=1")
    # Pending jobs first: otherwise they would start in the slots of the cancelled running jobs.
    return [job["job"] for job in sorted(listed, key=lambda job: job["state"] != "pending")]


class _Progress:
    """Printer of progress messages at intervals during a long wait."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._next_s = time.monotonic() + SAY_SECONDS

    def say(self, text: str) -> None:
        if text and time.monotonic() >= self._next_s:
            self._say(text)
            self._next_s = time.monotonic() + SAY_SECONDS


# --- daemons ---------------------------------------------------------------------------------------------------------


def _stop_daemons(state: StateFolder, say: Say) -> int:
    """Stop the supervisor and all daemons, and return how many processes were stopped."""
    left = state.supervisor_left()
    records = dict(left.daemons) if left is not None else {}
    before = {record.pid: record for record in (*records.values(), *_announced(state)) if record.alive()}
    supervisor = state.supervisor()
    if supervisor is not None:
        say(f"stopping the daemons ({len(before)}) and their supervisor")
        supervisor.signal(signal.SIGTERM)
        # The supervisor stops the controller, then the agents, and kills processes that take too long.
        _wait_for([supervisor], 4 * STOP_SECONDS)
        supervisor.signal(signal.SIGKILL)
        _wait_for([supervisor], STOP_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Read again: a daemon may have been restarted meanwhile.
        alive = {record.pid: record for record in (*before.values(), *_announced(state)) if record.alive()}
        for record in alive.values():
            record.signal(number)
        _wait_for(alive.values(), STOP_SECONDS)
        before |= alive
    remaining = [record for record in (*before.values(), *_announced(state)) if record.alive()]
    if remaining:
        raise GangwatchError(f"still running after SIGKILL: pid {', '.join(str(one.pid) for one in remaining)}")
    forget_ends(state)
    for path in (state.controller_file, *(state.path / "agents").glob("*.json")):
        path.unlink(missing_ok=True)
    return len(before) + (supervisor is not None)


def _announced(state: StateFolder) -> list[ProcessRecord]:
    controller = state.controller()
    return [*state.agents().values(), *([controller] if controller is not None else [])]


def _wait_for(records: Iterable[ProcessRecord], seconds: float) -> None:
    """Wait until all of these processes have ended, at most `seconds`."""
    waiting = list(records)
    deadline_s = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline_s:
        time.sleep(0.02)
        waiting = [record for record in waiting if record.alive()]


# --- attempts, without a controller ----------------------------------------------------------------------------------


class OpenAttempt(msgspec.Struct, frozen=True):
    """An attempt of a job that may still have processes, because no end is recorded."""

    job_id: str
    attempt: int
    checkpoint_signal: str
    grace_seconds: float
    stop_seconds: float
    """Maximum time in seconds that the stop of the attempt may take: its checkpoint command and its grace period."""


class _Specification(msgspec.Struct):
    checkpoint_signal: str
    grace_seconds: float
    checkpoint_command: tuple[str, ...] = ()
    checkpoint_timeout_seconds: float = 0.0

    @property
    def stop_seconds(self) -> float:
        return self.grace_seconds + (self.checkpoint_timeout_seconds if self.checkpoint_command else 0.0)


class _AttemptFile(msgspec.Struct):
    """The fields of the file attempt.json that this module reads."""

    spec: _Specification
    nodes: dict[str, Any]


def open_attempts(state: StateFolder) -> list[OpenAttempt]:
    """Return the attempts of the local backend that may still have processes on a node.

    Attempts whose start was aborted, and attempts that have ended on every node, are left out.
    """
    found = []
    for folder in sorted((state.path / "jobs").glob("*/*")):
        if not folder.name.isdigit():
            continue
        try:
            about = msgspec.json.decode((folder / records.ATTEMPT).read_bytes(), type=_AttemptFile)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue  # never started: it has no processes
        decided = records.decision(str(folder))
        if decided is not None and decided[0] == records.ABORT:
            continue
        if decided is not None and all((folder / node / records.ENDED).exists() for node in about.nodes):
            continue
        spec, own = about.spec, (folder.parent.name, int(folder.name))
        found.append(OpenAttempt(*own, spec.checkpoint_signal, spec.grace_seconds, spec.stop_seconds))
    return found


def _mig_driver(state: StateFolder) -> MigDriver | None:
    """Return the driver that destroys MIG instances; None if the attempts of the state folder have none."""
    if not any((state.path / "mig").glob("*.json")):
        return None
    from agent.sources.nvml.nvml_mig import MigGpus

    in_force = read_in_force(state)
    return MigGpus(in_force.config.agent.nvml_library if in_force is not None else None)


def _end_attempts(state: StateFolder, say: Say) -> int:
    """Stop attempts that still run, without a controller, after their grace period. Return their number."""
    from scheduler_feedback.backends.local.local_backend import LocalBackend  # only if no controller stopped them

    attempts, mig = open_attempts(state), _mig_driver(state)
    if attempts:
        say(f"stopping {count(len(attempts), 'attempt')} without a controller")
    elif mig is None:
        return 0
    backend = LocalBackend(state.path, (), mig=mig)
    for one in attempts:
        try:
            backend.apply(
                StopGang(
                    *("down", one.job_id, one.attempt, one.checkpoint_signal, one.grace_seconds, StopReason.CANCEL),
                    reason="gangwatch down",
                )
            )
        except BackendError as error:
            say(f"Error: {error}")
    holding = {(one.job_id, one.attempt) for one in attempts}
    deadline_s = time.monotonic() + max(one.stop_seconds for one in attempts) + KILL_SECONDS
    progress = _Progress(say)
    while holding and time.monotonic() < deadline_s:
        for event in backend.observe(holding):
            if isinstance(event, AttemptEnded | AttemptUnknown):
                holding.discard((event.job_id, event.attempt))
        progress.say(f"waiting for {', '.join(sorted({job for job, _ in holding}))}")
        time.sleep(POLL_SECONDS)
    if mig is not None:
        backend.observe(())  # destroys what is left of their MIG instances
    if holding:
        raise GangwatchError(f"still running: {', '.join(f'{job} attempt {n}' for job, n in sorted(holding))}")
    return len(attempts)


def _prove_nothing_left(state: StateFolder) -> None:
    """Raise GangwatchError if a process of an attempt of this state folder remains."""
    left = remains(state)
    deadline_s = time.monotonic() + KILL_SECONDS
    while left and time.monotonic() < deadline_s:  # a killed process takes a moment to exit
        time.sleep(POLL_SECONDS)
        left = remains(state)
    if left:
        raise GangwatchError(f"processes of jobs are still running: pid {', '.join(map(str, sorted(left)))}")


def remains(state: StateFolder) -> set[int]:
    """Return the pids of this state folder's remaining processes: daemons, shims, and processes of attempts."""
    pids = {record.pid for record in _announced(state)}
    supervisor = state.supervisor()
    if supervisor is not None:
        pids.add(supervisor.pid)
    sockets = {str(state.socket_path(node.name)) for node in (state.path / "ranks").glob("*")}
    for socket_path in sockets:
        pids |= {stat.pid for stat in process_trees.with_environment({"GANGWATCH_SOCKET": socket_path})}
    for shim in (state.path / "jobs").glob(f"*/*/*/{records.SHIM}"):
        about = records.read(str(shim))
        if about is not None and about["boot_id"] == local_processes.boot_id():
            pids |= {about["pid"]} if local_processes.is_alive(about["pid"], about["start_time"]) else set()
    return pids
