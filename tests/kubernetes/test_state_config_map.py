"""Controller state that belongs to no Kubernetes object: it is saved in a ConfigMap and restored."""

from __future__ import annotations

import asyncio
import json
import random
from concurrent.futures import Future
from typing import Any

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import RefusedError
from scheduler_feedback.backends.kubernetes.published.state_config_map import (
    MOST_HISTORY_BYTES,
    StateWriter,
    give_back,
    kept_of,
)
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Ended, State
from scheduler_feedback.policies.index.runtime_history import BINS, Answers, count_ended_jobs


def state_of(jobs: int, users: int = 1) -> State:
    state = State(now_ns=5)
    state.recently_ended = [Ended("q", f"user-{number % users}", "", 8, 60.0 + number) for number in range(jobs)]
    count_ended_jobs(state)
    state.queue_use, state.queue_use_ns = {"q": 1234.5}, 4
    state.recently_ended = [Ended("q", "u", "w", 8, 30.0)]
    return state


def test_saved_state_is_restored() -> None:
    before, after = state_of(20), State(now_ns=5)
    give_back(kept_of(before), after)
    assert (after.queue_use, after.queue_use_ns, after.recently_ended) == ({"q": 1234.5}, 4, before.recently_ended)
    assert after.trust == pytest.approx(before.trust, abs=1e-6)
    assert after.history.keys() == before.history.keys()
    for kind, counts in before.history.items():
        assert len(after.history[kind]) == BINS
        assert after.history[kind] == pytest.approx(counts, abs=1e-4)


def test_the_most_frequent_kinds_are_kept() -> None:
    text = kept_of(state_of(40_000, users=20_000))
    assert len(text) < 2 * MOST_HISTORY_BYTES
    after = State(now_ns=5)
    give_back(text, after)
    assert sum(after.history[""]) == 40_000


@pytest.mark.parametrize("text", [b"{", b'{"queue_use": 3}', b'{"history": {"": [[-1, 2.0], [99, 1.0]]}}'])
def test_unreadable_state_starts_empty(text: bytes) -> None:
    state = State(now_ns=5)
    give_back(text, state)
    assert state.queue_use == {}
    assert all(not any(counts) for counts in state.history.values())


# --- state saved by another release ----------------------------------------------------------------------------------


class ConfigMaps:
    """API server with one ConfigMap. text: its content; None if it does not exist."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.writes = 0

    async def get(self, path: str, decoder: Any) -> Any:
        if self.text is None:
            raise RefusedError("GET", 404, "NotFound", "")
        return decoder.decode(json.dumps({"data": {"memory.json": self.text}}))

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        if self.text is None:
            raise RefusedError("PATCH", 404, "NotFound", "")
        self._write(body)

    async def create(self, path: str, body: dict[str, Any]) -> None:
        self._write(body)

    def _write(self, body: dict[str, Any]) -> None:
        self.text = body["data"]["memory.json"]
        self.writes += 1


def kept_by(server: ConfigMaps, times: int = 1) -> None:
    def ask(question: Any) -> Future[bytes]:
        answer: Future[bytes] = Future()
        answer.set_result(question(state_of(3)))
        return answer

    keeper = StateWriter(server, "gangwatch", "memory", ask, lambda: True)  # type: ignore[arg-type]

    async def run() -> None:
        for _ in range(times):
            await keeper.once()

    asyncio.run(run())


def test_state_of_a_newer_release_is_neither_read_nor_overwritten(caplog: pytest.LogCaptureFixture) -> None:
    text = json.dumps({"minimum_reader": "9.0.0", "queue_use": {"q": [1, 2]}, "more": 3})
    state = State(now_ns=5)
    give_back(text.encode(), state)
    assert state.queue_use == {}
    assert "needs gangwatch 9.0.0 or newer" in caplog.text
    server = ConfigMaps(text)
    kept_by(server, 3)
    assert (server.text, server.writes) == (text, 0)


@pytest.mark.parametrize("text", [None, "", "{", '{"minimum_reader": "0.1.0"}', '{"minimum_reader": "soon"}', "{}"])
def test_other_state_is_replaced_once_it_changes(text: str | None) -> None:
    server = ConfigMaps(text)
    kept_by(server, 3)
    assert server.writes == 1
    assert json.loads(server.text or "")["queue_use"] == {"q": 1234.5}


@pytest.mark.parametrize(
    "changes",
    [
        {"trust": [0.1]},
        {"trust": [0.0] * 9},
        {"lately": [{"queue": "q", "user": "u", "workload": "", "ranks": 1, "seconds": 1e300}]},
        {"lately": [{"queue": "q", "user": "u", "workload": "", "ranks": 1, "seconds": -5.0}]},
        {"history": {"": [[0, -7.0]]}},
        {"queue_use": {"q": -1.0}, "queue_use_ns": -9},
    ],
)
def test_invalid_values_of_any_release_do_not_break_a_cycle(changes: dict[str, Any]) -> None:
    """Include content of a release with more or fewer kinds of similarity between jobs."""
    state = State(now_ns=5)
    give_back(json.dumps({**json.loads(kept_of(state_of(20))), **changes}).encode(), state)
    count_ended_jobs(state)
    spread = Answers(state).spread(JobSpec("a", ("x",), 8, user="u", queue="q"))
    assert len(spread) == BINS and sum(spread) == pytest.approx(1.0)
    assert state.queue_use_ns >= 0 and all(seconds >= 0 for seconds in state.queue_use.values())


def test_damaged_state_does_not_break_a_cycle() -> None:
    chance = random.Random(1)
    text = kept_of(state_of(20))
    for _ in range(300):
        at = chance.randrange(len(text))
        broken = text[:at] if chance.random() < 0.3 else text[:at] + bytes([chance.randrange(256)]) + text[at + 1 :]
        state = State(now_ns=5)
        give_back(broken, state)
        count_ended_jobs(state)
        Answers(state).spread(JobSpec("a", ("x",), 8))
