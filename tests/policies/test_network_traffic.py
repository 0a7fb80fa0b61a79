"""Traffic of gangs: learnt from their waits, used by placement, and by the classes of the network."""

from __future__ import annotations

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import AttemptEnded, SpeedMeasured
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of
from scheduler_feedback.policies.network.network_class import VARIABLE, best_class, intensity, with_class
from scheduler_feedback.policies.speeds import learnt_traffic
from tests.cluster.cycle_world import World

TRAFFIC = Policy(uplink_slowdown=0.1, network_classes=4)


def racks_of(world: World, job_id: str) -> set[str]:
    return {world.state.nodes[name].rack for name in world.nodes_of(job_id)}


def measure(world: World, job_id: str, wait_share: float | None, seconds: float = 60.0) -> None:
    world.cycle(SpeedMeasured(job_id, world.state.jobs[job_id].attempt, 100.0, seconds, "tokens", wait_share))


# --- learnt traffic --------------------------------------------------------------------------------------------------


def test_the_share_of_a_class_is_the_mean_of_its_last_measurements() -> None:
    world = World({"a": 2, "b": 2}, TRAFFIC)
    job = world.submit(4, 1000.0, workload="gpt", user="ann")
    world.running()
    measure(world, job, 0.4)
    measure(world, job, 0.2)
    row = world.state.traffic["ann|gpt"]
    assert (row.share, row.weight) == (pytest.approx(0.3), 2.0)
    measure(world, job, 0.6, seconds=7.5)
    assert world.state.traffic["ann|gpt"].share == pytest.approx((0.3 * 2 + 0.6 * 0.5) / 2.5), "short ones weigh less"
    for _ in range(30):
        measure(world, job, 0.5)
    row = world.state.traffic["ann|gpt"]
    assert row.weight == learnt_traffic.MOST_WEIGHT and row.share == pytest.approx(0.5, abs=0.01)
    assert decode_state(encode_state(world.state)).traffic == world.state.traffic


@pytest.mark.parametrize("share", [None, -0.1, 1.5, float("nan")])
def test_a_report_without_a_valid_share_teaches_nothing(share: float | None) -> None:
    world = World({"a": 2, "b": 2}, TRAFFIC)
    job = world.submit(4, 1000.0)
    world.running()
    measure(world, job, share)
    assert not world.state.traffic and world.state.speeds


def test_a_gang_on_one_node_does_not_use_the_network() -> None:
    world = World({"a": 2, "b": 2}, TRAFFIC)
    job = world.submit(2, 1000.0)
    world.running()
    measure(world, job, 0.4)
    assert not world.state.traffic


def test_the_class_that_was_measured_longest_ago_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt_traffic, "MOST_CLASSES", 1)
    world = World({f"n{n}": 2 for n in range(4)}, TRAFFIC)
    for name in ("old", "new"):
        job = world.submit(4, 1000.0, workload=name)
        world.running()
        measure(world, job, 0.4)
    assert list(world.state.traffic) == ["|new"]


# --- placement -------------------------------------------------------------------------------------------------------


def two_pairs(policy: Policy, loud: str) -> tuple[World, set[str]]:
    """Return four racks of two nodes: gangs a and b hold one node in each of two racks, and a third gang starts on two
    of the other nodes, and the racks that it uses."""
    world = World({f"n{i}": 2 for i in range(8)}, policy, racks=4)
    fillers = [world.submit(2, 1000.0) for _ in range(8)]
    world.running()
    homes = [next(iter(world.nodes_of(one))) for one in fillers]
    by_rack = {rack: [one for one, node in zip(fillers, homes, strict=True) if world.state.nodes[node].rack == rack]
               for rack in ("r0", "r1", "r2", "r3")}  # fmt: skip
    jobs = {}
    for name, racks in (("a", ("r0", "r1")), ("b", ("r2", "r3"))):
        jobs[name] = world.submit(4, 1000.0, workload=name)
        for rack in racks:
            world.end(by_rack[rack][0], 0)
        assert racks_of(world, jobs[name]) == set(racks)
        world.running()
    for name, job in jobs.items():
        measure(world, job, 0.9 if name == loud else 0.05)
    new = world.submit(4, 1000.0)
    for _, last in by_rack.values():
        del world.alive[last, 1]
    world.cycle(*(AttemptEnded(last, 1, (), all_exited_with=0) for _, last in by_rack.values()))
    return world, racks_of(world, new)


@pytest.mark.parametrize(("loud", "racks"), [("a", {"r2", "r3"}), ("b", {"r0", "r1"})])
def test_a_gang_shares_the_uplinks_of_the_gang_that_communicates_least(loud: str, racks: set[str]) -> None:
    assert two_pairs(Policy(uplink_slowdown=0.1), loud)[1] == racks


