"""Fewer frames while the feed has too little time: the decision, and agents that are asked for them, with and without
TLS."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from agent.schema.clock import SystemClock
from agent.schema.frame import Frame, Layout, Tier, make_layout
from agent.schema.record_table import TABLE_TYPE
from agent.schema.sample import expanded
from exporter.security.security import Security
from exporter.server import ThreadedServer, agent_app
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed import feed as feed_module
from scheduler_feedback.feed.credentials import Credentials
from scheduler_feedback.feed.feed_with_readers import FeedWithReaders
from scheduler_feedback.feed.frame_rate import (
    BUSY_LATE_LEAST,
    BUSY_MOST,
    CALM_LATE_SECONDS,
    CALM_SECONDS,
    COMPARED_NODES,
    LEAST_SECONDS,
    MOST_EVERY,
    FrameRate,
    every_of,
    of_suspects,
    samples_of,
)
from tests.exporter.certificates import Authority
from tests.exporter.sample_frames import small_frame, small_layout

STEP_NS = int(LEAST_SECONDS * 1e9)


def run(shares: list[float]) -> list[int]:
    """Return the decision after each period in which reading had this share of the time beside ticks."""
    rate, now_ns, idle_ns, ticks_ns, found = FrameRate(), 7 * STEP_NS, 3, 5, []
    assert rate.take(now_ns, idle_ns, ticks_ns) == 1
    for share in shares:
        assert rate.take(now_ns + STEP_NS // 2, idle_ns, ticks_ns) == rate.every, "half a period decides nothing"
        now_ns, ticks_ns = now_ns + STEP_NS, ticks_ns + STEP_NS // 3
        idle_ns += int((1.0 - share) * (STEP_NS - STEP_NS // 3))
        found.append(rate.take(now_ns, idle_ns, ticks_ns))
    return found


def test_the_rate_follows_the_load() -> None:
    calm = int(CALM_SECONDS / LEAST_SECONDS)
    assert run([0.5, 0.95, 0.95, 1.0, 1.0]) == [1, 2, 4, MOST_EVERY, MOST_EVERY]
    assert run([0.95, 0.95, *[0.2] * int(CALM_LATE_SECONDS / LEAST_SECONDS)])[-2:] == [4, 2]
    assert run([0.95, *[0.2] * calm]) == [2, *[2] * (calm - 1), 1]
    assert run([0.95, *[0.2] * (calm - 1), 0.6, *[0.2] * (calm - 1), 0.2]) == [2, *[2] * (2 * calm - 1), 1]


def test_a_load_that_fits_at_half_the_rate_does_not_make_it_change_to_and_fro() -> None:
    for load in (0.95, 1.0, 1.3):
        rate, idle_ns, changes = FrameRate(), 0, []
        for period in range(200):
            before = rate.every
            idle_ns += int(max(0.0, 1.0 - load / before) * STEP_NS)
            if rate.take((period + 1) * STEP_NS, idle_ns, 0) != before:
                changes.append(rate.every)
        assert changes == [2]


def test_a_rate_that_is_too_high_is_tried_less_and_less_often() -> None:
    calm, late = int(CALM_SECONDS / LEAST_SECONDS), int(CALM_LATE_SECONDS / LEAST_SECONDS)
    low, high = BUSY_LATE_LEAST - 0.05, BUSY_MOST + 0.05
    tried = run([0.95, 0.95, *[low] * late, high, *[low] * 2 * late, high, *[low] * 4 * late])
    at_two = [period for period, every in enumerate(tried[2:]) if every == 2]
    assert at_two == [late - 1, late + 2 * late, late + 2 * late + 1 + 4 * late]
    kept = run([0.95, *[0.2] * calm, *[0.5] * 20, 0.95, *[0.2] * calm])
    assert kept[calm] == kept[-1] == 1, "after a minute at the higher rate, the next try comes as early as the first"


def test_the_rate_returns_to_every_second_frame_while_that_leaves_time() -> None:
    """One message for 8 frames takes 87 us, two for 4 frames 131 us, four for 2 frames 210 us (docs/adr/0162)."""
    load = {1: 4.0, 2: 0.75, 4: 0.75 / 1.6, 8: 0.75 / 2.4}
    rate, idle_ns = FrameRate(), 0
    for period in range(60):
        idle_ns += int(max(0.0, 1.0 - (load[rate.every] if period > 4 else 1.0)) * STEP_NS)
        rate.take((period + 1) * STEP_NS, idle_ns, 0)
    assert rate.every == 2


def test_of_a_gang_with_a_suspect_some_nodes_send_every_frame_and_all_send_every_second_one() -> None:
    nodes = [f"n{number // 8}" for number in range(8 * (3 * COMPARED_NODES))]
    found = of_suspects(nodes, {"n20"})
    assert found.keys() == set(nodes)
    assert {node for node, every in found.items() if every == 1} == {f"n{number}" for number in range(12, 29)}
    assert set(found.values()) == {1, 2}
    assert [*of_suspects(nodes, {"n0", "n40"}).values()].count(1) == COMPARED_NODES + 2
    assert [*of_suspects(nodes, {"elsewhere"}).values()].count(1) == COMPARED_NODES + 1
    assert set(of_suspects(nodes[:80], {"n3", "n9"}).values()) == {1}


@pytest.mark.parametrize(
    ("every", "interval_seconds", "found"),
    [(1, 1.0, 1), (8, 1.0, 8), (8, 2.0, 4), (8, 5.0, 1), (8, 60.0, 1), (8, 0.05, 8), (2, 0.0, 2)],
)
def test_messages_come_at_least_every_eight_seconds(every: int, interval_seconds: float, found: int) -> None:
    assert every_of(every, interval_seconds, most_samples=16) == found
    assert every_of(every, interval_seconds) == min(2, found), "agents that send only the newest sample"


def test_samples_are_at_most_two_frames_apart() -> None:
    assert [every // samples_of(every) for every in (1, 2, 4, 8)] == [1, 2, 2, 2]


@contextmanager
def agent(
    node: str, security: Security | None = None, pause_seconds: float = 0.005, slower: threading.Event | None = None
) -> Iterator[str]:
    """Serve an agent that makes a frame each `pause_seconds`. Yield its URL. slower: once it is set, the layout has an
    interval of a minute."""
    usual = structs.replace(small_layout(), node=node)
    rare = make_layout(node, [Tier("host", 60.0)], usual.gauges, usual.counters)
    newest: list[tuple[Layout, Frame]] = []
    listeners: list[Callable[[Layout, Frame], None]] = []
    stopped = threading.Event()

    def add_listener(listener: Callable[[Layout, Frame], None]) -> Callable[[], None]:
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def make() -> None:
        seq = 0
        while not stopped.is_set():
            seq += 1
            layout = rare if slower is not None and slower.is_set() else usual
            frame = structs.replace(small_frame(layout, seq), node=node, record_seq=2 * seq)
            newest[:] = [(layout, frame)]
            for listener in list(listeners):
                listener(layout, frame)
            stopped.wait(pause_seconds)

    thread = threading.Thread(target=make)
    thread.start()
    app = agent_app(lambda: newest[0] if newest else None, add_listener)
    try:
        with ThreadedServer(app, security=security) as server:
            yield server.url
    finally:
        stopped.set()
        thread.join()


def follow(
    folder: Path, urls: dict[str, str], credentials: Credentials | None, watched: dict[str, int], gap: int = 4,
    count: int = 30, feed_class: Callable[..., Feed] = Feed,
) -> tuple[Feed, dict[str, list[Frame]]]:  # fmt: skip
    """Read each agent's frames until one has sent `count` that are `gap` apart."""
    got: dict[str, list[Frame]] = {node: [] for node in urls}
    for node, url in urls.items():
        (folder / f"{node}.json").write_text(json.dumps({"pid": 1, "start_time": 1, "node": node, "url": url}))

    def deliver(_layout: object, frame: Frame, _received_ns: int) -> None:
        got[frame.node].append(frame)

    feed = feed_class(folder, deliver, (), SystemClock(), credentials, watched=lambda: watched)

    async def read() -> None:
        running = asyncio.ensure_future(feed.run())
        end = time.monotonic() + 30
        while gaps(got["n0"]).count(gap) < count or any(len(one) < 2 * count for one in got.values()):
            assert time.monotonic() < end, (feed.streams, {node: len(one) for node, one in got.items()})
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(read())
    return feed, got


