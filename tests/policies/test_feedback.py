"""Effects of verdicts: migration, quarantine, and scores of decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import (
    AttemptEnded,
    FirstStep,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    RankExit,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.job import JobKind, JobState, StopReason
from scheduler_feedback.core.state import Backfilling, Estimates, Mode, Order, Policy
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Kind
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.nodes.quarantine import others_want
from scheduler_feedback.policies.remediation import migration
from tests.cluster.cycle_world import SECOND, World

_MOVABLE: dict[str, Any] = {"restartable": True, "grace_seconds": 4.0, "restart_cost_seconds": 6.0}
_POLICY = Policy(quarantine_seconds=100.0, probation_seconds=50.0, suspect_seconds=30.0)


def four_nodes(policy: Policy = _POLICY, **spec: Any) -> tuple[World, str]:
    """Make four nodes of two slots. A gang of four ranks runs on n0 and n1."""
    world = World({f"n{i}": 2 for i in range(4)}, policy)
    job_id = world.submit(4, 10_000.0, **(_MOVABLE | {"time_limit_seconds": 1000.0} | spec))
    world.running()
    world.advance(100.0)
    return world, job_id


def raises(*_: object) -> None:
    raise AssertionError("not expected")


def last_stay(world: World) -> dict[str, str]:
    return dict(next(entry for entry in reversed(world.entries) if entry.kind == "stay").detail)


# --- migration -------------------------------------------------------------------------------------------------------


def test_a_gang_with_a_straggler_is_moved_to_reserved_slots() -> None:
    world, job_id = four_nodes()
    waiting = world.submit(6)
    world.cycle(world.verdict(job_id, rank=3))
    job = world.state.jobs[job_id]
    assert (job.state, job.stop_reason) == (JobState.STOPPING, StopReason.MIGRATE)
    assert {slot.node for slot in job.claim} == {"n0", "n2"}, "its own slots on healthy nodes count as free"
    assert world.state.nodes["n1"].state is NodeState.QUARANTINE
    small = world.submit(4, time_limit_seconds=1.0)
    assert world.job_state(small) is JobState.PENDING, "no other job gets reserved slots"
    outcome = world.end(job_id, 75)
    start, backfilled = outcome.actions
    assert (backfilled.job_id, world.nodes_of(small)) == (small, {"n1", "n3"}), "on the slow node, rather than wait"
    assert isinstance(start, StartGang)
    assert (start.job_id, start.attempt, {slot.node for slot in start.placement}) == (job_id, 2, {"n0", "n2"})
    assert job.retries == 0
    assert world.job_state(waiting) is JobState.PENDING


def test_a_decision_lists_its_terms_and_the_alternatives() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3, confidence=0.95))
    (entry,) = [entry for entry in world.entries if entry.kind == "migrate"]
    detail = dict(entry.detail)
    # 1000 s limit, 100 s run, of which 5 s at half speed: 902.5 s of work are left. 2.5 s had been lost.
    assert detail["remaining_seconds"] == "902.5"
    assert detail["slowdown"] == "2.000"
    assert detail["probability"] == "0.950"
    assert detail["benefit_seconds"] == "855.0", "p (s - 1) min(R, D/s) = 0.95 * min(902.5, 900)"
    assert detail["cost_seconds"] == "10.0"
    assert detail["alternative stay"] == "855.0 s"
    assert detail["alternative migrate"] == "10.0 s, to n0:0,1 n2:0,1"
    (decision,) = world.state.decisions
    assert (decision.applied, decision.cost_seconds, decision.fault_cost_seconds) == (True, 10.0, 2.5)
    assert decision.predicted_gain_seconds == pytest.approx(845.0)


@pytest.mark.parametrize(
    ("verdict", "spec", "policy", "words"),
    [
        ({"kind": Kind.HEALTH}, {}, {}, "jobs are not moved for verdicts of kind health"),
        ({"kind": Kind.HANG}, {}, {"restart_on_hang": False}, "not restarted: policy.restart_on_hang is off"),
        ({"cause": Cause.UNKNOWN}, {}, {}, "the cause is unknown"),
        ({"confidence": 0.8}, {}, {}, "confidence 0.80 is below 0.90"),
        ({}, {"restartable": False}, {}, "it is not declared restartable"),
        ({"slowdown": 1.01}, {}, {}, "staying is expected to cost 8.9 s, moving 10 s"),
        ({}, {"grace_seconds": 900.0}, {}, "moving 15 min"),
        ({}, {"time_limit_seconds": 105.0}, {}, "staying is expected to cost 7.4 s, moving 10 s"),
        ({}, {}, {"expected_persistence_seconds": 20.0}, "staying is expected to cost 9.9 s"),
        ({"slowdown": 1.014}, {}, {"migration_margin": 0.4}, "staying is expected to cost"),
    ],
)
def test_why_a_gang_stays(
    verdict: dict[str, Any], spec: dict[str, Any], policy: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, job_id = four_nodes(replace(_POLICY, **policy), **spec)
    outcome = world.cycle(world.verdict(job_id, rank=3, **verdict))
    assert not outcome.actions
    (stay,) = [entry for entry in outcome.entries if entry.kind == "stay"]
    assert words in stay.text
    assert {"benefit_seconds", "cost_seconds", "alternative stay", "alternative migrate"} <= dict(stay.detail).keys()
    monkeypatch.setattr(migration, "choose_option", raises)
    world.submit(1, 100.0)
    assert [entry for entry in world.outcomes[-1].entries if entry.kind == "stay"] == [], "logged once"
    explained = cycle.explain(world.state, job_id)
    assert explained is not None and words in explained.what_would_change_it[0]


@pytest.mark.parametrize("kind", [Kind.WORKLOAD, Kind.INTERFERENCE])
def test_verdicts_without_a_fault_of_the_node_do_not_affect_it(kind: Kind) -> None:
    world, job_id = four_nodes()
    outcome = world.cycle(world.verdict(job_id, rank=3, kind=kind))
    assert not outcome.actions
    assert {node.state for node in world.state.nodes.values()} == {NodeState.HEALTHY}


def test_a_gang_moves_once_healthy_slots_are_free() -> None:
    world, job_id = four_nodes()
    world.cycle(NodeCommanded("n2", NodeCommand.MAINTENANCE))
    other = world.submit(1, 10_000.0)
    world.running()
    world.cycle(world.verdict(job_id, rank=3))
    assert "too few free slots on healthy nodes other than n1: it needs 4" in world.entries[-1].text
    assert last_stay(world)["alternative migrate"] == "10.0 s, no free target"
    world.end(other, 0)
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE, "in the cycle that freed the slots"


def test_a_gang_is_moved_again_only_after_the_cooldown_with_the_measured_cost() -> None:
    world, job_id = four_nodes(replace(_POLICY, migration_cooldown_seconds=60.0))
    world.cycle(world.verdict(job_id, rank=3))
    world.advance(3.0)
    world.running()
    world.advance(5.0)
    world.cycle(FirstStep(job_id, 2, 900, world.now_ns))
    (decision,) = world.state.decisions
    assert decision.outcome_seconds == 8.0
    assert world.entry_kinds(job_id)[-1] == "scored"
    assert dict(world.entries[-1].detail)["save_seconds"] == "1.0"
    assert dict(world.entries[-1].detail)["restart_seconds"] == "7.0"
    world.cycle(world.verdict(job_id, rank=0))
    assert "moved less than 60 s ago" in world.entries[-1].text
    assert last_stay(world)["cost_seconds"] == "8.0", "the measured cost of the move, not the user's estimate"
    world.advance(52.0)
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE


def test_the_first_step_of_the_old_attempt_is_not_scored() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.cycle(FirstStep(job_id, 1, 3, world.now_ns))
    assert world.state.decisions[0].outcome_seconds is None


def test_a_repeated_first_step_is_not_scored_again() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.advance(3.0)
    world.running()
    assert world.cycle(FirstStep(job_id, 2, 900, world.now_ns)).entries
    assert not world.cycle(FirstStep(job_id, 2, 901, world.now_ns + SECOND)).entries


def test_a_gang_is_not_moved_onto_a_suspect_node() -> None:
    world, job_id = four_nodes()
    other = world.submit(2, 10_000.0)
    world.running()
    assert world.nodes_of(other) == {"n2"}
    world.cycle(world.verdict(other))
    world.end(other, 1)
    assert world.state.nodes["n2"].state is NodeState.SUSPECT
    world.submit(1, 10_000.0)
    world.running()
    world.cycle(world.verdict(job_id, rank=3))
    assert "too few free slots on healthy nodes other than n1" in world.entries[-1].text


def test_two_gangs_that_move_in_one_cycle_get_different_slots() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, replace(_POLICY, quarantine_max_fraction=1.0))
    gangs = [world.submit(2, 10_000.0, **_MOVABLE) for _ in range(2)]
    world.running()
    world.cycle(*(world.verdict(gang) for gang in gangs))
    claims = [set(world.state.jobs[gang].claim) for gang in gangs]
    assert all(len(claim) == 2 for claim in claims) and not claims[0] & claims[1]


def test_the_head_s_reservation_follows_slowdowns_and_moves() -> None:
    world, job_id = four_nodes(time_limit_seconds=500.0)
    head = world.submit(8)
    begun = world.started[job_id]
    state = world.state
    assert (state.reserved_for, state.reserved_from_ns) == (head, begun + 500 * SECOND)
    verdict = world.verdict(job_id, rank=3, confidence=0.1, slowdown=1.5)
    world.cycle(verdict)
    # 405 s were left when the fault began; at half speed they take half as long again.
    assert state.reserved_from_ns == begun + round(702.5 * SECOND)
    world.cycle(Cleared(verdict.verdict_id, job_id, world.now_ns, "runs at normal speed"))
    assert state.reserved_from_ns == begun + 500 * SECOND
    world.state.policy = replace(world.state.policy, probe_command=(), quarantine_seconds=0.5, probation_seconds=0.5)
    world.cycle(world.verdict(job_id, rank=3))
    world.advance(2.0)
    world.advance(2.0)
    world.running()
    assert (world.state.jobs[job_id].attempt, state.nodes["n1"].state) == (2, NodeState.HEALTHY)
    # The first attempt ran 101 s, stop included; its saved work is not run again.
    assert state.reserved_from_ns == begun + (101 + 399) * SECOND


def test_slots_that_a_gang_keeps_over_its_move_are_not_counted_as_freed() -> None:
    world, job_id = four_nodes(replace(_POLICY, probe_command=()))
    small = world.submit(4, 10_000.0, time_limit_seconds=1000.0)
    world.running()
    world.end(small, 0)
    head = world.submit(5, time_limit_seconds=10.0)
    world.cycle(world.verdict(job_id, rank=3))
    # n1 is in quarantine; n0 and n2 are reserved for the gang. Its own stop frees no usable slots.
    assert world.state.reserved_for == head
    world.cycle(Tick())
    job = world.state.jobs[job_id]
    assert {slot.node for slot in job.claim} == {"n0", "n2"}
    assert world.state.reserved_from_ns is not None
    assert world.state.reserved_from_ns > world.now_ns + 800 * SECOND


def test_a_gang_that_completes_instead_of_stopping_is_completed() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.end(job_id, 0)
    job = world.state.jobs[job_id]
    assert (job.state, job.claim) == (JobState.COMPLETED, [])


def test_a_gang_that_exits_with_0_on_a_stop_request_is_not_completed() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.end(job_id, 0, signalled=True)
    assert world.job_state(job_id) is JobState.STARTING
    assert world.state.jobs[job_id].attempt == 2


def test_a_stop_before_a_move_may_end_with_any_exit_codes() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.end(job_id, 75, 0, 137, 143)
    assert world.job_state(job_id) is JobState.STARTING
    assert world.state.jobs[job_id].attempt == 2


def test_a_gang_that_loses_its_reserved_slots_is_placed_again_first() -> None:
    world, job_id = four_nodes()
    queued = world.submit(4)
    world.cycle(world.verdict(job_id, rank=3))
    assert world.entry_kinds(queued)[-1] == "started", "it did not wait: n2 and n3 were free"


def test_reserved_slots_are_lost_with_their_nodes() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.cycle(NodeSeen("n2", 2, present=False))
    world.end(job_id, 75)
    assert "claim-lost" in world.entry_kinds(job_id)
    assert world.nodes_of(job_id) == {"n0", "n3"}


def test_reserved_slots_of_a_gang_on_several_nodes_are_lost_if_one_is_on_probation() -> None:
    """A node on probation takes no part of a larger gang (benchmarks.invariants, seed 3604001)."""
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    index_of(world.state).set_node_state(world.state.nodes["n2"], NodeState.PROBATION, None, "for the test", "")
    world.end(job_id, 75)
    assert "claim-lost" in world.entry_kinds(job_id)
    assert world.nodes_of(job_id) == {"n0", "n3"}


def test_the_next_attempt_avoids_the_node_even_if_the_cap_keeps_it_in_use() -> None:
    world, job_id = four_nodes()
    world.cycle(NodeCommanded("n3", NodeCommand.QUARANTINE))
    world.cycle(world.verdict(job_id, rank=3))
    assert world.state.nodes["n1"].state is NodeState.SUSPECT, "one of four is in quarantine already"
    assert any("the most allowed" in entry.text and not entry.applied for entry in world.entries)
    world.end(job_id, 75)
    assert world.nodes_of(job_id) == {"n0", "n2"}
    world.running()
    assert world.state.jobs[job_id].excluded_nodes == (), "for that attempt only"


def test_verdicts_about_other_attempts_or_unknown_gangs_are_ignored() -> None:
    world, job_id = four_nodes()
    verdict = world.verdict(job_id, rank=3)
    for other in (replace(verdict, attempt=2), replace(verdict, gang="uid-0/7")):
        assert not world.cycle(other).entries
    world.end(job_id, 0)
    assert not world.cycle(verdict).entries
    assert not world.state.verdicts


def test_an_updated_verdict_replaces_the_old_one_and_is_logged_once() -> None:
    world, job_id = four_nodes()
    verdict = world.verdict(job_id, rank=3, confidence=0.5)
    world.cycle(verdict)
    world.cycle(replace(verdict, confidence=0.6))
    assert world.entry_kinds(job_id).count("verdict") == 1
    assert world.state.counts["verdicts/straggler/cpu-contention"] == 1
    world.cycle(replace(verdict, confidence=0.97))
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE


def test_an_abstention_is_logged_without_an_action() -> None:
    world, job_id = four_nodes()
    outcome = world.cycle(Abstention(job_id, 1, None, world.now_ns, "the whole machine is loaded"))
    assert not outcome.actions
    assert [(e.kind, "the whole machine is loaded" in e.text) for e in outcome.entries] == [("unknown", True)]
    assert world.state.counts["abstentions/straggler"] == 1


# --- observe and freeze ----------------------------------------------------------------------------------------------


def test_observe_mode_logs_a_decision_once_and_scores_it() -> None:
    world, job_id = four_nodes(replace(_POLICY, mode=Mode.OBSERVE))
    verdict = world.verdict(job_id, rank=3)
    outcome = world.cycle(verdict)
    assert not outcome.actions
    assert {(e.kind, e.applied) for e in outcome.entries} == {("verdict", True), ("suspect", False), ("migrate", False)}
    assert {node.state for node in world.state.nodes.values()} == {NodeState.HEALTHY}
    world.advance(40.0)
    assert len(world.state.decisions) == 1
    world.cycle(Cleared(verdict.verdict_id, job_id, world.now_ns, "runs at normal speed"))
    (decision,) = world.state.decisions
    assert decision.outcome_seconds == pytest.approx(20.0), "40 s at half speed"
    assert world.entry_kinds(job_id)[-1] == "scored"


def test_observe_mode_scores_what_is_open_when_the_attempt_ends() -> None:
    world, job_id = four_nodes(replace(_POLICY, mode=Mode.OBSERVE))
    world.cycle(world.verdict(job_id, rank=3))
    world.advance(10.0)
    world.end(job_id, 0)
    assert world.state.decisions[0].outcome_seconds == pytest.approx(5.0)


def test_observe_mode_still_starts_and_cancels_jobs_of_users() -> None:
    world, _ = four_nodes(replace(_POLICY, mode=Mode.OBSERVE))
    assert world.job_state(world.submit(2)) is JobState.STARTING


def test_while_frozen_a_move_is_only_logged_and_made_after_the_thaw() -> None:
    world, job_id = four_nodes()
    world.cycle(FreezeSet(True))
    outcome = world.cycle(world.verdict(job_id, rank=3))
    assert not outcome.actions
    assert [(e.kind, e.applied) for e in outcome.entries] == [("verdict", True), ("migrate", False)]
    assert world.state.nodes["n1"].state is NodeState.HEALTHY
    assert not world.cycle(Tick()).entries
    outcome = world.cycle(FreezeSet(False))
    assert [type(action) for action in outcome.actions] == [StopGang]
    assert world.state.nodes["n1"].state is NodeState.QUARANTINE


# --- quarantine ------------------------------------------------------------------------------------------------------


def test_a_node_is_suspect_while_its_verdict_is_active_and_a_while_longer() -> None:
    world, job_id = four_nodes(restartable=False)
    verdict = world.verdict(job_id, rank=3)
    node = world.state.nodes["n1"]
    world.cycle(verdict)
    assert (node.state, node.verdict_id) == (NodeState.SUSPECT, verdict.verdict_id)
    world.advance(500.0)
    assert node.state is NodeState.SUSPECT
    world.cycle(Cleared(verdict.verdict_id, job_id, world.now_ns, "runs at normal speed"))
    world.advance(29.0)
    assert node.state is NodeState.SUSPECT
    world.advance(1.0)
    assert node.state is NodeState.HEALTHY


def test_verdicts_of_two_jobs_lead_to_quarantine_and_two_of_one_job_do_not() -> None:
    world = World({"n0": 4, "n1": 4}, _POLICY)
    first, second = world.submit(2, 1000.0), world.submit(2, 1000.0)
    world.running()
    node = world.state.nodes["n0"]
    world.cycle(world.verdict(first, rank=0), world.verdict(first, rank=1))
    assert node.state is NodeState.SUSPECT
    world.cycle(world.verdict(second, rank=0))
    assert node.state is NodeState.QUARANTINE
    assert first in node.reason and second in node.reason
    assert world.job_state(first) is JobState.RUNNING, "a gang that cannot be moved stays"


def quarantined() -> tuple[World, str]:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    world.end(job_id, 75)
    world.running()
    return world, "n1"


def test_a_node_without_slots_is_probed_once_it_has_some() -> None:
    """On Kubernetes, other pods may hold all slots of a node."""
    world, name = quarantined()
    node = world.state.nodes[name]
    world.cycle(NodeSeen(name, 0))
    world.advance(200.0)
    assert (node.state, node.probe_job) == (NodeState.QUARANTINE, None)
    world.cycle(NodeSeen(name, 2))
    assert node.probe_job == "probe-n1-1"


def test_a_node_recovers_through_probe_and_probation() -> None:
    world, name = quarantined()
    node = world.state.nodes[name]
    world.advance(99.0)
    assert node.state is NodeState.QUARANTINE
    world.advance(1.0)
    probe = world.state.jobs["probe-n1-1"]
    assert (node.state, probe.state, probe.spec.kind) == (NodeState.QUARANTINE, JobState.STARTING, JobKind.PROBE)
    assert (probe.spec.command, probe.spec.pinned_node) == (("gangwatch-probe",), name)
    assert world.nodes_of("probe-n1-1") == {name} and len(probe.ranks) == 2
    world.running()
    world.end("probe-n1-1", 0)
    assert (node.state, node.backoff) == (NodeState.PROBATION, 1)
    world.advance(49.0)
    assert node.state is NodeState.PROBATION
    world.advance(1.0)
    assert (node.state, node.backoff, node.accusers) == (NodeState.HEALTHY, 0, ())
    assert [k for k in world.entry_kinds("node:n1") if k != "seen"] == [
        "suspect",
        "quarantine",
        "probe",
        "probation",
        "recovered",
    ]


def test_a_probe_of_an_absent_node_waits_until_it_is_reported_again() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, replace(_POLICY, probe_command=("gangwatch-probe",)))
    moved = world.submit(3, 10_000.0, **_MOVABLE)
    stays = world.submit(1, 10_000.0)
    assert world.nodes_of(stays) == {"n1"}
    world.running()
    world.advance(100.0)
    world.cycle(world.verdict(moved, rank=2))
    world.end(moved, 75)
    world.running()
    world.advance(100.0)
    probe = world.state.jobs["probe-n1-1"]
    assert cycle.why_waits(world.state, probe) == "waits until all slots of n1 are free"
    world.cycle(NodeSeen("n1", 2, present=False))
    world.end(stays, 0)
    assert probe.state is JobState.PENDING
    assert cycle.why_waits(world.state, probe) == "waits until the backend reports n1 again"
    world.cycle(NodeSeen("n1", 2))
    assert probe.state is JobState.STARTING


def test_each_failed_probe_doubles_the_quarantine_up_to_a_maximum() -> None:
    world, name = quarantined()
    world.state.policy = replace(world.state.policy, quarantine_max_seconds=300.0)
    node = world.state.nodes[name]
    for number, seconds in ((1, 200.0), (2, 300.0), (3, 300.0)):
        assert node.until_ns is not None
        world.advance((node.until_ns - world.now_ns) / SECOND)
        world.running()
        world.end(f"probe-n1-{number}", 0, 1)
        assert node.state is NodeState.QUARANTINE
        assert node.until_ns == world.now_ns + round(seconds * SECOND)
    assert "probe-n1-3 did not pass: rank 1 exited with 1" in node.reason


@pytest.mark.parametrize("seen_running", [True, False])
def test_a_probe_that_hangs_has_failed(seen_running: bool) -> None:
    world, name = quarantined()
    world.state.policy = replace(world.state.policy, probe_timeout_seconds=20.0, start_timeout_seconds=10.0)
    world.true_seconds["probe-n1-1"] = 1e6
    world.advance(100.0)
    if seen_running:
        world.running()
    world.advance(20.0)
    assert world.job_state("probe-n1-1") is JobState.STOPPING
    world.advance(2.0)
    assert world.state.jobs["probe-n1-1"].state.ended
    node = world.state.nodes[name]
    assert (node.state, node.backoff) == (NodeState.QUARANTINE, 2)


def test_without_a_probe_command_quarantine_ends_in_probation() -> None:
    world, name = quarantined()
    world.state.policy = replace(world.state.policy, probe_command=())
    world.advance(100.0)
    assert world.state.nodes[name].state is NodeState.PROBATION


def test_a_verdict_on_probation_leads_back_to_quarantine_for_twice_as_long() -> None:
    world, name = quarantined()
    world.advance(100.0)
    world.end("probe-n1-1", 0)
    world.submit(2, 1000.0)  # fills the healthy nodes
    alone = world.submit(2, 1000.0)
    world.running()
    assert world.nodes_of(alone) == {name}
    world.cycle(world.verdict(alone, rank=1))
    node = world.state.nodes[name]
    assert (node.state, node.backoff, node.until_ns) == (NodeState.QUARANTINE, 2, world.now_ns + 200 * SECOND)


def test_one_verdict_on_probation_suffices_even_from_an_earlier_accuser() -> None:
    """Outside of probation, verdicts about two jobs are needed."""
    world = World({"n0": 2}, replace(_POLICY, probe_command=(), quarantine_max_fraction=1.0))
    job_id = world.submit(1, 10_000.0, time_limit_seconds=10_000.0)
    world.running()
    verdict = world.verdict(job_id, slowdown=8.0)
    world.cycle(verdict)
    world.cycle(VerdictJudged(verdict.verdict_id, True, "eve"))
    world.cycle(Cleared(verdict.verdict_id, job_id, world.now_ns, "runs at normal speed"))
    world.advance(100.0)
    node = world.state.nodes["n0"]
    assert (node.state, node.backoff, node.accusers) == (NodeState.PROBATION, 1, (job_id,))
    world.cycle(world.verdict(job_id, slowdown=8.0))
    assert node.accusers == (job_id,)
    assert (node.state, node.backoff, node.until_ns) == (NodeState.QUARANTINE, 2, world.now_ns + 200 * SECOND)
    assert "new verdict during probation" in node.reason


def test_a_probe_waits_until_all_jobs_on_the_node_have_ended() -> None:
    world = World({"n0": 2, "n1": 2}, _POLICY)
    job_id = world.submit(1, 300.0)
    world.running()
    verdict = world.verdict(job_id)
    world.cycle(verdict)
    world.cycle(VerdictJudged(verdict.verdict_id, True, "eve"))
    world.advance(150.0)
    assert world.job_state("probe-n0-1") is JobState.PENDING
    assert cycle.why_waits(world.state, world.state.jobs["probe-n0-1"]) == "waits until all slots of n0 are free"
    world.advance(150.0)
    assert world.job_state("probe-n0-1") is JobState.RUNNING


# --- operators -------------------------------------------------------------------------------------------------------


def test_a_confirmed_verdict_quarantines_at_once_and_decides_the_move() -> None:
    world, job_id = four_nodes()
    verdict = world.verdict(job_id, rank=3, confidence=0.6, cause=Cause.UNKNOWN)
    world.cycle(verdict)
    assert world.job_state(job_id) is JobState.RUNNING
    world.cycle(VerdictJudged(verdict.verdict_id, True, "eve"))
    assert world.state.nodes["n1"].state is NodeState.QUARANTINE
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE
    assert not world.cycle(VerdictJudged(verdict.verdict_id, True, "eve")).entries


def test_a_rejected_verdict_releases_its_node_and_never_acts_again() -> None:
    world, job_id = four_nodes()
    verdict = world.verdict(job_id, rank=3)
    world.cycle(verdict)
    world.end(job_id, 75)
    world.running()
    node = world.state.nodes["n1"]
    assert node.state is NodeState.QUARANTINE and not world.state.verdicts
    world.cycle(VerdictJudged(verdict.verdict_id, False, "eve"))
    assert (node.state, node.backoff) == (NodeState.HEALTHY, 0)
    assert not world.cycle(replace(verdict, attempt=2)).entries
    assert not world.state.verdicts


def test_a_rejected_verdict_leaves_other_verdicts_about_the_node_active() -> None:
    world = World({"n0": 4, "n1": 4}, _POLICY)
    first, second = world.submit(2, 1000.0), world.submit(2, 1000.0)
    world.running()
    wrong, right = world.verdict(first), world.verdict(second)
    world.cycle(wrong, right)
    assert world.state.nodes["n0"].state is NodeState.QUARANTINE
    world.cycle(VerdictJudged(wrong.verdict_id, False))
    node = world.state.nodes["n0"]
    assert (node.state, node.accusers) == (NodeState.SUSPECT, (second,))


def test_an_operator_s_quarantine_ends_only_by_release() -> None:
    world, _ = four_nodes()
    world.cycle(NodeCommanded("n3", NodeCommand.QUARANTINE, "eve"))
    world.advance(100_000.0)
    assert world.state.nodes["n3"].state is NodeState.QUARANTINE
    world.cycle(NodeCommanded("n3", NodeCommand.RELEASE, "eve"))
    assert world.state.nodes["n3"].state is NodeState.HEALTHY


def test_a_released_node_is_not_accused_again_by_the_same_verdict() -> None:
    world, job_id = four_nodes(restartable=False)
    world.cycle(world.verdict(job_id, rank=3))
    world.cycle(NodeCommanded("n1", NodeCommand.RELEASE, "eve"))
    world.advance(10.0)
    assert world.state.nodes["n1"].state is NodeState.HEALTHY
    assert world.job_state(job_id) is JobState.RUNNING


def test_a_gang_that_left_a_node_may_use_it_again_once_an_operator_has_released_it() -> None:
    """The gang's reserved slots are lost, and without the released node it has too few."""
    world = World({"n0": 2, "n1": 2, "n2": 2}, _POLICY)
    job_id = world.submit(4, 10_000.0, **_MOVABLE)
    world.running()
    world.advance(100.0)
    world.cycle(world.verdict(job_id, rank=3))
    left = {rank.slot.node for rank in world.state.jobs[job_id].ranks} - {
        slot.node for slot in world.state.jobs[job_id].claim
    }
    assert left == {"n1"}
    world.cycle(NodeSeen("n2", 2, present=False))
    world.end(job_id, 75, signalled=True)
    assert (world.job_state(job_id), world.state.jobs[job_id].excluded_nodes) == (JobState.PENDING, ("n1",))
    world.cycle(NodeCommanded("n1", NodeCommand.RELEASE, "eve"))
    assert world.state.jobs[job_id].excluded_nodes == ()
    assert world.job_state(job_id) is JobState.STARTING
    assert world.nodes_of(job_id) == {"n0", "n1"}


