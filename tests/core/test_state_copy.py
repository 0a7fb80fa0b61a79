"""Frozen copies of the state contain what the state has, also fields that are added later."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_feedback.core.power import PowerRates
from scheduler_feedback.core.state import SeenRequests, State
from scheduler_feedback.core.state_copy import COPIED_DEEPLY, OMITTED, frozen


@pytest.mark.parametrize("name", sorted(set(State.__struct_fields__) - OMITTED - COPIED_DEEPLY))
def test_each_field_is_copied(name: str) -> None:
    state = State()
    before = getattr(state, name)
    value: Any = {"a": 1} if isinstance(before, dict) else [1] if isinstance(before, list) else "a value"
    setattr(state, name, value)
    copied = getattr(frozen(state), name)
    assert copied == value
    assert copied is not value or not isinstance(value, dict | list), "the cycle would change the copy"


def test_what_the_cycle_changes_in_place_stays_as_it_was() -> None:
    state = State(
        pair_speeds={"a": {"b": 0.5}},
        power_rates={"a": [PowerRates("h100", 8, 1, weight=1.0)]},
        requests=SeenRequests(seen=1.0),
    )
    copied = frozen(state)
    state.pair_speeds["a"]["b"] = state.power_rates["a"][0].weight = state.requests.seen = 2.0
    state.requests.counts["a"] = None  # type: ignore[assignment]
    assert copied.pair_speeds == {"a": {"b": 0.5}}
    assert (copied.power_rates["a"][0].weight, copied.requests) == (1.0, SeenRequests(seen=1.0))
    assert frozen(state, copied).power_rates["a"][0].weight == 2.0
