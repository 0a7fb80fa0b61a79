"""Resource use of ranks: frames with different layouts are processed in batches, and each counter counts for its
rank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.series import consumption, series_queue
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, CPU, Consumed, Trails
from scheduler_feedback.core.telemetry.series.frame_batch import Batch, rows_of
from scheduler_feedback.core.telemetry.steps.gang_attempts import ConsumedAt, Gang, GangConsumed, consumed_together
from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.core.telemetry.telemetry_update import Look

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND
OTHER = "gangwatch_host_cpu_seconds_total"

Owner = tuple[str, int]
"""A gang and one of its ranks."""


@dataclass
class Machine:
    """Agent of one node in plain integers: its counters' values, and which counters it sends."""

    name: str
    owners: tuple[Owner, ...]
    others: int = 0
    others_first: bool = False
    tiers: int = 1
    agent: str = "a"
    seq: int = 0
    without_io: bool = False
    reached: dict[tuple[Owner, int], int] = field(default_factory=dict)

    def layout(self) -> Layout:
        own = [
            Column(metric, (("attempt", "1"), ("gang", gang), ("rank", str(rank))), 0)
            for gang, rank in self.owners
            for metric in CONSUMED
        ]
        others = [Column(OTHER, (("mode", f"mode-{number}"),), 0) for number in range(self.others)]
        tiers = [Tier(f"tier-{number}", 1.0) for number in range(self.tiers)]
        return make_layout(self.name, tiers, (), others + own if self.others_first else own + others)

    def frame(self, at_ns: int) -> Frame:
        layout = self.layout()
        self.seq += 1
        own = [self.reached.get((owner, index), 0) for owner in self.owners for index in range(len(CONSUMED))]
        valid = [not (self.without_io and index == 2) for _ in self.owners for index in range(len(CONSUMED))]
        others, seen = [999_999_999_999] * self.others, [True] * self.others
        counters, mask = (others + own, seen + valid) if self.others_first else (own + others, valid + seen)
        # The ranks' tier was sampled last.
        tier_ns = at_ns - np.arange(self.tiers, dtype=np.int64) * (SECOND // 8)
        return Frame(
            self.name, "boot-" + self.name, self.agent, self.seq, layout.layout_id, WALL + at_ns, at_ns, tier_ns,
            np.zeros(0), np.array(counters, np.uint64), np.array(mask, np.bool_), 0, (),
        )  # fmt: skip

    def advance(self, owner: Owner, by: Sequence[int]) -> None:
        for index, amount in enumerate(by):
            self.reached[owner, index] = self.reached.get((owner, index), 0) + amount


def used(fleet: Fleet, owner: Owner) -> list[float]:
    """Return what a rank has used since its counters began, from the newest sample."""
    gang, rank = owner
    found = fleet.gangs[gang]
    far = np.full(len(found), 10_000 * SECOND, np.int64)
    row: list[float] = found.consumed(far).values[found.ranks.index(rank)].tolist()
    return row


def two_frames_each(fleet: Fleet, *machines: Machine) -> None:
    """Queue two frames of each machine before processing. Counters of machine k rise by k hundreds between them."""
    for round_number in (1, 2):
        for place, machine in enumerate(machines):
            frame = machine.frame(round_number * SECOND)
            assert fleet.observe(machine.layout(), frame, frame.monotonic_ns)
            for owner in machine.owners:
                machine.advance(owner, [100 * (place + 1) + index for index in range(len(CONSUMED))])


@pytest.mark.parametrize(
    ("lengths", "tiers"),
    [((3, 8), (1, 1)), ((0, 1, 2), (1, 1, 1)), ((0, 5), (1, 1)), ((1, 7), (1, 1)), ((0, 0), (1, 3)), ((0, 10), (2, 4))],
)
def test_nodes_with_frames_of_different_lengths_are_counted_separately(
    lengths: tuple[int, ...], tiers: tuple[int, ...]
) -> None:
    """Include lengths whose sum is a multiple of their number (6 + 12 counters, 1 + 3 tiers).

    Stacked, such frames would raise no error and shift each other's values.
    """
    machines = [
        Machine(f"n{place}", ((f"job-{place}", 0),), others, tiers=count)
        for place, (others, count) in enumerate(zip(lengths, tiers, strict=True))
    ]
    fleet = Fleet()
    two_frames_each(fleet, *machines)
    for place, machine in enumerate(machines):
        expected = [100.0 * (place + 1) + index for index in range(len(CONSUMED))]
        assert used(fleet, machine.owners[0]) == expected, machine.name
        newest = fleet.gangs[f"job-{place}"].consumed(np.array([10_000 * SECOND], np.int64))
        assert newest.at_ns.tolist() == [2 * SECOND], machine.name


def test_frames_of_different_lengths_are_never_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixed batch would be detected, and its frames processed one by one: correct, but a hundred times slower."""
    batches: list[set[tuple[int, int]]] = []
    fold = consumption.Places._fold

    def recorded_fold(self: consumption.Places, position: int, batch: Batch) -> None:
        batches.append({(len(one.counters), len(one.tier_ns)) for one in batch.frames})
        fold(self, position, batch)

    monkeypatch.setattr(consumption.Places, "_fold", recorded_fold)
    machines = [
        Machine(f"n{number}", (("j-1", number),), others=others, tiers=tiers)
        for number, (others, tiers) in enumerate(((3, 1), (8, 1), (3, 2), (3, 1)))
    ]
    fleet = Fleet()
    two_frames_each(fleet, *machines)
    fleet.gangs  # noqa: B018  # reading folds the queued frames
    assert len(batches) == 6 and all(len(kinds) == 1 for kinds in batches), "two frames of each of three kinds of nodes"


def test_ranks_use_the_time_of_their_own_node() -> None:
    """A gang has two ranks on each of two nodes whose clocks differ by hours. Their frames are processed together."""
    fleet = Fleet()
    machines = [Machine(f"n{number}", (("j-1", 2 * number), ("j-1", 2 * number + 1))) for number in range(2)]
    for round_number in (1, 2, 3):
        for hours, machine in enumerate(machines):
            frame = machine.frame(round_number * SECOND + hours * 7200 * SECOND)
            assert fleet.observe(machine.layout(), frame, frame.monotonic_ns)
            for owner in machine.owners:
                machine.advance(owner, [1000] * len(CONSUMED))
    found = fleet.gangs["j-1"].consumed(np.full(4, 10**6 * SECOND))
    assert (found.at_ns // SECOND).tolist() == [3, 3, 7203, 7203]
    between = np.array([5, 5, 14405, 14405]) * (SECOND // 2)
    assert fleet.gangs["j-1"].consumed(between).values[:, CPU].tolist() == [1500.0] * 4


def test_gangs_are_read_together_as_alone() -> None:
    """Also one that has left, whose samples another gang may have, and one of another fleet."""
    fleets = [Fleet(), Fleet()]
    for number, ranks in enumerate((2, 3, 1, 2)):
        machine = Machine(f"n{number}", tuple((f"j-{number}", rank) for rank in range(ranks)))
        two_frames_each(fleets[number == 3], machine)
    gangs = [fleets[number == 3].gangs[f"j-{number}"] for number in range(4)]
    asked: list[tuple[ConsumedAt, np.ndarray[Any, np.dtype[np.int64]]]] = []
    for number, gang in enumerate(gangs):
        offset_ns = np.arange(len(gang)) * SECOND + number
        for half_seconds in (2, 3):
            asked.append((GangConsumed(gang, offset_ns), offset_ns + half_seconds * SECOND // 2))
    asked.append((lambda at_ns: Consumed(np.zeros((len(at_ns), 6)), at_ns), np.arange(3)))
    fleets[0].forget("j-1")
    assert gangs[1].left
    for found, (of, at_ns) in zip(consumed_together(asked), asked, strict=True):
        alone = of(at_ns)
        np.testing.assert_array_equal(found.values, alone.values)
        assert found.at_ns.tolist() == alone.at_ns.tolist() and found.values.base is None


def test_slow_tier_keeps_its_whole_history() -> None:
    machine, fleet = Machine("n0", (("j-1", 0),)), Fleet()
    for tenth in range(10, 310):
        frame = machine.frame(tenth * SECOND // 10)
        frame.tier_ns[:] = tenth // 10 * SECOND
        frame.counters[:] = tenth // 10 * 1000
        assert fleet.observe(machine.layout(), frame, frame.monotonic_ns)
    asked = np.array([17 * SECOND + SECOND // 2])
    assert fleet.gangs["j-1"].consumed(asked).at_ns.tolist() == asked.tolist(), "sixteen samples are kept"


def test_layout_change_with_queued_frames_of_the_old_layout() -> None:
    """The rank's counters keep their positions; further counters come after them."""
    fleet = Fleet()
    steady, changing = Machine("n0", (("job-0", 0),)), Machine("n1", (("job-1", 0),))
    for second, others in ((1, 0), (2, 0), (3, 5), (4, 5), (5, 0)):
        changing.others = others
        for machine in (changing, steady):
            frame = machine.frame(second * SECOND)
            assert fleet.observe(machine.layout(), frame, frame.monotonic_ns)
            machine.advance(machine.owners[0], [1, 20, 300, 4000, 50_000, 600_000])
    assert used(fleet, ("job-0", 0)) == [4, 80, 1200, 16_000, 200_000, 2_400_000]
    assert used(fleet, ("job-1", 0)) == [4, 80, 1200, 16_000, 200_000, 2_400_000]


def test_joining_and_leaving_jobs_do_not_affect_other_jobs_on_the_node() -> None:
    fleet = Fleet()
    machine = Machine("n0", (("job-0", 0),))
    for second, owners in ((1, 1), (2, 2), (3, 2), (4, 1), (5, 3)):
        machine.owners = tuple((f"job-{number}", 0) for number in range(owners))
        frame = machine.frame(second * SECOND)
        assert fleet.observe(machine.layout(), frame, frame.monotonic_ns)
        for place in range(3):
            machine.advance((f"job-{place}", 0), [10 * (place + 1)] * len(CONSUMED))
    assert used(fleet, ("job-0", 0)) == [40.0] * len(CONSUMED)
    assert used(fleet, ("job-1", 0)) == [0.0] * len(CONSUMED), "the job came back, so its counters start again"
    assert used(fleet, ("job-2", 0)) == [0.0] * len(CONSUMED)


class Reference:
    """Reference in plain Python, which counts frame by frame.

    A rank's sum restarts if the rank is new on its node, the agent was restarted, or the rank's set of counters
    changes.
    """

    def __init__(self) -> None:
        self.total: dict[Owner, list[float]] = {}
        self._newest: dict[str, tuple[str, dict[Owner, tuple[list[int], list[bool]]]]] = {}

    def take(self, machine: Machine) -> None:
        shown = [not (machine.without_io and index == 2) for index in range(len(CONSUMED))]
        now = {
            owner: ([machine.reached.get((owner, index), 0) for index in range(len(CONSUMED))], shown)
            for owner in machine.owners
        }
        agent, before = self._newest.get(machine.name, ("", {}))
        for owner, (values, valid) in now.items():
            group = {one for one in now if one[0] == owner[0]}
            same_group = group == {one for one in before if one[0] == owner[0]}
            if agent == machine.agent and same_group and before[owner][1] == valid:
                sums = [
                    total + value - old
                    for total, value, old in zip(self.total[owner], values, before[owner][0], strict=True)
                ]
            else:
                sums = [0.0] * len(values)
            self.total[owner] = [one if fine else float("nan") for one, fine in zip(sums, valid, strict=True)]
        self._newest[machine.name] = machine.agent, now


@pytest.mark.parametrize("seed", range(40))
def test_random_layouts_match_frame_by_frame_counting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes gain and lose ranks, other counters, tiers and agents. Frames are processed one by one or in batches."""
    chance = random.Random(seed)
    monkeypatch.setattr(series_queue, "MOST_QUEUED", chance.choice((1, 3, 256)))
    fleet, reference = Fleet(), Reference()
    machines = [Machine(f"n{number}", ()) for number in range(chance.randint(2, 6))]
    ranks_of = {
        machine.name: [(f"job-{gang}", 2 * place + more) for gang in range(4) for more in range(chance.randint(0, 2))]
        for place, machine in enumerate(machines)
    }
    for second in range(1, 25):
        for machine in chance.sample(machines, chance.randint(1, len(machines))):
            if chance.random() < 0.4:
                gangs = {gang for gang, _ in ranks_of[machine.name] if chance.random() < 0.6}
                machine.owners = tuple(owner for owner in ranks_of[machine.name] if owner[0] in gangs)
                machine.others = chance.choice((0, 0, 1, 2, 5, 10))
                machine.others_first = chance.random() < 0.3
                machine.tiers = chance.randint(1, 3)
                machine.without_io = chance.random() < 0.2
            if chance.random() < 0.05:
                machine.agent, machine.seq = machine.agent + "+", 0
            for owner in ranks_of[machine.name]:
                machine.advance(owner, [chance.randrange(10**9) for _ in CONSUMED])
            frame = machine.frame(second * SECOND)
            assert fleet.observe(machine.layout(), frame, frame.monotonic_ns)
            reference.take(machine)
        if chance.random() < 0.2:
            assert fleet.gangs is not None  # reading folds the queued frames
    for owner, expected in reference.total.items():
        assert used(fleet, owner) == pytest.approx(expected, nan_ok=True), owner


@pytest.mark.parametrize("seed", range(10))
def test_rates_of_nodes_with_different_counters_are_separate(seed: int) -> None:
    """Each rank's CPU share comes from the two newest frames of its node, whatever else the node counts."""
    chance = random.Random(seed)
    fleet = Fleet()
    reader = Look(fleet)
    machines = [Machine(f"n{number}", ((f"job-{number}", 0),)) for number in range(5)]
    share: dict[str, float] = {}
    for second in range(1, 12):
        for machine in machines:
            machine.others = chance.choice((0, 0, 0, 1, 5))
            layout, new = machine.layout(), chance.randrange(SECOND)
            kept = machine.seq > 0 and fleet.counting.nodes[machine.name].layout_id == layout.layout_id
            machine.advance(machine.owners[0], [new, 0, 0, 0, 1])
            frame = machine.frame(second * SECOND)
            assert fleet.observe(layout, frame, frame.monotonic_ns)
            share[machine.owners[0][0]] = new * BY_NAME[CONSUMED[CPU]].scale if kept else float("nan")
        telemetry = reader.next(WALL + second * SECOND)
        values = telemetry.counters.values[FEATURE["processor"], 0]
        places = zip(telemetry.jobs, telemetry.columns(), strict=True)
        found = {job.shape.job: float(values[columns][0]) for job, columns in places}
        assert found == pytest.approx(share, nan_ok=True), second


def test_old_layouts_are_freed() -> None:
    """A node has thousands of layouts over weeks, because its jobs change."""
    fleet = Fleet()
    machine = Machine("n0", (("job-0", 0),))
    for second in range(1, 60):
        machine.others = second
        frame = machine.frame(second * SECOND)
        fleet.observe(machine.layout(), frame, frame.monotonic_ns)
    assert len(fleet._consumption._places) == 1
    assert len(list(fleet.counting.kinds)) == 1


def test_rows_of_different_lengths_are_refused() -> None:
    equal = rows_of([np.arange(3), np.arange(3, 6)])
    assert equal.tolist() == [[0, 1, 2], [3, 4, 5]]
    for lengths in ((8, 13), (8, 16), (7, 6, 8), (0, 5)):
        with pytest.raises(ValueError, match="rows of different lengths"):
            rows_of([np.zeros(length) for length in lengths])


def test_queued_frames_of_an_attempt_that_has_ended_are_not_added_to_the_next_one() -> None:
    """The next attempt may get the slots of the last one."""
    trails = Trails()
    counted = consumption.Consumption(trails)
    index, widths = np.arange(len(CONSUMED)).reshape(1, -1), np.full((1, len(CONSUMED)), 64, np.uint8)
    group = counted.group("j-1", 1, (0,), index, widths, 0, (1, len(CONSUMED)), None)
    first = Gang("j-1", 1, trails)
    group.gang = first
    group.places.slots[group.row] = first.slots_of(np.array([first.column(0, "n1")]))
    group.places.owners[group.row] = first.number
    node = NodeView("n1", _groups=[group], _group_rows=[group.row])

    def frame(second: int) -> Frame:
        at_ns = np.array([second * SECOND])
        count = np.full(len(CONSUMED), 100 * second, np.uint64)
        return Frame("n1", "boot", "agent", second, "layout", 0, second * SECOND, at_ns, np.zeros(0), count, count >= 0)

    first.leave()
    second_attempt = Gang("j-1", 2, trails)
    second_attempt.column(0, "n1")
    for second in (1, 2):
        group.places._fold(0, Batch([node], [frame(second)], [True], [second]))
    assert np.isnan(second_attempt.consumed(np.array([2 * SECOND])).values).all()