def test_a_release_cancels_the_probe() -> None:
    world, name = quarantined()
    world.advance(100.0)
    world.running()
    outcome = world.cycle(NodeCommanded(name, NodeCommand.RELEASE))
    assert [(type(a), a.job_id) for a in outcome.actions] == [(StopGang, "probe-n1-1")]
    world.cycle(AttemptEnded("probe-n1-1", 1, (RankExit(0, 143), RankExit(1, 143))))
    assert world.state.nodes[name].state is NodeState.HEALTHY
    assert world.job_state("probe-n1-1") is JobState.CANCELLED


# --- the best option -------------------------------------------------------------------------------------------------


def last_detail(world: World, kind: str) -> dict[str, str]:
    return dict(next(entry for entry in reversed(world.entries) if entry.kind == kind).detail)


def test_a_move_that_replaces_only_accused_slots_is_a_swap() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3))
    assert last_detail(world, "migrate")["action"] == "swap"
    assert world.state.jobs[job_id].migrations == 1


def test_an_elastic_gang_continues_with_its_healthy_members_without_a_target() -> None:
    world, job_id = four_nodes(min_ranks=2)
    world.submit(4, 10_000.0, time_limit_seconds=9000.0)
    world.running()
    world.cycle(world.verdict(job_id, rank=3, slowdown=4.0, lasts_seconds=1800.0))
    job = world.state.jobs[job_id]
    assert (job.stop_reason, {slot.node for slot in job.claim}) == (StopReason.MIGRATE, {"n0"})
    (start,) = world.end(job_id, 75).actions
    assert isinstance(start, StartGang)
    assert (len(start.placement), start.spec.ranks, job.spec.ranks) == (2, 2, 4)


