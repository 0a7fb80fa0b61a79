"""The chance that each rule gives to a pair of jobs, without a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.sharing import antman, gandiva, iadeep, muri
from scheduler_feedback.policies.sharing.case import Case, combined
from scheduler_feedback.policies.sharing.interference_model import predicted_speed
from scheduler_feedback.policies.sharing.pair_speeds import assumed_speed

PAIRS = {"a": {"b": 0.9, "c": 0.3}, "b": {"a": 0.8, "c": 0.4}, "c": {"a": 0.5, "b": 0.45}}


def spec(workload: str, **fields: Any) -> JobSpec:
    return JobSpec(workload, ("x",), 2, workload=workload, shareable=True, **fields)


def case(guest: JobSpec, host: JobSpec, *others: JobSpec, pairs: dict[str, dict[str, float]] | None = None) -> Case:
    def running(one: JobSpec) -> Job:
        ranks = [RankRecord(rank, Slot("n0", rank)) for rank in range(one.ranks)]
        return Job(one.name, one, JobState.RUNNING, 0, ranks=ranks)

    state = State(policy=Policy(pair_speeds=PAIRS if pairs is None else pairs))
    pending = Job(guest.name, guest, JobState.PENDING, 0)
    return Case(state, pending, running(host), tuple(map(running, others)), 100.0, 100.0)


@pytest.mark.parametrize("rule", [gandiva, iadeep])
def test_a_pair_is_tried_once_and_kept_only_if_it_pays(rule: Any) -> None:
    new = rule.chance(case(spec("a"), spec("b"), pairs={}))
    assert new is not None and (new.gain, new.why) == (1.0, "not measured yet")
    good = rule.chance(case(spec("a"), spec("b")))
    assert good is not None and good.gain == pytest.approx(1.7)
    assert rule.chance(case(spec("a"), spec("c"))) is None, "0.3 and 0.5 of their speeds alone"
    assert rule.chance(case(spec("a"), spec("b"), spec("c"))) is None, "speeds are measured of pairs"


def test_antman_takes_opportunistic_guests_and_spares_the_host() -> None:
    guest = spec("a", opportunistic=True)
    assert antman.chance(case(spec("a"), spec("b"), pairs={})) is None
    assert antman.chance(case(guest, spec("b", opportunistic=True), pairs={})) is None
    assert antman.chance(case(guest, spec("b"), pairs={})) is not None
    assert antman.chance(case(guest, spec("b"))) is None, "the host would run at 0.8"
    assert antman.chance(case(guest, spec("b"), pairs={"b": {"a": 0.99}, "a": {"b": 0.2}})) is not None


def test_muri_joins_only_stages_that_overlap() -> None:
    one, other = spec("a", stages=(2.0, 0.0)), spec("b", stages=(0.0, 2.0))
    found = muri.chance(case(one, other))
    assert found is not None and found.gain == pytest.approx(2.0)
    assert muri.chance(case(one, one)) is None, "both use the same resource: nothing is gained"
    assert muri.chance(case(one, spec("b"))) is None


def test_throughput_of_a_pair_counts_the_larger_job() -> None:
    assert combined(2, 0.5, 4, 0.9) == pytest.approx((2 * 0.5 + 4 * 0.9) / 4)


def test_opportunistic_jobs_take_nothing_from_others() -> None:
    state = State()
    host, guest = spec("h"), spec("o", opportunistic=True)
    assert assumed_speed(state, host, [guest]) == 1.0
    assert assumed_speed(state, guest, [host]) == assumed_speed(state, guest, [guest]) == 0.5


def test_a_measured_pair_is_not_predicted() -> None:
    state = State(policy=Policy(pair_speeds=PAIRS))
    assert predicted_speed(state, spec("a"), spec("b")) == 0.9
    assert predicted_speed(state, spec("a"), spec("a")) not in (0.9, 1.0)
