"""Cost of moves and faults, term by term; which gangs may be moved, when, and for which verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Job, JobState, Slot, StopReason
from scheduler_feedback.core.state import Decision, Estimates, Mode, Policy, Queue, State
from scheduler_feedback.core.verdict import Cause, Kind
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.remediation import gang_moves, mitigation_options, move_cost
from tests.cluster.cycle_world import World
from tests.cluster.makers import NOW_NS, SECOND, held, job_of, running, verdict_of

TERMS = move_cost.CostTest(
    probability=0.5, slowdown=3.0, remaining_seconds=500.0, persistence_seconds=300.0, exposed_seconds=100.0,
    save_seconds=10.0, restart_seconds=20.0, queue_seconds=5.0, margin=0.5,
)  # fmt: skip


# --- the terms -------------------------------------------------------------------------------------------------------


def test_the_benefit_is_the_expected_cost_of_the_fault() -> None:
    assert TERMS.benefit_seconds == 100.0, "half of twice a hundred seconds"
    assert replace(TERMS, share=0.25).benefit_seconds == 25.0
    assert replace(TERMS, slowdown=0.5).benefit_seconds == 0.0


def test_the_cost_is_save_restart_and_wait_or_what_the_last_move_took() -> None:
    assert TERMS.cost_seconds == 35.0
    assert replace(TERMS, unsaved_seconds=7.0).cost_seconds == 42.0
    assert replace(TERMS, measured_seconds=12.0, unsaved_seconds=7.0).cost_seconds == 24.0
    assert TERMS.net_seconds == 65.0


def test_a_move_gains_if_it_is_better_by_more_than_the_margin() -> None:
    assert replace(TERMS, queue_seconds=36.6).gains
    assert not replace(TERMS, queue_seconds=36.7).gains, "100 s are no more than one and a half times 66.7"
    assert TERMS.pays and TERMS.wait is None
    may_end = ((30.0, 20.0, 0.1),)  # nine of ten will end within half a minute
    waits = replace(TERMS, course=may_end, queue_seconds=30.0)
    assert waits.wait == pytest.approx((30.0, 0.5 * (1 - 1 / 3) * 20 + 0.1 * 60))
    assert waits.gains and not waits.pays


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"grace_seconds": 30.0}, 30.0),
        ({"grace_seconds": 30.0, "checkpoint_cost_seconds": 12.0}, 12.0),
        ({"grace_seconds": 30.0, "checkpoint_cost_seconds": 50.0}, 30.0),  # then it is killed
        ({"grace_seconds": 30.0, "checkpoint_command": ("save",), "checkpoint_timeout_seconds": 60.0}, 90.0),
    ],
)
def test_a_save_takes_its_declared_time_and_at_most_its_limit(fields: dict[str, Any], seconds: float) -> None:
    assert move_cost.save_seconds(job_of("j", **fields)) == seconds


def test_unsaved_work_is_lost_unless_the_gang_saves_on_request() -> None:
    job = running("j", 250.0, checkpoint_interval_seconds=100.0)
    assert move_cost.unsaved_seconds(job, NOW_NS) == pytest.approx(50.0)
    assert move_cost.unsaved_seconds(running("j", 250.0), NOW_NS) == 0.0
    reported = running("j", 250.0, checkpoint_interval_seconds=100.0, checkpoint_command=("save",))
    assert move_cost.unsaved_seconds(reported, NOW_NS) == 0.0
    assert move_cost.unsaved_seconds(job_of("j", checkpoint_interval_seconds=100.0), NOW_NS) == 0.0


def decision(name: str, outcome: float | None, **fields: Any) -> Decision:
    usual: dict[str, Any] = {"applied": True, "job_id": "j"}
    return Decision(
        name, verdict_id="v", wall_ns=0, predicted_gain_seconds=1.0, slowdown=2.0, cost_seconds=3.0,
        outcome_seconds=outcome, **(usual | fields),
    )  # fmt: skip


def test_the_gang_s_last_move_predicts_the_next() -> None:
    job = running("j", 250.0, grace_seconds=4.0, restart_cost_seconds=6.0, checkpoint_interval_seconds=100.0)
    state = State(jobs={"j": job})
    assert move_cost.moving_seconds(state, job, NOW_NS) == pytest.approx(60.0)
    state.decisions = [
        decision("a", 33.0), decision("b", 22.0), decision("c", None), decision("d", 1.0, applied=False),
        decision("e", 2.0, job_id="k"),
    ]  # fmt: skip
    assert move_cost.measured_seconds(state, job) == 22.0
    assert move_cost.moving_seconds(state, job, NOW_NS) == pytest.approx(72.0)


@pytest.mark.parametrize(
    ("slowdown", "ago", "lost"), [(2.0, 60.0, 30.0), (4.0, 60.0, 45.0), (1.0, 60.0, 0.0), (2.0, -5.0, 0.0)]
)
def test_cost_of_a_fault_so_far(slowdown: float, ago: float, lost: float) -> None:
    verdict = verdict_of(slowdown=slowdown, first_wall_ns=NOW_NS - round(ago * SECOND))
    assert move_cost.lost_seconds(verdict, NOW_NS) == pytest.approx(lost)


def test_the_cooldown_after_a_move() -> None:
    policy = Policy(migration_cooldown_seconds=100.0)
    assert move_cost.cooling_ns(policy, job_of("j"), NOW_NS) == 0
    job = job_of("j", last_migration_ns=NOW_NS - 40 * SECOND)
    assert move_cost.cooling_ns(policy, job, NOW_NS) == 60 * SECOND
    assert move_cost.cooling_ns(policy, job, NOW_NS + 60 * SECOND) == 0
    assert move_cost.cooling_ns(policy, job, NOW_NS + 900 * SECOND) == 0


def test_the_terms_of_a_gang_and_its_verdict() -> None:
    job = held(
        running("j", 100.0, time_limit_seconds=400.0, restart_cost_seconds=6.0, grace_seconds=4.0), Slot("n0", 0)
    )
    verdict = verdict_of(slowdown=2.0, first_wall_ns=NOW_NS - 40 * SECOND, confidence=0.8)
    policy = Policy(expected_persistence_seconds=1000.0, migration_margin=0.3)
    state = State(policy=policy, now_ns=NOW_NS, jobs={"j": job}, nodes={"n0": Node("n0", 2)}, verdicts={"v": verdict})
    test = move_cost.cost_test(state, job, verdict, NOW_NS)
    assert (test.probability, test.slowdown, test.margin, test.share) == (0.8, 2.0, 0.3, 1.0)
    assert test.remaining_seconds == pytest.approx(320.0), "twenty of the last forty seconds were lost"
    assert (test.persistence_seconds, test.exposed_seconds) == (1000.0, pytest.approx(320.0))
    assert (test.save_seconds, test.restart_seconds, test.queue_seconds) == (4.0, 6.0, 0.0)
    state.nodes["n0"].doubted_ns = NOW_NS - 3000 * SECOND
    assert move_cost.cost_test(state, job, verdict, NOW_NS).persistence_seconds == 3000.0
    state.judged["v"] = True
    assert move_cost.cost_test(state, job, verdict, NOW_NS).probability == 1.0
    brief = replace(verdict, lasts_seconds=100.0)
    assert move_cost.cost_test(state, job, brief, NOW_NS).exposed_seconds == pytest.approx(30.0), (
        "60 s more, at half speed"
    )


def test_only_accusing_kinds_accuse_a_node() -> None:
    job = running("j", 100.0)
    verdicts = (
        verdict_of(verdict_id="1", node="n2"),
        verdict_of(verdict_id="2", node="n1", kind=Kind.HANG),
        verdict_of(verdict_id="3", node="n3", kind=Kind.INTERFERENCE),
        verdict_of(verdict_id="4", node="n4", kind=Kind.WORKLOAD),
        verdict_of(verdict_id="5", node="n5", gang="other"),
        verdict_of(verdict_id="6", node="n2"),
    )
    state = State(verdicts={one.verdict_id: one for one in verdicts})
    assert move_cost.accused_nodes(state, job) == ("n1", "n2")


# --- verdicts that justify a move ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "lacks", "also_confirmed"),
    [
        ({}, None, False),
        ({"kind": Kind.INTERFERENCE}, None, False),
        ({"confidence": 0.9}, None, False),
        ({"confidence": 0.899}, "confidence", False),
        ({"cause": Cause.UNKNOWN}, "cause", False),
        ({"node": ""}, "node", True),
        ({"kind": Kind.WORKLOAD}, "kind", True),
        ({"kind": Kind.HEALTH}, "kind", True),
    ],
)
def test_why_a_verdict_does_not_justify_a_move(fields: dict[str, Any], lacks: str | None, also_confirmed: bool) -> None:
    policy = Policy(minimum_confidence=0.9)
    found = mitigation_options.lacks(verdict_of(**fields), policy)
    assert (found and found[0]) == lacks
    confirmed = mitigation_options.lacks(verdict_of(**fields), policy, confirmed=True)
    assert (confirmed is not None) is also_confirmed


def test_the_neighbours_of_a_job_are_those_of_its_racks_or_itself() -> None:
    nodes = [Node(f"n{i}", 2, spine=f"s{i // 4}", rack=f"r{i % 4 // 2}") for i in range(8)]
    bare = [Node("bare", 2), Node("other", 2)]
    job = held(running("j", 9.0), Slot("n1", 0), Slot("bare", 0), Slot("gone", 0))
    state = State(jobs={"j": job}, nodes={node.name: node for node in (*nodes, *bare)})
    assert mitigation_options.around(state, job) == ("bare", "n0", "n1"), "rack r0 of another spine is another rack"


# --- which gangs may be moved ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"restartable": False}, False),
        ({"stop_reason": StopReason.CANCEL}, False),
        ({"claim": [Slot("n0", 0)]}, False),
        ({"last_migration_ns": NOW_NS - 299 * SECOND}, False),
        ({"last_migration_ns": NOW_NS - 300 * SECOND}, True),
        ({"min_run_seconds": 100.0}, True),
        ({"min_run_seconds": 100.1}, False),
    ],
)
def test_which_gangs_may_be_moved(changes: dict[str, Any], may: bool) -> None:
    job = running("j", 100.0, **({"restartable": True} | changes))
    state = State(policy=Policy(min_run_seconds=50.0), jobs={"j": job})
    assert gang_moves.may_be_moved(state, job, NOW_NS) is may
    state.verdicts = {"v": verdict_of(gang="other")}
    assert gang_moves.may_be_moved(state, job, NOW_NS) is may
    state.verdicts = {"v": verdict_of()}
    assert not gang_moves.may_be_moved(state, job, NOW_NS), "its verdict decides about it"
    job.state = JobState.STARTING
    state.verdicts = {}
    assert not gang_moves.may_be_moved(state, job, NOW_NS)


def test_a_wait_counts_from_the_end_of_the_last_attempt() -> None:
    assert gang_moves.waits_since_ns(job_of("j", submitted_ns=7)) == 7
    assert gang_moves.waits_since_ns(job_of("j", submitted_ns=7, attempt_ended_ns=9)) == 9


def waiting(policy: Policy) -> tuple[World, Job]:
    """Return a job that waits for slots of a gang that ends in 500 s."""
    world = World({"n0": 2}, policy)
    world.submit(2, 500.0, time_limit_seconds=500.0)
    world.running()
    job_id = world.submit(2, 10.0)
    return world, world.state.jobs[job_id]


def test_the_expected_wait_is_bounded_by_the_horizon() -> None:
    for horizon, seconds in ((3600.0, 500.0), (200.0, 200.0)):
        world, job = waiting(Policy(resize_horizon_seconds=horizon))
        index = index_of(world.state)
        assert gang_moves.wait_seconds(world.state, index, job, world.now_ns) == seconds
        assert gang_moves.wait_seconds(world.state, index, job, world.now_ns + 900 * SECOND) == 0.0
    other = job_of("other", ranks=2)
    assert gang_moves.wait_seconds(world.state, index, other, world.now_ns) == 200.0
    never = job_of("never", ranks=9)
    assert gang_moves.wait_seconds(world.state, index, never, world.now_ns) == 200.0, "no start can be forecast"


def test_an_estimated_wait_counts_as_long_as_it_has_lasted() -> None:
    world, job = waiting(Policy(estimates=Estimates.HISTORY))
    world.state.reserved_for, world.state.reserved_from_ns = job.job_id, world.now_ns + 500 * SECOND
    index = index_of(world.state)
    for waited in (0.0, 30.0):
        now_ns = job.submitted_ns + round(waited * SECOND)
        assert gang_moves.wait_seconds(world.state, index, job, now_ns) == waited


def test_the_first_job_is_the_first_below_its_queue_s_limit() -> None:
    world = World({"n0": 2}, Policy(queues=(Queue("q", limit=1),)))
    world.submit(1, 500.0, queue="q")
    world.submit(1, 500.0)
    world.running()
    limited = world.submit(1, 10.0, queue="q")
    first = world.submit(2, 10.0)
    world.submit(1, 10.0)
    index = index_of(world.state)
    assert gang_moves.at_limit(index, world.state.jobs[limited]) and not gang_moves.at_limit(
        index, world.state.jobs[first]
    )
    found = gang_moves.first_in_line(index, world.now_ns)
    assert found is not None and found.job_id == first
    found.not_before_ns = world.now_ns + 1
    assert gang_moves.first_in_line(index, world.now_ns) is None, "it is paused, and no job goes before it"
    assert gang_moves.first_in_line(index, world.now_ns + 1) is found


def test_a_proposal_is_logged_once_in_observe_mode_and_done_in_act_mode() -> None:
    job = job_of("j")
    for mode, reported in ((Mode.ACT, []), (Mode.OBSERVE, ["grow"])):
        context = CycleContext(State(policy=Policy(mode=mode), jobs={"j": job}), NOW_NS)
        for _ in range(2):
            assert gang_moves.proposed(context, job, "grow 4", "grow", "would grow", ()) is (mode is Mode.OBSERVE)
        assert [(entry.kind, entry.applied) for entry in context.entries] == [(kind, False) for kind in reported]
    assert gang_moves.proposed(context, job, "grow 8", "grow", "would grow", ()) and len(context.entries) == 2
