"""Restart of hanging gangs on other nodes: when it happens, and the reasons against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_event, decode_state, encode_event, encode_state
from scheduler_feedback.core.events import FreezeSet, NodeSeen, Tick, VerdictJudged
from scheduler_feedback.core.job import JobState, Slot, StopReason
from scheduler_feedback.core.mig import MODELS
from scheduler_feedback.core.state import Mode, Policy, Sharing
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict
from scheduler_feedback.policies.index.scheduling_index import drop_index
from tests.cluster.cycle_world import SECOND, World
from tests.policies.test_feedback import _POLICY, four_nodes
from tests.policies.test_sharing import pair

STOPPED = Evidence("process_state", 3.0, 1.0, "state", "rank 3's process is stopped (SIGSTOP)", 4.0)


def hang(world: World, job_id: str, **changes: Any) -> Verdict:
    fields = {
        "kind": Kind.HANG, "cause": Cause.NEVER_ARRIVED, "slowdown": 470.0, "step_seconds_now": 47.0,
        "first_wall_ns": world.now_ns - 47 * SECOND, "evidence": (STOPPED,),
    }  # fmt: skip
    return world.verdict(job_id, **({"rank": 3} | fields | changes))


def entries(world: World, kind: str) -> list[str]:
    return [entry.text for entry in world.entries if entry.kind == kind]


def test_a_gang_that_hangs_is_restarted_away_from_the_culprit() -> None:
    world, job_id = four_nodes()
    outcome = world.cycle(hang(world, job_id))
    (stop,) = outcome.actions
    assert isinstance(stop, StopGang)
    assert (stop.job_id, stop.why, stop.signal) == (job_id, StopReason.MIGRATE, "SIGTERM")
    (text,) = entries(world, "restart")
    assert text == (
        "will restart: rank 3 of j-000001 on n1 hangs (did not enter the collective that blocks its peers): no step "
        "for 47 s, rank 3's process is stopped (SIGSTOP), confidence 0.99: a restart is expected to cost 10 s"
    )
    assert world.state.nodes["n1"].state is NodeState.QUARANTINE
    world.end(job_id, 75)
    assert "n1" not in world.nodes_of(job_id)
    assert world.state.jobs[job_id].attempt == 2
    assert decode_state(encode_state(world.state)) == world.state


@pytest.mark.parametrize(
    ("verdict", "spec", "policy", "words"),
    [
        ({}, {}, {"restart_on_hang": False}, "not restarted: policy.restart_on_hang is off; the hang has cost 47 s"),
        ({}, {"restartable": False}, {}, "not restarted: it is not declared restartable; the hang has"),
        ({"confidence": 0.949}, {}, {}, "not restarted: confidence 0.95 is below 0.95; the hang"),
        ({"confidence": 0.97}, {}, {"minimum_confidence": 0.98}, "not restarted: confidence 0.97 is below 0.98"),
        (
            {"longest_pause_seconds": 40.0},
            {},
            {},
            "not restarted: it once resumed after a pause of 40 s; it is restart",
        ),
    ],
)
def test_why_a_gang_that_hangs_is_not_restarted(
    verdict: dict[str, Any], spec: dict[str, Any], policy: dict[str, Any], words: str
) -> None:
    world, job_id = four_nodes(replace(_POLICY, **policy), **spec)
    outcome = world.cycle(hang(world, job_id, **verdict))
    assert not outcome.actions
    (stay,) = entries(world, "stay")
    assert stay.startswith(words)
    assert "a restart would cost about 10 s" in stay
    assert "470" not in stay, "a hang has no slowdown"
    assert not world.cycle(Tick()).entries, "logged once"


def test_a_restart_waits_for_one_and_a_half_times_the_longest_pause() -> None:
    world, job_id = four_nodes()
    world.cycle(hang(world, job_id, longest_pause_seconds=40.0))  # 47 s by now: due at 60 s
    assert world.job_state(job_id) is JobState.RUNNING
    due_ns = world.now_ns + 13 * SECOND
    while world.now_ns < due_ns:
        wake_ns = cycle.next_wake_ns(world.state)
        assert wake_ns is not None
        assert wake_ns == cycle.next_wake_ns(decode_state(encode_state(world.state))), (
            "the same after a restart of the controller"
        )
        assert world.now_ns < wake_ns <= due_ns, "without a timeout there would be no cycle"
        assert world.job_state(job_id) is JobState.RUNNING
        world.now_ns = wake_ns
        outcome = world.cycle(Tick())
    assert outcome.actions


def test_a_hanging_gang_is_restarted_after_its_cooldown() -> None:
    world, job_id = four_nodes()
    world.state.jobs[job_id].last_migration_ns = world.now_ns - 290 * SECOND
    drop_index(world.state)
    assert not world.cycle(hang(world, job_id)).actions
    assert "moved less than 5 min ago" in entries(world, "stay")[0]
    world.now_ns += 10 * SECOND
    assert world.cycle(Tick()).actions


def test_a_hang_while_frozen_in_observe_mode_and_confirmed() -> None:
    """The conditions of a move apply to a restart too. An operator's confirmation overrides them."""
    world, job_id = four_nodes()
    world.cycle(FreezeSet(True, "ann"))
    assert not world.cycle(hang(world, job_id)).actions
    assert entries(world, "restart")[0].startswith("would restart, but actions are frozen: rank 3 of j-000001")
    assert world.cycle(FreezeSet(False, "ann")).actions

    world, job_id = four_nodes(replace(_POLICY, mode=Mode.OBSERVE))
    assert not world.cycle(hang(world, job_id)).actions
    assert entries(world, "restart")[0].startswith("would restart: rank 3")
    assert [decision.applied for decision in world.state.decisions] == [False]

    world, job_id = four_nodes(replace(_POLICY, restart_on_hang=False))
    verdict = hang(world, job_id, confidence=0.9)
    assert not world.cycle(verdict).actions
    assert f"gangwatch verdict confirm {verdict.verdict_id}" in entries(world, "stay")[0]
    assert world.cycle(VerdictJudged(verdict.verdict_id, True, "ann")).actions


