"""Samples of consumption of many gangs in one set of arrays: a rank never reads another rank's samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, Trails
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang

SECOND = 1_000_000_000


def columns(count: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.arange(count)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=30))
def test_slots_are_reserved_once_and_freed_slots_are_empty(steps: list[tuple[int, int]]) -> None:
    """Each step reserves some slots for one owner, after it has freed those that the owner had."""
    trails = Trails()
    held: dict[int, np.ndarray[tuple[int], np.dtype[np.intp]]] = {}
    for number, (count, owner) in enumerate(steps, 1):
        if owner in held:
            trails.free(held.pop(owner))
        slots = held[owner] = trails.reserve(count)
        assert np.isnan(trails.consumed(slots, np.full(count, SECOND)).values).all()
        every = np.concatenate(list(held.values()))
        assert len(slots) == count and len(set(every.tolist())) == len(every)
        trails.consume(slots, np.full((count, len(CONSUMED)), float(number)), number * SECOND)
        assert (trails.consumed(slots, np.full(count, number * SECOND)).values == number).all()


def test_two_gangs_with_one_set_of_arrays_are_as_two_with_their_own() -> None:
    random, shared = np.random.default_rng(5), Trails()
    alike = [(Gang(name, 1, shared), Gang(name, 1)) for name in ("a", "b")]
    for pair in alike:
        for gang in pair:
            for rank in range(20):
                gang.column(rank, "n1")
    for second in range(40):
        for pair in alike:
            chosen = np.flatnonzero(random.uniform(size=20) < 0.8)
            advance = random.uniform(size=(len(chosen), len(CONSUMED)))
            for gang in pair:
                gang.consume(chosen, advance, second * SECOND)
                if second % 11 == 0:
                    gang.forget_consumed(chosen[:3])
    at_ns = np.full(20, 35 * SECOND + SECOND // 3)
    for one, other in alike:
        found, expected = one.consumed(at_ns), other.consumed(at_ns)
        assert np.array_equal(found.values, expected.values, equal_nan=True)
        assert np.array_equal(found.at_ns, expected.at_ns)


def test_a_gang_that_has_left_reads_no_samples_of_the_next_one() -> None:
    trails = Trails()
    first = Gang("a", 1, trails)
    first.column(0, "n1")
    first.consume(columns(1), np.ones((1, len(CONSUMED))), SECOND)
    first.leave()
    second = Gang("a", 2, trails)
    second.column(0, "n1")
    second.consume(columns(1), np.full((1, len(CONSUMED)), 7.0), SECOND)
    assert np.isnan(first.consumed(np.full(1, SECOND)).values).all()
    assert (second.consumed(np.full(1, SECOND)).values == 7.0).all()
