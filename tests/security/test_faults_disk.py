"""Faults of a real controller's disk: full, read-only, an fsync that fails once, an fsync that never returns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.security.test_readiness import status_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("front-door")]

SLEEP = ("--", sys.executable, "-I", "-c", "import time; time.sleep(3600)")


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """Create the folder of files by which a test switches faults of the journal's disk on."""
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder


@pytest.fixture
def door(tmp_path: Path, faults: Path) -> Iterator[FrontDoor]:
    compiler, library = needs.component("gcc", "gcc"), tmp_path / "bad_disk.so"
    source = Path(__file__).with_name("bad_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with front_door(tmp_path) as opened:
        opened.environment |= {"LD_PRELOAD": str(library), "GANGWATCH_BAD_DISK": str(faults)}
        yield opened


def pid_of(door: FrontDoor) -> int:
    record = door.state.controller()
    assert record is not None, door.logs()
    return record.pid


def readiness_of(door: FrontDoor) -> tuple[int, str]:
    record = door.state.controller()
    return status_of(f"{record.url}/readyz") if record is not None else (0, "")


def attempts(door: FrontDoor) -> dict[str, tuple[str, int]]:
    listed: list[dict[str, Any]] = door.json("jobs")
    return {job["job"]: (job["state"], job["attempt"]) for job in listed}


def test_one_failed_fsync_loses_and_repeats_nothing(door: FrontDoor, faults: Path) -> None:
    door.up()
    running = door.submit(*SLEEP)
    door.wait_for(running, "running")
    pid = pid_of(door)
    refused = taken = 0
    for _ in range(6):
        (faults / "fsync-fails").touch()
        asked = door.run("submit", *SLEEP, code=None)
        wait_until(lambda: not (faults / "fsync-fails").exists(), door.logs)
        if asked.returncode:
            refused += 1
            assert "store.sqlite" in asked.stderr
        else:
            taken += 1
        wait_until(lambda: readiness_of(door)[0] == 200, door.logs)
    jobs = attempts(door)
    assert len(jobs) == 1 + taken, "each accepted job exists, and no refused one"
    assert jobs[running] == ("running", 1)
    assert pid_of(door) == pid
    assert refused + taken == 6
    door.kill("controller")  # the next one must read from disk what was answered
    wait_until(lambda: readiness_of(door)[0] == 200, door.logs)
    assert attempts(door).keys() == jobs.keys()
    assert attempts(door)[running] == ("running", 1)


def test_a_blocked_fsync_is_reported_and_ends_no_job(door: FrontDoor, faults: Path) -> None:
    door.up()
    running = door.submit(*SLEEP)
    door.wait_for(running, "running")
    pid = pid_of(door)
    (faults / "fsync-hangs").touch()
    began_s = time.monotonic()
    try:
        asking = door.start("submit", *SLEEP)  # a request, so that a cycle has an entry to write
        wait_until(lambda: readiness_of(door)[0] == 503, door.logs)
        assert time.monotonic() - began_s > 8.0
        code, text = readiness_of(door)
        assert code == 503
        assert "no scheduling cycle has finished for" in text
        assert "writing the journal to disk" in text
    finally:
        (faults / "fsync-hangs").unlink()
    out, err = asking.communicate(timeout=120)
    wait_until(lambda: readiness_of(door)[0] == 200, door.logs)
    jobs = attempts(door)
    assert jobs[running] == ("running", 1)
    assert (out.strip() in jobs) == (asking.returncode == 0), err
    assert pid_of(door) == pid


def filled(folder: Path) -> Path:
    """Fill the file system with one file. Return the file's path."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_stops_only_decisions(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    needs.small_file_system(folder, "24m")
    try:
        with front_door(folder) as door:
            door.up()
            running = door.submit(*SLEEP)
            short = door.submit("--", sys.executable, "-I", "-c", "import time; time.sleep(15)")
            door.wait_for(running, "running")
            door.wait_for(short, "running")
            pid = pid_of(door)
            ballast = filled(folder)
            wait_until(lambda: readiness_of(door)[0] == 503, door.logs)
            asked = door.run("submit", *SLEEP, code=None)
            assert asked.returncode != 0
            assert "No space left" in asked.stderr or "SQLITE_FULL" in asked.stderr or "full" in asked.stderr
            assert attempts(door).keys() == {running, short}
            time.sleep(16)  # the short job ends, and its end cannot be recorded
            ballast.unlink()
            wait_until(lambda: readiness_of(door)[0] == 200, door.logs)
            door.wait_for(short, "completed")
            assert attempts(door)[running] == ("running", 1)
            assert pid_of(door) == pid
            later = door.submit("--", "true")
            door.wait_for(later, "completed")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_disk_stops_only_decisions(door: FrontDoor, faults: Path) -> None:
    """Simulate an ext4 remount after an error with a preloaded library: the kernel refuses it while files are open."""
    door.environment["GANGWATCH_BAD_DISK_OF"] = str(door.state)
    door.up()
    running = door.submit(*SLEEP)
    door.wait_for(running, "running")
    pid = pid_of(door)
    (faults / "read-only").touch()
    try:
        asked = door.run("submit", *SLEEP, code=None)
        assert asked.returncode != 0
        assert "audit.jsonl" in asked.stderr and "changes are refused" in asked.stderr
        # A freeze is accepted without an audit entry, but the journal cannot record it either.
        assert "frozen, but only until the controller ends" in door.run("freeze", code=None).stderr
        wait_until(lambda: readiness_of(door)[0] == 503, door.logs)
        time.sleep(5)
        assert attempts(door) == {running: ("running", 1)}
    finally:
        (faults / "read-only").unlink()
    wait_until(lambda: readiness_of(door)[0] == 200, door.logs)
    assert pid_of(door) == pid
    door.run("thaw")
    later = door.submit("--", "true")
    door.wait_for(later, "completed")
    assert attempts(door)[running] == ("running", 1)