def test_without_other_slots_a_gang_restarts_on_its_own() -> None:
    world = World({"n0": 2, "n1": 2}, _POLICY)
    job_id = world.submit(4, 10_000.0, restartable=True, grace_seconds=4.0, time_limit_seconds=1000.0)
    world.running()
    world.advance(100.0)
    assert world.cycle(hang(world, job_id)).actions
    assert "a restart on the same slots, because no others are free," in entries(world, "restart")[0]
    world.end(job_id, 137)
    job = world.state.jobs[job_id]
    assert (job.attempt, world.nodes_of(job_id)) == (2, {"n0", "n1"})
    assert world.state.nodes["n1"].state is NodeState.SUSPECT
    # It hangs again, within the cooldown between two moves.
    world.running()
    world.advance(100.0)
    assert not world.cycle(hang(world, job_id)).actions


def test_a_hanging_gang_waits_for_healthy_slots() -> None:
    world = World({f"n{i}": 2 for i in range(3)}, _POLICY)
    job_id = world.submit(4, 10_000.0, restartable=True, grace_seconds=4.0, time_limit_seconds=1000.0)
    world.running()
    other = world.submit(2, 300.0, time_limit_seconds=300.0)
    world.running()
    world.advance(100.0)
    assert world.cycle(hang(world, job_id)).actions
    assert entries(world, "requeue")[0].startswith("will go back to the queue: rank 3 of j-000001")
    world.end(job_id, 137)
    assert world.job_state(job_id) is JobState.PENDING
    world.end(other, 0)
    assert (world.job_state(job_id), world.nodes_of(job_id)) == (JobState.STARTING, {"n0", "n2"})


def test_a_verdict_without_the_newer_field_is_read_and_a_newer_one_is_kept() -> None:
    """Include journals of earlier and later releases."""
    world, job_id = four_nodes()
    verdict = hang(world, job_id, longest_pause_seconds=12.0)
    assert decode_event(encode_event(verdict)) == verdict
    name, body = msgspec.msgpack.decode(encode_event(verdict))
    del body["longest_pause_seconds"]
    old = decode_event(msgspec.msgpack.encode((name, body)))
    assert old == replace(verdict, longest_pause_seconds=None)
    assert Policy().restart_on_hang


def test_a_gang_beside_others_restarts_without_their_slots() -> None:
    """It reserved the whole GPU, and waited until the job in the other instance of it had ended."""
    world = World({"n0": 1}, replace(_POLICY, mig=True))
    world.cycle(NodeSeen("n0", 1, mig_profiles=MODELS["A100-80GB"]))
    spec: dict[str, Any] = {"restartable": True, "grace_seconds": 4.0, "mig_profile": "3g.40gb"}
    stays, hangs = (world.submit(1, 10_000.0, **spec, time_limit_seconds=100_000.0) for _ in range(2))
    world.running()
    world.advance(100.0)
    assert {action.job_id for action in world.cycle(hang(world, hangs, rank=0)).actions} == {hangs}
    assert not world.state.jobs[hangs].claim
    world.end(hangs, 137)
    assert [world.state.jobs[one].state.holds_slots for one in (stays, hangs)] == [True, True]
    assert [world.state.jobs[one].attempt for one in (stays, hangs)] == [1, 2]


@pytest.mark.parametrize("hangs", ["host", "guest"])
def test_a_hanging_host_keeps_its_slot_and_a_hanging_guest_leaves_it(hangs: str) -> None:
    """The guest leaves with its host. The host stays when its guest leaves."""
    world, host, guest = pair(replace(_POLICY, sharing=Sharing.GANDIVA), restartable=True, grace_seconds=4.0)
    world.advance(100.0)
    world.cycle(hang(world, {"host": host, "guest": guest}[hangs], rank=0))
    claims = [world.state.jobs[one].claim for one in (host, guest)]
    stopped = [world.state.jobs[one].stop_reason is not None for one in (host, guest)]
    assert (claims, stopped) == (
        ([[Slot("n0", 0)], []], [True, True]) if hangs == "host" else ([[], []], [False, True])
    )


def test_a_hanging_gang_with_all_instances_on_one_gpu_restarts_there() -> None:
    """benchmarks.invariants, seed 6500028"""
    world = World({"n0": 1}, replace(_POLICY, mig=True))
    world.cycle(NodeSeen("n0", 1, mig_profiles=MODELS["A100-80GB"]))
    hangs = world.submit(2, 5000.0, mig_profile="1g.10gb", restartable=True, time_limit_seconds=5000.0)
    job = world.state.jobs[hangs]
    before = job.mig_starts
    world.running()
    world.advance(300.0)
    world.cycle(hang(world, hangs, rank=0))
    assert job.stop_reason is StopReason.MIGRATE and job.claim == [Slot("n0", 0)] * 2
    world.end(hangs, 75, signalled=True)
    for _ in range(60):
        if job.state is not JobState.PENDING:
            break
        world.advance(1.0)
    assert (job.state, job.attempt, job.mig_starts) == (JobState.STARTING, 2, before)
