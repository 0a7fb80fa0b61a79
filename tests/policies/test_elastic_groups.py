"""Elastic gangs with groups: they start, grow and shrink by whole groups, each on one node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Group, Job, JobSpec, JobState, RankRecord, Slot, resized
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.intake.job_admission import malformed
from scheduler_feedback.policies.queue.placement import place, pods_on
from scheduler_feedback.policies.queue.resizing import _split
from tests.policies.test_room import restart, two_gangs


def spec(pods: int, each: int = 4, least: int = 1, most: int = 4, **more: Any) -> JobSpec:
    groups = tuple(Group(f"pod-{n}", each, same_node=True) for n in range(pods))
    return JobSpec(
        "j", ("x",), pods * each, min_ranks=least * each, max_ranks=most * each, groups=groups, restartable=True, **more
    )


def job(wanted: JobSpec) -> Job:
    return Job("j", wanted, JobState.PENDING, 0)


@pytest.mark.parametrize(("free", "pods"), [((8, 8), 3), ((7, 8), 3), ((7, 7), 2), ((7, 3), 1), ((3, 3), 0)])
def test_an_elastic_gang_gets_as_many_whole_groups_as_fit(free: tuple[int, int], pods: int) -> None:
    busy = [Slot(f"n{n}", slot) for n in range(2) for slot in range(free[n], 8)]
    plan = Plan([Node("n0", 8), Node("n1", 8)], busy)
    slots = place(plan, job(spec(3)))
    assert len(slots or ()) == 4 * pods
    by_node = Counter(slot.node for slot in slots or ())
    assert all(count % 4 == 0 for count in by_node.values())
    assert sum(pods_on(spec(3), slots or ()).values()) == pods


def test_a_limit_on_ranks_is_rounded_down_to_whole_groups() -> None:
    assert [spec(2).size_at_most(ranks) for ranks in (3, 4, 15, 16)] == [0, 4, 12, 16]
    plan = Plan([Node("n0", 8), Node("n1", 8)])
    assert len(place(plan, job(spec(2)), most=15) or ()) == 12, "a queue has room for 15"
    plan = Plan([Node("n0", 8), Node("n1", 8)], [Slot("n1", 6), Slot("n1", 7)])
    assert len(place(plan, job(spec(2)), most=15) or ()) == 12, "14 slots are free"


def test_a_resized_specification_has_a_group_for_each_part_of_the_ranks() -> None:
    for pods in (1, 2, 4):
        changed = resized(spec(2), 4 * pods)
        assert (changed.ranks, [group.ranks for group in changed.groups]) == (4 * pods, [4] * pods)
        assert malformed(changed) is None
    assert resized(JobSpec("j", ("x",), 2), 5).ranks == 5


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"groups": (Group("a", 4, same_node=True), Group("b", 4))}, "fixed size, unless all groups are alike"),
        ({"groups": (Group("a", 2, same_node=True), Group("b", 6, same_node=True))}, "fixed size, unless all"),
        ({"min_ranks": 3}, "must be multiples of the 4 of a group"),
        ({"max_ranks": 10}, "must be multiples of the 4 of a group"),
    ],
)
def test_an_elastic_gang_with_other_groups_is_refused(changed: dict[str, Any], why: str) -> None:
    usual = {"min_ranks": 4, "max_ranks": 16, "groups": spec(2).groups}
    assert why in (malformed(JobSpec("j", ("x",), 8, **(usual | changed))) or "")
    assert malformed(spec(2)) is None


def test_a_gang_that_shrinks_keeps_whole_groups() -> None:
    running = job(spec(3, least=2))
    places = [*(Slot("n0", n) for n in range(4)), *(Slot("n1", n) for n in range(8))]
    running.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(places)]
    stay, leave = _split(running)
    assert [slot.node for slot in stay] == ["n1"] * 8 and [slot.node for slot in leave] == ["n0"] * 4
    shared = [*(Slot("n1", n) for n in range(6)), *(Slot("n0", n) for n in range(6))]
    uneven = job(spec(2, each=6, most=2))
    uneven.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(shared)]
    assert {slot.node for slot in _split(uneven)[0]} == {"n1"}


def test_a_gang_grows_by_whole_groups_and_its_start_has_them() -> None:
    groups = tuple(Group(f"pod-{n}", 2, same_node=True) for n in range(2))
    world, elastic, other = two_gangs(groups=groups, max_ranks=6)
    world.advance(50.0)
    world.end(other, 0)
    start = restart(world, elastic)
    assert (len(start.placement), start.spec.ranks) == (6, 6)
    assert [group.ranks for group in start.spec.groups] == [2, 2, 2]
    assert all(start.placement[n].node == start.placement[n + 1].node for n in (0, 2, 4))
