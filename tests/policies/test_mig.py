"""Jobs in MIG instances: placement, gangs, whole GPUs beside them, reservations, refusals and sentences."""

from __future__ import annotations

import itertools

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import CancelRequested, NodeSeen, Submitted, Tick
from scheduler_feedback.core.job import JobSpec, JobState, Slot
from scheduler_feedback.core.mig import MODELS, named
from scheduler_feedback.core.state import Backfilling, Cell, Estimates, Order, Policy, Queue
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.mig.starts import best_start, free_starts, room_for
from tests.cluster.cycle_world import World
from tests.cluster.scheduling_rules import check_index

A100 = MODELS["A100-80GB"]
MIG = Policy(mig=True, default_time_limit_seconds=100.0)


def cluster(slots: int = 2, policy: Policy = MIG, **nodes: int) -> World:
    """Return a cluster whose node n0 can be divided by MIG, and other nodes that cannot."""
    world = World({"n0": slots, **nodes}, policy)
    world.cycle(NodeSeen("n0", slots, mig_profiles=A100))
    return world


def instances(world: World, job_id: str) -> list[tuple[int, int]]:
    """Return (slot on n0, first memory slice) of each rank."""
    job = world.state.jobs[job_id]
    assert job.state.holds_slots, cycle.why_waits(world.state, job)
    return [(rank.slot.slot, start) for rank, start in zip(job.ranks, job.mig_starts, strict=True)]


def why(world: World, job_id: str) -> str:
    explained = cycle.explain(world.state, job_id)
    assert explained is not None
    return explained.why


# --- starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", sorted(MODELS))
def test_no_set_of_instances_has_more_compute_slices_than_the_gpu(model: str) -> None:
    shapes = [(one.compute, one.mask(start)) for one in MODELS[model] for start in one.starts]
    most, largest = 0, max(one.compute for one in MODELS[model])
    for count in range(1, 8):
        for chosen in itertools.combinations(shapes, count):
            busy = 0
            for _, mask in chosen:
                if busy & mask:
                    break
                busy |= mask
            else:
                most = max(most, sum(compute for compute, _ in chosen))
    assert most == largest


def test_as_many_instances_of_one_profile_fit_as_nvidia_documents() -> None:
    """NVIDIA's MIG user guide, supported profiles of A100: 'Number of Instances Available'."""
    counts = {}
    for profile in A100:
        busy = 0
        for count in itertools.count():
            found = best_start(A100, busy, profile.name, {})
            if found is None:
                counts[profile.name] = count
                break
            busy |= profile.mask(found[1])
    assert counts == {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}


def test_an_instance_starts_where_it_takes_least_room_from_typical_ones() -> None:
    small, half = named(A100, "1g.10gb"), named(A100, "3g.40gb")
    assert small is not None and half is not None
    assert free_starts(0b1000, half) == [4] and free_starts(0b1000, small) == [0, 1, 2, 4, 5, 6]
    assert room_for(A100, 0b1, {"3g.40gb": 0.5, "1g.10gb": 0.5}) == 0.5 * 3 + 0.5 * 6
    assert best_start(A100, 0, "1g.10gb", {"4g.40gb": 1.0, "1g.10gb": 1.0}) == (1.0, 6), "start 0 would block a 4g"
    assert best_start(A100, 0, "1g.10gb", {"2g.20gb": 1.0, "1g.20gb": 1.0}) == (1.0, 6), "start 4 would block two"
    assert best_start(A100, 0b1, "4g.40gb", {}) is None and best_start(A100, 0, "5g.40gb", {}) is None


# --- placement -------------------------------------------------------------------------------------------------------


def test_jobs_share_a_divided_gpu_and_leave_the_other_one_whole() -> None:
    world = cluster()
    first, second = world.submit(1, mig_profile="3g.40gb"), world.submit(1, mig_profile="4g.40gb")
    assert instances(world, first) == [(0, 4)], "a start at 0 would block the only start of 4g.40gb"
    assert instances(world, second) == [(0, 0)]
    whole = world.submit(1)
    assert world.state.jobs[whole].ranks[0].slot == Slot("n0", 1), "no whole-GPU job on a divided GPU"
    third = world.submit(1, mig_profile="1g.10gb")
    assert world.state.jobs[third].state is JobState.PENDING
    assert f"GPU 0 of n0: {first} in 3g.40gb, {second} in 4g.40gb" in why(world, third)