def gaps(frames: list[Frame]) -> list[int]:
    numbers = [frame.seq for frame in frames]
    return [after - before for before, after in pairwise(numbers)]


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(FrameRate):
        def take(self, now_ns: int, idle_ns: int, ticks_ns: int) -> int:
            self.every = 4
            return 4

    monkeypatch.setattr(feed_module, "FrameRate", Busy)
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.02)


def test_agents_leave_out_frames_but_no_records(tmp_path: Path) -> None:
    with agent("n0") as one, agent("n1") as watched:
        feed, got = follow(tmp_path, {"n0": one, "n1": watched}, None, {"n1": 1})
    assert (feed.streams["n0"].every, feed.streams["n1"].every) == (4, 1)
    for frames in got.values():
        for before, after in pairwise(frames):
            count = len(before.table or before.records)
            assert before.record_seq + count + before.left_out == after.record_seq
    assert sum(len(frame.earlier) == 1 for frame in got["n0"]) >= 30, "the values of two of four frames"
    assert gaps(got["n1"]).count(4) < 5, "a node of a suspected gang sends every frame"
    assert ("gangwatch_feed_every", (), 4.0) in expanded(feed.measures())


@pytest.mark.parametrize(
    ("place", "replacement"),
    [
        ("exporter.server.reads_samples", lambda _: False),
        ("scheduler_feedback.feed.stream_connection.SAMPLES_TYPE", TABLE_TYPE),
    ],
    ids=["an agent of an earlier release", "a controller of an earlier release"],
)
def test_with_an_earlier_release_every_second_frame_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, replacement: object
) -> None:
    """It gets neither messages with samples nor requests for them, which would end the stream."""
    monkeypatch.setattr(place, replacement)
    with agent("n0") as url:
        feed, got = follow(tmp_path, {"n0": url}, None, {}, gap=2)
    assert feed.streams["n0"].every == 2 and not feed.streams["n0"].complaint
    assert not any(frame.earlier or frame.left_out for frame in got["n0"])


