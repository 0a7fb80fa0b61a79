"""Feed of the controller with real HTTP servers: truncated streams, garbage, agents that stop sending, restarts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp.web
import msgspec
import numpy as np
import pytest
from msgspec import structs

from agent.schema.clock import SystemClock
from agent.schema.frame import AnyLayout, Column, Frame, Layout, Tier, make_layout
from agent.schema.sample import Sample, expanded
from agent.schema.wire import WIRE_VERSION, encode_frame, encode_layout, with_length
from exporter.server import ThreadedServer, agent_app
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed import feed as feed_module
from scheduler_feedback.feed import stream_state as streams_module
from scheduler_feedback.feed.frame_rate import FrameRate
from scheduler_feedback.feed.handshake_slots import HandshakeSlots
from scheduler_feedback.feed.stream_state import Backoff

Send = Callable[[bytes], Awaitable[None]]
Speak = Callable[[Send], Awaitable[None]]


def layout_of(node: str) -> Layout:
    return make_layout(
        node, [Tier("host", 1.0)], [Column("gangwatch_rank_step")], [Column("gangwatch_rank_steps_total")]
    )


def frame_of(layout: Layout, seq: int) -> Frame:
    return Frame(
        layout.node, "boot", "agent", seq, layout.layout_id, 1, 1,
        np.array([1], np.int64), np.array([float(seq)]), np.array([seq], np.uint64), np.array([True]),
    )  # fmt: skip


def stream_of(node: str, *numbers: int) -> bytes:
    """Return a layout and frames with these numbers as bytes of a stream."""
    layout = layout_of(node)
    return with_length(encode_layout(layout)) + b"".join(
        with_length(encode_frame(frame_of(layout, n))) for n in numbers
    )


class Agent:
    """HTTP server of an agent. Its stream sends what `speak` sends, then stays open until the test closes it."""

    def __init__(self, speak: Speak, stays: bool = True) -> None:
        self.speak = speak
        self.stays = stays
        self.asked: list[str] = []
        self.closing = asyncio.Event()

    async def frames(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        self.asked.append(request.query.get("metrics", ""))
        response = aiohttp.web.StreamResponse()
        await response.prepare(request)
        await self.speak(response.write)
        if self.stays:
            await self.closing.wait()
        return response

    @asynccontextmanager
    async def listening(self, folder: Path, node: str) -> AsyncIterator[str]:
        app = aiohttp.web.Application()
        app.router.add_get("/frames", self.frames)
        runner = aiohttp.web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        announce(folder, node, url)
        try:
            yield url
        finally:
            self.closing.set()
            await runner.cleanup()


def announce(folder: Path, node: str, url: str) -> None:
    (folder / f"{node}.json").write_text(
        json.dumps({"pid": 1, "start_time": 2, "node": node, "url": url, "socket": "", "slots": 2})
    )


def sending(*parts: bytes) -> Speak:
    async def speak(send: Send) -> None:
        for part in parts:
            await send(part)
            await asyncio.sleep(0)

    return speak


@asynccontextmanager
async def feeding(folder: Path, wanted: tuple[str, ...] = ()) -> AsyncIterator[tuple[Feed, list[tuple[str, int]]]]:
    got: list[tuple[str, int]] = []
    feed = Feed(folder, lambda layout, frame, received_ns: got.append((frame.node, frame.seq)), wanted, SystemClock())
    task = asyncio.create_task(feed.run())
    try:
        yield feed, got
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.02)
    monkeypatch.setattr(streams_module, "BACKOFF_MOST_SECONDS", 0.2)


def test_frames_arrive_in_order_wherever_the_stream_is_cut(tmp_path: Path) -> None:
    async def scene() -> None:
        stream = stream_of("n0", *range(1, 8))
        bytewise = Agent(sending(*(stream[at : at + 7] for at in range(0, len(stream), 7))))
        whole = Agent(sending(stream_of("n1", 1, 2, 3)))
        async with (
            bytewise.listening(tmp_path, "n0"),
            whole.listening(tmp_path, "n1"),
            feeding(tmp_path, ("gangwatch_rank_*", "gangwatch_host_pressure*")) as (feed, got),
        ):
            await until(lambda: len(got) == 10)
            assert [seq for node, seq in got if node == "n0"] == list(range(1, 8))
            assert bytewise.asked == ["gangwatch_rank_*,gangwatch_host_pressure*"]
            samples = {(name, dict(labels).get("node")): value for name, labels, value in expanded(feed.measures())}
            assert samples["gangwatch_feed_connected", "n0"] == 1
            assert samples["gangwatch_feed_frames_total", "n0"] == 7
            assert samples["gangwatch_feed_malformed_total", "n1"] == 0
            assert 0 < samples["gangwatch_feed_frame_age_seconds", "n1"] < 20

    asyncio.run(scene())


WRONG_NODE = stream_of("n9", 1)
FRAME_FIRST = stream_of("n0", 1)[len(with_length(encode_layout(layout_of("n0")))) :]
SHORT = with_length(
    encode_frame(
        Frame("n0", "b", "a", 1, layout_of("n0").layout_id, 1, 1, np.array([1], np.int64), np.array([]),
              np.array([1], np.uint64), np.array([True]))
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("garbage", "complaint"),
    [
        (with_length(b"\x00garbage"), "not a gangwatch message"),
        (b"\xff\xff\xff\xff", "message of 4294967295 bytes"),
        (b"HTTP/1.1 200 OK\r\n", "bytes, at most"),
        (with_length(b"\x91" * 100_000), "not a gangwatch message"),
        (WRONG_NODE, "the stream of 'n0' contains a message of 'n9'"),
        (FRAME_FIRST, "comes before any layout"),
        (with_length(encode_layout(layout_of("n0"))) + SHORT, "0 gauges, expected 1 by its layout"),
    ],
)
def test_garbage_is_counted_and_the_stream_opened_again(tmp_path: Path, garbage: bytes, complaint: str) -> None:
    async def scene() -> None:
        agent = Agent(sending(garbage))
        async with agent.listening(tmp_path, "n0"), feeding(tmp_path) as (feed, got):
            await until(lambda: bool(feed.streams) and feed.streams["n0"].malformed >= 2)
            assert complaint in feed.streams["n0"].complaint
            assert got == []
            agent.speak = sending(stream_of("n0", 1, 2))
            await until(lambda: got == [("n0", 1), ("n0", 2)])
            assert feed.streams["n0"].connected
            assert feed.streams["n0"].complaint == ""

    asyncio.run(scene())


def test_another_wire_version_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        agent = Agent(sending(with_length(msgspec.msgpack.encode({"v": WIRE_VERSION + 2, "k": "frame"}))))
        async with agent.listening(tmp_path, "n0"), feeding(tmp_path) as (feed, _):
            await until(lambda: len(agent.asked) >= 4)
            assert feed.streams["n0"].malformed >= 3

    asyncio.run(scene())
    assert len([line for line in caplog.messages if f"wire version {WIRE_VERSION + 2}" in line]) == 1


def test_a_restarted_agent_is_followed_at_its_new_address(tmp_path: Path) -> None:
    async def scene() -> None:
        async with feeding(tmp_path) as (feed, got):
            async with Agent(sending(stream_of("n0", 1))).listening(tmp_path, "n0"):
                await until(lambda: got == [("n0", 1)])
            await until(lambda: not feed.streams["n0"].connected)
            async with Agent(sending(stream_of("n0", 2))).listening(tmp_path, "n0"):
                await until(lambda: got == [("n0", 1), ("n0", 2)])
            (tmp_path / "n0.json").unlink()
            await until(lambda: not feed._followers)

    asyncio.run(scene())


def test_a_silent_agent_is_connected_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 0.1)

    async def scene() -> None:
        agent = Agent(sending(stream_of("n0", 1)))
        async with agent.listening(tmp_path, "n0"), feeding(tmp_path):
            await until(lambda: len(agent.asked) >= 3)

    asyncio.run(scene())


def test_no_agent_times_out_while_the_feed_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's response takes two passes of detection, and each pass takes longer than the feed's timeout."""
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 0.3)
    passes = 0

    def detect() -> float:
        nonlocal passes
        passes += 1
        time.sleep(0.5)
        return 0.01

    async def answer(send: Send) -> None:
        await asyncio.sleep(0.7)
        await send(stream_of("n0", 1))

    async def scene() -> None:
        agent = Agent(answer)
        received: list[Frame] = []
        feed = Feed(tmp_path, lambda _, frame, __: received.append(frame), (), SystemClock(), between=detect)
        async with agent.listening(tmp_path, "n0"):
            task = asyncio.create_task(feed.run())
            await until(lambda: bool(received))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(agent.asked) == 1 and passes > 1
        assert not feed.streams["n0"].complaint

    asyncio.run(scene())


