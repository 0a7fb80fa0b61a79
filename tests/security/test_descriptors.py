"""Daemons recover from a lack of file descriptors. The test lowers the limit of real daemons to their open files."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.attack.http_bed import NODE, BedError, Daemon, agent, controller
from exporter.serving import descriptors
from gangwatch.state_folder import StateFolder
from gangwatch.steps import Reporter

SECONDS = 3.0


@contextmanager
def exhausted(daemon: Daemon, left: int = 0) -> Iterator[None]:
    """Limit the daemon to its open files plus `left` inside the ``with``."""
    pid = daemon.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # Recently closed connections must not count as open.
    time.sleep(0.3)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (daemon.descriptors() + left, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def answers(daemon: Daemon, path: str, seconds: float = 20.0) -> object:
    """Send requests until the daemon responds. Return the response."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return daemon.ask("GET", path, seconds=5.0)
        except BedError:
            assert daemon.alive() and time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("left", [0, 2])
def test_a_controller_without_descriptors_continues_and_loses_no_job(left: int) -> None:
    with controller() as daemon:
        accepted = []
        with exhausted(daemon, left):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                assert daemon.alive()
                try:
                    body = {"name": "short", "command": ["true"], "ranks": 1, "max_retries": 5}
                    accepted.append(daemon.ask("POST", "/api/jobs", body, seconds=5.0)["job"])
                    daemon.ask("GET", "/api/jobs")
                except BedError:
                    pass
                time.sleep(0.3)
        assert accepted, "an operator's command was accepted"
        assert answers(daemon, "/readyz") == {"ready": True, "scheduling": True}
        deadline = time.monotonic() + 40
        while True:
            states = {job["job"]: job["state"] for job in daemon.ask("GET", "/api/jobs")}
            assert set(accepted) <= set(states)
            if set(states.values()) == {"completed"}:
                break
            assert time.monotonic() < deadline, states
            time.sleep(0.2)


def test_an_agent_without_descriptors_continues(capfd: pytest.CaptureFixture[str]) -> None:
    with agent() as daemon:
        with exhausted(daemon):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                assert daemon.alive()
                try:
                    daemon.ask("GET", "/metrics", seconds=5.0)
                except BedError:
                    pass
                time.sleep(0.1)
        answers(daemon, "/readyz")
        assert b"gangwatch_" in bytes(str(answers(daemon, "/metrics")), "utf-8")


def test_a_rank_that_registered_without_descriptors_is_reported_later() -> None:
    with agent() as daemon:
        path = StateFolder(daemon.folder).socket_path(NODE)
        with exhausted(daemon):
            reporter = Reporter({"GANGWATCH_SOCKET": str(path), "GANGWATCH_JOB": "descriptors", "RANK": "0"})
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                assert daemon.alive()
                with reporter.step():
                    time.sleep(0.1)
        deadline = time.monotonic() + 30
        try:
            while "gangwatch_rank_steps_total{" not in str(answers(daemon, "/metrics")):
                assert daemon.alive() and time.monotonic() < deadline, reporter.status
                with reporter.step():
                    time.sleep(0.1)
        finally:
            reporter.close()


def test_a_server_leaves_descriptors_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(soft: int) -> int:
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (soft, soft))
        return descriptors.most_connections(1024)

    assert limited(65_536) == 1024
    assert limited(300) == (300 - descriptors.KEPT) // 2
    assert limited(64) == descriptors.LEAST
    assert limited(resource.RLIM_INFINITY) == 1024
    assert descriptors.exhausted(OSError(24, os.strerror(24)))
    assert not descriptors.exhausted(OSError(2, os.strerror(2)))
