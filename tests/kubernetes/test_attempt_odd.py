"""Unusual starts and ends of an attempt that look like a failure, a hole or a member and are none. No API server."""

from __future__ import annotations

import pytest

from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import (
    Attempt,
    DoesNotFitError,
    Member,
    Phase,
    adopt,
    assign,
    rejected,
    renumbered,
    scan_attempt,
)
from scheduler_feedback.backends.kubernetes.published.marks import marks_of
from scheduler_feedback.core import cluster
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, RankExit
from scheduler_feedback.core.job import Slot
from tests.kubernetes.makers import pod
from tests.kubernetes.test_attempt import bind, bound, cache_of, phase, placed, running

DELETED = "2026-01-01T00:00:00Z"


def test_a_succeeded_pod_that_is_deleted_afterwards_has_succeeded() -> None:
    """Its owner cleans up. That makes no hole, and the exit code is known."""
    attempt, pods = running("w-0", "w-1")
    done = {uid: phase(one, "Succeeded") for uid, one in pods.items()}
    for one in done.values():
        one.metadata.deletion_timestamp = DELETED
    (event,) = scan_attempt(attempt, done)
    assert isinstance(event, AttemptEnded)
    assert event.exits == (RankExit(0, 0), RankExit(1, 0))
    assert [member.hole for member in attempt.members] == [False, False]


def test_a_pod_that_ran_and_was_evicted_was_not_rejected() -> None:
    """A kubelet's rejection has no container; an eviction has a reason and containers that ran."""
    attempt, pods = bound("w-0")
    (uid,) = pods
    evicted = phase(pods[uid], "Failed", 137)
    evicted.status.reason, evicted.status.message = "Evicted", "The node was low on resource: memory"
    assert rejected(attempt, {uid: evicted}) == ""


def test_a_pod_of_the_same_name_bound_to_another_node_is_no_member() -> None:
    """Another scheduler has bound it, perhaps after its owner recreated it."""
    declared, pods = placed()
    bind(pods[0], "n0", 1, 0)
    bind(pods[1], "n7", 1, 1)
    attempt = adopt("j", 1, "default/g", pods, declared)
    assert attempt is not None
    assert [(member.node, member.hole) for member in attempt.members] == [("n0", False), ("n1", True)]


def test_pods_of_a_gang_that_ended_unobserved_are_members() -> None:
    declared, pods = placed()
    over = [phase(one, "Succeeded") for one in pods]
    attempt = adopt("j", 1, "default/g", over, declared)
    assert attempt is not None
    assert [member.hole for member in attempt.members] == [False, False]


def attempt_on(node: str, *slots: tuple[int, ...], reported: bool = True) -> Attempt:
    members = [
        Member(f"default/w-{index}", f"uid-{index}", node, range(index, index + len(one)), one)
        for index, one in enumerate(slots)
    ]
    return Attempt("j", 1, "default/g", (), Phase.BOUND, members, reported)


@pytest.mark.parametrize(
    ("held", "left", "wanted"),
    [
        (((6,), (7,)), 8, None),  # the last slot of eight is 7
        (((6,), (7,)), 7, ((0,), (1,))),
        (((7,), (8,)), 8, ((0,), (1,))),  # one slot past the end, by one
        (((0,), (1,)), 2, None),
        (((3, 4), (0, 1)), 4, ((0, 1), (2, 3))),
    ],
)
def test_slots_that_a_node_no_longer_has_get_new_numbers(
    held: tuple[tuple[int, ...], ...], left: int, wanted: tuple[tuple[int, ...], ...] | None
) -> None:
    attempt = attempt_on("n0", *held)
    changed = renumbered([attempt], {"n0": left})
    assert [member.slots for member in attempt.members] == list(wanted or held)
    if wanted is None:
        assert changed == []
    else:
        (event,) = changed
        assert isinstance(event, AttemptRunning)
        assert [rank.slot for rank in event.ranks] == [slot for one in wanted for slot in one]
        assert attempt.placement == tuple(Slot("n0", slot) for one in wanted for slot in one)


def test_new_slot_numbers_are_not_reported_before_the_attempt_runs() -> None:
    assert renumbered([attempt_on("n0", (9,), reported=False)], {"n0": 8}) == []
    assert renumbered([attempt_on("n0", (9,))], {"n1": 8}) == [], "another node's slots"


def test_a_gang_with_one_pod_that_does_not_fit_assumes_no_resources() -> None:
    """The assumed use of the first pod is released, so that the next gang can have it."""
    cache = cache_of("n0", "n1")
    pods = [pod("w-0", 8, "g"), pod("w-1", 8, "g")]
    both_on_one = [Slot("n0", slot % 8) for slot in range(16)]
    with pytest.raises(DoesNotFitError):
        assign(cache, pods, both_on_one)
    free = cache.free_of("n0")
    assert free["nvidia.com/gpu"] == 8
    assert len(assign(cache, pods, [*both_on_one[:8], *(Slot("n1", slot) for slot in range(8))])) == 2


@pytest.mark.parametrize(
    ("state", "slowdown", "score"),
    [
        (NodeState.SUSPECT, 2.0, "50"),
        (NodeState.QUARANTINE, 2.0, "50"),  # out of use for slowness: the slowdown is stated
        (NodeState.QUARANTINE, 1.0, "0"),  # out of use for another reason
        (NodeState.MAINTENANCE, 1.0, "0"),
        (NodeState.PROBATION, 1.0, "100"),
    ],
)
def test_the_score_is_the_nodes_speed_in_percent(state: NodeState, slowdown: float, score: str) -> None:
    assert marks_of(cluster.Node("n0", 8, state=state, slowdown=slowdown)).score == score