def test_the_option_with_the_largest_gain_is_taken_and_the_others_are_listed() -> None:
    """With half its ranks the gang would take twice as long. A healthy place is free in 100 s."""
    policy = replace(_POLICY, expected_persistence_seconds=1e6)
    world, job_id = four_nodes(policy, min_ranks=2, time_limit_seconds=5000.0)
    world.submit(4, 10_000.0, time_limit_seconds=100.0)
    world.running()
    world.cycle(world.verdict(job_id, rank=3, slowdown=4.0))
    detail = last_detail(world, "requeue")
    assert detail["action"] == "requeue"
    assert float(detail["alternative shrink"].split()[0]) > float(detail["cost_seconds"])
    assert world.state.jobs[job_id].claim == []


def test_a_gang_with_a_checkpoint_interval_loses_its_unsaved_work() -> None:
    world, job_id = four_nodes(checkpoint_interval_seconds=70.0, checkpoint_cost_seconds=1.0)
    world.cycle(world.verdict(job_id, rank=3))
    detail = last_detail(world, "migrate")
    assert (detail["unsaved_seconds"], detail["save_seconds"], detail["cost_seconds"]) == ("30.0", "1.0", "37.0")


def test_a_very_slow_gang_is_requeued() -> None:
    world, job_id = four_nodes(replace(_POLICY, expected_persistence_seconds=1e6), time_limit_seconds=5000.0)
    other = world.submit(4, 10_000.0, time_limit_seconds=100.0)
    world.running()
    world.cycle(world.verdict(job_id, rank=3, slowdown=3.0))
    job = world.state.jobs[job_id]
    assert (job.stop_reason, job.claim) == (StopReason.MIGRATE, [])
    assert "go back to the queue" in next(e.text for e in reversed(world.entries) if e.kind == "requeue")
    world.end(job_id, 75)
    assert world.job_state(job_id) is JobState.PENDING
    world.end(other, 0)
    assert world.nodes_of(job_id).isdisjoint({"n1"})


