"""The demonstration's disturbance takes CPU time only from the processes of its slot, and stops when it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangwatch.demo.disturbance import processes_of, send, start_time


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def rank_file(folder: Path, name: str, pid: int, started: int, slot: int) -> None:
    (folder / name).write_text(json.dumps({"gang": "j-1", "pid": pid, "start_time": started, "slot": slot}))


def test_only_processes_of_the_slot_are_selected(tmp_path: Path) -> None:
    rank_file(tmp_path, "j-1.1.0.json", 11, 1, 0)
    rank_file(tmp_path, "j-1.1.1.json", 12, 1, 1)
    (tmp_path / "j-1.1.2.json").write_text("{half a rec")
    assert processes_of(tmp_path, 1) == [(12, 1)]


def test_a_process_with_a_reused_pid_is_not_touched(sleeper: subprocess.Popen[bytes]) -> None:
    started = start_time(sleeper.pid)
    assert started is not None
    assert not send(sleeper.pid, started + 1, signal.SIGKILL)
    assert sleeper.poll() is None


def test_the_disturbance_stops_the_slot_and_releases_it_at_its_end(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    started = start_time(sleeper.pid)
    assert started is not None
    rank_file(tmp_path, "j-1.1.0.json", sleeper.pid, started, 0)
    command = [sys.executable, "-m", "gangwatch.demo.disturbance", "--ranks-folder", str(tmp_path), "--slot", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as disturber:
        seen: set[str] = set()
        until = time.monotonic() + 30
        while "T" not in seen and time.monotonic() < until:
            seen.add(state_of(sleeper.pid))
            time.sleep(0.01)
        assert "T" in seen
        disturber.terminate()
        printed, _ = disturber.communicate(timeout=30)
    acts = [json.loads(line)["act"] for line in printed.splitlines()]
    assert (acts[0], acts[-1]) == ("began", "ended")
    assert disturber.returncode == 0
    assert state_of(sleeper.pid) == "S"
