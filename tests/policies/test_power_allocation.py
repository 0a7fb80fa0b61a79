"""Choice of power limits within a budget."""

from __future__ import annotations

from scheduler_feedback.policies.power.allocation import STEPS, Choice, choose, steps_of

LIMITS = (100.0, 150.0, 200.0)


def gang(
    speeds: tuple[float, ...] = (0.6, 0.9, 1.0), ranks: int = 1, now: int | None = None, floor: int = 0,
    may_rise: bool = True,
) -> Choice:  # fmt: skip
    return Choice(ranks, LIMITS, tuple(ranks * one for one in LIMITS), speeds, now, floor, may_rise)


def test_watts_go_where_they_give_most_speed() -> None:
    assert choose({"a": gang(), "b": gang((0.9, 0.95, 1.0))}, 250.0) == {"a": 1, "b": 0}
    assert choose({"a": gang(), "b": gang((0.9, 0.95, 1.0))}, 300.0) == {"a": 2, "b": 0}
    assert choose({"a": gang(), "b": gang((0.9, 0.95, 1.0))}, 400.0) == {"a": 2, "b": 2}
    assert choose({"a": gang((1.0, 1.0, 1.0))}, 900.0) == {"a": 0}, "watts without gain are not used"


def test_the_budget_holds_and_a_smaller_step_may_still_fit() -> None:
    assert choose({"a": gang(ranks=4), "b": gang((0.8, 0.85, 0.9))}, 580.0) == {"a": 0, "b": 1}
    assert choose({"a": gang(), "b": gang()}, 150.0) == {"a": 0, "b": 0}, "even the lowest need more"


def test_present_limits_are_kept_where_others_gain_little() -> None:
    steady = {"a": gang((0.9, 0.95, 1.0), now=1), "b": gang((0.9, 0.951, 1.0), now=0)}
    assert choose(steady, 250.0) == {"a": 1, "b": 0}
    unequal = {"a": gang((0.9, 0.95, 1.0), now=1), "b": gang(now=0)}
    assert choose(unequal, 250.0) == {"a": 0, "b": 1}
    assert choose({"a": gang(now=2), "b": gang()}, 300.0) == {"a": 1, "b": 1}, "a new gang needs watts of the first"


def test_floors_come_first_as_far_as_they_fit() -> None:
    gangs = {"a": gang(now=1), "b": gang((0.9, 0.91, 0.92), now=0, floor=1)}
    assert choose(gangs, 250.0) == {"a": 0, "b": 1}
    assert choose({"a": gang(now=0, floor=2)}, 150.0) == {"a": 1}
    stuck = {"a": gang(now=1, floor=2), "b": gang(now=0)}
    assert choose(stuck, 250.0) == {"a": 1, "b": 0}, "a floor that does not fit changes nothing"


def test_a_limit_that_may_not_rise_yet_stays() -> None:
    assert choose({"a": gang(now=0, may_rise=False), "b": gang(now=1)}, 400.0) == {"a": 0, "b": 2}
    assert choose({"a": gang(may_rise=False)}, 400.0) == {"a": 2}, "it has none yet"


def test_steps_are_whole_watts_from_the_lowest_to_the_highest() -> None:
    found = steps_of(200.0, 700.0)
    assert (found[0], found[-1], len(found)) == (200.0, 700.0, STEPS)
    assert steps_of(300.4, 302.0) == (300.0, 301.0, 302.0)
    assert steps_of(300.0, 200.0) == (300.0,)
