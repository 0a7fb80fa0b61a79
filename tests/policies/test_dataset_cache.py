"""Data locality: gangs prefer nodes that have their dataset in their caches, if nothing else gets worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback.core.events import NodeCommand, NodeCommanded, NodeSeen, PolicySet
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.data import dataset_cache
from scheduler_feedback.policies.intake.job_admission import malformed
from tests.cluster.cycle_world import World

CACHED = Policy(dataset_cache_gib=100.0)
FOUR = {"n0": 2, "n1": 2, "n2": 2, "n3": 2}


def data(name: str, gib: float = 40.0, **more: Any) -> dict[str, Any]:
    return {"dataset": name, "dataset_gib": gib, "time_limit_seconds": 1000.0, **more}


def world_of(nodes: dict[str, int] | None = None, policy: Policy = CACHED) -> World:
    return World(FOUR if nodes is None else nodes, policy)


def run_on(world: World, node: str, dataset: str, gib: float = 40.0) -> None:
    """Run a job with this dataset on the node to its end."""
    job_id = world.submit(1, 10.0, **data(dataset, gib, pinned_node=node))
    world.running()
    world.advance(10.0)
    assert world.job_state(job_id) is JobState.COMPLETED


def started(world: World, job_id: str) -> str:
    """Return the entry of the job's start."""
    [text] = [entry.text for entry in world.entries if entry.subject == job_id and entry.kind == "started"]
    return text


def test_a_job_returns_to_the_node_that_has_its_dataset() -> None:
    world = world_of()
    run_on(world, "n2", "a")
    job_id = world.submit(1, 100.0, **data("a"))
    assert world.nodes_of(job_id) == {"n2"}
    assert "; dataset a is expected in the cache of all its nodes" in started(world, job_id)


def test_another_dataset_and_a_job_without_one_are_placed_as_before() -> None:
    world = world_of()
    run_on(world, "n2", "a")
    other, none = world.submit(1, 100.0, **data("b")), world.submit(1, 100.0)
    assert world.nodes_of(other) == world.nodes_of(none) == {"n0"}


def test_without_a_size_of_the_cache_nothing_is_preferred() -> None:
    world = world_of(policy=Policy())
    run_on(world, "n2", "a")
    assert world.state.datasets == {}
    assert world.nodes_of(world.submit(1, 100.0, **data("a"))) == {"n0"}


def test_a_gang_of_which_only_some_nodes_have_the_dataset_goes_elsewhere() -> None:
    """One node that must load makes the others wait: no placement is better than another."""
    world = world_of()
    run_on(world, "n3", "a")
    job_id = world.submit(4, 100.0, **data("a"))
    assert world.nodes_of(job_id) == {"n0", "n1"}
    assert started(world, job_id).endswith("; dataset a is not in the cache of n0, n1")


def test_a_gang_uses_no_more_nodes_for_its_data() -> None:
    world = world_of()
    for node in ("n2", "n3"):
        run_on(world, node, "a")
        world.submit(1, 1000.0, time_limit_seconds=1000.0, pinned_node=node)  # one slot is left on each
    world.running()
    assert world.nodes_of(world.submit(2, 100.0, **data("a"))) == {"n0"}


def test_a_gang_crosses_no_uplink_for_its_data() -> None:
    world = World({}, CACHED)
    nodes = [NodeSeen(f"n{n}", 2, rack=f"r{n // 2}") for n in range(6)]
    world.cycle(*nodes)
    for node in ("n1", "n3"):  # in two racks
        run_on(world, node, "a")
    first = world.submit(4, 100.0, **data("a"))
    assert world.nodes_of(first) == {"n0", "n1"}
    for node in ("n4", "n5"):
        run_on(world, node, "a")
    assert world.nodes_of(world.submit(4, 100.0, **data("a"))) == {"n4", "n5"}, "rack r2 has it on both nodes"


def test_a_gang_never_waits_for_its_data() -> None:
    world = world_of()
    run_on(world, "n2", "a")
    world.submit(2, 1000.0, time_limit_seconds=1000.0, pinned_node="n2")
    assert world.job_state(world.submit(2, 100.0, **data("a"))) is JobState.STARTING


def test_a_node_drops_what_was_used_least_recently() -> None:
    world = world_of()
    for dataset in ("a", "b", "a", "c"):  # 40 GiB each: the cache holds two
        run_on(world, "n2", dataset)
    assert {name for name, nodes in world.state.datasets.items() if "n2" in nodes} == {"a", "c"}


def test_many_tiny_datasets_do_not_fill_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_cache, "MOST_KEPT", 3)
    world = world_of()
    for number in range(5):
        run_on(world, "n2", f"d{number}", 1e-6)
    assert set(world.state.datasets) == {"d2", "d3", "d4"}


def test_a_dataset_larger_than_the_cache_is_not_kept() -> None:
    world = world_of()
    run_on(world, "n2", "a")
    run_on(world, "n2", "huge", 101.0)
    assert set(world.state.datasets) == {"a"}, "and nothing makes room for it"


def test_a_node_that_is_removed_has_nothing() -> None:
    world = world_of()
    run_on(world, "n2", "a")
    world.cycle(NodeSeen("n2", 2, present=False))
    assert "a" in world.state.datasets, "it may come back"
    world.cycle(NodeCommanded("n2", NodeCommand.REMOVE))
    assert world.state.datasets == {}


def test_a_policy_without_caches_forgets_them() -> None:
    world = world_of()
    run_on(world, "n2", "a")
    world.cycle(PolicySet(replace(CACHED, dataset_cache_gib=0.0), "ann"))
    assert world.state.datasets == {}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dataset": "a"}, "needs both its name and its size"),
        ({"dataset_gib": 5.0}, "needs both its name and its size"),
        ({"dataset": "a", "dataset_gib": -1.0}, "its dataset has -1 GiB; it must be more than 0"),
        ({"dataset": "a", "dataset_gib": float("inf")}, "its dataset has inf GiB"),
        ({"dataset": "a", "dataset_gib": 0.5}, None),
    ],
)
def test_a_dataset_has_a_name_and_a_size(fields: dict[str, Any], why: str | None) -> None:
    found = malformed(JobSpec("j", ("x",), 1, **fields))
    assert found is None if why is None else found is not None and why in found


def test_the_reason_of_a_start_names_few_nodes() -> None:
    world = world_of({f"n{n}": 1 for n in range(8)})
    run_on(world, "n0", "a")
    job_id = world.submit(8, 100.0, **data("a"))
    assert started(world, job_id).endswith("; dataset a is not in the cache of n1, n2, n3 and 4 more")
