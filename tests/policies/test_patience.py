"""Patience: the cycle delays a costly move, because the fault may end soon."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import Tick, VerdictJudged
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import Mode, Policy
from scheduler_feedback.core.verdict import Cleared
from scheduler_feedback.policies.remediation.patience import best_wait, course, fault_goes_on, known_to_go_on
from tests.cluster.cycle_world import SECOND, World

FOREVER = float("inf")
_COSTLY: dict[str, Any] = {
    "restartable": True,
    "grace_seconds": 10.0,
    "restart_cost_seconds": 290.0,
    "time_limit_seconds": 100_000.0,
}


def gang_continues(seconds: float) -> float:
    return 1.0


def wait(age: float, slowdown: float, cost: float, mean: float = 1800.0) -> tuple[float, float] | None:
    expected = course(fault_goes_on(age, mean), gang_continues, slowdown, FOREVER)
    return best_wait(expected, 1 - 1 / slowdown, cost)


def test_a_cheap_move_is_made_at_once_and_a_costly_one_delayed() -> None:
    assert wait(5.0, 1.5, 10.0) is None
    found = wait(5.0, 1.5, 300.0)
    assert found is not None
    seconds, cost = found
    assert seconds > 60
    assert 0 < cost < 300


def test_older_and_worse_faults_lead_to_an_earlier_move() -> None:
    ages = [0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 86400.0]
    for slowdown in (1.2, 1.5, 2.0, 4.0):
        waits = [wait(age, slowdown, 300.0) is not None for age in ages]
        assert waits == sorted(waits, reverse=True), "a due move stays due"
        assert not waits[-1], "the wait is limited"
    moved = [next(age for age in ages if wait(age, slowdown, 300.0) is None) for slowdown in (1.2, 1.5, 2.0, 4.0)]
    assert moved == sorted(moved, reverse=True)


@pytest.mark.parametrize(("cost", "about"), [(40.0, 0.0), (100.0, 60.0), (300.0, 480.0)])
def test_the_waits_match_the_scheduler_s_page(cost: float, about: float) -> None:
    """The mean duration of a fault is half an hour, and steps take half as long again."""
    moved = next(age for age in range(1, 4000) if wait(float(age), 1.5, cost) is None)
    assert moved == pytest.approx(about, rel=0.25, abs=2.0)


def test_the_chosen_wait_is_the_cheapest() -> None:
    """Compute the module's rule directly: second by second, for each wait."""
    for age, slowdown, cost in itertools.product((1.0, 60.0, 600.0), (1.2, 1.5, 2.5), (30.0, 300.0)):
        lasts_on, rate = fault_goes_on(age, 1800.0), 1 - 1 / slowdown
        lost, best = 0.0, cost
        for second in range(20_000):
            lost += rate * (lasts_on(second) + lasts_on(second + 1)) / 2
            best = min(best, lost + lasts_on(second + 1) * cost)
        found = wait(age, slowdown, cost)
        assert (cost if found is None else found[1]) == pytest.approx(best, rel=0.03)


def test_for_a_fault_of_known_duration_only_its_end_counts() -> None:
    expected = course(known_to_go_on, gang_continues, 2.0, 1000.0)
    assert best_wait(expected, 0.5, 300.0) is None
    assert expected[-1] == (1000.0, pytest.approx(1000.0), 1.0)


def test_a_gang_that_is_likely_to_end_first_is_not_moved() -> None:
    expected = course(known_to_go_on, lambda seconds: 0.1 if seconds > 50 else 1.0, 2.0, 100_000.0)
    found = best_wait(expected, 0.5, 300.0)
    assert found is not None
    assert 100 <= found[0] <= 200


# --- in the cycle -----------------------------------------------------------------------------------------------------


def costly(**policy: Any) -> tuple[World, str]:
    """Return a gang of four on n0 and n1, of four nodes. Its move costs five minutes; it has run for 100 s."""
    world = World({f"n{i}": 2 for i in range(4)}, replace(Policy(), **policy))
    job_id = world.submit(4, 100_000.0, **_COSTLY)
    world.running()
    world.advance(100.0)
    return world, job_id


def moves_after(world: World, job_id: str) -> float:
    """Return the seconds until the gang moves, with cycles only at registered timeouts."""
    began_ns = world.now_ns
    while world.state.jobs[job_id].stop_reason is None:
        wake_ns = cycle.next_wake_ns(world.state)
        assert wake_ns is not None, "there must be a next timeout"
        assert wake_ns > world.now_ns
        world.now_ns = wake_ns
        world.cycle(Tick())
        assert world.now_ns - began_ns < 86400 * SECOND
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE
    return (world.now_ns - began_ns) / SECOND


def test_a_gang_waits_with_one_log_entry_and_then_moves() -> None:
    world, job_id = costly()
    world.cycle(world.verdict(job_id, rank=3, slowdown=1.5))
    world.advance(20.0)
    (stay,) = [entry for entry in world.entries if entry.kind == "stay"]
    assert "may end soon: waiting another" in stay.text
    assert stay.text.endswith(", moving now 5 min")
    assert 100 < moves_after(world, job_id) < 1500
    decision = world.state.decisions[-1]
    assert decision.predicted_gain_seconds > 0


def test_a_gang_that_recovers_during_the_wait_is_not_moved() -> None:
    world, job_id = costly()
    verdict = world.verdict(job_id, rank=3, slowdown=1.5)
    world.cycle(verdict)
    world.advance(60.0)
    world.cycle(Cleared(verdict.verdict_id, job_id, world.now_ns, "normal speed"))
    for _ in range(100):
        world.advance(60.0)
    assert world.state.jobs[job_id].stop_reason is None
    assert not world.state.decisions


def test_a_confirmed_verdict_moves_the_gang_without_a_wait() -> None:
    world, job_id = costly()
    verdict = world.verdict(job_id, rank=3, slowdown=1.5)
    world.cycle(verdict)
    assert world.state.jobs[job_id].stop_reason is None
    world.cycle(VerdictJudged(verdict.verdict_id, True, "eve"))
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE


def test_a_restarted_controller_evaluates_at_the_same_instant() -> None:
    world, job_id = costly()
    world.cycle(world.verdict(job_id, rank=3, slowdown=1.5))
    fresh = decode_state(encode_state(world.state))
    assert cycle.next_wake_ns(fresh) == cycle.next_wake_ns(world.state) is not None
    expected = moves_after(world, job_id)
    world.state, world.now_ns = fresh, fresh.now_ns
    assert moves_after(world, job_id) == expected


def test_observe_mode_waits_as_well() -> None:
    world, job_id = costly(mode=Mode.OBSERVE)
    world.cycle(world.verdict(job_id, rank=3, slowdown=1.5))
    assert not world.state.decisions
    world.advance(3600.0)
    (decision,) = world.state.decisions
    assert not decision.applied
