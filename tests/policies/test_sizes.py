"""Joint sizes: options, values, the choice by prices, and resizes of running gangs."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    Event,
    FreezeSet,
    NodeSeen,
    RankExit,
    SpeedMeasured,
    Submitted,
    Tick,
)
from scheduler_feedback.core.job import Group, Job, JobSpec, JobState
from scheduler_feedback.core.state import Estimates, Mode, Order, Policy, Queue, Sizes, State
from scheduler_feedback.policies.sizes.choosing import choose
from scheduler_feedback.policies.sizes.options import Option, sizes_of
from scheduler_feedback.policies.sizes.value import reduced, valued

SECOND = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND


def best(jobs: list[list[Option]], slots: list[int]) -> float:
    """Return the largest sum of values, by trying every combination in which all jobs run."""
    found = float("-inf")
    for chosen in itertools.product(*jobs):
        used = [0] * len(slots)
        for one in chosen:
            used[one.type_number] += one.ranks
        if all(a <= b for a, b in zip(used, slots, strict=True)):
            found = max(found, sum(one.value for one in chosen))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_fits_and_is_near_the_best_one(seed: int) -> None:
    chance = random.Random(seed)
    types = chance.choice([1, 2])
    slots = [chance.randint(6, 12) for _ in range(types)]
    jobs = []
    for _ in range(chance.randint(2, 4)):
        power, base = chance.uniform(0.2, 1.0), [chance.uniform(0.5, 2.0) for _ in slots]
        sizes = sorted([*chance.sample(range(1, 7), 3), 1])
        jobs.append([Option(t, n, 1.0, base[t] * n**power) for t in range(types) for n in dict.fromkeys(sizes)])
    chosen = choose(jobs, slots)
    used = [0] * types
    for one in chosen:
        assert one is not None, "the least sizes fit"
        used[one.type_number] += one.ranks
    assert all(a <= b for a, b in zip(used, slots, strict=True))
    assert sum(one.value for one in chosen if one is not None) >= 0.85 * best(jobs, slots)


def test_jobs_that_come_first_get_their_least_size_first() -> None:
    jobs = [[Option(0, 3, 1.0, 1.0)], [Option(0, 2, 1.0, 9.0), Option(0, 1, 1.0, 1.0)], [Option(0, 1, 1.0, 50.0)]]
    first, second, third = choose(jobs, [4])
    assert first is not None and second is not None and (first.ranks, second.ranks, third) == (3, 1, None)
    assert choose([], [4]) == [] and choose([[]], [4]) == [None]


def test_sizes_are_powers_of_two_whole_nodes_and_whole_groups() -> None:
    elastic = Job("j", JobSpec("j", ("x",), 5, min_ranks=1, max_ranks=20), JobState.PENDING, 0)
    assert sizes_of(elastic, 8) == [1, 2, 3, 4, 5, 6, 8, 12, 16, 20]
    groups = tuple(Group(f"g{n}", 2) for n in range(2))
    assert sizes_of(
        Job("j", JobSpec("j", ("x",), 4, min_ranks=2, max_ranks=8, groups=groups), JobState.PENDING, 0), 5
    ) == [2, 4, 6, 8]
    assert sizes_of(Job("j", JobSpec("j", ("x",), 3), JobState.PENDING, 0), 8) == [3]


def test_the_values_of_the_objectives() -> None:
    job = Job("j", JobSpec("j", ("x",), 2, min_ranks=1, max_ranks=4), JobState.PENDING, 0)
    options = [Option(0, 1, 0.5), Option(0, 4, 2.0)]
    values = {sizes: [one.value for one in valued(sizes, job, options, 100.0)] for sizes in Sizes}
    assert values[Sizes.SPEEDUP] == [1.0, 4.0] and values[Sizes.REMAINING] == [-200.0, -50.0]
    assert values[Sizes.GOODPUT] == [-1.0, -0.5]
    for sizes in (Sizes.SPEEDUP, Sizes.REMAINING, Sizes.GOODPUT):
        (one,) = valued(sizes, job, options[1:], 100.0)
        slower = valued(sizes, job, [one._replace(speed=one.speed / 2), options[0]], 100.0)[0]
        if sizes is not Sizes.GOODPUT:  # its values are relative to the slowest option
            assert reduced(sizes, one, 0.5).value == pytest.approx(slower.value)
        assert reduced(sizes, one, 0.5).value < one.value


class Cluster:
    """Two nodes of four slots; jobs resize as they are asked to."""

    def __init__(self, sizes: Sizes = Sizes.SPEEDUP, nodes: int = 2, **policy: Any) -> None:
        chosen: dict[str, Any] = {"order": Order.FIFO, "estimates": Estimates.EXACT, "migration_cooldown_seconds": 0.0}
        self.state = State(policy=Policy(sizes=sizes, **(chosen | policy)))
        self.seconds = 0.0
        self.entries: list[tuple[str, str, str]] = []
        self.cycle(*(NodeSeen(f"n{n}", 4, rack="r") for n in range(nodes)))

    def cycle(self, *events: Event) -> None:
        now_ns = BEGIN_NS + round(self.seconds * SECOND)
        pending = list(events)
        while True:
            outcome = cycle.run(self.state, pending or [Tick()], now_ns)
            self.entries += [(entry.subject, entry.kind, entry.text) for entry in outcome.entries]
            pending = []
            for action in outcome.actions:
                if isinstance(action, StartGang):
                    pending.append(AttemptRunning(action.job_id, action.attempt, ()))
                elif isinstance(action, StopGang):
                    job = self.state.jobs[action.job_id]
                    exits = tuple(RankExit(rank.rank, 143) for rank in job.ranks)
                    pending.append(AttemptEnded(action.job_id, action.attempt, exits, signalled=True))
            if not pending:
                return

    def submit(self, job_id: str, ranks: int, **spec: Any) -> None:
        fields: dict[str, Any] = {
            "exact_seconds": 5000.0, "grace_seconds": 0.0, "restart_cost_seconds": 5.0, "restartable": True,
            "min_ranks": 1, "max_ranks": 8, "workload": job_id,
        }  # fmt: skip
        self.cycle(Submitted(job_id, JobSpec(job_id, ("train",), ranks, **(fields | spec))))

    def end(self, job_id: str) -> None:
        job = self.state.jobs[job_id]
        exits = tuple(RankExit(rank.rank, 0) for rank in job.ranks)
        self.cycle(AttemptEnded(job_id, job.attempt, exits))

    def measure(self, job_id: str, per_second: float) -> None:
        self.cycle(SpeedMeasured(job_id, self.state.jobs[job_id].attempt, per_second, 120.0))

    def ranks(self, job_id: str) -> int:
        return len(self.state.jobs[job_id].ranks) if self.state.jobs[job_id].state.holds_slots else 0

    def said(self, job_id: str, kind: str) -> list[str]:
        return [text for subject, name, text in self.entries if (subject, name) == (job_id, kind)]


@pytest.mark.parametrize("sizes", [Sizes.SPEEDUP, Sizes.REMAINING, Sizes.GOODPUT])
def test_a_job_that_scales_badly_gives_its_slots_to_one_that_scales_well(sizes: Sizes) -> None:
    world = Cluster(sizes)
    for name in ("bad", "good"):  # the speed of one rank is known from earlier jobs of the class
        world.submit(f"earlier-{name}", 1, max_ranks=1, workload=name)
        world.measure(f"earlier-{name}", 1.0)
        world.end(f"earlier-{name}")
    world.submit("bad", 4, max_ranks=4)
    world.submit("good", 4)
    world.seconds = 500.0
    world.cycle()
    assert (world.ranks("bad"), world.ranks("good")) == (4, 4)
    for _ in range(3):
        world.measure("bad", 1.0)  # four ranks are as fast as one
        world.measure("good", float(world.ranks("good")))
        world.seconds += 130.0
        world.cycle()
    assert world.ranks("bad") < 4 < world.ranks("good")
    (text, *_) = world.said("bad", "shrink")
    assert "measured speeds of its class give" in text and "times its speed" in text


def test_without_measurements_and_learning_nothing_is_resized() -> None:
    settings: tuple[dict[str, Any], ...] = ({}, {"learn_speeds": False})
    for policy in settings:
        world = Cluster(**policy)
        world.submit("bad", 4, max_ranks=4)
        world.submit("good", 4)
        world.seconds = 100.0
        world.cycle()
        if policy:
            world.seconds = 200.0
            world.measure("bad", 1.0)
            world.measure("good", 4.0)
        world.seconds = 1000.0
        world.cycle()
        assert (world.ranks("bad"), world.ranks("good")) == (4, 4)


def test_a_pending_job_gets_room_from_elastic_gangs_and_starts() -> None:
    world = Cluster()
    world.submit("wide", 8)
    assert world.ranks("wide") == 8
    world.seconds = 300.0
    world.submit("rigid", 4, min_ranks=None, max_ranks=None)
    assert (world.ranks("wide"), world.ranks("rigid")) == (4, 4)
    world.seconds = 700.0
    world.submit("late", 1, max_ranks=1)
    assert (world.ranks("late") == 1 and world.ranks("wide") == 3) or world.ranks("wide") == 2


def test_a_rigid_job_is_not_passed_by_later_jobs_that_would_take_its_slots() -> None:
    world = Cluster()
    world.submit("first", 6, min_ranks=None, max_ranks=None)
    world.submit("rigid", 4, min_ranks=None, max_ranks=None)
    world.submit("small", 2, exact_seconds=9000.0)
    assert (world.ranks("rigid"), world.ranks("small")) == (0, 0) or world.ranks("small") <= 2
    exits = tuple(RankExit(n, 0) for n in range(6))
    world.seconds = 500.0
    world.cycle(AttemptEnded("first", 1, exits))
    assert world.ranks("rigid") == 4


def test_a_resize_must_pay_for_its_restart() -> None:
    for seconds, ranks in ((1000.0, 8), (60.0, 4)):
        world = Cluster()
        world.submit("other", 4, max_ranks=4)
        world.submit("job", 4, exact_seconds=seconds, restart_cost_seconds=30.0)
        world.seconds = 5.0
        world.end("other")
        world.seconds = 200.0 if seconds > 200 else 20.0
        world.cycle()
        assert world.ranks("job") == ranks


def test_a_freeze_and_observe_mode_resize_nothing() -> None:
    for mode in (Mode.OBSERVE, Mode.ACT):
        world = Cluster(mode=mode)
        world.submit("other", 4, max_ranks=4)
        world.submit("job", 4)
        if mode is Mode.ACT:
            world.cycle(FreezeSet(True))
        world.end("other")
        world.seconds = 500.0
        world.cycle()
        assert world.ranks("job") == 4
        if mode is Mode.OBSERVE:
            assert world.said("job", "grow")[0].startswith("would continue with 8 ranks instead of 4")
        world.cycle(FreezeSet(False))
    assert world.ranks("job") == 8


def test_the_limit_of_a_queue_holds() -> None:
    world = Cluster(queues=(Queue("small", limit=5),))
    world.submit("limited", 4, queue="small")
    world.seconds = 500.0
    world.cycle()
    assert world.ranks("limited") <= 5


def test_an_array_starts_no_more_members_at_once_than_it_may() -> None:
    world = Cluster()
    world.submit("array", 1, max_ranks=2, array_size=4, array_parallel=2)
    held = [job for job in world.state.jobs.values() if job.state.holds_slots]
    assert len(held) == 2


def test_gangs_that_cannot_be_placed_as_chosen_stay_where_they_are() -> None:
    """Eight slots are enough for six ranks on one node only by number: no node has six."""
    world = Cluster()
    world.submit("other", 2, max_ranks=2)
    world.submit("job", 2, required_level=Level.NODE, max_ranks=6)
    world.seconds = 500.0
    world.cycle()
    assert world.ranks("other") == 2 and 2 <= world.ranks("job") <= 4
    assert len({rank.slot.node for rank in world.state.jobs["job"].ranks}) == 1
