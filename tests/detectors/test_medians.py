"""Fast medians equal numpy's bit by bit; values computed for all roles at once equal those of each role."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.detectors.stats.medians import (
    column_medians,
    median,
    median_of_others,
    median_of_the_others,
    middle,
    row_medians,
)
from scheduler_feedback.detectors.steps.places import middle_of_others, middle_of_others_of, middle_of_peers, places
from scheduler_feedback.detectors.steps.windows import cut

SECOND = 1_000_000_000
values = st.sampled_from([-1.5, 0.0, 0.1, 0.1, 0.3, 1e-300, 7.0, float("inf"), float("nan")]) | st.floats(-1e3, 1e3)


def tables(rows: int) -> st.SearchStrategy[FloatArray]:
    """Return a strategy for tables [rows, n] with n from 1 to 12, with ties, infinities and NaN."""
    return st.integers(1, 12).flatmap(
        lambda n: st.lists(st.lists(values, min_size=n, max_size=n), min_size=rows, max_size=rows).map(np.array)
    )


@given(tables(3))
def test_medians_equal_numpys_to_the_bit(table: FloatArray) -> None:
    before = table.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # infinity minus infinity, in numpy as well
        assert np.array_equal(median(table), np.median(table), equal_nan=True)
        assert np.array_equal(row_medians(table), np.median(table, axis=1), equal_nan=True)
        assert np.array_equal(column_medians(table), np.median(table, axis=0), equal_nan=True)
    assert np.array_equal(table, before, equal_nan=True), "the input is unchanged"


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=17))
def test_the_median_of_a_short_sequence_equals_numpys(few: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert np.array_equal(middle(few), np.median(few), equal_nan=True)


@given(st.lists(values, min_size=2, max_size=20))
def test_the_median_of_others_excludes_the_value_itself(reported: list[float]) -> None:
    array = np.array(reported)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = median_of_others(array)
        for index in range(len(array)):
            rest = np.sort(np.delete(array, index))  # NaN is larger than all numbers
            half = len(rest) // 2
            naive = rest[half] if len(rest) % 2 else (rest[half - 1] + rest[half]) / 2
            assert np.array_equal(found[index], naive, equal_nan=True)
            assert np.array_equal(median_of_the_others(array, index), naive, equal_nan=True)


@pytest.mark.parametrize("count", [63, 64, 65, 255, 256, 257, 511, 512, 513, 514, 1000])
def test_sorted_and_partitioned_arrays_have_the_same_medians(count: int) -> None:
    random = np.random.default_rng(count)
    for unknown in (0, 1, count // 2 - 1, count // 2, count // 2 + 2, count):
        array = np.round(random.uniform(-1.0, 1.0, count), 2)  # with ties
        array[random.permutation(count)[:unknown]] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            assert np.array_equal(median(array), np.median(array), equal_nan=True)
            assert np.array_equal(row_medians(array[None, :]), [np.median(array)], equal_nan=True)
            assert np.array_equal(column_medians(array[:, None]), [np.median(array)], equal_nan=True)
        found = median_of_others(array)
        for index in range(0, count, 7):
            rest = np.sort(np.delete(array, index))
            half = len(rest) // 2
            naive = rest[half] if len(rest) % 2 else (rest[half - 1] + rest[half]) / 2
            assert np.array_equal(found[index], naive, equal_nan=True)
            assert np.array_equal(median_of_the_others(array, index), naive, equal_nan=True)


def shape(stages: list[int], nodes: list[int]) -> Shape:
    return Shape("j", 1, np.arange(len(stages)), tuple(f"n{node}" for node in nodes), stage=np.array(stages))


SHAPES = {
    "one role": shape([0] * 8, [0, 0, 1, 1, 2, 2, 3, 3]),
    "roles of one size on nodes of one size": shape([0] * 8 + [1] * 8, [n // 2 for n in range(16)]),
    "roles that share nodes": shape([0, 1] * 8, [n // 4 for n in range(16)]),
    "nodes of unequal size": shape([0] * 8 + [1] * 8, [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4]),
    "roles of unequal size": shape([0] * 5 + [1] * 11, [n // 4 for n in range(16)]),
    "roles too small to vote": shape([0] * 3 + [1] * 3, [0, 0, 1, 1, 2, 2]),
    "a node a rank": shape([0] * 4 + [1] * 4, list(range(8))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_values_for_all_roles_at_once_equal_those_of_each_role(name: str) -> None:
    reported = SHAPES[name]
    where, random = places(reported), np.random.default_rng(3)
    compute = np.round(random.uniform(0.1, 0.4, (12, len(reported))), 2)  # with ties
    seconds = np.repeat(compute.max(axis=1, keepdims=True) + 0.05, len(reported), axis=1)
    end_ns = np.repeat(np.arange(1, 13)[:, None] * SECOND, len(reported), axis=1)
    [window, *_], _ = cut(StepTable(np.arange(12), end_ns, seconds, seconds - compute), where, None)

    def lost(table: FloatArray, left_out: list[int]) -> float:
        """Return the mean decrease of each step's largest value without these columns; 0 if no column is left."""
        rest = np.delete(table, left_out, axis=1)
        return float(np.mean(np.maximum(table.max(axis=1) - rest.max(axis=1), 0.0))) if rest.shape[1] else 0.0

    steps = window.steps
    assert steps > 1
    for rank in range(len(reported)):
        members = where.roles[where.role[rank]]
        inside = compute[:steps, members]
        assert window.gain[rank] == pytest.approx(lost(inside, [int(np.searchsorted(members, rank))]), abs=1e-12)
    for node in range(len(where.names)):
        of_roles = []
        for members in where.roles:
            there = np.flatnonzero(where.index[members] == node)
            of_roles.append(lost(compute[:steps, members], there.tolist()) if len(there) else 0.0)
        assert window.node_gain[node] == pytest.approx(max(of_roles), abs=1e-12)
    one = compute[0]
    votes = all(len(members) >= 4 for members in where.roles)
    for rank in range(len(reported)):
        members = where.roles[where.role[rank]]
        others = one[members[members != rank]] if votes else np.delete(one, rank)
        assert middle_of_others(one, where)[rank] == middle_of_others_of(one, where, rank) == np.median(others)
        peers = middle_of_peers(one, where)[rank]
        assert np.isnan(peers) if len(members) < 4 else peers == np.median(one[members[members != rank]])
