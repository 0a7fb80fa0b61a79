"""Causes of slow ranks by process and device counters, from complete frames as agents send them."""

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
def test_the_device_gives_the_cause_and_not_a_sleeping_process(disorder: str, cause: Cause) -> None:
    """The process of a rank with a slow GPU waits longer for it. It must not be taken for a suspended process."""
    one = job("j-000001", range(2))
    fault = Fault(disorder, one.name, (9,), ONSET, LENGTH, severity=0.4)
    one.course.faults.append(one.course.solved(fault))
    run = ScriptedRun([one])
    run.until(ONSET + LENGTH)
    verdicts = [event for _, event in run.past_events if isinstance(event, Verdict) and event.kind is Kind.STRAGGLER]
    assert [(verdict.rank, verdict.cause) for verdict in verdicts] == [(9, cause)]
