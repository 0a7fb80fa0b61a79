"""Telemetry of ended jobs: it is deleted, also where agents name a job's gangs in another way than the scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.schema.clock import ManualClock
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.events import AttemptEnded
from tests.cluster.memory_backend import MemoryBackend, World
from tests.controller.site import serving
from tests.core.test_consumption import SECOND, WALL, Machine
from tests.core.test_pace import shape, steady


def of_slurm(gang: str) -> str:
    return SlurmBackend.job_of(object.__new__(SlurmBackend), gang)


def test_gangs_of_an_ended_slurm_job_are_forgotten() -> None:
    """They would share their nodes with the next job there, and look as if they hung."""
    clock = ManualClock(100 * SECOND, WALL + 100 * SECOND)
    watch = DetectionThread((), lambda _: None, clock, job_of=of_slurm)
    names = ("slurm-7.0", "slurm-7.extern", "slurm-7", "slurm-77.0", "uid-5/train", "j-000007")
    node = Machine("n0", tuple((name, 0) for name in names))
    watch.offer(node.layout(), node.frame(99 * SECOND), clock.monotonic_ns())
    watch.run_tick()
    assert watch._fleet.gangs.keys() == set(names)
    watch.forget("slurm-7")
    watch.run_tick()
    assert watch._fleet.gangs.keys() == {"slurm-77.0", "uid-5/train", "j-000007"}


def test_without_other_names_only_the_job_itself_is_forgotten() -> None:
    clock = ManualClock(100 * SECOND, WALL + 100 * SECOND)
    watch = DetectionThread((), lambda _: None, clock)
    node = Machine("n0", (("slurm-7.0", 0), ("j-000007", 0)))
    watch.offer(node.layout(), node.frame(99 * SECOND), clock.monotonic_ns())
    watch.run_tick()
    for name in ("j-000007", "slurm-7", "j-000008"):
        watch.forget(name)
    watch.run_tick()
    assert watch._fleet.gangs.keys() == {"slurm-7.0"}


@pytest.mark.parametrize(
    ("gang", "job"),
    [("slurm-7.0", "slurm-7"), ("slurm-7", "slurm-7"), ("slurm-7.batch", "slurm-7"), ("j-000007", "j-000007")],
)
def test_slurm_names_the_job_of_a_step(gang: str, job: str) -> None:
    assert of_slurm(gang) == job


def test_the_controller_forgets_by_the_names_of_its_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBackend, "job_of", lambda _, gang: gang.partition(".")[0])
    with serving(tmp_path, World()) as site:
        watch = site.controller._detection
        monkeypatch.setattr(watch, "run_tick", lambda: None)  # its own thread runs no tick meanwhile
        with watch._lock:
            for name in ("slurm-7.0", "slurm-8.0"):
                watch._fleet._attempts.of(name, 1, 0)
        site.controller._written([AttemptEnded("slurm-7", 0, ())], [])
        with watch._lock:
            watch._forget()
        assert watch._fleet.gangs.keys() == {"slurm-8.0"}


def test_step_times_of_a_slurm_job_are_those_of_its_newest_step() -> None:
    """The page of a job and the measured speeds of shared slots ask with the scheduler's name."""
    watch = DetectionThread((), lambda _: None, ManualClock(0, WALL), job_of=of_slurm)
    for number, name in enumerate(("slurm-7.0", "slurm-77.0", "slurm-7.1", "j-000007")):
        steady(watch._paces, shape(job=name, attempt=number), 3)
    for job, gang in (("slurm-7", "slurm-7.1"), ("slurm-77", "slurm-77.0"), ("j-000007", "j-000007")):
        found = watch.pace_of(job)
        assert found is not None and found.gang == gang
    assert watch.pace_of("slurm-8") is None
    node = Machine("n0", (("slurm-7.0", 0), ("slurm-7.1", 0), ("j-000007", 0)))
    watch.offer(node.layout(), node.frame(99 * SECOND), 0)
    watch.run_tick()
    assert [watch._gang_of(job) for job in ("slurm-7", "j-000007", "slurm-8")] == ["slurm-7.1", "j-000007", "slurm-8"]


def test_speeds_are_by_the_names_of_the_scheduler() -> None:
    watch = DetectionThread((), lambda _: None, ManualClock(0, WALL), job_of=of_slurm)
    steady(watch._paces, shape(job="slurm-7.0"), 3)
    assert list(watch.speeds()) == ["slurm-7"]