def test_slow_silent_malformed_and_flooding_agents_do_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(feed_module, "MOST_FRAMES_AT_ONCE", 50)

    async def slow(send: Send) -> None:
        for byte in stream_of("slow", *range(1, 4000)):
            await send(bytes([byte]))
            await asyncio.sleep(0.01)

    async def flood(send: Send) -> None:
        await send(stream_of("flood"))
        for number in range(1, 1_000_000):
            await send(stream_of("flood", number)[len(stream_of("flood")) :])

    async def steady(send: Send) -> None:
        await send(stream_of("good"))
        for number in range(1, 1_000):
            await send(stream_of("good", number)[len(stream_of("good")) :])
            await asyncio.sleep(0.02)

    async def scene() -> None:
        agents = {
            "slow": Agent(slow),
            "silent": Agent(sending(stream_of("silent"))),
            "malformed": Agent(sending(with_length(b"\x00"))),
            "flood": Agent(flood),
            "good": Agent(steady),
        }
        async with AsyncExitStack() as stack:
            for node, agent in agents.items():
                await stack.enter_async_context(agent.listening(tmp_path, node))
            feed, got = await stack.enter_async_context(feeding(tmp_path))
            await until(lambda: all(len(agents[node].asked) >= 2 for node in agents if node != "good"))
            assert "fallen silent" in feed.streams["slow"].complaint
            assert "fallen silent" in feed.streams["silent"].complaint
            assert "more than 64 messages a second" in feed.streams["flood"].complaint
            assert feed.streams["malformed"].malformed >= 1
            received = [seq for node, seq in got if node == "good"]
            assert received == list(range(1, len(received) + 1)) and len(received) > 10
            assert len(agents["good"].asked) == 1, "its stream was not opened again"

    asyncio.run(scene())


