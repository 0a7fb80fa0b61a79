"""Learnt speeds: measurements correct the assumed speeds, with an uncertainty, and a replay learns the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import AttemptRunning, Event, NodeSeen, SpeedMeasured, Submitted
from scheduler_feedback.core.job import Job, JobSpec, JobState
from scheduler_feedback.core.state import Estimates, MeasuredSpeed, Policy, Sharing, State
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.speeds import learnt_speeds
from scheduler_feedback.policies.speeds.learnt_speeds import learnt_of
from scheduler_feedback.policies.speeds.speed_model import (
    BASE,
    NOISE,
    Configuration,
    Measurement,
    SpeedModel,
    _covariance,
)

SECOND = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND


def on(ranks: int, level: int = 0, gpu_type: str = "a") -> Configuration:
    return Configuration(gpu_type, ranks, level)


def test_the_posterior_is_that_of_a_gaussian_process_computed_with_numpy() -> None:
    places = [on(1), on(4), on(8, 1), on(2, gpu_type="b")]
    deviations, weights = [0.1, -0.2, -0.5, 0.4], [1.0, 2.0, 8.0, 0.5]
    model = SpeedModel([Measurement(*one) for one in zip(places, deviations, weights, strict=True)])
    matrix = np.array([[BASE**2 + _covariance(a, b) for b in places] for a in places])
    matrix += np.diag([NOISE**2 / weight for weight in weights])
    inverse = np.linalg.inv(matrix)
    for one, other in ((on(8, 1), on(4)), (on(16, 1), on(1)), (on(2, gpu_type="b"), on(2)), (on(3, 2, "c"), on(1))):
        cross = np.array([_covariance(one, place) - _covariance(other, place) for place in places])
        spread = (
            _covariance(one, one) + _covariance(other, other) - 2 * _covariance(one, other) - cross @ inverse @ cross
        )
        expected = cross @ inverse @ (np.array(deviations) - np.mean(deviations))
        found = model.log_ratio(one, other)
        assert found == pytest.approx((expected, math.sqrt(max(spread, 0.0))), abs=1e-6)


def test_measured_inefficiency_lowers_larger_sizes_and_distance_adds_uncertainty() -> None:
    """Real speed: ranks ** 0.6. Three sizes are measured; sizes between them and beyond follow."""
    model = SpeedModel([Measurement(on(n), -0.4 * math.log(n), 4.0) for n in (1, 2, 4)])
    near, near_error = model.log_ratio(on(3), on(1))
    far, far_error = model.log_ratio(on(16), on(1))
    assert near == pytest.approx(-0.4 * math.log(3), abs=0.08)
    assert far == pytest.approx(-0.4 * math.log(16), abs=0.35) and far < near
    assert near_error < far_error < 0.6
    assert model.log_ratio(on(1), on(1)) == pytest.approx((0.0, 0.0), abs=1e-9)


class World:
    """Two nodes of four slots, and jobs of one class."""

    def __init__(self, **policy: object) -> None:
        self.state = State(policy=Policy(estimates=Estimates.EXACT, **policy))  # type: ignore[arg-type]
        self.seconds = 0.0
        self.log: list[tuple[int, tuple[Event, ...]]] = []
        self.cycle(*(NodeSeen(f"n{n}", 4, rack="r", gpu_type="a") for n in range(2)))

    def cycle(self, *events: Event) -> cycle.Outcome:
        now_ns = BEGIN_NS + round(self.seconds * SECOND)
        self.log.append((now_ns, events))
        return cycle.run(self.state, events, now_ns)

    def start(self, job_id: str, ranks: int, **spec: object) -> Job:
        fields: dict[str, object] = {"workload": "bert", "user": "ann", "exact_seconds": 1000.0, "restartable": True}
        self.cycle(Submitted(job_id, JobSpec(job_id, ("x",), ranks, **(fields | spec))))  # type: ignore[arg-type]
        self.cycle(AttemptRunning(job_id, 1, ()))
        return self.state.jobs[job_id]

    def measure(self, job_id: str, per_second: float, seconds: float = 120.0, unit: str = "tokens") -> None:
        self.cycle(SpeedMeasured(job_id, self.state.jobs[job_id].attempt, per_second, seconds, unit))


def test_without_measurements_speeds_are_proportional_and_given() -> None:
    state = State(policy=Policy(throughput={"bert": {"b": 0.5}}))
    spec = JobSpec("j", ("x",), 4, workload="bert")
    learnt = learnt_of(state)
    assert learnt.speed("j", spec, "a", 8) == 2.0 and learnt.speed("j", spec, "b", 2) == 0.25
    assert learnt.table(Job("j", spec, JobState.PENDING, 0)) == []


def test_a_measurement_corrects_the_speed_of_the_class_and_the_expected_end() -> None:
    world = World()
    one = world.start("one", 1)
    world.measure("one", 100.0)
    assert one.speed == pytest.approx(1.0)
    four = world.start("four", 4, min_ranks=1, max_ranks=4)
    world.seconds = 100.0
    world.measure("four", 200.0)  # half of what is proportional
    learnt = learnt_of(world.state)
    spec = one.spec
    assert learnt.speed("one", spec, "a", 4) == pytest.approx(2.0, rel=0.12), "relative to one rank"
    assert learnt.speed("other", spec, "a", 2) > 1.0
    assert four.speed == 1.0, "speed 1 is that of the requested ranks"
    rows = {row.place.ranks: row for row in learnt.table(one)}
    assert rows[4].assumed == 4.0 and rows[4].speed < 2.4 and 0 < rows[4].spread < 0.2
    explained = cycle.explain(world.state, "one")
    assert explained is not None
    assert [(row.ranks, row.level) for row in explained.speeds] == [(1, "node"), (4, "node")]


def test_a_slower_measurement_moves_the_expected_end_and_keeps_the_work_done() -> None:
    world = World()
    world.start("one", 1)
    world.measure("one", 100.0)
    wide = world.start("wide", 1, min_ranks=1, max_ranks=4)
    index = index_of(world.state)
    index.correct_speed(wide, 1.0)
    world.state.now_ns = BEGIN_NS + 400 * SECOND
    index.correct_speed(wide, 0.5)
    end = next(end for end in index.ends if end.job_id == "wide")
    assert (end.at_ns - BEGIN_NS) / SECOND == pytest.approx(400 + 600 / 0.5, abs=1)


def test_measurements_of_other_users_jobs_without_workload_or_slow_jobs_do_not_count() -> None:
    world = World()
    world.start("one", 1)
    world.start("nameless", 1, workload="")
    world.cycle(Verdict("v", Kind.STRAGGLER, "one", 1, 0, "n0", Cause.COMPUTE, 0.5, 2.0, 1.0, 2.0, BEGIN_NS, BEGIN_NS))
    world.measure("one", 50.0)
    assert not world.state.speeds, "a verdict is active"
    world.measure("nameless", 5.0)
    assert list(world.state.speeds) == ["job nameless"]
    learnt = learnt_of(world.state)
    assert not learnt.knows("other", JobSpec("o", ("x",), 1, user="ann"))
    assert not learnt.knows("other", JobSpec("o", ("x",), 1, user="bob", workload="bert"))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_measurement_is_ignored(value: float) -> None:
    world = World()
    world.start("one", 1)
    world.measure("one", value)
    world.measure("one", 1.0, seconds=0.0)
    world.cycle(SpeedMeasured("one", 7, 1.0, 60.0), SpeedMeasured("nobody", 1, 1.0, 60.0))
    assert not world.state.speeds


def test_a_speed_beside_another_job_says_nothing_about_the_class() -> None:
    world = World(sharing=Sharing.GANDIVA)
    world.cycle(*(NodeSeen(f"n{n}", 4, rack="r", gpu_type="a", jobs_per_slot=2) for n in range(2)))
    for job_id in ("one", "two"):
        world.start(job_id, 8, shareable=True, preemptible=True)
    assert index_of(world.state).partners("one") == ["two"]
    world.measure("one", 50.0)
    assert not world.state.speeds


def test_another_unit_replaces_the_measurements_of_the_class() -> None:
    world = World()
    world.start("one", 1)
    world.measure("one", 1000.0, unit="tokens")
    world.measure("one", 2.0, unit="steps")
    (rows,) = world.state.speeds.values()
    assert [(row.unit, row.weight) for row in rows] == [("steps", 1.0)]


def test_old_measurements_count_less_and_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    one = world.start("one", 1)
    for _ in range(50):
        world.measure("one", 10.0)
    for _ in range(20):
        world.measure("one", 20.0)
    (rows,) = world.state.speeds.values()
    assert rows[0].weight == learnt_speeds.MOST_WEIGHT and math.exp(rows[0].log_rate) == pytest.approx(20.0, rel=0.06)
    monkeypatch.setattr(learnt_speeds, "MOST_CLASSES", 2)
    monkeypatch.setattr(learnt_speeds, "MOST_PLACES", 1)
    for name in ("x", "y"):
        world.start(name, 1, workload=name)
        world.measure(name, 1.0)
    assert list(world.state.speeds) == ["ann|x", "ann|y"]
    one.ranks = one.ranks * 2
    world.measure("one", 1.0)
    one.ranks = one.ranks[:1]
    world.seconds = 1.0
    world.measure("one", 1.0)
    assert [row.ranks for row in world.state.speeds["ann|bert"]] == [1]


def test_the_settings_turn_learning_off_and_new_given_speeds_count_at_once() -> None:
    world = World(learn_speeds=False)
    one = world.start("one", 1)
    world.measure("one", 100.0)
    assert world.state.speeds and one.speed == 1.0 and not learnt_of(world.state).knows("one", one.spec)
    other = State(policy=Policy(throughput={"bert": {"a": 1.0, "b": 0.5}}), speeds=world.state.speeds)
    assert learnt_of(other).speed("one", one.spec, "b", 1) == pytest.approx(0.5)
    other.policy = Policy(throughput={"bert": {"a": 1.0, "b": 0.25}})
    assert learnt_of(other).speed("one", one.spec, "b", 1) == pytest.approx(0.25)


def test_a_replay_and_a_snapshot_learn_the_same_bits() -> None:
    world = World()
    world.start("one", 1)
    world.start("two", 2)
    for number in range(5):
        world.seconds += 30
        world.measure("one", 100.0 + number)
        world.measure("two", 150.0 - number, unit="tokens")
    again = State(policy=world.state.policy)
    for now_ns, events in world.log:
        cycle.run(again, events, now_ns)
    assert encode_state(again) == encode_state(world.state)
    read = decode_state(encode_state(world.state))
    spec = world.state.jobs["one"].spec
    assert learnt_of(read).speed("one", spec, "a", 4) == learnt_of(world.state).speed("one", spec, "a", 4)


def test_a_larger_node_changes_what_is_the_narrowest_placement() -> None:
    """The state is asked before and after the change, so that nothing is kept from before it. A replay asks once."""
    world = World()
    world.start("one", 1)
    world.state.speeds["ann|bert"] = [
        MeasuredSpeed("a", 1, 0, 0.0, 8.0, 1),
        MeasuredSpeed("a", 8, 1, 0.0, 8.0, 1),
        MeasuredSpeed("a", 8, 0, 2.0, 8.0, 1),
    ]
    spec = world.state.jobs["one"].spec
    apart = learnt_of(world.state).speed("one", spec, "a", 8)
    world.cycle(NodeSeen("large", 8, rack="r", gpu_type="a"))
    together = learnt_of(world.state).speed("one", spec, "a", 8)
    assert apart < 2.0 < 4.0 < together
    assert learnt_of(decode_state(encode_state(world.state))).speed("one", spec, "a", 8) == together