def test_a_gpu_is_whole_again_when_its_last_instance_ends() -> None:
    world = cluster(1)
    first = world.submit(1, 10.0, mig_profile="3g.40gb")
    second = world.submit(1, 30.0, mig_profile="2g.20gb")
    whole = world.submit(1, 10.0)
    world.advance(15)
    assert world.state.jobs[first].state is JobState.COMPLETED and len(instances(world, second)) == 1
    assert index_of(world.state).divided == {Slot("n0", 0): 0b0011} and world.state.jobs[whole].ranks == []
    world.advance(20)
    assert index_of(world.state).divided == {} and world.state.jobs[whole].state.holds_slots


def test_all_ranks_get_instances_or_none() -> None:
    world = cluster(2)
    gang = world.submit(9, mig_profile="1g.10gb")
    assert [slot for slot, _ in instances(world, gang)] == [0] * 7 + [1] * 2
    assert len(set(instances(world, gang))) == 9
    large = world.submit(3, mig_profile="2g.20gb")
    assert world.state.jobs[large].state is JobState.PENDING and world.state.jobs[large].mig_starts == ()
    assert "too little room for 3 instances of 2g.20gb" in why(world, large)
    world.cycle(CancelRequested(gang))
    world.advance(60)
    assert len(instances(world, large)) == 3


def test_a_job_that_needs_a_whole_gpu_is_not_passed_for_ever() -> None:
    """The head reserves a GPU: a later small job that would still run then does not use it."""
    world = cluster(1, Policy(mig=True, backfill=Backfilling.EASY))
    world.submit(1, 100.0, mig_profile="1g.10gb", time_limit_seconds=100.0)
    head = world.submit(1, 50.0, mig_profile="7g.80gb", time_limit_seconds=50.0)
    long = world.submit(1, 500.0, mig_profile="1g.10gb", time_limit_seconds=500.0)
    short = world.submit(1, 50.0, mig_profile="1g.10gb", time_limit_seconds=50.0)
    assert world.state.jobs[long].state is JobState.PENDING and instances(world, short)
    world.advance(110)
    assert instances(world, head) == [(0, 0)]


def test_an_idle_gpu_of_the_fullest_node_is_divided() -> None:
    world = World({"n0": 4, "n1": 2}, MIG)
    world.cycle(*(NodeSeen(name, slots, mig_profiles=A100) for name, slots in world.nodes.items()))
    job = world.submit(1, mig_profile="1g.10gb")
    assert world.state.jobs[job].ranks[0].slot == Slot("n1", 0)


def test_the_profile_of_one_model_is_not_placed_on_another() -> None:
    world = World({"n0": 1, "n1": 1}, MIG)
    world.cycle(NodeSeen("n0", 1, mig_profiles=MODELS["A100-40GB"]), NodeSeen("n1", 1, mig_profiles=A100))
    jobs = [world.submit(1, mig_profile=name) for name in ("3g.20gb", "3g.40gb", "1g.10gb")]
    nodes = [world.state.jobs[job].ranks[0].slot.node for job in jobs]
    assert nodes[:2] == ["n0", "n1"]


def test_a_node_that_reports_other_profiles_gives_no_room_beside_old_instances() -> None:
    world = cluster(1)
    world.submit(1, mig_profile="1g.10gb")
    world.cycle(NodeSeen("n0", 1, mig_profiles=MODELS["H200-141GB"]))
    other = world.submit(1, mig_profile="1g.18gb")
    assert world.state.jobs[other].state is JobState.PENDING


