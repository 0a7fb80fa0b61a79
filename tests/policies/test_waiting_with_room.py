"""A job that waits despite enough free slots: its reason does not claim that slots are missing."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Backfilling, Policy
from scheduler_feedback.cycle import why_waits
from tests.cluster.cycle_world import World


@pytest.mark.parametrize("backfill", [Backfilling.NONE, Backfilling.CONSERVATIVE, Backfilling.EASY])
def test_the_reason_says_that_earlier_jobs_go_first_despite_free_slots(backfill: Backfilling) -> None:
    world = World({"n0": 2, "n1": 2}, Policy(backfill=backfill))
    world.submit(3, 100.0, time_limit_seconds=100.0)
    world.submit(4, 100.0, time_limit_seconds=100.0)
    last = world.submit(1, 1000.0, time_limit_seconds=1000.0)
    assert world.job_state(last) is JobState.PENDING
    sentence = why_waits(world.state, world.state.jobs[last])
    assert "enough slots are free" in sentence
    assert "not free" not in sentence