@pytest.mark.parametrize("feed_class", [Feed, partial(FeedWithReaders, processes=1)], ids=["thread", "process"])
def test_a_node_is_asked_again_when_it_is_watched_or_no_longer_watched(
    tmp_path: Path, feed_class: Callable[..., Feed]
) -> None:
    watched: dict[str, int] = {"n1": 2}
    seen: list[int] = []

    async def scene() -> None:
        with agent("n0", pause_seconds=0.05) as one, agent("n1", pause_seconds=0.05) as other:
            for node, url in {"n0": one, "n1": other}.items():
                (tmp_path / f"{node}.json").write_text(
                    json.dumps({"pid": 1, "start_time": 1, "node": node, "url": url})
                )
            feed = feed_class(tmp_path, lambda *_: None, (), SystemClock(), None, watched=lambda: dict(watched))
            running = asyncio.ensure_future(feed.run())
            for wanted in (2, 1, 4, 2):
                watched.clear()
                watched.update({"n1": wanted} if wanted < 4 else {})
                end = time.monotonic() + 30
                while [feed.streams[node].every for node in ("n0", "n1") if node in feed.streams] != [4, wanted]:
                    assert time.monotonic() < end, feed.streams
                    await asyncio.sleep(0.02)
                seen.append(wanted)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    assert seen == [2, 1, 4, 2]


@pytest.mark.parametrize("feed_class", [Feed, partial(FeedWithReaders, processes=1)], ids=["thread", "process"])
def test_an_agent_that_changes_its_interval_is_asked_again(tmp_path: Path, feed_class: Callable[..., Feed]) -> None:
    slower, seen = threading.Event(), list[int]()

    async def scene() -> None:
        with agent("n0", pause_seconds=0.05, slower=slower) as url:
            (tmp_path / "n0.json").write_text(json.dumps({"pid": 1, "start_time": 1, "node": "n0", "url": url}))
            feed = feed_class(tmp_path, lambda *_: None, (), SystemClock())
            running = asyncio.ensure_future(feed.run())
            for wanted in (4, 1):
                end = time.monotonic() + 30
                while "n0" not in feed.streams or feed.streams["n0"].every != wanted:
                    assert time.monotonic() < end, feed.streams
                    await asyncio.sleep(0.02)
                seen.append(wanted)
                slower.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    assert seen == [4, 1]


def test_an_agent_whose_stream_is_paused_is_asked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, asked = Feed(tmp_path, lambda *_: None, (), SystemClock()), list[str]()
    follower: Any = SimpleNamespace(stream=SimpleNamespace(node="n0", connected=True), deadline_ns=feed_module.NEVER_NS)
    feed._followers["n0"] = follower
    monkeypatch.setattr(feed, "_ask_agent", lambda one: asked.append(one.stream.node) or True)
    feed._ask_for_rate(1)
    assert asked == []
    follower.deadline_ns = 1
    feed._ask_for_rate(2)
    feed._ask_for_rate(3)
    assert asked == ["n0"]


def test_a_reader_process_asks_for_samples(tmp_path: Path) -> None:
    with agent("n0") as one, agent("n1") as watched:
        feed, got = follow(
            tmp_path, {"n0": one, "n1": watched}, None, {"n1": 1}, feed_class=partial(FeedWithReaders, processes=1)
        )
    assert (feed.streams["n0"].every, feed.streams["n1"].every) == (4, 1)
    assert sum(len(frame.earlier) == 1 for frame in got["n0"]) >= 30
    for before, after in pairwise(got["n0"]):
        assert before.record_seq + len(before.table or before.records) + before.left_out == after.record_seq


def test_a_request_for_fewer_messages_extends_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent sends nothing for longer than the timeout at the rate before: it had fallen silent."""
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 0.05)
    with agent("n0", pause_seconds=0.1) as url:
        feed, _ = follow(tmp_path, {"n0": url}, None, {}, count=2)
    assert "fallen silent" not in caplog.text and feed.streams["n0"].every == 4


def test_agents_with_tls_are_asked_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server", "DNS:n0.node.gangwatch.internal,DNS:localhost,IP:127.0.0.1")
    file, agents = tmp_path / "web.yml", tmp_path / "agents"
    agents.mkdir()
    file.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n")
    with agent("n0", Security(file)) as url:
        feed, _ = follow(agents, {"n0": url}, Credentials(ca_file=authority.certificate), {})
    assert feed.streams["n0"].every == 4