def test_two_interfering_jobs_are_separated_by_moving_the_cheaper() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, _POLICY, racks=2)
    large = world.submit(3, 10_000.0, **(_MOVABLE | {"time_limit_seconds": 5000.0}))
    small = world.submit(1, 10_000.0, **(_MOVABLE | {"time_limit_seconds": 5000.0}))
    world.running()
    assert world.nodes_of(large) | world.nodes_of(small) == {"n0", "n2"}
    verdict = world.verdict(large, kind=Kind.INTERFERENCE, aggressor=small, resource="uplink:r0")
    world.cycle(verdict)
    assert world.state.jobs[large].stop_reason is None
    moved = world.state.jobs[small]
    assert moved.stop_reason is StopReason.MIGRATE
    assert {slot.node for slot in moved.claim} <= {"n1", "n3"}
    assert {node.state for node in world.state.nodes.values()} == {NodeState.HEALTHY}, "no node is at fault"


def test_the_gain_of_a_move_is_a_mean_over_run_times_of_similar_jobs() -> None:
    """With only the usual run time, nearly all work of a gang in its first seconds would seem to remain."""
    history = replace(_POLICY, estimates=Estimates.HISTORY, expected_persistence_seconds=10_000.0)
    world = World({f"n{i}": 2 for i in range(4)}, history)
    for seconds in (20.0, 20.0, 20.0, 2000.0) * 10:
        done = world.submit(4, seconds, time_limit_seconds=10_000.0)
        world.running()
        world.advance(seconds)
        world.end(done, 0)
    job_id = world.submit(4, 10_000.0, **(_MOVABLE | {"restart_cost_seconds": 900.0, "time_limit_seconds": 10_000.0}))
    world.running()
    world.cycle(world.verdict(job_id, rank=3, slowdown=2.0))
    detail = last_stay(world)
    assert float(detail["exposed_seconds"]) == pytest.approx(0.25 * 2000 + 0.75 * 20, rel=0.35)
    assert float(detail["benefit_seconds"]) == pytest.approx(0.99 * float(detail["exposed_seconds"]), rel=0.01)


