"""The local backend: nodes are sets of slots of this machine, and jobs are real processes.

The controller starts one shim (shim.py) for each node and attempt; after that it only reads and writes files
(attempt_files.py). It may crash at any moment: a later controller with the same state folder continues its work. Jobs
run as the controller's user, with the controller's limits.

A job's environment is the submitter's, from the specification, on top of a small base from the controller (``_BASE``).
The variables with a rank's place override both. A job gets nothing else of the controller's environment.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

import msgspec

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.backend import Backend
from scheduler_feedback.backends.local import attempt_files, local_processes
from scheduler_feedback.backends.local.local_attempt import FollowedAttempt
from scheduler_feedback.backends.local.mig_instances import MigDriver, MigInstances
from scheduler_feedback.backends.local.step_socket import step_socket
from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.events import Event, NodeSeen

_log = logging.getLogger(__name__)

_BASE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]+)*\Z")
_STRAY_SCAN_SECONDS = 10.0
_FIRST_PORT = 15000  # below the kernel's range for outgoing connections, above the usual ports of services
_SHIM = Path(__file__).with_name("shim.py")


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A virtual node of this machine. devices: GPU UUID of each slot; empty if the slots are processors.

    jobs_per_slot: maximum number of shareable jobs on one slot. slot_memory_mib: device memory of each slot in MiB; 0:
    unknown.
    """

    name: str
    slots: int
    devices: tuple[str, ...] = ()
    jobs_per_slot: int = 1
    slot_memory_mib: int = 0


