"""Step times without waits: waits are inferred if step times contain no collective; otherwise counters are used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.detection.cells import Cell, stage
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.steps.reported_waits import COMPARED_STEPS, ReportedWaits
from scheduler_feedback.sim.world.outputs.array_output import Delivery, World
from tests.detectors.gang_windows import shape_of

RANKS = 8


def telemetry(seconds: FloatArray | None, waits: FloatArray | float = np.nan, attempt: int = 1) -> Telemetry:
    ranks = RANKS if seconds is None else seconds.shape[1]
    shape = replace(shape_of(ranks), attempt=attempt)
    table = None
    if seconds is not None:
        count = len(seconds)
        ends = np.repeat(np.arange(1, count + 1, dtype=np.int64)[:, None] * 1_000_000_000, ranks, axis=1)
        table = StepTable(np.arange(count), ends, seconds, np.broadcast_to(waits, seconds.shape).astype(np.float64))
    return Telemetry(1, (JobTelemetry(shape, table),), no_counters(ranks))


@pytest.mark.parametrize("seed", range(5))
def test_lost_samples_of_large_jobs_do_not_hide_own_times(seed: int) -> None:
    """With one sample in fifty lost, nearly no step of 64 ranks is complete."""
    rng = np.random.default_rng(seed)
    own = rng.normal(1.0, 0.02, (2 * COMPARED_STEPS, 64))
    apart = np.diff(rng.normal(0.0, 0.02, (len(own) + 1, 64)), axis=0)
    between = own.max(axis=1, keepdims=True) + apart
    lost = rng.random(own.shape) < 0.02
    for seconds, is_own in ((own, True), (between, False)):
        _, by_counters = ReportedWaits().take(telemetry(np.where(lost, np.nan, seconds)))
        assert by_counters == (set() if is_own else {"g"})


def test_a_lost_sample_of_eight_ranks_leaves_its_step_out() -> None:
    seconds = own_times()
    seconds[5, 2] = np.nan
    assert ReportedWaits().take(telemetry(seconds))[1] == {"g"}


def own_times(count: int = COMPARED_STEPS) -> FloatArray:
    return np.random.default_rng(1).normal(1.0, 0.02, (count, RANKS))


def barrier_times(jitter: float, count: int = COMPARED_STEPS) -> FloatArray:
    """Return step times of ranks that end each step together, apart from random offsets that cancel over steps."""
    offsets = np.random.default_rng(2).normal(0.0, jitter, (count + 1, RANKS))
    return np.repeat(own_times(count).max(axis=1, keepdims=True), RANKS, axis=1) + np.diff(offsets, axis=0)


def job_of(found: Telemetry) -> StepTable:
    steps = found.jobs[0].steps
    assert steps is not None
    return steps


def test_own_times_become_waits_for_the_slowest_rank() -> None:
    waits = ReportedWaits()
    own = own_times()
    first, by_counters = waits.take(telemetry(own[:-1]))
    assert by_counters == {"g"} and np.isnan(job_of(first).wait_seconds).all(), "not decided yet"
    last = own[-1:].copy()
    last[0, 3] = np.nan
    found, by_counters = waits.take(telemetry(own[-1:]))
    assert not by_counters
    found, _ = waits.take(telemetry(last))
    steps = job_of(found)
    assert np.isnan(steps.seconds[0, 3]) and np.isnan(steps.wait_seconds[0, 3])
    known = np.delete(np.arange(RANKS), 3)
    assert steps.seconds[0, known] == pytest.approx(np.nanmax(last))
    assert steps.seconds[0, known] - steps.wait_seconds[0, known] == pytest.approx(last[0, known])


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_times_between_collectives_show_no_waits(jitter: float) -> None:
    waits = ReportedWaits()
    given = telemetry(barrier_times(jitter))
    assert waits.take(given) == (given, {"g"})


def test_counters_judge_jobs_without_steps_or_waits_only() -> None:
    assert ReportedWaits().take(telemetry(None))[1] == {"g"}
    assert not ReportedWaits().take(telemetry(own_times(), 0.1))[1]
    waits = ReportedWaits()
    some = own_times(4)
    assert waits.take(telemetry(barrier_times(0.0)))[1]
    assert waits.take(telemetry(some[:0]))[1], "no new steps change nothing"
    assert not waits.take(telemetry(some[:1], 0.1, attempt=2))[1], "another attempt"
    assert not waits.take(Telemetry(1, (), no_counters(0)))[1]


@pytest.mark.parametrize(("disorder", "found"), [("clock-lock", True), ("", False)])
def test_a_slow_gpu_is_found_by_counters_if_waits_are_unknown(disorder: str, found: bool) -> None:
    staged, _ = stage(Cell(disorder or "clock-lock", 0.5, 64, "step", "balanced", 10, 1.0, 7), 0)
    world, detection = World(staged.courses, 5, 1.0, Delivery(), True), make_detection()
    until = staged.fault.begin + (200.0 if found else -5.0)
    accused = []
    while world.now < until:
        given = world.tick(5.0)
        jobs = [
            job
            if job.steps is None
            else replace(job, steps=replace(job.steps, wait_seconds=np.full_like(job.steps.wait_seconds, np.nan)))
            for job in given.jobs
        ]
        results = detection.tick(replace(given, jobs=tuple(jobs)))
        accused += [one for one in results if isinstance(one, Verdict) and one.kind in ("straggler", "health")]
    assert bool(accused) == found
    assert {one.rank for one in accused} <= set(staged.fault.ranks)
