"""Time shifts of running gangs: learnt steps, decisions about groups, trials, and their measured gain."""

from __future__ import annotations

import pytest
from msgspec import structs

from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import AttemptEnded, FreezeSet, PolicySet, SpeedMeasured
from scheduler_feedback.core.job import Job, TimeShift
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of
from scheduler_feedback.policies.network.time_shifts import AGAIN_SECONDS, circumstances
from scheduler_feedback.policies.queue.waiting_reasons import explain
from tests.cluster.cycle_world import SECOND, World

SHIFTS = Policy(time_shifts=True)


def two_gangs(policy: Policy = SHIFTS) -> tuple[World, str, str]:
    """Return a cluster of three racks with two gangs, which share the one in the middle."""
    world = World({f"n{number}": 2 for number in range(3)}, policy, racks=3)
    first, second = world.submit(3, 1e5), world.submit(3, 1e5)
    world.running()
    for job in (first, second):
        assert len({world.state.nodes[rank.slot.node].rack for rank in world.state.jobs[job].ranks}) == 2
    return world, first, second


def measure(
    world: World, job: str, interval: float = 1.2, wait: float = 0.6, least: float | None = 0.4, delay: float = 0.0
) -> None:
    world.now_ns += 30 * SECOND
    attempt = world.state.jobs[job].attempt
    share = wait / interval
    world.cycle(SpeedMeasured(job, attempt, 1 / interval, 15.0, "steps", share, interval, least, delay))


def shift_of(world: World, job: str) -> TimeShift | None:
    return world.state.jobs[job].time_shift


def job_of(world: World, job: str) -> Job:
    return world.state.jobs[job]


def test_two_gangs_on_one_uplink_take_turns_and_explain_says_so() -> None:
    world, first, second = two_gangs()
    measure(world, first)
    assert shift_of(world, first) is None, "the other one is not measured yet"
    measure(world, second)
    a, b = shift_of(world, first), shift_of(world, second)
    assert a is not None and b is not None and a.period_ns == b.period_ns
    assert a.period_ns / 1e9 == pytest.approx(1.04, abs=0.01)
    apart = (a.offset_ns - b.offset_ns) % a.period_ns / a.period_ns
    assert 0.4 < apart < 0.6
    explained = explain(world.state, first)
    assert explained is not None
    text = f"after those of {second} (every 1040 ms), because both use the uplink of rack "
    assert text in explained.why
    assert any(text in entry.text for entry in world.entries if entry.kind == "time-shift")
    assert decode_state(encode_state(world.state)).jobs[first].time_shift == a


def test_without_the_policy_nothing_is_learnt_or_shifted() -> None:
    world, first, second = two_gangs(Policy())
    measure(world, first)
    measure(world, second)
    assert job_of(world, first).step_times is None and shift_of(world, second) is None


@pytest.mark.parametrize(("wait", "least"), [(0.6, None), (0.0, 0.0)])
def test_gangs_that_report_no_waits_or_hardly_communicate_are_not_shifted(wait: float, least: float | None) -> None:
    world, first, second = two_gangs()
    for job in (first, second):
        measure(world, job, wait=wait, least=least)
    assert shift_of(world, first) is None


def test_shifts_with_a_measured_gain_stay_and_their_period_follows_the_steps() -> None:
    world, first, second = two_gangs()
    for job in (first, second):
        measure(world, job, 1.3, 0.7, 0.5)
    before = shift_of(world, first)
    assert before is not None and before.period_ns / 1e9 == pytest.approx(1.04 * 1.1, abs=0.01)
    for job in (first, second):
        measure(world, job, 1.144, 0.544, 0.54, delay=0.144)
    after = shift_of(world, first)
    assert after is not None and not after.judged and after.period_ns / 1e9 == pytest.approx(1.04, abs=0.01)
    for job in (first, second):
        measure(world, job, 1.04, 0.44, 0.44, delay=0.04)
    assert shift_of(world, first) == structs.replace(after, judged=True), "steps that fit their period change no more"
    assert "run 1.25x as fast as before" in world.entries[-1].text


def test_shifts_that_bring_nothing_end_and_are_not_tried_for_an_hour() -> None:
    world, first, second = two_gangs()
    for job in (first, second):
        measure(world, job)
    assert shift_of(world, first) is not None
    for job in (first, second):
        measure(world, job, 1.25, 0.65, delay=0.05)
    assert shift_of(world, first) is None and shift_of(world, second) is None
    assert "its group was measured to run 0.96x" in " ".join(entry.text for entry in world.entries)
    for job in (first, second):
        measure(world, job)
    assert shift_of(world, first) is None
    world.now_ns += int(AGAIN_SECONDS) * SECOND
    for job in (first, second):
        measure(world, job)
    assert shift_of(world, first) is not None


def test_gangs_that_always_communicate_together_are_tried_with_half_of_their_time() -> None:
    world, first, second = two_gangs()
    for job in (first, second):
        measure(world, job, 1.4, 0.8, 0.8)
    shift = shift_of(world, second)
    assert shift is not None, "measured beside each other only, 0.8 s each would not fit"
    for job in (first, second):
        measure(world, job, 1.04, 0.44, 0.44, delay=0.04)
    times = job_of(world, second).step_times
    assert times is not None and times.undisturbed and times.network_seconds == pytest.approx(0.4)


def test_a_gang_alone_on_its_uplinks_begins_at_any_time() -> None:
    world, first, second = two_gangs()
    for job in (first, second):
        measure(world, job)
    before = circumstances(world.state, index_of(world.state))
    assert set(before) == {first, second}
    world.cycle(AttemptEnded(second, 1, ()))
    assert shift_of(world, first) is None and job_of(world, second).step_times is None
    assert "no other measured gang uses its uplinks any more" in world.entries[-1].text
    assert circumstances(world.state, index_of(world.state))[first] != before[first], "it is measured again"


def test_switching_the_policy_off_ends_all_shifts_and_a_freeze_starts_none() -> None:
    world, first, second = two_gangs()
    measure(world, first)
    world.cycle(FreezeSet(True, "ann"))
    measure(world, second)
    assert shift_of(world, first) is None
    world.cycle(FreezeSet(False, "ann"))
    measure(world, first)
    assert shift_of(world, first) is not None
    drop_index(world.state)
    assert index_of(world.state).stepping == {first, second}, "the index that is built again knows them"
    world.cycle(PolicySet(Policy(), "ann"))
    assert shift_of(world, first) is None and job_of(world, first).step_times is None
