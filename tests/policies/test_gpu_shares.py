"""Shares of GPUs: fragmentation as its paper defines it, rules, and an index that never gives more than there is."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from scheduler_feedback.policies.shares.fragmentation import Fragmentation, typical
from scheduler_feedback.policies.shares.gpu_room import Request, Room, fits, gpu_choices, taken
from scheduler_feedback.policies.shares.placement_rules import Rule, best_fit, least_fragmentation
from scheduler_feedback.policies.shares.share_index import Placement, ShareIndex

SHARES = [Request(1, milli, cpu, 100) for milli in (200, 460, 810) for cpu in (1000, 4000)]
REQUESTS = [*SHARES, Request(1, cpu_milli=8000), Request(2, cpu_milli=8000), Request(4), Request(0, cpu_milli=6000),
            Request(1, 300, gpu_types=("A",))]  # fmt: skip
WORKLOAD = typical([*REQUESTS, *SHARES, *SHARES])


def by_definition(room: Room, workload: dict[Request, float]) -> float:
    """Return the fragmentation by equations 1 to 4 of section 4.2, one request and one GPU at a time."""
    lost = 0.0
    for request, share in workload.items():
        for free in room.gpus:
            lost += share * free * (not request.gpus or not fits(room, request) or free < request.gpu_milli)
    return lost


def some_room(chance: random.Random) -> Room:
    gpus = tuple(chance.choice((0, 190, 540, 1000)) for _ in range(chance.choice((1, 2, 4, 8))))
    return Room(gpus, chance.choice((0, 2000, 6000, 32000)), 1 << 20, chance.choice("AB"))


def test_fragmentation_is_that_of_the_paper() -> None:
    chance = random.Random(5)
    measure = Fragmentation(WORKLOAD)
    rooms = [some_room(chance) for _ in range(300)]
    for room in rooms + rooms:  # the second time from memory
        assert measure.milli(room) == pytest.approx(by_definition(room, WORKLOAD))
    assert sum(measure.milli(room) > 0 for room in rooms) > 200


def test_the_rule_chooses_the_gpu_where_fragmentation_grows_least() -> None:
    rule = least_fragmentation({Request(1, 500): 1.0})
    room, request = Room((1000, 500), 10_000), Request(1, 300)
    # On GPU 0 this leaves 700, of which 500 can be used. On GPU 1 the remaining 200 would be useless.
    found, fullest = rule(room, request), best_fit(room, request)
    assert found is not None and found[1] == (0,)
    assert fullest is not None and fullest[1] == (1,)


def test_fragmentation_decides_before_best_fit_which_decides_among_equal_scores() -> None:
    workload = {Request(1, 500, 1000): 1.0}
    nodes = {"large": Room((1000, 1000), 64_000), "small": Room((1000,), 2000)}
    task = Request(1, 500, 1000)
    assert ShareIndex(nodes, least_fragmentation(workload)).place(task) == Placement("small", (0,), task)
    assert ShareIndex(nodes, least_fragmentation(workload, fit=False)).place(task) == Placement("large", (0,), task)
    # After 300 the small node's GPU has 700, which still holds 500; on `tight` the remaining 400 would be useless.
    nodes = {"large": Room((1000,), 64_000), "tight": Room((700,), 2000)}
    task = Request(1, 300, 1000)
    assert ShareIndex(nodes, best_fit).place(task) == Placement("tight", (0,), task)
    assert ShareIndex(nodes, least_fragmentation(workload)).place(task) == Placement("large", (0,), task)


def test_typical_requests_cover_the_most_frequent_ones() -> None:
    requests = [Request(1, 500, 10, 7)] * 60 + [Request(1, 500, 10, 9)] * 30 + [Request(2)] * 6 + [Request(4)] * 4
    assert typical(requests) == {Request(1, 500, 10): pytest.approx(90 / 96), Request(2): pytest.approx(6 / 96)}
    with pytest.raises(ValueError, match="no requests"):
        typical([])


@pytest.mark.parametrize(
    ("gpus", "milli", "reason"), [(2, 500, "a share is of one GPU"), (1, 0, "from 1 to 1000"), (-1, 1000, "less than")]
)
def test_contradictory_requests_are_refused(gpus: int, milli: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Request(gpus, milli)


def test_more_than_is_free_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        taken(Room((400,), 1000), Request(1, 500), (0,))
    with pytest.raises(ValueError, match="does not fit"):
        taken(Room((1000, 1000)), Request(2), (0, 0))


def fresh(rooms: dict[str, Room], rule: Rule, request: Request) -> Placement | None:
    """Return the placement by an index that remembers nothing."""
    return ShareIndex(rooms, rule).place(request)


@pytest.mark.parametrize("rule", [best_fit, least_fragmentation(WORKLOAD)], ids=["best-fit", "least-fragmentation"])
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_used_twice_and_all_comes_back(rule: Rule, seed: int) -> None:
    chance = random.Random(seed)
    full = {
        f"n{number}": Room((1000,) * chance.choice((1, 2, 4)), 16_000, 1000, "AB"[number % 2]) for number in range(6)
    }
    index = ShareIndex(full, rule)
    placed: list[Placement] = []
    refused = 0
    for _ in range(600):
        if placed and chance.random() < 0.4:
            index.give(placed.pop(chance.randrange(len(placed))))
            continue
        request = chance.choice(REQUESTS)
        rooms = {name: index.room(name) for name in full}
        found = index.place(request)
        assert found == fresh(rooms, rule, request), "remembered scores are current"
        if found is None:
            refused += 1
            assert not any(gpu_choices(room, request) for room in rooms.values())
        else:
            placed.append(found)
        for name, room in full.items():
            held = Counter[int]()
            mine = [one for one in placed if one.node == name]
            for one in mine:
                held.update(dict.fromkeys(one.gpus, one.request.gpu_milli))
            assert index.room(name).gpus == tuple(1000 - held[gpu] for gpu in range(len(room.gpus)))
            assert min(index.room(name).gpus) >= 0 <= index.room(name).cpu_milli
            assert sum(one.request.cpu_milli for one in mine) == 16_000 - index.room(name).cpu_milli
    assert refused > 20 and placed
    for one in placed:
        index.give(one)
    assert {name: index.room(name) for name in full} == full


def test_each_resource_can_be_the_limit() -> None:
    room = Room((1000, 300), 2000, 50, "A")
    assert fits(room, Request(1, 500, 2000, 50, ("A", "B")))
    for missing in (Request(2), Request(1, 500, 2001), Request(1, 500, 1, 51), Request(1, 500, gpu_types=("B",))):
        assert not fits(room, missing) and not gpu_choices(room, missing)
    assert fits(room, Request(0, cpu_milli=1, gpu_types=("B",))), "a task without a GPU has no type"
    assert gpu_choices(room, Request(1, 200)) == [(0,), (1,)]
