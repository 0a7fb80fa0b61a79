"""Crashes of a job's processes: a gap without steps, and repeated step numbers."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, World
from scheduler_feedback.sim.world.outputs.frame_output import FrameExit
from scheduler_feedback.sim.world.traits import Restart, Traits
from tests.sim.world.jobs import job

CRASH = Restart(at=100.0, seconds=60.0, back=12)


def test_steps_are_repeated_after_a_gap() -> None:
    one = job(seconds=1.0, traits=Traits(seed=1, restarts=(CRASH,)))
    one.advance_to(250.0)
    numbers = np.concatenate([np.arange(b.first, b.first + len(b)) for b in one.blocks])
    begins = np.concatenate([b.begin for b in one.blocks])
    ends = np.concatenate([b.end for b in one.blocks])
    first = int(np.flatnonzero(np.diff(numbers) < 0)[0])
    assert numbers[first] - numbers[first + 1] == CRASH.back - 1
    assert ends[first] <= CRASH.at
    assert begins[first + 1] == CRASH.at + CRASH.seconds
    assert (np.diff(numbers) < 0).sum() == 1


def test_repeated_steps_are_reported_and_nothing_in_the_gap() -> None:
    one = job(seconds=1.0, traits=Traits(seed=1, restarts=(CRASH,)))
    world = World([one], 1, 5.0, PERFECT)
    numbers, ends = [], []
    for _ in range(60):
        telemetry = world.tick(5.0)
        steps, opened = telemetry.jobs[0].steps, telemetry.jobs[0].open_steps
        assert steps is not None and opened is not None
        numbers += steps.number.tolist()
        ends += steps.end_ns[:, 0].tolist()
        if abs(world.now - CRASH.at) > 2.0:
            in_gap = CRASH.at < world.now <= CRASH.at + CRASH.seconds
            assert (opened[:, 0] == -1).all() == in_gap
        if CRASH.at + 8.0 < world.now < CRASH.at + CRASH.seconds:
            active = telemetry.counters.values[FEATURE["sm_active"]]
            assert np.nanmax(active) < 0.05
    assert np.all(np.diff(ends) > 0)
    repeated = [number for number in set(numbers) if numbers.count(number) == 2]
    assert len(repeated) == CRASH.back


def test_frames_have_repeated_steps_too() -> None:
    crash = Restart(at=10.0, seconds=5.0, back=6)
    one = job(16, seconds=0.5, traits=Traits(seed=1, restarts=(crash,)))
    numbers = [
        r.step
        for _, _, frame in FrameExit([one], 1).until(25.0)
        for r in frame.records
        if hasattr(r, "wait_ns") and r.member.rank == 0
    ]
    assert len(numbers) - len(set(numbers)) == crash.back


def test_a_crash_in_the_first_step_begins_again_at_the_first() -> None:
    one = job(seconds=2.0, traits=Traits(seed=1, restarts=(Restart(0.5, 30.0, 5),)))
    one.advance_to(60.0)
    assert one.blocks[0].first == 1
    assert one.blocks[0].begin[0] == 30.5


def test_a_crash_while_the_job_is_down_does_not_turn_time_back() -> None:
    one = job(seconds=2.0, traits=Traits(seed=1, restarts=(Restart(50.0, 60.0, 5), Restart(60.0, 10.0, 5))))
    one.advance_to(200.0)
    begins = np.concatenate([b.begin for b in one.blocks])
    assert (np.diff(begins) > 0).all()
    assert 110.0 in begins
