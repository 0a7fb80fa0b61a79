"""The probe of a slot distinguishes a slot whose processes are being stopped from a busy one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.local import slot_probe

PROGRAM = [sys.executable, "-I", "-S", str(Path(slot_probe.__file__))]


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=100)
    document: dict[str, Any] = json.loads(output)
    assert process.returncode == (0 if document["passed"] else 1)
    return document


def start(seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)


@pytest.mark.serial
def test_a_healthy_slot_passes() -> None:
    document = result(start(1.0))
    assert document["passed"], document
    assert document["cpu_seconds"] > 0
    assert document["iterations_per_cpu_second"] > 0
    assert document["wall_seconds"] >= 1.0


@pytest.mark.serial
def test_a_busy_machine_passes() -> None:
    busy = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(6)]
    try:
        document = result(start(1.5))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert document["passed"], document
    assert document["runqueue_wait_seconds"] > 0.1


@pytest.mark.serial
@pytest.mark.parametrize("duty", [0.5, 0.2])
def test_a_repeatedly_stopped_slot_fails(duty: float) -> None:
    process = start(1.5)
    while process.poll() is None:
        time.sleep(0.05 * (1 - duty))
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05 * duty)
        process.send_signal(signal.SIGCONT)
    document = result(process)
    assert not document["passed"], document
    assert document["suspended_share"] > slot_probe.MAX_SUSPENDED_SHARE
    assert "suspended for" in document["reason"]


@pytest.mark.parametrize(
    "arguments", [[], ["--seconds"], ["--seconds", "no"], ["--seconds", "0"], ["--seconds", "nan"]]
)
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    ended = subprocess.run([*PROGRAM, *arguments], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "usage" in ended.stderr


def test_the_suspended_share_excludes_explained_time() -> None:
    assert slot_probe.suspended_share(2.0, 1.0, 0.5, 0.0) == 0.25
    assert slot_probe.suspended_share(2.0, 1.0, 0.5, 0.5) == 0.0
    assert slot_probe.suspended_share(2.0, 2.1, 0.0, 0.0) == 0.0


def test_a_missing_counter_is_not_a_counter_of_zero() -> None:
    assert slot_probe.parse_schedstat("100 7 3\n") == 7
    assert slot_probe.parse_schedstat("100 0 3\n") == 0
    for text in ("0 0 0\n", "", "1 2\n"):
        with pytest.raises(slot_probe.Unmeasurable):
            slot_probe.parse_schedstat(text)


def test_steal_is_read_for_the_given_cpus() -> None:
    text = "cpu  1 2 3 4 5 6 7 99 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3 4 5 6 7 9 0 0\nintr 5\n"
    assert slot_probe.parse_steal(text, {1}) == {1: 9}
    assert slot_probe.parse_steal(text, {0, 1, 2}) == {0: 8, 1: 9}