def test_an_agent_of_an_earlier_release_sends_every_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would close a stream whose reader says something."""

    class Busy(FrameRate):
        def take(self, now_ns: int, idle_ns: int, ticks_ns: int) -> int:
            return 4

    monkeypatch.setattr(feed_module, "FrameRate", Busy)

    async def steady(send: Send) -> None:
        await send(stream_of("n0"))
        for number in range(1, 40):
            await send(stream_of("n0", number)[len(stream_of("n0")) :])
            await asyncio.sleep(0.01)

    async def scene() -> None:
        agent = Agent(steady)
        async with agent.listening(tmp_path, "n0"), feeding(tmp_path) as (feed, got):
            await until(lambda: len(got) == 39)
            assert feed.streams["n0"].every == 1
            assert len(agent.asked) == 1

    asyncio.run(scene())


def test_an_agent_with_a_host_name(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Agent(sending(stream_of("n0", 1))).listening(tmp_path, "n0") as url, feeding(tmp_path) as (_, got):
            announce(tmp_path, "n0", url.replace("127.0.0.1", "localhost"))
            announce(tmp_path, "n1", "http://name.invalid:1")
            await until(lambda: ("n0", 1) in got)

    asyncio.run(scene())


def test_handshake_slots_are_limited_and_given_in_order() -> None:
    slots: HandshakeSlots[str] = HandshakeSlots(most=2)
    assert [slots.enter(who, 0) for who in ("a", "b", "c", "d", "e")] == [True, True, False, False, False]
    assert slots.crowded and slots.enter("a", 1), "a keeps its slot"
    assert list(slots.let_in(1)) == []
    slots.leave("a")
    slots.leave("c")  # while waiting
    assert not slots.enter("f", 2), "f queues behind the others"
    assert list(slots.let_in(2)) == ["d"] and slots.enter("d", 3)
    assert list(slots.let_in(1_000_000_001)) == ["e"], "b's slot has expired"


def test_all_agents_connect_with_few_handshake_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "HandshakeSlots", partial(HandshakeSlots, 1))
    nodes = [f"node-{index}" for index in range(6)]
    most, now = 0, 0

    def agent(node: str) -> Agent:
        async def speak(send: Send) -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.02)
            now -= 1
            await send(stream_of(node, 1))

        return Agent(speak)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            for node in nodes:
                await stack.enter_async_context(agent(node).listening(tmp_path, node))
            _, got = await stack.enter_async_context(feeding(tmp_path))
            await until(lambda: {node for node, _ in got} == set(nodes))

    asyncio.run(scene())
    assert most == 1


def test_detection_runs_between_reads(tmp_path: Path) -> None:
    async def scene() -> None:
        turns: list[int] = []

        def between() -> float:
            turns.append(len(turns))
            return 0.01

        feed = Feed(tmp_path, lambda *_: None, (), SystemClock(), between=between)
        task = asyncio.create_task(feed.run())
        await until(lambda: len(turns) > 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_a_bug_ends_the_feed_and_is_raised(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def scene() -> None:
        async with Agent(sending(stream_of("n0", 1))).listening(tmp_path, "n0"):
            with pytest.raises(ZeroDivisionError):
                async with asyncio.timeout(20):
                    await Feed(tmp_path, broken, (), SystemClock()).run()

    asyncio.run(scene())


def test_pauses_grow_without_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "BACKOFF_MOST_SECONDS", 5.0)
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(12)]
    for number, pause in enumerate(pauses):
        longest = min(5.0, 0.1 * 2**number)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == len(pauses)  # with jitter
    backoff.reset()
    assert backoff.next() <= 0.1
    assert backoff.next(longest=True) >= 2.5


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "truncated"),
        (b'{"pid": 1, "start_time": 1, "node": "n1", "url": "http://h:1"}', "it names node 'n1'"),
        (b'{"pid": 1, "start_time": 1, "node": "n0", "url": "file:///etc/passwd"}', "is not an http address"),
    ],
)
def test_an_invalid_agent_record_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, complaint: str
) -> None:
    async def scene() -> None:
        (tmp_path / "n0.json").write_bytes(content)
        async with Agent(sending(stream_of("n2", 1))).listening(tmp_path, "n2"), feeding(tmp_path) as (feed, got):
            await until(lambda: got == [("n2", 1)])
            assert set(feed.streams) == {"n2"}

    asyncio.run(scene())
    assert len([line for line in caplog.messages if complaint in line and "n0.json" in line]) == 1


def test_the_feed_reads_a_real_agents_server(tmp_path: Path) -> None:
    """The feed gets exactly the requested columns from the agent's own server."""
    link = "gangwatch_nvlink_transmit_bytes_total"
    layout = make_layout(
        "n0",
        [Tier("host", 1.0)],
        [Column("gangwatch_host_load1"), Column("gangwatch_gpu_power_watts", (("gpu", "GPU-1"),))],
        [
            Column("gangwatch_host_pressure_waiting_seconds_total", (("resource", "cpu"),)),
            Column("gangwatch_host_cpu_seconds_total"),
            *(Column(link, (("gpu", "GPU-1"), ("link", str(number)))) for number in range(3)),
        ],
    )
    frame = Frame(
        "n0", "boot", "agent", 1, layout.layout_id, 1, 1, np.array([1], np.int64), np.array([0.5, 7.0]),
        np.array([3, 4, 10, 20, 30], np.uint64), np.array([True] * 5),
    )  # fmt: skip
    listeners: list[Callable[[Layout, Frame], None]] = []

    def add_listener(listener: Callable[[Layout, Frame], None]) -> Callable[[], None]:
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    async def scene() -> None:
        got: list[tuple[AnyLayout, Frame]] = []
        feed = Feed(tmp_path, lambda layout, frame, _: got.append((layout, frame)), WANTED, SystemClock())
        task = asyncio.create_task(feed.run())
        await until(lambda: len(got) == 1)
        listeners[0](layout, structs.replace(frame, seq=2))
        await until(lambda: len(got) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        narrow, newest = got[1][0].whole(), got[1][1]
        assert [column.metric for column in narrow.gauges] == ["gangwatch_gpu_power_watts"]
        assert [column.metric for column in narrow.counters] == ["gangwatch_host_pressure_waiting_seconds_total", link]
        assert (newest.seq, newest.gauges.tolist(), newest.counters.tolist()) == (2, [7.0], [3, 60])

    with ThreadedServer(agent_app(lambda: (layout, frame), add_listener)) as server:
        announce(tmp_path, "n0", server.url)
        asyncio.run(scene())


def test_a_limited_number_of_frames_is_read_before_detection_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "FRAMES_AT_ONCE", 20)
    monkeypatch.setattr(feed_module, "STREAMS_TOGETHER", 1)
    streams, frames = 16, 40

    async def scene() -> None:
        got: list[Frame] = []
        reads: list[int] = []

        def detect() -> float:
            reads.append(len(got) - sum(reads))
            if not got:
                time.sleep(0.05)  # meanwhile every agent has sent all its frames
            return 0.01

        async with AsyncExitStack() as stack:
            for number in range(streams):
                agent = Agent(sending(stream_of(f"n{number}", *range(1, frames + 1))))
                await stack.enter_async_context(agent.listening(tmp_path, f"n{number}"))
            feed = Feed(tmp_path, lambda _, frame, __: got.append(frame), (), SystemClock(), between=detect)
            task = asyncio.create_task(feed.run())
            await until(lambda: len(got) == streams * frames)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert max(reads) < 20 + 2 * frames, "at most one stream more, which is read completely"

    asyncio.run(scene())