def free_port() -> int:
    """Return a free TCP port, if possible outside the kernel's range for outgoing connections."""
    try:
        lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest_outgoing = 0
    chance = SystemRandom()
    tries = [chance.randrange(_FIRST_PORT, lowest_outgoing) for _ in range(64)] if lowest_outgoing > _FIRST_PORT else []
    for port in (*tries, 0):
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            bound: int = listener.getsockname()[1]
            return bound
    raise BackendError("no TCP port is free for MASTER_PORT")


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Nodes of the local backend, and the driver with which it divides their GPUs by MIG; None: it does not."""

    nodes: Sequence[LocalNode]
    mig: MigDriver | None = None


class LocalBackend(Backend):
    """Backend that runs jobs as processes of this machine. Only one thread may call it."""

    def __init__(
        self,
        state_folder: Path,
        nodes: Sequence[LocalNode],
        *,
        clock: Clock | None = None,
        ready_timeout_seconds: float = 10.0,
        decision_timeout_seconds: float = 60.0,
        use_cgroups: bool = True,
        mig: MigDriver | None = None,
    ) -> None:
        """Open a state folder, to start and follow the attempts in it.

        ready_timeout_seconds: time limit for all shims of a gang to respond. decision_timeout_seconds: time for which a
        ready shim waits for the decision to start. use_cgroups: kill jobs by their cgroup if the machine allows it.
        mig: divides the GPUs of all nodes by MIG; None: GPUs are used as a whole. Raises BackendError for an invalid
        node, or if a GPU cannot be divided.
        """
        self._state_folder = state_folder.absolute()
        self._clock = clock or SystemClock()
        self._ready_timeout_seconds = ready_timeout_seconds
        self._decision_timeout_seconds = decision_timeout_seconds
        self._use_cgroups = use_cgroups
        self._machine = local_processes.boot_id()
        self._nodes: dict[str, LocalNode] = {}
        for node in nodes:
            _check_name("node", node.name)
            if node.name in self._nodes:
                raise BackendError(f"node {node.name} is configured twice")
            if node.slots < 1 or (node.devices and len(node.devices) != node.slots):
                raise BackendError(f"node {node.name}: {node.slots} slots and {len(node.devices)} devices")
            self._nodes[node.name] = node
        self._followed: dict[tuple[str, int], FollowedAttempt] = {}
        self._strays: dict[tuple[str, int], FollowedAttempt] = {}
        self._strays_scanned_seconds = float("-inf")
        self._children: set[int] = set()  # shims that this process started and has not reaped
        self._failures: set[str] = set()  # already logged
        self._instances: MigInstances | None = None
        if mig is not None:
            devices = {node.name: node.devices for node in nodes if node.devices}
            self._instances = MigInstances(self._state_folder / "mig", mig, devices)

    @classmethod
    def configured(cls, folder: Path, settings: LocalSettings) -> LocalBackend:
        return cls(folder, settings.nodes, mig=settings.mig)

    def nodes(self) -> Sequence[NodeSeen]:
        return [
            NodeSeen(
                node.name,
                node.slots,
                node.devices,
                self._machine,
                jobs_per_slot=node.jobs_per_slot,
                slot_memory_mib=node.slot_memory_mib,
                mig_profiles=self._instances.profiles.get(node.name, ()) if self._instances is not None else (),
            )
            for node in self._nodes.values()
        ]

    def apply(self, action: Action) -> None:
        try:
            if isinstance(action, StartGang):
                self._start(action)
            else:
                self._stop(action)
        except OSError as error:
            raise BackendError(f"{action.action_id} ({action.job_id}, attempt {action.attempt}): {error}") from error

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        self._reap()
        now_seconds = self._clock.monotonic_ns() / 1e9
        held = dict.fromkeys(holding)
        events: list[Event] = []
        for key in held:
            try:
                if key not in self._followed:
                    self._strays.pop(key, None)
                    self._abort_unknown(*key)
                    self._follow(*key)
                events += self._followed[key].poll(now_seconds, self._ready_timeout_seconds)
            except OSError as error:
                self._log_once(f"{key[0]}, attempt {key[1]}: {error}")
        if self._instances is not None:
            self._destroy_instances(self._instances, held, now_seconds)
        for key in [key for key in self._followed if key not in held]:
            del self._followed[key]
        if now_seconds - self._strays_scanned_seconds >= _STRAY_SCAN_SECONDS:
            self._strays_scanned_seconds = now_seconds
            self._find_strays(held)
        self._end_strays(now_seconds)
        return events

    def forget(self, job_id: str) -> None:
        """Remove the logs and records of a job that has ended. Raises BackendError while it runs."""
        folder = self._state_folder / "jobs" / _check_name("job", job_id)
        if any(key[0] == job_id and not each.done for key, each in (*self._followed.items(), *self._strays.items())):
            raise BackendError(f"{job_id} has not ended: {folder} is kept")
        if any((self._state_folder / "ranks").glob(f"*/{job_id}.*.json")):
            raise BackendError(f"{job_id} has processes: {folder} is kept")
        _remove(folder)

    # --- starting and stopping ---------------------------------------------------------------------------------------

    def _start(self, action: StartGang) -> None:
        self._check(action)
        folder = self._folder(action.job_id, action.attempt)
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not folder.exists():
            plan = {
                "mig_devices": self._create_instances(action),
                **msgspec.to_builtins(action),
                "state_folder": str(self._state_folder),
                "environment": {name: os.environ[name] for name in _BASE if name in os.environ},
                "nodes": {
                    name: {"devices": self._nodes[name].devices, "socket": step_socket(self._state_folder, name)}
                    for name in {slot.node for slot in action.placement}
                },
                "master_address": "127.0.0.1",
                "master_port": free_port(),
                "use_cgroups": self._use_cgroups,
                "decision_timeout_seconds": self._decision_timeout_seconds,
            }
            attempt_files.create_folder(str(folder), {attempt_files.ATTEMPT: attempt_files.encode(plan)}, durable=True)
        followed = self._follow(action.job_id, action.attempt)
        if attempt_files.decision(str(folder)) is None:
            followed.start_missing_shims()

    def _stop(self, action: StopGang) -> None:
        if not hasattr(signal.Signals, action.signal):
            raise BackendError(f"{action.action_id}: {action.signal} is not a signal")
        self._abort_unknown(action.job_id, action.attempt)
        reason = action.reason or action.why.value
        followed = self._follow(action.job_id, action.attempt)
        checkpoint = None
        if action.checkpoint_command:
            seconds = action.checkpoint_timeout_seconds
            checkpoint = {"command": list(action.checkpoint_command), "timeout_seconds": seconds}
        followed.stop(action.signal, action.grace_seconds, action.why.value, reason, checkpoint)

    def _check(self, action: StartGang) -> None:
        """Check that the start is valid for this backend. Raises BackendError with the reason if it is not."""
        _check_name("job", action.job_id)
        spec, name = action.spec, f"{action.action_id} ({action.job_id})"
        if not spec.command:
            raise BackendError(f"{name}: the command is empty")
        places = len(action.mig_starts if spec.mig_profile else set(action.placement))
        if len(action.placement) != spec.ranks or places != spec.ranks:
            raise BackendError(f"{name}: {spec.ranks} ranks at {len(set(action.placement))} slots")
        for rank, slot in enumerate(action.placement):
            node = self._nodes.get(slot.node)
            if node is None or not 0 <= slot.slot < node.slots:
                raise BackendError(f"{name}: rank {rank} at slot {slot.slot} of node {slot.node}, which does not exist")
        if not hasattr(signal.Signals, spec.checkpoint_signal):
            raise BackendError(f"{name}: {spec.checkpoint_signal} is not a signal")

    def _create_instances(self, action: StartGang) -> list[str]:
        """Create the MIG instances of the attempt, and return their UUIDs by rank; empty if its GPUs are not divided.

        Raises BackendError.
        """
        divided = self._instances is not None and all(s.node in self._instances.profiles for s in action.placement)
        if self._instances is None or not divided:
            if action.spec.mig_profile:
                raise BackendError(
                    f"{action.action_id} ({action.job_id}): the GPUs of its nodes are not divided by MIG"
                )
            return []
        return self._instances.create(action)

    def _destroy_instances(
        self, instances: MigInstances, held: Collection[tuple[str, int]], now_seconds: float
    ) -> None:
        """Destroy the MIG instances of attempts that have ended, or that were never started.

        An attempt that runs although it is not in `held` is killed first, as a stray.
        """
        for key in instances.attempts:
            followed = self._followed.get(key) or self._strays.get(key)
            if followed is None and key not in held:
                if attempt_files.read(f"{self._folder(*key)}/{attempt_files.ATTEMPT}") is None:
                    instances.destroy(key, self._log_once)
                    continue
                followed = FollowedAttempt(self._folder(*key), *key, now_seconds, self._start_shim)
                followed.poll(now_seconds, self._ready_timeout_seconds)
                if not followed.done:
                    self._strays[key] = followed
            if followed is not None and followed.done:
                instances.destroy(key, self._log_once)

    def _start_shim(self, folder: Path, node: str) -> None:
        """Start a shim in its own session, without the controller's descriptors, variables and signal handlers."""
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        log = attempt_files.shim_log(str(folder), node)
        self._children.add(
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(_SHIM), str(folder), node],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        )

    def _reap(self) -> None:
        """Collect the exit status of this controller's ended shims, so that no zombie processes remain."""
        for pid in list(self._children):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # the kernel collects children of a process that ignores SIGCHLD
                ended = pid
            if ended:
                self._children.discard(pid)

    # --- following ---------------------------------------------------------------------------------------------------

    def _folder(self, job_id: str, attempt: int) -> Path:
        return self._state_folder / "jobs" / _check_name("job", job_id) / str(attempt)

    def _follow(self, job_id: str, attempt: int) -> FollowedAttempt:
        key = (job_id, attempt)
        if key not in self._followed:
            now_seconds = self._clock.monotonic_ns() / 1e9
            folder = self._folder(job_id, attempt)
            self._followed[key] = FollowedAttempt(folder, job_id, attempt, now_seconds, self._start_shim)
        return self._followed[key]

    def _abort_unknown(self, job_id: str, attempt: int) -> None:
        """Record an attempt without files as aborted, so that it can never start."""
        folder = self._folder(job_id, attempt)
        if not folder.exists():
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            text = attempt_files.decision_text(attempt_files.ABORT, "the start was never carried out")
            attempt_files.create_folder(str(folder), {attempt_files.DECISION: text}, durable=True)

    def _find_strays(self, held: Iterable[tuple[str, int]]) -> None:
        """Find, by their rank files, attempts that run although they are not in `held`."""
        known = {*held, *self._strays}
        for path in (self._state_folder / "ranks").glob("*/*.json"):
            job_id, attempt, _ = path.stem.rsplit(".", 2) if path.stem.count(".") > 1 else ("", "", "")
            if not attempt.isdigit() or (job_id, int(attempt)) in known:
                continue
            key = (job_id, int(attempt))
            known.add(key)
            now_seconds = self._clock.monotonic_ns() / 1e9
            stray = FollowedAttempt(self._folder(*key), *key, now_seconds, self._start_shim)
            if attempt_files.read(f"{stray.folder}/{attempt_files.ATTEMPT}") is None:
                path.unlink(missing_ok=True)  # its attempt was removed, so nothing else deletes it
            else:
                self._strays[key] = stray

    def _end_strays(self, now_seconds: float) -> None:
        for key, stray in list(self._strays.items()):
            try:
                stray.stop("SIGKILL", 0.0, "stray", "the journal does not have it as running")
                stray.poll(now_seconds, self._ready_timeout_seconds)
            except OSError as error:
                self._log_once(f"{key[0]}, attempt {key[1]}: {error}")
            if stray.done:
                del self._strays[key]

    def _log_once(self, text: str) -> None:
        """Log a failed read or write, unless the same text was logged before."""
        if text not in self._failures:
            self._failures.add(text)
            _log.warning("%s", text)


def _check_name(what: str, name: str) -> str:
    """Return the name if it is a valid file name, such as 'j-000001.7', else raise BackendError."""
    if not _NAME.match(name):
        raise BackendError(f"{what} {name!r}: a name has letters, digits, '_' and '-', in parts separated by dots")
    return name


def _remove(folder: Path) -> None:
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    folder.rmdir()