def test_a_verdict_may_give_the_duration_of_the_fault() -> None:
    world, job_id = four_nodes()
    world.cycle(world.verdict(job_id, rank=3, lasts_seconds=12.0))
    assert world.state.jobs[job_id].stop_reason is None
    assert last_stay(world)["persistence_seconds"] == "7.0", "5 of the 12 s have passed"


def test_a_verdict_about_a_node_alone_makes_it_suspect_until_it_is_cleared() -> None:
    world = World({"n0": 2, "n1": 2}, _POLICY)
    other = world.submit(1, 5.0)
    about = replace(world.verdict(other), gang="", attempt=0, rank=-1, node="n0", kind=Kind.HEALTH, verdict_id="v-n0")
    world.end(other, 0)
    world.cycle(about)
    assert world.state.nodes["n0"].state is NodeState.SUSPECT
    job_id = world.submit(2)
    assert world.nodes_of(job_id) == {"n1"}
    world.cycle(Cleared("v-n0", "", world.now_ns, "repaired"))
    world.advance(31.0)
    world.advance(31.0)
    assert world.state.nodes["n0"].state is NodeState.HEALTHY
    assert "verdict" in world.entry_kinds("node:n0") and "cleared" in world.entry_kinds("node:n0")


def test_a_bad_detector_cannot_empty_a_rack() -> None:
    policy = replace(_POLICY, quarantine_max_fraction=1.0, quarantine_max_rack_fraction=0.5)
    world = World({f"n{i}": 1 for i in range(8)}, policy, racks=2)
    gangs = [world.submit(1, 10_000.0) for _ in range(8)]
    world.running()
    for gang in gangs:
        verdict = world.verdict(gang)
        world.cycle(verdict)
        node = world.state.nodes[verdict.node]
        node.accusers = ("j-elsewhere", *node.accusers)
        world.cycle(replace(world.verdict(gang), verdict_id=f"again-{gang}"))
    shut = [node for node in world.state.nodes.values() if node.state is NodeState.QUARANTINE]
    assert {rack: sum(node.rack == rack for node in shut) for rack in ("r0", "r1")} == {"r0": 2, "r1": 2}


