"""Causes as they come out of whole frames: with the processes' counters beside the devices', as agents send both."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.sim.world.fault import Fault
from tests.dashboards.scripted import ScriptedRun, job

ONSET, LENGTH = 240.0, 90.0


@pytest.mark.parametrize(
    ("disorder", "cause"),
    [
        ("thermal", Cause.THERMAL),
        ("power-brake", Cause.POWER),
        ("clock-lock", Cause.GPU),
        ("cpu-contention", Cause.CPU_CONTENTION),
    ],
)
def test_a_rank_is_slow_for_what_its_device_says_and_not_because_its_process_sleeps(
    disorder: str, cause: Cause
) -> None:
    """The process of a rank whose GPU is slow is off its processor for longer, as one that somebody suspends."""
    one = job("j-000001", range(2))
    fault = Fault(disorder, one.name, (9,), ONSET, LENGTH, severity=0.4)
    one.course.faults.append(one.course.solved(fault))
    run = ScriptedRun([one])
    run.until(ONSET + LENGTH)
    verdicts = [event for _, event in run.told if isinstance(event, Verdict) and event.kind is Kind.STRAGGLER]
    assert [(verdict.rank, verdict.cause) for verdict in verdicts] == [(9, cause)]
