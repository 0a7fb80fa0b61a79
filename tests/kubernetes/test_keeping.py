"""What is kept of the state beyond any one object, and given back."""

from __future__ import annotations

import pytest

from scheduler_feedback.backends.kubernetes.keeping import MOST_HISTORY_BYTES, give_back, kept_of
from scheduler_feedback.core.state import Ended, State
from scheduler_feedback.policies.history import BINS, take_in


def state_of(jobs: int, users: int = 1) -> State:
    state = State(now_ns=5)
    state.lately = [Ended("q", f"user-{number % users}", "", 8, 60.0 + number) for number in range(jobs)]
    take_in(state)
    state.queue_use, state.queue_use_ns = {"q": 1234.5}, 4
    state.lately = [Ended("q", "u", "w", 8, 30.0)]
    return state


def test_what_is_kept_is_given_back() -> None:
    before, after = state_of(20), State(now_ns=5)
    give_back(kept_of(before), after)
    assert (after.queue_use, after.queue_use_ns, after.lately) == ({"q": 1234.5}, 4, before.lately)
    assert after.trust == pytest.approx(before.trust, abs=1e-6)
    assert after.history.keys() == before.history.keys()
    for kind, counts in before.history.items():
        assert len(after.history[kind]) == BINS
        assert after.history[kind] == pytest.approx(counts, abs=1e-4)


def test_of_very_many_kinds_those_seen_most_are_kept() -> None:
    text = kept_of(state_of(40_000, users=20_000))
    assert len(text) < 2 * MOST_HISTORY_BYTES
    after = State(now_ns=5)
    give_back(text, after)
    assert sum(after.history[""]) == 40_000


@pytest.mark.parametrize("text", [b"{", b'{"queue_use": 3}', b'{"history": {"": [[-1, 2.0], [99, 1.0]]}}'])
def test_what_cannot_be_read_is_begun_anew(text: bytes) -> None:
    state = State(now_ns=5)
    give_back(text, state)
    assert state.queue_use == {}
    assert all(not any(counts) for counts in state.history.values())
