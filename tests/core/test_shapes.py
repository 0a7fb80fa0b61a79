"""Shapes of jobs and groups of ranks: peers, and groups of any size in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback.core.telemetry.telemetry import (
    Grouping,
    JobTelemetry,
    Shape,
    Telemetry,
    no_counters,
)


def shape_of(count: int = 8, **more: Any) -> Shape:
    """Return a job's shape: two replicas of two stages of two tensor ranks, four ranks per node."""
    rank = np.arange(count)
    layout: dict[str, Any] = {"data": rank // 4, "stage": rank // 2 % 2, "tensor": rank % 2, "rail": rank % 4}
    return Shape("j", 1, rank, tuple(f"n{one // 4}" for one in rank.tolist()), **(layout | more))


def parted(numbers: np.ndarray) -> set[frozenset[int]]:
    """Return the groups as sets of ranks."""
    return {frozenset(np.flatnonzero(numbers == one).tolist()) for one in set(numbers.tolist())}


def test_ranks_overlap_as_their_layout_says() -> None:
    groups = shape_of().groups
    assert {way: parted(numbers) for way, numbers in groups.items()} == {
        "node": {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})},
        "pipeline": {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})},
        "tensor": {frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})},
        "data": {frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7})},
        "rail": {frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7})},
    }
    assert parted(shape_of().roles) == {frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})}


def test_unknown_dimensions_are_left_out() -> None:
    assert set(shape_of(data=None).groups) == {"node", "rail"}
    assert set(shape_of(rail=None).groups) == {"node", "pipeline", "tensor", "data"}
    without_tensor = shape_of(tensor=None).groups
    assert set(without_tensor) == {"node", "pipeline", "data", "rail"}
    assert parted(without_tensor["data"]) == {frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})}
    assert set(shape_of(tensor=None, stage=None).groups) == {"node", "pipeline", "rail"}
    holes = np.array([0, 0, 0, 0, 1, 1, 1, -1])
    assert set(shape_of(data=holes).groups) == {"node", "rail"}, "unknown for one rank"
    assert parted(shape_of(stage=None).roles) == {frozenset(range(8))}, "then all are peers"


def test_unknown_places_are_not_shared() -> None:
    names = ("n0",) * 4 + ("",) * 4
    shape = shape_of(sharing={"host": names, "nic": tuple(f"nic{one % 2}" for one in range(8))})
    assert shape.resources == {("host", "n0"), ("nic", "nic0"), ("nic", "nic1")}


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": ("n0",)},
        {"gpus": ("g0",)},
        {"nics": ("x",) * 9},
        {"stage": np.zeros(3, np.int64)},
        {"sharing": {"host": ("n0",)}},
        {"sharing": {"moon": ("n0",) * 8}},
    ],
)
def test_a_shape_with_parts_of_different_lengths_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shape of j"):
        Shape(**({"job": "j", "attempt": 1, "ranks": np.arange(8), "nodes": ("n0",) * 8} | wrong))


def test_each_rank_has_its_place_and_each_job_its_columns() -> None:
    jobs = [Shape(f"j{count}", 1, np.arange(count) * 3, ("n",) * count) for count in (2, 0, 5)]
    telemetry = Telemetry(0, tuple(map(JobTelemetry, jobs)), no_counters(7))
    assert telemetry.columns() == [slice(0, 2), slice(2, 2), slice(2, 7)]
    assert jobs[2].place == {0: 0, 3: 1, 6: 2, 9: 3, 12: 4}


# --- groups of columns ----------------------------------------------------------------------------------------------

_ANY_GROUPS = st.lists(st.one_of(st.integers(0, 4), st.integers(-3, 10**12)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(_ANY_GROUPS, st.booleans())
def test_a_grouping_equals_the_partition_it_was_made_from(of: list[int], rising: bool) -> None:
    of = sorted(of) if rising else of
    grouping = Grouping(of)
    names = sorted(set(of))
    assert len(grouping) == len(names)
    assert [names[number] for number in grouping.of.tolist()] == of, "numbered in order from 0"
    for number, name in enumerate(names):
        members = [column for column, one in enumerate(of) if one == name]
        assert grouping.members(number).tolist() == members
        assert grouping.sizes[number] == len(members)
    values = np.arange(len(names), dtype=np.float32) * 10
    spread = grouping.spread(values, np.empty(len(of), np.float32))
    assert spread.tolist() == [names.index(one) * 10 for one in of]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_the_lower_median_of_every_group_is_in_the_middle_of_a_bucket(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    of = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    grouping, values = Grouping(of), random.standard_normal(len(of))
    padded = np.concatenate([values, [-np.inf, np.inf]])
    seen: list[int] = []
    for bucket in grouping.buckets:
        seen += bucket.group.tolist()
        width = bucket.index.shape[1]
        for row, group in enumerate(bucket.group.tolist()):
            members = np.flatnonzero(of == group)
            assert sorted(bucket.index[row][bucket.real[row]].tolist()) == members.tolist()
            assert width <= Grouping.PADDING * len(members), "padding costs at most a quarter"
            lower = np.sort(values[members])[(len(members) - 1) // 2]
            assert np.sort(padded[bucket.index[row]])[bucket.middle] == lower
    assert sorted(seen) == list(range(len(sizes)))