def test_a_batch_is_short_during_handshakes_and_ends_when_detection_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TLS handshake takes several batches, so long batches would delay it. Detection must not get frames late."""
    monkeypatch.setattr(feed_module, "STREAMS_TOGETHER", 1)
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 1.0)
    batches: list[float] = []
    sleep = time.sleep

    def record(seconds: float) -> None:
        if threading.current_thread().name == "feed":
            batches.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", record)
    due_seconds = [10.0]

    async def scene() -> None:
        answers = asyncio.Event()

        async def late(send: Send) -> None:
            await answers.wait()
            await send(stream_of("n1", 1))

        async with (
            Agent(sending(stream_of("n0", 1))).listening(tmp_path, "n0"),
            Agent(late).listening(tmp_path, "n1"),
        ):
            got: list[str] = []
            feed = Feed(
                tmp_path, lambda _, frame, __: got.append(frame.node), (), SystemClock(), between=lambda: due_seconds[0]
            )
            task = asyncio.create_task(feed.run())
            await until(lambda: got == ["n0"])
            batches.clear()  # the first one began before the handshakes
            await until(lambda: len(batches) > 5)
            assert max(batches) <= feed_module.TOGETHER_OPENING_SECONDS, "n1 has not sent a layout yet"
            answers.set()
            await until(lambda: got == ["n0", "n1"])
            await until(lambda: max(batches) > 0.8 * feed_module.TOGETHER_SECONDS)
            due_seconds[0] = 0.03
            await asyncio.sleep(2 * feed_module.TOGETHER_SECONDS)  # the batch before may still run
            batches.clear()
            await until(lambda: len(batches) > 5)
            assert max(batches) <= 0.03
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())


def test_a_feed_that_is_late_reads_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "STREAMS_TOGETHER", 1)
    pauses: list[float] = []
    sleep = time.sleep

    def record(seconds: float) -> None:
        if threading.current_thread().name == "feed":
            pauses.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", record)

    def detect() -> float:
        sleep(1.2 * feed_module.TOGETHER_SECONDS)
        return 10.0

    async def scene() -> None:
        async with Agent(sending(stream_of("n0", 1))).listening(tmp_path, "n0"):
            got: list[str] = []
            feed = Feed(tmp_path, lambda _, frame, __: got.append(frame.node), (), SystemClock(), between=detect)
            task = asyncio.create_task(feed.run())
            await until(lambda: got == ["n0"])
            assert not pauses, "detection took longer than a batch of frames"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())


def test_frames_are_folded_between_two_ticks() -> None:
    ticks: list[DetectionContext] = []

    class CountingDetector:
        name = "looker"

        def tick(self, context: DetectionContext) -> list[Finding]:
            ticks.append(context)
            return []

        def measures(self) -> Iterator[Sample]:
            return iter(())

        def snapshot(self) -> bytes:
            return b""

        def restore(self, data: bytes) -> None:
            pass

    watch = DetectionThread((CountingDetector(),), lambda _: None, SystemClock(), tick_seconds=60.0)
    watch.between()
    assert len(ticks) == 1
    layout = layout_of("n0")
    for seq in (1, 2):
        watch.offer(layout, frame_of(layout, seq), 0)
        watch.between()
        assert (watch._fleet.nodes["n0"].seq, len(ticks)) == (seq, 1)


def test_ticks_take_at_most_a_third_of_the_time() -> None:
    class ManualClock(SystemClock):
        now_ns = 0

        def monotonic_ns(self) -> int:
            return self.now_ns

    clock = ManualClock()
    watch = DetectionThread((), lambda _: None, clock, tick_seconds=0.5)
    begun: list[int] = []

    def run_tick(seconds: float) -> None:
        begun.append(clock.now_ns)
        clock.now_ns += int(seconds * 1e9)

    for seconds, pause in ((0.1, 0.4), (0.4, 0.8), (2.0, 4.0)):
        clock.now_ns += 10**12
        watch.run_tick = partial(run_tick, seconds)  # type: ignore[method-assign]
        assert watch.between() == pytest.approx(pause)
    clock.now_ns += 3_999_000_000
    assert watch.between() == pytest.approx(0.001) and len(begun) == 3, "no tick before that"


def test_an_agent_that_sends_too_much_is_throttled_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new layout with every frame costs the reader most."""
    monkeypatch.setattr(streams_module, "ALLOWED_A_SECOND", 16 * 1024)
    monkeypatch.setattr(streams_module, "ALLOWED_AT_ONCE", 32 * 1024)

    async def flood(send: Send) -> None:
        for seq in range(1, 400):
            layout = make_layout(
                "evil", [Tier("host", 1.0)], [Column("gangwatch_rank_step", (("x", str(seq)),))],
                [Column("gangwatch_rank_steps_total")],
            )  # fmt: skip
            await send(with_length(encode_layout(layout)) + with_length(encode_frame(frame_of(layout, seq))))

    async def speak(send: Send) -> None:
        await send(stream_of("n0", 1))
        for seq in range(2, 40):
            await send(with_length(encode_frame(frame_of(layout_of("n0"), seq))))
            await asyncio.sleep(0.02)

    async def scene() -> None:
        async with (
            Agent(flood).listening(tmp_path, "evil"),
            Agent(speak).listening(tmp_path, "n0"),
            feeding(tmp_path) as (feed, got),
        ):
            await until(lambda: ("n0", 39) in got)
            assert 1 <= len([seq for node, seq in got if node == "evil"]) < 400
            samples = {(name, dict(labels).get("node")): value for name, labels, value in expanded(feed.measures())}
            assert samples["gangwatch_feed_pauses_total", "evil"] >= 1
            assert samples["gangwatch_feed_pauses_total", "n0"] == 0
            assert samples["gangwatch_feed_connected", "evil"] == 1, "it stays connected"
            seen = len(got)
            await until(lambda: len(got) > seen + 10)

    asyncio.run(scene())
    assert "node=evil reason=too-much" in caplog.text