def test_a_preemption_pass_counts_each_instance_in_the_queue_limit() -> None:
    """A pass chose a job that its queue's limit held back, and left no room for the next (seed 4500003)."""
    queues = (Queue("a", limit=2),)
    world = cluster(
        2, Policy(mig=True, order=Order.FIFO, preempt=True, queues=queues, default_time_limit_seconds=100.0)
    )
    world.submit(1, queue="a", mig_profile="1g.10gb")
    wide, narrow = (world.submit(ranks, queue="a", mig_profile="1g.10gb") for ranks in (3, 1))
    states = [world.state.jobs[job].state.holds_slots for job in (wide, narrow)]
    assert states == [False, True]


# --- requests and sentences ------------------------------------------------------------------------------------------


def test_a_pass_starts_instances_on_an_idle_gpu_and_beside_another_job() -> None:
    """benchmarks.invariants, seed 8200002: it counted two GPUs for the job, of which it needs one and a part."""
    policy = Policy(mig=True, order=Order.SJF, preempt=True, replan_seconds=0.0, estimates=Estimates.EXACT)
    world = cluster(2, policy)
    first = world.submit(1, 100.0, mig_profile="4g.40gb", exact_seconds=100.0)
    second = world.submit(4, 200.0, mig_profile="2g.20gb", exact_seconds=200.0)
    assert instances(world, first) == [(0, 0)]
    assert [slot for slot, _ in instances(world, second)].count(0) == 1
    world.running()
    world.end(second)
    whole = {"exact_seconds": 50.0, "restartable": True, "preemptible": True}
    third = world.submit(1, 50.0, **whole)
    fourth = world.submit(4, 30.0, mig_profile="2g.20gb", exact_seconds=30.0)
    assert world.nodes_of(third) and world.job_state(fourth) is JobState.PENDING


def test_a_gang_in_instances_uses_one_node_on_probation_only() -> None:
    """benchmarks.invariants, seed 8500004."""
    world = World({"n0": 1, "n1": 1, "n2": 2}, MIG)
    world.cycle(*(NodeSeen(name, slots, mig_profiles=A100) for name, slots in world.nodes.items()))
    assert world.nodes_of(world.submit(2, 100.0)) == {"n2"}
    for name in ("n0", "n1"):
        index_of(world.state).set_node_state(world.state.nodes[name], NodeState.PROBATION, None, "for the test", "")
    wide, narrow = world.submit(2, 100.0, mig_profile="7g.80gb"), world.submit(2, 100.0, mig_profile="3g.40gb")
    assert world.job_state(wide) is JobState.PENDING
    assert len(world.nodes_of(narrow)) == 1


def refusal(world: World, ranks: int = 1, **fields: object) -> str:
    spec = JobSpec("job", ("train",), ranks, **{"mig_profile": "2g.20gb", **fields})  # type: ignore[arg-type]
    return cycle.admit_check(world.state, spec) or ""


@pytest.mark.parametrize("replan_seconds", [0.0, 60.0])
def test_a_gpu_that_a_preemption_pass_counted_and_no_instance_needs_is_used_at_once(replan_seconds: float) -> None:
    """The pass gives each gang in instances GPUs of its own, but the placement puts it beside others."""
    policy = Policy(mig=True, order=Order.SRTF, preempt=True, replan_seconds=replan_seconds)
    world = cluster(2, policy)
    world.submit(1, 900.0, mig_profile="1g.10gb", time_limit_seconds=900.0)
    world.running()
    world.advance(100.0)
    specs = [
        JobSpec(profile, ("train",), 1, mig_profile=profile, time_limit_seconds=limit)
        for profile, limit in (("1g.10gb", 50.0), ("7g.80gb", 60.0))
    ]
    world.true_seconds |= {"1g.10gb": 50.0, "7g.80gb": 60.0}
    world.cycle(*(Submitted(spec.name, spec) for spec in specs))
    while not world.state.idle:
        world.cycle(Tick())
    assert [slot for job_id in ("1g.10gb", "7g.80gb") for slot, _ in instances(world, job_id)] == [0, 1]


