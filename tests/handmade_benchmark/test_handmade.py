"""Hand-written traces: what they contain, and the cases that `gangwatch detect` once got wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.handmade import cases
from benchmarks.handmade.__main__ import judge, write

ONCE_WRONG = ("three_workers", "short_spells", "five_of_twenty", "loader_of_a_node", "gradual_on_slower_model")


def case(name: str, seed: int = 2) -> cases.Case:
    (index,) = [k for k, make in enumerate(cases.CASES) if make.__name__ == name]
    return cases.CASES[index](np.random.default_rng([seed, index]))


@pytest.mark.parametrize("make", cases.CASES)
def test_a_case_says_what_it_is_and_its_times_add_up(make: object) -> None:
    one = case(make.__name__)  # type: ignore[attr-defined]
    seconds, wait = one.times(one.own)
    assert (wait > 0).all() and np.allclose(seconds - wait, one.own)
    assert (one.healthy is None) == (not one.culprits)
    assert one.cost() == 1.0 if one.healthy is None else one.cost() > 1.03


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_cases_that_were_wrong_are_right(name: str, tmp_path: Path) -> None:
    one, path = case(name), tmp_path / "t.jsonl"
    write(one, path)
    found = judge(one, path)
    assert found["outcome"] == "right"
    assert bool(found["named"]) == bool(one.culprits)


def test_a_wrong_accusation_and_a_missed_fault_are_counted(tmp_path: Path) -> None:
    one, path = case("five_ranks"), tmp_path / "t.jsonl"
    write(one, path)
    one.culprits = (1,)
    assert judge(one, path)["outcome"] == "false"
    one.culprits = (3,)
    write(case("mixed_models"), path)
    assert judge(one, path)["outcome"] == "missed"