def test_the_allowance_of_an_agent_refills() -> None:
    allowance = streams_module.Allowance(0)
    assert allowance.take(streams_module.ALLOWED_AT_ONCE, 0) == 0.0
    assert allowance.take(streams_module.ALLOWED_A_SECOND, 0) == 1.0
    assert allowance.take(0, 500_000_000) == 0.5
    assert allowance.take(0, 1_000_000_000) == 0.0
    assert allowance.take(streams_module.ALLOWED_AT_ONCE, 1_000_000_000_000) == 0.0, "the allowance has a maximum"
    assert allowance.take(1, 1_000_000_000_000) > 0.0


def test_a_saturated_feed_still_opens_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many streams as the thread can read, a handshake must not wait for the frames of all of them."""
    monkeypatch.setattr(feed_module, "FRAMES_AT_ONCE", 1)
    streams = 24
    turns = 0

    def slow() -> float:
        nonlocal turns
        turns += 1
        time.sleep(0.01)  # folding: the frames of 24 agents take longer than they take to arrive
        return 1.0

    async def scene() -> None:
        async def busy(send: Send, node: str) -> None:
            layout, number = layout_of(node), 0
            await send(with_length(encode_layout(layout)))
            while True:
                number += 1
                await send(with_length(encode_frame(frame_of(layout, number))))
                await asyncio.sleep(0.03)

        got: set[str] = set()
        async with AsyncExitStack() as stack:
            for number in range(streams):
                agent = Agent(partial(busy, node=f"n{number:02d}"))
                await stack.enter_async_context(agent.listening(tmp_path, f"n{number:02d}"))
            feed = Feed(tmp_path, lambda _, frame, __: got.add(frame.node), (), SystemClock(), between=slow)
            task = asyncio.create_task(feed.run())
            await until(lambda: len(got) == streams)
            await asyncio.sleep(1.0)  # from now on, frames wait in every socket
            await stack.enter_async_context(Agent(sending(stream_of("late", 1))).listening(tmp_path, "late"))
            await until(lambda: "late" in feed.streams)
            before = turns
            await until(lambda: "late" in got)
            assert turns - before <= streams, "the handshake waited for more than one pass over all streams"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())