def test_a_profile_that_no_gpu_has_is_refused_with_those_that_exist() -> None:
    text = refusal(cluster(), mig_profile="2g.21gb")
    assert "2g.21gb" in text and "1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb" in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mig_profile": "big"}, "'big' is not the name of a MIG profile"),
        ({"ranks": 7}, "the GPUs of this cluster can hold at most 6"),
        ({"shareable": True}, "leave out shareable"),
        ({"min_ranks": 1}, "leave out min_ranks"),
        ({"gpu_types": ("B200",)}, "which no B200 GPU of this cluster has"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(fields: dict[str, object], text: str) -> None:
    assert text in refusal(cluster(), **fields)  # type: ignore[arg-type]


def test_a_valid_request_is_accepted_only_if_the_policy_places_instances() -> None:
    assert refusal(cluster()) == ""
    assert "mig = true" in refusal(cluster(policy=Policy()))
    cells = Policy(mig=True, queues=(Queue("a", cells={Cell.GPU: 1}),))
    assert "cells" in refusal(cluster(policy=cells))
    assert "no GPU of this cluster can be divided" in refusal(World({"n0": 2}, MIG))


def test_the_reasons_name_the_instance_and_the_jobs_beside_it() -> None:
    world = cluster(1)
    first, second = world.submit(1, mig_profile="3g.40gb"), world.submit(1, mig_profile="2g.20gb")
    assert f"in a 2g.20gb instance of GPU 0 of n0, beside {first} (3g.40gb)" in why(world, second)
    started = [one.text for one in world.entries if one.kind == "started"]
    assert "the scheduler divides GPU 0 of n0 for it" in started[0]
    assert "most room for typical instances is left there" in started[1]
    third = world.submit(1, mig_profile="4g.40gb")
    assert "no GPU has room for 4g.40gb: 1 GPU has this profile" in why(world, third)


def test_the_demand_follows_the_newest_requests() -> None:
    world = cluster(1)
    for ranks in (2, 3):
        world.submit(ranks, mig_profile="1g.10gb")
    assert world.state.mig_requests == {"1g.10gb": 5.0}
    world.state.mig_requests = {"7g.80gb": 999.0}
    world.submit(2, mig_profile="1g.10gb")
    assert world.state.mig_requests == {"7g.80gb": 499.5, "1g.10gb": 1.0}


def test_an_idle_gpu_that_is_reserved_is_not_divided() -> None:
    """The only running job ends after 100 s: the head then needs both slots, so a long job uses none of them."""
    world = cluster(2, Policy(mig=True, backfill=Backfilling.EASY))
    world.submit(1, 100.0, time_limit_seconds=100.0)
    world.submit(2, 50.0, time_limit_seconds=50.0)
    long = world.submit(1, 500.0, mig_profile="1g.10gb", time_limit_seconds=500.0)
    short = world.submit(1, 50.0, mig_profile="1g.10gb", time_limit_seconds=50.0)
    assert world.state.jobs[long].state is JobState.PENDING and instances(world, short)


def test_an_end_that_moves_with_another_one_moves_the_release_of_both_gpus() -> None:
    """Two jobs on one GPU outlive their estimates at the same time; one of them also shares a GPU with a third job."""
    world = cluster(2, Policy(mig=True, estimates=Estimates.HISTORY, default_time_limit_seconds=1000.0))
    for _ in range(8):
        world.submit(1, 50.0, mig_profile="7g.80gb")
        world.advance(50.0)
    third = world.submit(1, 900.0, mig_profile="3g.40gb", time_limit_seconds=75.0)
    filler = world.submit(1, 900.0, mig_profile="3g.40gb")
    world.advance(10.0)
    one = world.submit(1, 900.0, mig_profile="3g.40gb")
    world.end(filler, 0)
    two = world.submit(2, 900.0, mig_profile="3g.40gb")
    assert {slot for slot, _ in instances(world, two)} == {0, 1}
    assert [slot for job_id in (third, one) for slot, _ in instances(world, job_id)] == [0, 1]
    world.running()
    before = list(index_of(world.state).ends)
    for _ in range(60):
        world.advance(1.0)
        world.cycle(Tick())
        check_index(world.state)
    assert index_of(world.state).ends != before
