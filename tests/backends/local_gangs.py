"""Gangs of real processes on virtual nodes of this machine, for tests of the local backend."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from scheduler_feedback.backends.local import attempt_files, local_processes
from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import AttemptEnded, Event
from scheduler_feedback.core.job import JobSpec, Slot, StopReason

DEADLINE_SECONDS = 40.0

SomeEvent = TypeVar("SomeEvent", bound=Event)


def python(program: str) -> tuple[str, ...]:
    """Return a command for a rank that runs the program text in a Python interpreter."""
    return (sys.executable, "-I", "-S", "-c", program)


class LocalGangs:
    """State folder with a local backend; by default two nodes with two slots each."""

    def __init__(self, state_folder: Path, nodes: Sequence[LocalNode] | None = None, **options: Any) -> None:
        self.state_folder = state_folder
        self.nodes = list(nodes or (LocalNode("n0", 2), LocalNode("n1", 2)))
        self.options = options
        self.backend = self.another_controller()
        self.seen: list[Event] = []

    def another_controller(self) -> LocalBackend:
        """Return a new backend on the same state folder, as after a restart of the controller."""
        return LocalBackend(self.state_folder, self.nodes, **self.options)

    def restart_controller(self) -> None:
        self.backend = self.another_controller()
        self.seen = []

    def action(
        self, command: Sequence[str], ranks: int, job_id: str = "j-1", attempt: int = 1, **spec: Any
    ) -> StartGang:
        slots = [Slot(node.name, slot) for node in self.nodes for slot in range(node.slots)]
        specification = JobSpec("test", tuple(command), ranks, **spec)
        return StartGang(f"a-{job_id}-{attempt}", job_id, attempt, specification, tuple(slots[:ranks]))

    def start(self, command: Sequence[str], ranks: int, **more: Any) -> None:
        self.backend.apply(self.action(command, ranks, **more))

    def stop(self, grace_seconds: float = 20.0, signal_name: str = "SIGTERM", job_id: str = "j-1") -> None:
        self.backend.apply(StopGang("a-stop", job_id, 1, signal_name, grace_seconds, StopReason.CANCEL))

    def wait_for(self, kind: type[SomeEvent], job_id: str = "j-1", attempt: int = 1) -> SomeEvent:
        """Observe until an event of this kind arrives, and return it. ``seen`` keeps all events."""
        for _ in until():
            events = self.backend.observe([(job_id, attempt)])
            self.seen += events
            for event in events:
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"no {kind.__name__} came; seen: {self.seen}")

    def folder(self, job_id: str = "j-1", attempt: int = 1) -> Path:
        return self.state_folder / "jobs" / job_id / str(attempt)

    def shim(self, node: str) -> dict[str, Any]:
        for _ in until():
            about = attempt_files.read(f"{self.folder()}/{node}/shim.json")
            if about is not None:
                return about
        raise AssertionError(f"no shim came up on {node}")

    def log(self, rank: int, job_id: str = "j-1") -> str:
        return Path(attempt_files.log_file(str(self.state_folder), job_id, 1, rank)).read_text()

    def wait_for_log(self, rank: int, text: str) -> None:
        for _ in until():
            path = Path(attempt_files.log_file(str(self.state_folder), "j-1", 1, rank))
            if path.exists() and text in path.read_text():
                return
        raise AssertionError(f"rank {rank} never wrote {text!r}")

    def rank_files(self) -> list[Path]:
        return list((self.state_folder / "ranks").glob("*/*.json"))

    def processes(self) -> list[int]:
        """Return the pids of the state folder's live processes: shims and ranks."""
        needle = os.fsencode(self.state_folder) + b"/"
        found = []
        for pid in local_processes.all_pids():
            stat = local_processes.read_stat(pid)
            if stat is None or stat.gone or pid == os.getpid():
                continue
            try:
                known = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if needle in known:
                found.append(pid)
        return found

    def assert_nothing_left(self) -> None:
        """Wait until the shims have ended. Fail if a process of a job remains."""
        for _ in until():
            if not self.processes():
                break
        assert self.processes() == []
        assert self.rank_files() == []
        assert self.cgroups() == []

    def cgroups(self) -> list[str]:
        """Return the control groups of the state folder's shims that still exist."""
        shims = [attempt_files.read(str(path)) for path in self.state_folder.glob("jobs/*/*/*/shim.json")]
        return [about["cgroup"] for about in shims if about and about["cgroup"] and Path(about["cgroup"]).exists()]

    def close(self) -> None:
        """End all processes that a failed test has left."""
        for _ in until(5.0):
            left = self.processes()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.backend.observe([])
        for cgroup in self.cgroups():
            local_processes.remove_cgroup(cgroup)


def exit_codes(event: AttemptEnded) -> list[int | None]:
    assert [each.rank for each in event.exits] == list(range(len(event.exits)))
    return [each.exit_code for each in event.exits]


def until(seconds: float = DEADLINE_SECONDS) -> Iterator[None]:
    """Yield every hundredth of a second until the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.01)
