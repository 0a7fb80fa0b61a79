"""The controller is killed between any two of its system calls. The next controller finds one whole run or none."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, AttemptUnknown
from tests.backends.local_gangs import LocalGangs, exit_codes, until

RANKS = 3

CONTROLLER = """
import os, signal, sys, time
from pathlib import Path
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.job import StopReason
from tests.backends.local_gangs import LocalGangs

folder, count, die_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
gangs = LocalGangs(folder)
action = gangs.action(("sh", "-c", f"echo ran >> {count}" + sys.argv[4]), 3)
watched = ("open", "os.", "socket.")
calls = 0

def die(event, arguments):
    global calls
    if event.startswith(watched):
        calls += 1
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

print("ready", flush=True)
sys.stdin.readline()
sys.addaudithook(die)
gangs.backend.apply(action)
running = ended = False
while not ended:
    for event in gangs.backend.observe([("j-1", 1)]):
        running = running or type(event).__name__ == "AttemptRunning"
        ended = type(event).__name__ == "AttemptEnded"
        if running and not ended and sys.argv[4]:
            gangs.backend.apply(StopGang("a", "j-1", 1, "SIGTERM", 5.0, StopReason.CANCEL))
    time.sleep(0.01)
print("calls", calls, flush=True)
"""


def controller(folder: Path, count: Path, die_at: int, then: str = "") -> subprocess.Popen[str]:
    """Start a process that starts a gang and observes it to its end. It kills itself before its die_at-th system call.

    The calls are the interpreter's audit events (PEP 578): opening, renaming, linking, spawning, ...
    """
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(folder), str(count), str(die_at), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    return process


def one_whole_run_or_none(folder: Path, count: Path, codes: list[int]) -> bool:
    """Follow the attempt with a new controller. Return whether the gang ran."""
    gangs = LocalGangs(folder)
    try:
        end: AttemptEnded | AttemptUnknown | None = None
        for _ in until():
            events = gangs.backend.observe([("j-1", 1)])
            gangs.seen += events
            end = next((each for each in events if isinstance(each, AttemptEnded | AttemptUnknown)), None)
            if end is not None:
                break
        assert end is not None
        lines = count.read_text() if count.exists() else ""
        started = isinstance(end, AttemptEnded) and end.started
        if started:
            assert isinstance(end, AttemptEnded)
            assert isinstance(gangs.seen[0], AttemptRunning)
            assert exit_codes(end) == codes
            assert lines == "ran\n" * RANKS
        else:
            assert lines == ""
        gangs.assert_nothing_left()
        return started
    finally:
        gangs.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_before_each_system_call_of_a_start(tmp_path: Path) -> None:
    ran = []
    for die_at in (*range(1, 40), *range(40, 120, 8)):
        folder, count = tmp_path / f"state-{die_at}", tmp_path / f"count-{die_at}"
        process = controller(folder, count, die_at)
        process.communicate(timeout=60)
        ran.append(one_whole_run_or_none(folder, count, [0] * RANKS))
        assert process.returncode in (-signal.SIGKILL, 0)
    # After an early kill nothing has begun; after a late one the gang runs without its controller.
    assert not ran[0] and ran[-1]
    assert sum(ran) > len(ran) / 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_at_random_moments_of_a_run_and_its_stop(tmp_path: Path) -> None:
    chance = random.Random(2)  # seed of the moments; their effect differs from run to run
    for run in range(30):
        folder, count = tmp_path / f"state-{run}", tmp_path / f"count-{run}"
        process = controller(folder, count, 0, "; exec sleep 300")
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode in (-signal.SIGKILL, 0)
        gangs = LocalGangs(folder)
        try:
            for _ in until():  # the work of the previous controller continues: the gang starts, or nothing exists
                if gangs.backend.observe([("j-1", 1)]):
                    break
            gangs.stop()  # as the previous controller did, if it got that far
        finally:
            gangs.restart_controller()
        assert one_whole_run_or_none(folder, count, [143] * RANKS) == count.exists()
