"""The ordinary day's process table reads a process again after the process has called exec."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.ordinary.clock import FairClock
from benchmarks.ordinary.processes import ProcessTable

BECOMES_ANOTHER = """
import os, sys
sys.stdin.readline()
os.environ.update({"ORDINARY_JOB": "mark", "GANGWATCH_JOB": "j-000001", "GANGWATCH_ATTEMPT": "1", "RANK": "0"})
os.execv("/bin/sleep", ["sleep", "60"])
"""


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_scanned_before_its_exec_is_found_after_it(tmp_path: Path) -> None:
    """A forked rank has its shim's command line for some milliseconds, in which a scan may read it."""
    shim = tmp_path / "shim.py"
    shim.write_text(BECOMES_ANOTHER)
    clock = FairClock(tmp_path)
    table = ProcessTable("mark", tmp_path, clock)
    child = subprocess.Popen([sys.executable, str(shim)], stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
    try:
        command = Path(f"/proc/{child.pid}/cmdline")
        _wait(lambda: b"shim.py" in command.read_bytes())
        table.scan()
        assert any("shim" in left for left in table.left())
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        _wait(lambda: command.read_bytes().startswith(b"sleep"))
        table.scan()
        found = table.table({("j-000001", 1, 0): child.pid}).processes
        assert [(one.job, one.attempt, one.rank, one.pid) for one in found] == [("j-000001", 1, 0, child.pid)]
    finally:
        child.kill()
        child.wait()
        clock.close()
