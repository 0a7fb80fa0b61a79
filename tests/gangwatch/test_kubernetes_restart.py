"""Restart of a controller that lost its Lease, without a cluster. tests/security has it with a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangwatch.commands.kubernetes_restart import lost_leases, measures

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from gangwatch.commands import kubernetes_restart
from gangwatch.daemons.controller_daemon import StopRequest
from gangwatch.state_folder import StateFolder

folder = Path(sys.argv[1])
print(os.getpid(), kubernetes_restart.lost_leases(), (folder / "controller.json").exists(), flush=True)
if kubernetes_restart.lost_leases() == 2:
    sys.exit(7)
(folder / "controller.json").touch()
kept = os.open(folder / "controller.json", os.O_RDONLY)
kubernetes_restart.STOP_SECONDS = 0.2
state, stop = StateFolder(folder), StopRequest()
"""
HANGS = "kubernetes_restart.stop_and_restart(state, stop); threading.Event().wait(30)"
STOPS = "kubernetes_restart.stop_and_restart(state, stop); kubernetes_restart.restart(state)"
ENDED = "kubernetes_restart.stop_and_restart(state, stop); stop.make(); time.sleep(0.6); sys.exit(0)"
REMOVED = "sys.executable += '.absent'; kubernetes_restart.stop_and_restart(state, stop); threading.Event().wait(30)"


def run(end: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM + end, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("end", [HANGS, STOPS])
def test_a_controller_starts_again_in_its_process_even_if_its_stop_hangs(end: str, tmp_path: Path) -> None:
    done = run(end, tmp_path)
    assert done.returncode == 7, done.stderr
    pids, counts, records = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert len(set(pids)) == 1 and counts == ("0", "1", "2")
    assert set(records) == {"False"}, "no record of the old term names this process as a running controller"


def test_a_controller_that_is_asked_to_end_does_not_start_again(tmp_path: Path) -> None:
    done = run(ENDED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_without_its_program_the_process_ends(tmp_path: Path) -> None:
    done = run(REMOVED, tmp_path)
    assert done.returncode == 1
    assert "cannot be started again" in done.stderr


def test_the_count_of_lost_leases_survives_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, count in (("", 0), ("3", 3), ("-1", 0), ("x", 0), ("9" * 5000, 0), ("²", 0)):
        monkeypatch.setitem(os.environ, "GANGWATCH_LOST_LEASES", text)
        assert lost_leases() == count
    assert measures() == [("gangwatch_lost_leases_total", (), 0.0)]
