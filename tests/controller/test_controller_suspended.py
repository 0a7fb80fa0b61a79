"""A controller that was suspended does not report its agents as lost."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import Counters, Telemetry
from scheduler_feedback.core.verdict import MASS_LOSS
from scheduler_feedback.detectors.health.stale_agents import StaleAgents

SECOND = 1_000_000_000
BEGIN = 1_800_000_000
NODES = ("node-0", "node-1", "node-2", "node-3")


def run_pass(silence: StaleAgents, second: float, received: float) -> str:
    """Run a pass at `second`, when every node's newest frame is from second `received`.

    Return the detector in the abstention; '' without one.
    """
    now_ns = int((BEGIN + second) * SECOND)
    counters = Counters(np.empty(0, np.int64), 1.0, np.empty((0, 0, 0), np.float32))
    received_ns = {node: int((BEGIN + received) * SECOND) for node in NODES}
    found = silence.mass(Telemetry(now_ns, (), counters, (), received_ns))
    return "" if found is None else found.detector


@pytest.mark.parametrize("suspended", [10.0, 20.0, 60.0, 3600.0])
def test_agents_are_not_lost_while_the_controller_itself_was_suspended(suspended: float) -> None:
    silence = StaleAgents()
    for tick in range(20):
        assert run_pass(silence, tick / 2, tick / 2) == ""
    begun = 10.0 + suspended
    # The first passes may come before the frames that are queued in the sockets.
    assert run_pass(silence, begun, 9.5) == ""
    assert run_pass(silence, begun + 0.5, 9.5) == ""
    for tick in range(2, 120):
        assert run_pass(silence, begun + tick / 2, begun + tick / 2) == ""


def test_agents_that_are_stale_after_the_controller_was_suspended_are_lost() -> None:
    silence = StaleAgents()
    run_pass(silence, 0.0, 0.0)
    found = [run_pass(silence, 30.0 + tick / 2, 0.0) for tick in range(60)]
    assert found.index(MASS_LOSS) / 2 == pytest.approx(15.0, abs=1.0)


def test_agents_that_become_stale_while_the_controller_runs_are_lost() -> None:
    silence = StaleAgents()
    found = [run_pass(silence, tick / 2, 0.0) for tick in range(60)]
    assert found.index(MASS_LOSS) / 2 == pytest.approx(15.0, abs=1.0)
