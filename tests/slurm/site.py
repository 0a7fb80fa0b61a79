"""gangwatch on the test Slurm cluster: agents of some nodes, and `gangwatch controller` as an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.slurm.bed import Bed

RANK = Path(__file__).with_name("rank.py")
AGENTS = Path(__file__).with_name("agents.py")

POLICY = {
    "migration_cooldown_seconds": 1.0,
    "quarantine_seconds": 3.0,
    "probation_seconds": 3.0,
    "suspect_seconds": 2.0,
}
"""Minutes of production, shortened to seconds."""


class Site:
    """gangwatch on the test Slurm cluster. folder: its state folder."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed = bed
        self.folder = folder
        self._controller: subprocess.Popen[bytes] | None = None

    # --- the controller ----------------------------------------------------------------------------------------------

    def configure(self, mode: str, slurm: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> None:
        section = {
            "enabled": True,
            "mode": mode,
            "configuration": str(self.bed.configuration),
            "attentive_seconds": 1.0,
            "idle_seconds": 5.0,
            **(slurm or {}),
        }
        parts = {
            "controller": {"port": 0},
            "slurm": section,
            "policy": {"probe_command": ["sleep", "1"], **POLICY, **(policy or {})},
        }
        lines = []
        for name, values in parts.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        (self.folder / "gangwatch.toml").write_text("\n".join(lines) + "\n")

    def start(self, mode: str, slurm: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> None:
        self.configure(mode, slurm, policy)
        with (self.folder / "controller.out").open("ab") as output:
            self._controller = subprocess.Popen(
                [sys.executable, "-P", "-m", "gangwatch", "controller", "--state", str(self.folder), "--config",
                 str(self.folder / "gangwatch.toml")],
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.bed.wait_for("the controller", self._ready)

    def _ready(self) -> bool:
        assert self._controller is not None
        if self._controller.poll() is not None:
            raise RuntimeError(f"the controller has ended:\n{self.said()}")
        try:
            return bool(self.get("readyz") is not None)
        except OSError:
            return False

    def said(self) -> str:
        paths = [self.folder / "controller.out", *sorted((self.folder / "log").glob("controller*"))]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths if path.exists())

    @property
    def pid(self) -> int:
        assert self._controller is not None
        return self._controller.pid

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._controller is not None:
            self._controller.send_signal(number)
            self._controller.wait(30)
            self._controller = None

    def get(self, path: str) -> str:
        record = json.loads((self.folder / "controller.json").read_text())
        token = (self.folder / "token").read_text().strip()
        request = urllib.request.Request(f"{record['url']}/{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def command(self, *arguments: str) -> str:
        """Run a gangwatch command for this state folder. Return its output."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gangwatch", *arguments, "--state", str(self.folder)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}: {done.stderr}\n{self.said()}"
        return done.stdout

    # --- results -----------------------------------------------------------------------------------------------------

    def audit(self, *actions: str) -> list[dict[str, Any]]:
        """Return the audit log's entries. actions: only entries of these actions; all if none is given."""
        path = self.folder / "slurm-actions.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if not actions or line["action"] in actions]

    def wait_for(self, what: str, done: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait for the condition. An error contains the controller's output."""
        try:
            self.bed.wait_for(what, lambda: bool(done()), seconds)
        except TimeoutError as error:
            lines = "\n".join(map(str, self.audit()[-20:]))
            raise AssertionError(f"{error}\n{lines}\n{self.said()}") from None

    def steps_of(self, number: str) -> str:
        return f"slurm-{number}"


@contextmanager
def agents(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Run agents of these nodes inside the ``with``."""
    with (folder / "agents.out").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(AGENTS), str(folder), *names], stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (folder / "agents-ready").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "agents.out").read_text(errors="replace")[-3000:])
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)
        (folder / "agents-ready").unlink(missing_ok=True)


class Brake:
    """Slow a process down by stopping and continuing it many times a second."""

    CODE = """
import os, signal, sys, time
pid, stopped, free = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
try:
    while True:
        os.kill(pid, signal.SIGSTOP); time.sleep(stopped)
        os.kill(pid, signal.SIGCONT); time.sleep(free)
except ProcessLookupError:
    pass
"""

    def __init__(self, pid: int, stopped_seconds: float = 0.15, free_seconds: float = 0.1) -> None:
        self._command = [sys.executable, "-c", self.CODE, str(pid), str(stopped_seconds), str(free_seconds)]
        self._pid = pid

    def __enter__(self) -> Brake:
        self._process = subprocess.Popen(self._command)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        try:
            os.kill(self._pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def gang_script(folder: Path, step_seconds: float, steps: int, slow: Path | None = None) -> str:
    """Return a batch script of a training gang, whose ranks connect through sockets in `folder`."""
    words = [sys.executable, str(RANK), str(folder), str(step_seconds), str(steps), *([str(slow)] if slow else [])]
    root = Path(__file__).resolve().parents[2]
    return f"export PYTHONPATH={root}\nsrun --kill-on-bad-exit=0 {' '.join(words)}"


def place_of(folder: Path, number: str, rank: int) -> tuple[int, str]:
    """Return (pid, node) of a rank of the newest attempt."""
    pid, node = (folder / f"{number}.{rank}.pid").read_text().split()
    return int(pid), node
