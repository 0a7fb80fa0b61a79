"""Replay of a production journal: complete, or without one job."""

from __future__ import annotations

from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.journal.replay import about, replay, start_times
from tests.cluster.cycle_world import SECOND, World


def _night() -> tuple[World, str, str, str]:
    """Job A runs, B waits for the whole cluster, C is backfilled, and A is moved because of a straggler."""
    world = World({"n0": 2, "n1": 2, "n2": 2, "n3": 2})
    a = world.submit(4, 150.0, time_limit_seconds=300.0, restartable=True, grace_seconds=2.0, restart_cost_seconds=3.0)
    world.running()
    b = world.submit(6, 50.0, time_limit_seconds=100.0)
    world.advance(10.0)
    world.cycle(world.verdict(a, rank=3))
    world.advance(3.0)
    world.running()
    c = world.submit(2, 60.0, time_limit_seconds=60.0)
    world.running()
    world.advance(1000.0)
    return world, a, b, c


def test_a_complete_replay_makes_the_same_decisions() -> None:
    world, a, b, c = _night()
    before = encode_state(world.initial)
    state, outcomes = replay(world.initial, world.journal)
    assert state == world.state
    assert outcomes == world.outcomes
    assert encode_state(world.initial) == before, "the given state is unchanged"
    assert set(start_times(outcomes)) == {(a, 1), (a, 2), (b, 1), (c, 1), ("probe-n1-1", 1)}
    assert "backfilled" in world.entry_kinds(c)


def test_without_the_backfilled_job_the_head_starts_at_the_same_time() -> None:
    world, _, b, c = _night()
    _, without = replay(world.initial, world.journal, about(c))
    assert (c, 1) not in start_times(without)
    delay_ns = start_times(world.outcomes)[(b, 1)] - start_times(without)[(b, 1)]
    assert delay_ns == 0


def test_without_a_delaying_job_the_head_starts_earlier() -> None:
    world = World({"n0": 2})
    first = world.submit(2, 50.0, time_limit_seconds=50.0)
    head = world.submit(2, 50.0)
    world.running()
    world.advance(200.0)
    _, without = replay(world.initial, world.journal, about(first))
    real, alone = start_times(world.outcomes)[(head, 1)], start_times(without)[(head, 1)]
    assert real - alone == 50 * SECOND


def test_unmatched_observations_of_other_jobs_are_ignored() -> None:
    world, a, b, c = _night()
    for dropped in ((a,), (b,), (a, b), (a, c), (a, b, c)):
        state, outcomes = replay(world.initial, world.journal, about(*dropped))
        assert not {job for job, _ in start_times(outcomes)} & set(dropped)
        assert decode_state(encode_state(state)) == state
