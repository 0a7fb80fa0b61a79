"""Differences of counters: each is exact or absent."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.rates import Change, difference, exact, rates

SECOND = 1_000_000_000


def one(
    before: int,
    after: int,
    *,
    width: int = 64,
    elapsed_ns: int = SECOND,
    same_source: bool = True,
    valid: tuple[bool, bool] = (True, True),
) -> tuple[int, Change]:
    advance, change = difference(
        np.array([before], np.uint64),
        np.array([valid[0]]),
        np.array([after], np.uint64),
        np.array([valid[1]]),
        np.array([width], np.uint8),
        np.array([elapsed_ns], np.int64),
        same_source=same_source,
        gap_ns=10 * SECOND,
    )
    return int(advance[0]), Change(change[0])


def test_an_increase_gives_the_difference() -> None:
    assert one(5, 12) == (7, Change.STEADY)


def test_byte_counts_above_two_to_the_53_stay_exact() -> None:
    assert one(2**60 + 1, 2**60 + 4) == (3, Change.STEADY)


def test_a_narrow_counter_wraps() -> None:
    assert one(2**32 - 10, 5, width=32) == (15, Change.WRAPPED)


def test_a_decreased_wide_counter_was_reset() -> None:
    assert one(2**64 - 10, 5) == (0, Change.RESET)


def test_a_narrow_counter_that_decreased_from_mid_range_was_reset() -> None:
    assert one(2**20, 5, width=32) == (0, Change.RESET)


def test_no_difference_across_agents_or_boots() -> None:
    assert one(5, 12, same_source=False) == (0, Change.RESET)
    assert one(2**32 - 10, 5, width=32, same_source=False) == (0, Change.RESET)


def test_the_same_sample_twice_gives_no_difference() -> None:
    assert one(5, 5, elapsed_ns=0) == (0, Change.UNCHANGED)


def test_absent_is_not_zero() -> None:
    assert one(5, 0, valid=(True, False)) == (0, Change.ABSENT)
    assert one(0, 5, valid=(False, True)) == (0, Change.ABSENT)


def test_wraps_of_a_narrow_counter_are_unknown_after_a_long_gap() -> None:
    assert one(5, 12, width=32, elapsed_ns=11 * SECOND) == (0, Change.GAP)
    assert one(5, 12, width=64, elapsed_ns=11 * SECOND) == (7, Change.STEADY)


def test_rates_are_in_the_base_unit_and_absent_if_unknown() -> None:
    advance = np.array([3_000_000_000, 4], np.uint64)
    change = np.array([Change.STEADY, Change.RESET], np.uint8)
    result = rates(advance, change, np.array([2 * SECOND, SECOND], np.int64), scale=1e-9)
    assert result[0] == 1.5
    assert np.isnan(result[1])


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.sampled_from([32, 64]))
def test_the_difference_equals_the_increase(start: int, added: int, width: int) -> None:
    modulus = 2**width
    before = start % modulus
    found, change = one(before, (before + added) % modulus, width=width)
    if exact(np.array([change], np.uint8))[0]:
        assert found == added
    else:
        assert width == 64
        assert before + added >= modulus


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from([32, 64]), st.integers(-5, 2**62))
def test_no_input_gives_a_negative_or_impossible_increase(before: int, after: int, width: int, elapsed_ns: int) -> None:
    found, change = one(before, after, width=width, elapsed_ns=elapsed_ns)
    if change == Change.STEADY:
        assert found == after - before
    elif change == Change.WRAPPED:
        assert 0 < found < 2**31
    else:
        assert found == 0
