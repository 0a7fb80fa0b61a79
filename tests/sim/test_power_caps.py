"""Power limits: the cheapest one by the price of energy, and those within a power budget."""

from __future__ import annotations

import itertools
import random

import pytest

from scheduler_feedback.sim.studies.power_caps import PowerPoint, cheapest, within_budget

STEEP = (PowerPoint(100, 0.5, 100), PowerPoint(150, 0.85, 145), PowerPoint(250, 1.0, 220))
FLAT = (PowerPoint(100, 0.99, 35), PowerPoint(250, 1.0, 36))


def test_free_energy_means_full_speed_and_dear_energy_the_least_energy() -> None:
    assert cheapest(STEEP, 1, 0.0, float("inf")) == STEEP[2]
    least = min(STEEP, key=lambda one: one.watts / one.speed)
    assert cheapest(STEEP, 1, 0.0, 1e-9) == least == STEEP[1]


def test_waiting_jobs_and_fewer_gpus_make_speed_worth_its_energy() -> None:
    assert cheapest(STEEP, 4, 0.0, 500.0) == STEEP[1]
    assert cheapest(STEEP, 4, 20.0, 500.0) == STEEP[2]
    assert cheapest(STEEP, 1, 0.0, 500.0) == STEEP[2]


def test_of_equal_costs_the_faster_limit_is_used() -> None:
    same = (PowerPoint(100, 0.5, 50), PowerPoint(200, 1.0, 100))
    assert cheapest(same, 1, 0.0, 1e-12).speed == 1.0


def test_a_gang_without_limits_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one power limit"):
        cheapest((), 1, 0.0, 1.0)


def test_a_budget_is_used_where_watts_give_most_speed() -> None:
    gangs = {"steep": (STEEP, 2), "flat": (FLAT, 2)}
    lowest = within_budget(gangs, 271.0)
    assert lowest == {"steep": STEEP[0], "flat": FLAT[0]}
    more = within_budget(gangs, 362.0)
    assert more == {"steep": STEEP[1], "flat": FLAT[1]}
    assert within_budget(gangs, 10_000.0) == {"steep": STEEP[2], "flat": FLAT[1]}
    assert within_budget(gangs, 269.0) is None, "even the lowest limits draw more"
    assert within_budget({}, 0.0) == {}


def test_limits_that_draw_more_for_no_more_speed_are_not_used() -> None:
    odd = (PowerPoint(100, 1.0, 40), PowerPoint(150, 0.99, 45), PowerPoint(250, 1.0, 50))
    assert within_budget({"a": (odd, 1)}, 1000.0) == {"a": odd[0]}


def test_the_budget_holds_and_the_speed_is_near_the_best_of_all_choices() -> None:
    chance = random.Random(1)
    for _ in range(60):
        gangs = {
            f"g{number}": (
                tuple(sorted(PowerPoint(0, chance.uniform(0.3, 1.0), chance.uniform(40, 220)) for _ in range(3))),
                chance.choice((1, 2, 4)),
            )
            for number in range(4)
        }
        lowest = sum(min(one.watts for one in points) * gpus for points, gpus in gangs.values())
        budget = lowest * chance.uniform(1.0, 2.0)
        found = within_budget(gangs, budget)
        assert found is not None
        assert sum(found[name].watts * gpus for name, (_, gpus) in gangs.items()) <= budget + 1e-9
        best = max(
            sum(one.speed * gpus for one, (_, gpus) in zip(chosen, gangs.values(), strict=True))
            for chosen in itertools.product(*(points for points, _ in gangs.values()))
            if sum(one.watts * gpus for one, (_, gpus) in zip(chosen, gangs.values(), strict=True)) <= budget
        )
        assert sum(found[name].speed * gpus for name, (_, gpus) in gangs.items()) >= 0.8 * best