# --- use of slow nodes -----------------------------------------------------------------------------------------------


def slow_node(slowdown: float, policy: Policy = _POLICY) -> World:
    """Make four nodes of two slots without jobs; n0 is suspect with this slowdown."""
    world = World({f"n{i}": 2 for i in range(4)}, policy)
    first = world.submit(1, 5.0)
    about = replace(world.verdict(first), gang="", attempt=0, rank=-1, verdict_id="v-n0", slowdown=slowdown)
    world.end(first, 0)
    world.cycle(about)
    assert (world.state.nodes["n0"].state, world.state.nodes["n0"].slowdown) == (NodeState.SUSPECT, slowdown)
    return world


@pytest.mark.parametrize(
    ("slowdown", "ranks", "starts"),
    [
        (3.0, 2, True),  # the only job: two slow slots are more than none
        (1.9, 4, True),  # half of the gang: 2 slots more, for 4 (1 - 1/1.9) < 2 of them in work
        (2.1, 4, False),
        (1.3, 6, True),
        (1.6, 6, False),
        (3.0, 7, True),  # six healthy slots will never be enough for it
    ],
)
def test_a_slow_node_gets_gangs_that_gain_from_it(slowdown: float, ranks: int, starts: bool) -> None:
    world = slow_node(slowdown)
    if ranks < 7:
        for _ in range((8 - ranks) // 2):  # leaves as many slots as the gang needs, two of them on n0
            world.submit(2, 10_000.0, time_limit_seconds=60.0)
    job_id = world.submit(ranks, 10_000.0)
    assert (world.job_state(job_id) is JobState.STARTING) is starts
    if starts:
        assert "n0" in world.nodes_of(job_id)


@pytest.mark.parametrize(("seconds", "starts"), [(500.0, False), (2000.0, True)])
def test_a_wide_gang_with_a_long_wait_uses_a_slow_node(seconds: float, starts: bool) -> None:
    """Two of four slots are 2.4 times slower. Healthy slots become free later, and the gang runs for 2,000 s.

    On the slow node it uses two more slots for 4,800 s. If it waits 2,000 s for four healthy slots, no other job can
    use the two slow ones.
    """
    world = slow_node(2.4)
    for _ in range(2):
        world.submit(2, 10_000.0, time_limit_seconds=seconds)
    job_id = world.submit(4, 10_000.0, time_limit_seconds=2000.0)
    assert (world.job_state(job_id) is JobState.STARTING) is starts
    if starts:
        assert any("healthy slots are expected in 33 min" in entry.text for entry in world.entries)


def test_a_slow_node_returns_from_quarantine_for_a_gang_that_needs_it() -> None:
    """Six healthy slots hold one gang of four at a time; with the slow node's two slots they hold two gangs."""
    world, name = quarantined()
    node = world.state.nodes[name]
    first = next(iter(world.state.jobs))
    assert world.job_state(first) is JobState.RUNNING
    second = world.submit(4, 10_000.0, time_limit_seconds=3000.0)
    assert node.state is NodeState.SUSPECT
    assert world.nodes_of(second) == {"n1", "n3"}


def test_a_slow_node_is_not_idle_while_jobs_need_its_slots() -> None:
    world, name = quarantined()
    node = world.state.nodes[name]
    for _ in range(2):
        world.submit(1, 10_000.0)
    wide = world.submit(8, 100.0)
    world.advance(1.0)
    assert node.state is NodeState.QUARANTINE, "a gang that the node would only slow down does not count"
    narrow = world.submit(2, 10_000.0, time_limit_seconds=50.0)
    assert (node.state, node.backoff) == (NodeState.SUSPECT, 1)
    assert "pending jobs need its slots" in node.reason
    assert world.nodes_of(narrow) == {name}
    assert world.job_state(wide) is JobState.PENDING


def test_the_journal_records_when_a_suspicion_will_end() -> None:
    """No verdict is active: nothing but the time of the next cycle decides when the suspicion ends."""
    world, name = quarantined()
    node = world.state.nodes[name]
    assert not world.state.verdicts
    world.submit(4, 10_000.0, time_limit_seconds=3000.0)
    for _ in range(3):
        before = node.until_ns
        outcome = world.cycle()
        assert outcome.changed or node.until_ns == before
    assert node.state is NodeState.SUSPECT and node.until_ns is not None


def test_a_slow_node_returns_from_quarantine_at_a_registered_timeout() -> None:
    """A new job may start at once. At the next cycle it is pending, so the slow node is needed."""
    world = World({"n0": 2, "n1": 2}, replace(_POLICY, quarantine_seconds=1000.0))
    slow = [world.submit(1, 10_000.0, time_limit_seconds=10_000.0) for _ in range(4)]
    world.running()
    on_it = [job_id for job_id in slow if world.nodes_of(job_id) == {"n0"}]
    world.cycle(*(world.verdict(job_id, rank=0, slowdown=1.5) for job_id in on_it))
    node = world.state.nodes["n0"]
    assert node.state is NodeState.QUARANTINE
    world.submit(1, 100.0, time_limit_seconds=100.0)
    if node.state is NodeState.QUARANTINE:
        wake_ns = cycle.next_wake_ns(world.state, world.now_ns)
        assert wake_ns is not None and wake_ns < world.now_ns + SECOND
        world.now_ns = wake_ns
        world.cycle()
    assert node.state is NodeState.SUSPECT


def test_a_slow_node_is_in_use_while_its_probe_is_pending() -> None:
    world = World({"n0": 2, "n1": 2}, _POLICY)
    first, second = world.submit(1, 10_000.0), world.submit(1, 10_000.0)
    world.running()
    assert world.nodes_of(first) == world.nodes_of(second) == {"n0"}
    world.cycle(world.verdict(first), world.verdict(second))
    world.advance(101.0)
    assert world.job_state("probe-n0-1") is JobState.PENDING
    world.end(second, 0)
    for _ in range(3):
        last = world.submit(1, 10_000.0)
    world.advance(1.0)
    assert world.state.nodes["n0"].state is NodeState.SUSPECT
    assert world.job_state("probe-n0-1") is JobState.CANCELLED
    assert world.nodes_of(last) == {"n0"}


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_very_slow_or_confirmed_node_stays_in_quarantine(confirmed: bool) -> None:
    world = World({"n0": 2, "n1": 2}, _POLICY)
    first, second = world.submit(1, 100.0), world.submit(1, 100.0)
    world.running()
    found = [world.verdict(job_id, slowdown=2.0 if confirmed else 4.0) for job_id in (first, second)]
    world.cycle(*found)
    if confirmed:
        world.cycle(*(VerdictJudged(one.verdict_id, True, "eve") for one in found))
    for _ in range(3):
        waits = world.submit(2, 10_000.0)
    world.advance(1.0)
    world.advance(1.0)
    assert world.state.nodes["n0"].state is NodeState.QUARANTINE
    assert world.job_state(waits) is JobState.PENDING


def test_a_node_without_recovery_stays_suspect_as_long_as_it_was_slow() -> None:
    world, job_id = four_nodes(restartable=False)
    world.cycle(world.verdict(job_id, rank=3))
    node = world.state.nodes["n1"]
    world.advance(395.0)  # its slowness began 5 s before the verdict
    world.end(job_id, 0)
    world.advance(399.0)
    assert node.state is NodeState.SUSPECT
    world.advance(2.0)
    assert (node.state, node.probe_job, node.backoff) == (NodeState.QUARANTINE, "probe-n1-1", 0), (
        "and probed afterwards"
    )
    world.running()
    world.end("probe-n1-1", 0)
    assert node.state is NodeState.PROBATION
    world.advance(51.0)
    assert (node.state, node.slowdown, node.doubted_ns) == (NodeState.HEALTHY, 1.0, None)


def test_a_node_that_fails_its_probe_is_quarantined_without_a_verdict() -> None:
    world, job_id = four_nodes(restartable=False)
    world.cycle(world.verdict(job_id, rank=3))
    world.end(job_id, 0)
    world.advance(31.0)
    world.running()
    world.end("probe-n1-1", 0, 1)
    node = world.state.nodes["n1"]
    assert (node.state, node.backoff) == (NodeState.QUARANTINE, 1)
    assert "did not pass" in node.reason


def test_a_suspect_node_that_jobs_need_gets_probation_instead_of_a_probe() -> None:
    world, job_id = four_nodes(restartable=False)
    world.cycle(world.verdict(job_id, rank=3))
    world.end(job_id, 0)
    others = [world.submit(2, 10_000.0) for _ in range(5)]
    world.running()
    world.advance(1.0)
    world.advance(30.0)
    node = world.state.nodes["n1"]
    assert node.state is NodeState.PROBATION
    here = next(other for other in others if world.nodes_of(other) == {"n1"})
    world.cycle(world.verdict(here, slowdown=4.0))
    assert node.state is NodeState.QUARANTINE, "a verdict in the meantime confirms the suspicion"


def test_a_move_gains_less_if_pending_jobs_get_the_slow_slots() -> None:
    world, job_id = four_nodes(replace(_POLICY, order=Order.FAIR))
    world.cycle(FreezeSet(True))
    narrow = world.submit(2, 10_000.0)
    world.advance(1.0)
    assert world.job_state(narrow) is JobState.PENDING
    world.cycle(world.verdict(job_id, rank=3))
    detail = last_detail(world, "migrate")
    assert (detail["share"], detail["benefit_seconds"]) == ("0.500", "445.5"), "two of its four ranks would go"


def test_a_fault_is_expected_to_last_as_long_again() -> None:
    world, job_id = four_nodes(replace(_POLICY, expected_persistence_seconds=10.0), time_limit_seconds=10_000.0)
    world.cycle(world.verdict(job_id, rank=3))
    assert world.state.jobs[job_id].stop_reason is None, "5 s of a move of 10 s would be saved"
    world.advance(18.0)
    assert world.state.jobs[job_id].stop_reason is None
    world.advance(3.0)
    assert world.state.jobs[job_id].stop_reason is StopReason.MIGRATE, "it has cost as much as the move by now"


def test_gangs_on_quarantined_nodes_are_not_preempted() -> None:
    policy = replace(_POLICY, order=Order.FAIR, estimates=Estimates.EXACT, preempt=True, backfill=Backfilling.EASY)
    world = World({"n0": 2, "n1": 2}, policy)
    wasteful = world.submit(2, 10_000.0, **_MOVABLE, preemptible=True, exact_seconds=10_000.0)
    other = world.submit(2, 10_000.0, **_MOVABLE, preemptible=True, exact_seconds=9_000.0)
    world.running()
    (name,) = world.nodes_of(wasteful)
    world.cycle(NodeCommanded(name, NodeCommand.MAINTENANCE))
    world.advance(1000.0)
    short = world.submit(2, 10.0, exact_seconds=10.0)
    world.advance(60.0)
    assert world.job_state(wasteful) is JobState.RUNNING
    assert (world.state.jobs[other].preemptions, world.job_state(short)) == (1, JobState.COMPLETED)


# --- gangs on nodes with a known fault --------------------------------------------------------------------------------


def two_on_one_node(level: str = "node") -> tuple[World, str]:
    """Start two gangs of one rank on n0. One has a verdict about its node and ends. Return the id of the other."""
    world = World({"n0": 2, "n1": 2}, _POLICY)
    accused = world.submit(1, 10_000.0)
    other = world.submit(1, 10_000.0, **(_MOVABLE | {"time_limit_seconds": 1000.0}))
    world.running()
    world.advance(20.0)
    assert world.nodes_of(accused) == world.nodes_of(other) == {"n0"}
    world.cycle(world.verdict(accused, slowdown=2.0, level=level))
    world.end(accused, 0)
    return world, other


def test_a_gang_without_a_verdict_leaves_a_known_slow_node() -> None:
    world, other = two_on_one_node()
    world.advance(12.0)  # suspect for 17 s at half speed: 8.5 s, less than a move of 10 s
    assert world.state.jobs[other].stop_reason is None
    world.advance(12.0)
    job = world.state.jobs[other]
    assert (job.stop_reason, {slot.node for slot in job.claim}) == (StopReason.MIGRATE, {"n1"})
    assert world.state.nodes["n0"].accusers and other not in world.state.nodes["n0"].accusers, "it has no verdict"


def test_a_gang_without_a_verdict_stays_if_only_a_device_is_slow() -> None:
    world, other = two_on_one_node("gpu")
    world.advance(25.0)
    assert world.state.jobs[other].stop_reason is None


def test_a_gang_without_a_verdict_stays_while_jobs_need_its_slots_or_actions_are_frozen() -> None:
    world, other = two_on_one_node()
    for _ in range(2):
        world.submit(2, 10_000.0, time_limit_seconds=50.0)
    world.advance(24.0)
    assert world.state.jobs[other].stop_reason is None
    world, other = two_on_one_node()
    world.cycle(FreezeSet(True))
    world.advance(24.0)
    assert world.state.jobs[other].stop_reason is None


def test_a_gang_without_a_verdict_stays_once_the_node_has_recovered() -> None:
    world = World({"n0": 2, "n1": 2}, _POLICY)
    accused = world.submit(1, 10_000.0)
    other = world.submit(1, 10_000.0, **_MOVABLE)
    world.running()
    world.advance(20.0)
    verdict = world.verdict(accused, slowdown=2.0, level="node")
    world.cycle(verdict)
    world.advance(5.0)
    world.cycle(Cleared(verdict.verdict_id, accused, world.now_ns, "runs at normal speed"))
    world.advance(25.0)
    assert world.state.jobs[other].stop_reason is None
    assert world.state.nodes["n0"].state is NodeState.SUSPECT


def test_a_gang_stays_on_a_recovered_quarantined_node_until_it_is_slow_again() -> None:
    """Verdicts about two of three gangs of one rank on n0 quarantine it; the gangs stay."""
    world = World({"n0": 3, "n1": 3}, _POLICY)
    accused = [world.submit(1, 10_000.0) for _ in range(2)]
    other = world.submit(1, 10_000.0, **(_MOVABLE | {"time_limit_seconds": 1000.0}))
    world.running()
    world.advance(20.0)
    verdicts = [world.verdict(job_id, slowdown=2.0, level="node") for job_id in accused]
    world.cycle(*verdicts)
    node = world.state.nodes["n0"]
    assert node.state is NodeState.QUARANTINE
    world.advance(5.0)
    world.cycle(Cleared(verdicts[0].verdict_id, accused[0], world.now_ns, "runs at normal speed"))
    assert node.doubted_ns is not None, "the other verdict is still active"
    world.cycle(Cleared(verdicts[1].verdict_id, accused[1], world.now_ns, "runs at normal speed"))
    world.advance(60.0)
    assert world.state.jobs[other].stop_reason is None
    assert node.state is NodeState.QUARANTINE, "it stays out of use for the planned time"
    world.cycle(world.verdict(accused[0], slowdown=2.0, level="node"))
    world.advance(25.0)
    assert world.state.jobs[other].stop_reason is StopReason.MIGRATE


def test_observe_mode_logs_once_what_it_would_do() -> None:
    world, other = two_on_one_node()
    world.state.policy = replace(world.state.policy, mode=Mode.OBSERVE)
    for _ in range(4):
        world.advance(12.0)
    assert [e.applied for e in world.entries if e.subject == other and e.kind == "migrate"] == [False]
    assert world.state.jobs[other].stop_reason is None


def test_a_restarted_controller_evaluates_pending_jobs_the_same() -> None:
    """Found by the state machine, seed 20079: the restored state lacked the record of evaluated jobs."""
    world, job_id = four_nodes(replace(_POLICY, order=Order.FAIR))
    world.cycle(FreezeSet(True))
    world.submit(2, 10_000.0)
    world.cycle(world.verdict(job_id, rank=3))
    fresh = decode_state(encode_state(world.state))
    assert not any(others_want(state, state.nodes["n1"]) for state in (world.state, fresh)), "it was just submitted"
    world.advance(1.0)
    fresh = decode_state(encode_state(world.state))
    assert all(others_want(state, state.nodes["n1"]) for state in (world.state, fresh))
