"""Table of the processes of the day's jobs and daemons (psutil), which have a mark in their environment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.ordinary.clock import FairClock
from benchmarks.ordinary.oracle.facts import Process, Table

SETTLED_SECONDS = 10.0
"""Seconds after which the kind of a process is cached, because a younger process may still call exec. Before its exec,
a forked rank has the command line of its shim, and a shim that of its daemon."""


@dataclass(slots=True)
class _Known:
    process: psutil.Process
    created: float
    mark: str  # the day's mark; '' for other processes
    kind: str  # 'job', 'daemon', 'shim' or ''
    fields: tuple[str, int, int, str]  # job, attempt, rank, node
    name: str
    settled: bool  # past SETTLED_SECONDS: its kind does not change any more


class ProcessTable:
    """Reader of all processes of the machine, with a cache of constant properties."""

    def __init__(self, mark: str, state: Path, clock: FairClock) -> None:
        self._mark, self._state, self._clock = mark, str(state), clock
        self._known: dict[int, _Known] = {}
        self.ranks: dict[int, tuple[str, int, int]] = {}

    def scan(self) -> None:
        """Scan all processes once."""
        present = set(psutil.pids())
        for pid in [pid for pid in self._known if pid not in present]:
            del self._known[pid]
        for pid in present:
            known = self._known.get(pid)
            if known is not None and known.settled and _alive(known.process):
                continue
            self._known.pop(pid, None)
            found = self._inspect(pid)
            if found is not None and (found.kind or found.settled):
                self._known[pid] = found

    def _inspect(self, pid: int) -> _Known | None:
        try:
            process = psutil.Process(pid)
            created = process.create_time()
            environment = process.environ()
            command = process.cmdline()
        except psutil.Error:
            return None
        nothing = ("", 0, -1, "")
        settled = time.time() - created > SETTLED_SECONDS
        if environment.get("ORDINARY_JOB") == self._mark and environment.get("GANGWATCH_JOB"):
            rank = environment.get("RANK", "-1")
            fields = (
                environment["GANGWATCH_JOB"],
                int(environment.get("GANGWATCH_ATTEMPT", "0")),
                int(rank),
                environment.get("GANGWATCH_NODE", ""),
            )
            return _Known(process, created, self._mark, "job", fields, "", True)
        if environment.get("ORDINARY_DAEMON") == self._mark and "gangwatch" in " ".join(command):
            return _Known(process, created, self._mark, "daemon", nothing, daemon_name(command), settled)
        if any(self._state in part for part in command) and any(part.endswith("shim.py") for part in command):
            return _Known(process, created, self._mark, "shim", nothing, "shim", settled)
        return _Known(process, created, "", "", nothing, "", settled)

    def table(self, leaders: dict[tuple[str, int, int], int]) -> Table:
        """Return the jobs' processes that are alive at one moment.

        leaders: process ids of ranks by (job, attempt, rank), from the ranks' own records.
        """
        found: list[tuple[_Known, str]] = []
        for known in self._known.values():
            if known.kind == "job" and (status := _status(known.process)):
                found.append((known, status))
        at = self._clock.now()
        # Processes seen alive before and after this moment were alive at it.
        alive = [(known, status) for known, status in found if _status(known.process)]
        return Table(at, tuple(self._process(known, status, leaders) for known, status in alive))

    def _process(self, known: _Known, status: str, leaders: dict[tuple[str, int, int], int]) -> Process:
        job, attempt, rank, node = known.fields
        leader = leaders.get((job, attempt, rank)) == known.process.pid
        ran, waited = _schedule(known.process.pid) if leader else (0.0, 0.0)
        return Process(
            known.process.pid, job, attempt, rank, node, leader, known.created, status, ran, waited
        )  # fmt: skip

    def daemons(self) -> dict[int, tuple[str, float]]:
        """Return name and start time of each live daemon, by process id."""
        return {
            pid: (known.name, known.created)
            for pid, known in self._known.items()
            if known.kind == "daemon" and known.name and _status(known.process)
        }

    def left(self) -> list[str]:
        """Return descriptions of the day's processes that are still alive. An ended day must have none."""
        return [
            f"pid {pid} ({known.kind} {known.name or known.fields})"
            for pid, known in self._known.items()
            if known.kind and _status(known.process)
        ]

    def kill_left(self) -> None:
        """Kill all remaining processes of the day, so that they do not disturb the next day."""
        for known in list(self._known.values()):
            if known.kind and _status(known.process):
                try:
                    known.process.kill()
                except psutil.Error:
                    pass


def daemon_name(command: list[str]) -> str:
    """Return the name of a daemon from its command line, for example 'controller' or 'agent node-0'; '' for others."""
    if "agent" in command:
        node = command[command.index("--node") + 1] if "--node" in command else "?"
        return f"agent {node}"
    if "controller" in command:
        return "controller"
    # `gangwatch up` itself ends once all are ready; its child keeps running.
    return "supervisor" if "up" in command and "--foreground" in command else ""


def _status(process: psutil.Process) -> str:
    """Return the state of a live process; '' if it has ended or is a zombie."""
    try:
        if not process.is_running():
            return ""
        status = str(process.status())
    except psutil.Error:
        return ""
    return "" if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else status


def _alive(process: psutil.Process) -> bool:
    return bool(process.is_running())


def _schedule(pid: int) -> tuple[float, float]:
    """Return the seconds that the process ran and that it waited for a CPU (/proc/PID/schedstat)."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9