def test_without_learnt_speeds_or_a_cost_the_shares_have_no_effect() -> None:
    for policy in (Policy(uplink_slowdown=0.1, learn_speeds=False), Policy()):
        assert two_pairs(policy, "a")[1] == two_pairs(policy, "b")[1]


def test_with_costs_a_gang_fills_racks_and_leaves_the_rest_in_one() -> None:
    parts = {}
    for slowdown in (0.0, 0.1):
        world = World({f"n{i}": 1 for i in range(8)}, Policy(uplink_slowdown=slowdown), racks=2)
        job = world.submit(6, 1000.0)
        counts = [0, 0]
        for name in world.nodes_of(job):
            counts[int(world.state.nodes[name].rack[1:])] += 1
        parts[slowdown] = sorted(counts)
    assert parts == {0.0: [3, 3], 0.1: [2, 4]}


def test_the_index_that_is_built_again_has_the_same_crossing_gangs() -> None:
    world, _ = two_pairs(Policy(uplink_slowdown=0.1), "a")
    before = {domain: dict(gangs) for domain, gangs in index_of(world.state).plan.crossing.items()}
    drop_index(world.state)
    assert before and index_of(world.state).plan.crossing == before


# --- classes ---------------------------------------------------------------------------------------------------------


def test_intensity_grows_with_ranks_and_falls_with_communication() -> None:
    assert intensity(0.5, 8) == 8.0
    assert intensity(0.5, 16) > intensity(0.5, 8) > intensity(0.6, 8)
    assert intensity(0.0, 8) == intensity(0.01, 8) < float("inf")


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (5.0, [], 1),  # the lower of the two in the middle
        (5.0, [(9.0, 3)], 1),
        (5.0, [(9.0, 1)], 0),
        (5.0, [(1.0, 1)], 2),
        (5.0, [(1.0, 0), (9.0, 3)], 1),
        (5.0, [(1.0, 1), (9.0, 2)], 1),  # a tie of two equal mistakes
        (5.0, [(1.0, 3), (4.0, 3)], 3),  # none is left above
        (5.0, [(9.0, 0), (8.0, 0)], 0),
        (5.0, [(9.0, 1), (1.0, 2)], 0),  # running gangs are in the wrong order already
        (5.0, [(5.0, 1)], 2),  # equal gangs get different classes, too
    ],
)
def test_the_class_is_the_best_order_among_running_gangs(
    own: float, others: list[tuple[float, int]], expected: int
) -> None:
    assert best_class(own, others, 4) == expected


def test_a_gang_that_crosses_uplinks_gets_a_class() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, TRAFFIC, racks=2)
    job = world.submit(6, 1000.0)
    (start,) = [action for outcome in world.outcomes for action in outcome.actions]
    assert isinstance(start, StartGang) and start.spec.environment == {VARIABLE: "1"}
    assert "uplinks" not in start.reason, "no other gang uses them"
    assert VARIABLE not in world.state.jobs[job].spec.environment, "the class belongs to the attempt"


def test_the_start_of_a_crossing_gang_names_its_neighbours_and_its_class() -> None:
    world, _ = two_pairs(TRAFFIC, "a")
    running = [job for job in world.state.jobs.values() if job.state is not JobState.COMPLETED]
    new = max(running, key=lambda job: job.job_id)
    old = next(job for job in running if job.spec.workload == "b")
    assert new.network_class >= 0 and new.network_class < old.network_class, "b computes more between its transfers"
    text = next(entry.text for entry in reversed(world.entries) if entry.subject == new.job_id)
    assert f"it shares uplinks with {old.job_id}" in text
    assert "waits for its network 32% of the time, which is assumed" in text
    assert f"expected to lose 3% of its slot time; network class {new.network_class} of 0 to 3" in text
    explained = cycle.explain(world.state, old.job_id)
    assert explained is not None
    assert f"; it shares uplinks with {new.job_id} and waits for its network 5% of the time; together" in explained.why
    assert f"lose 3% of its slot time; network class {old.network_class} of 0 to 3" in explained.why


def test_the_class_is_a_variable_of_the_attempt() -> None:
    spec = JobSpec("j", ("x",), 2, environment={"A": "1", VARIABLE: "7"})
    assert with_class(spec, 2).environment == {"A": "1", VARIABLE: "2"}
    assert with_class(spec, -1) is spec


def test_a_gang_within_one_rack_gets_no_class() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, TRAFFIC, racks=2)
    job = world.submit(4, 1000.0)
    assert world.state.jobs[job].network_class == -1
    wide = World({f"n{i}": 2 for i in range(4)}, Policy(uplink_slowdown=0.1), racks=2)
    job = wide.submit(8, 1000.0)
    assert wide.state.jobs[job].network_class == -1, "classes are off"
