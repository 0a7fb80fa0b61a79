"""Feed with reader processes: the tests of the feed without them, processes that end, and a slow controller."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from agent.schema.clock import SystemClock
from agent.schema.frame import AnyLayout, Column, Frame, Tier, make_layout
from agent.schema.sample import expanded
from agent.schema.wire import encode_frame, encode_layout, with_length
from scheduler_feedback.feed import feed_with_readers as readers_module
from scheduler_feedback.feed.agent_reporting import AgentStatuses
from scheduler_feedback.feed.feed_with_readers import FeedWithReaders
from scheduler_feedback.feed.reader_channel import (
    EVENT,
    FRAME,
    Command,
    ControllerEnd,
    EndOfChannelError,
    Interval,
    Logged,
    ReaderEnd,
    Used,
    decode_event,
)
from tests.feed import test_feed, test_feed_over_tls
from tests.feed.test_feed import (
    Agent,
    Send,
    Speak,
    frame_of,
    layout_of,
    sending,
    stream_of,
    test_a_restarted_agent_is_followed_at_its_new_address,
    test_another_wire_version_is_logged_once,
    test_garbage_is_counted_and_the_stream_opened_again,
    until,
)
from tests.feed.test_feed_over_tls import (
    test_a_client_certificate,
    test_a_password_over_tls,
    test_credentials_that_cannot_be_used_are_named,
)

__all__ = [
    "test_a_client_certificate",
    "test_a_password_over_tls",
    "test_a_restarted_agent_is_followed_at_its_new_address",
    "test_another_wire_version_is_logged_once",
    "test_credentials_that_cannot_be_used_are_named",
    "test_garbage_is_counted_and_the_stream_opened_again",
]


@pytest.fixture(autouse=True)
def with_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the imported tests with one reader process."""
    for module in (test_feed, test_feed_over_tls):
        monkeypatch.setattr(module, "Feed", partial(FeedWithReaders, processes=1))
    monkeypatch.setattr(readers_module, "PAUSE_SECONDS", 0.05)
    yield


@asynccontextmanager
async def reading(
    folder: Path, processes: int | None, between: Callable[[], float] | None = None
) -> AsyncIterator[tuple[FeedWithReaders, list[tuple[AnyLayout, Frame]]]]:
    got: list[tuple[AnyLayout, Frame]] = []
    feed = FeedWithReaders(
        folder, lambda layout, frame, _: got.append((layout, frame)), (), SystemClock(), between=between,
        processes=processes,
    )  # fmt: skip
    task = asyncio.create_task(feed.run())
    try:
        yield feed, got
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def steady(node: str, pause_seconds: float = 0.02) -> Speak:
    """Return what an agent sends: a frame each 20 ms, whose numbers continue over all of its connections."""
    number = 0

    async def speak(send: Send) -> None:
        nonlocal number
        await send(stream_of(node))
        while True:
            number += 1
            await send(with_length(encode_frame(frame_of(layout_of(node), number))))
            await asyncio.sleep(pause_seconds)

    return speak


def running(feed: FeedWithReaders) -> list[int]:
    return [reader.process.pid for reader in list(feed._readers.values())]


def numbers(got: list[tuple[AnyLayout, Frame]], node: str) -> list[int]:
    return [frame.seq for _, frame in list(got) if frame.node == node]


NODES = [f"n{number}" for number in range(7)]


@pytest.mark.parametrize("processes", [1, 2])
def test_frames_are_equal_with_and_without_processes(tmp_path: Path, processes: int) -> None:
    async def received(processes: int) -> dict[str, list[tuple[str, bytes]]]:
        folder = tmp_path / str(processes)
        folder.mkdir()
        async with AsyncExitStack() as stack:
            for node in NODES:
                await stack.enter_async_context(Agent(sending(stream_of(node, *range(1, 40)))).listening(folder, node))
            feed, got = await stack.enter_async_context(reading(folder, processes))
            await until(lambda: len(got) == 39 * len(NODES))
            assert len(running(feed)) == processes
            assert all(feed.streams[node].connected and feed.streams[node].frames == 39 for node in NODES)
        found: dict[str, list[tuple[str, bytes]]] = {}
        for layout, frame in got:
            found.setdefault(frame.node, []).append((layout.layout_id, encode_frame(frame)))
        return found

    assert asyncio.run(received(processes)) == asyncio.run(received(0))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_is_killed_is_started_again(
    tmp_path: Path, processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with AsyncExitStack() as stack:
            for node in NODES:
                await stack.enter_async_context(Agent(steady(node)).listening(tmp_path, node))
            feed, got = await stack.enter_async_context(reading(tmp_path, processes))
            await until(lambda: all(numbers(got, node) for node in NODES))
            killed = running(feed)[0]
            os.kill(killed, signal.SIGKILL)
            await until(lambda: len(running(feed)) == processes and killed not in running(feed))
            before = len(got)
            await until(lambda: all(stream.connected for stream in feed.streams.values()))
            await until(lambda: {frame.node for _, frame in list(got)[before:]} == set(NODES))
            clock = SystemClock()
            assert AgentStatuses(feed.streams, clock.monotonic_ns(), clock.wall_ns()).silent(NODES) == []
            samples = {name: value for name, labels, value in expanded(feed.measures()) if not labels}
            assert samples["gangwatch_feed_process_ends_total"] == 1
            assert samples["gangwatch_feed_processes"] == processes
            for node in NODES:
                assert numbers(got, node) == sorted(set(numbers(got, node))), "in order, each once"

    asyncio.run(scene())
    assert any("ended with signal SIGKILL" in line and "another one starts" in line for line in caplog.messages)


def test_each_process_knows_the_interval_of_its_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was started again: an agent that sends rarely is asked for fewer frames than others."""
    slow = make_layout("n0", [Tier("host", 2.0)], [Column("gangwatch_rank_step")], [])
    sent: list[object] = []
    send = ControllerEnd.send

    def sending_recorded(end: ControllerEnd, command: Command) -> None:
        sent.append(command)
        send(end, command)

    monkeypatch.setattr(ControllerEnd, "send", sending_recorded)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Agent(sending(with_length(encode_layout(slow)))).listening(tmp_path, "n0"))
            feed, _ = await stack.enter_async_context(reading(tmp_path, 1))
            await until(lambda: sent.count(Interval("n0", 2.0)) == 1)
            os.kill(running(feed)[0], signal.SIGKILL)
            await until(lambda: sent.count(Interval("n0", 2.0)) == 2)

    asyncio.run(scene())


def test_a_process_ends_with_its_controller_and_ignores_signals_of_the_group(tmp_path: Path) -> None:
    async def scene() -> int:
        async with Agent(steady("n0")).listening(tmp_path, "n0"), reading(tmp_path, 1) as (feed, got):
            await until(lambda: bool(got))
            (pid,) = running(feed)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
            before = len(got)
            await until(lambda: len(got) > before + 10)
            assert running(feed) == [pid]
            (reader,) = feed._readers.values()
            reader.end._pair.shutdown(socket.SHUT_RDWR)  # as when the controller is killed
            await until(lambda: running(feed) != [pid])
            return pid

    pid = asyncio.run(scene())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_slow_controller_leaves_frames_in_the_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring is full meanwhile: nothing is lost, and no stream times out."""
    monkeypatch.setattr(readers_module, "RING_BYTES", 64 * 1024)
    slow = True

    def between() -> float:
        if slow:
            time.sleep(1.5)
        return 0.1

    async def scene() -> None:
        nonlocal slow
        async with AsyncExitStack() as stack:
            for node in NODES:
                frames = stream_of(node, *range(1, 1500))
                await stack.enter_async_context(Agent(sending(frames)).listening(tmp_path, node))
            feed, got = await stack.enter_async_context(reading(tmp_path, 1, between))
            await asyncio.sleep(4.0)
            assert len(got) < 1499 * len(NODES), "the ring holds a part only"
            slow = False
            await until(lambda: len(got) == 1499 * len(NODES))
            assert all(numbers(got, node) == list(range(1, 1500)) for node in NODES)
            assert all(stream.complaint == "" and stream.connected for stream in feed.streams.values())

    asyncio.run(scene())


def test_processes_start_when_there_are_many_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_module, "READERS_ABOVE", 3)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            for node in NODES[:3]:
                await stack.enter_async_context(Agent(steady(node)).listening(tmp_path, node))
            feed, got = await stack.enter_async_context(reading(tmp_path, None))
            await until(lambda: all(numbers(got, node) for node in NODES[:3]))
            assert running(feed) == []
            await stack.enter_async_context(Agent(steady(NODES[3])).listening(tmp_path, NODES[3]))
            await until(lambda: bool(numbers(got, NODES[3])))
            assert len(running(feed)) == 1
            before = len(got)
            await until(lambda: {frame.node for _, frame in list(got)[before:]} == set(NODES[:4]))
            for node in NODES[:4]:
                assert numbers(got, node) == sorted(set(numbers(got, node)))

    asyncio.run(scene())


@pytest.mark.parametrize("executable", ["/absent/python", "/bin/false"])
def test_the_controller_reads_itself_if_processes_do_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)

    async def scene() -> None:
        async with Agent(steady("n0")).listening(tmp_path, "n0"), reading(tmp_path, 1) as (feed, got):
            await until(lambda: bool(got))
            assert running(feed) == []

    asyncio.run(scene())
    assert "reader processes do not work on this machine" in caplog.text


# --- the channel ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[ControllerEnd, ReaderEnd]]:
    controller = ControllerEnd(4096)
    reader = ReaderEnd(controller.memory, controller.other)
    yield controller, reader
    controller.close()
    reader.close()
    os.close(controller.memory)


def test_entries_pass_the_end_of_the_ring(ends: tuple[ControllerEnd, ReaderEnd]) -> None:
    controller, reader = ends
    sent, got = [], []
    for number in range(200):
        message = bytes([number]) * (number * 7 % 300)
        sent.append((FRAME, number, 10 * number, message))
        reader.add(*sent[-1])
        if number % 3 == 0:
            reader.flush()
            while (entries := controller.take()) is not None:
                got += entries
            list(reader.commands())
    reader.flush()
    while (entries := controller.take()) is not None:
        got += entries
    assert got == sent


def test_a_flush_larger_than_the_ring_waits_for_the_controller(ends: tuple[ControllerEnd, ReaderEnd]) -> None:
    controller, reader = ends
    for number in range(100):
        reader.add_event(Logged("x", logging.INFO, f"{number} " + "y" * 100))
    got: list[str] = []

    def read() -> None:
        while len(got) < 100:
            for kind, _, _, data in controller.take() or ():
                event = decode_event(data)
                assert kind == EVENT
                assert isinstance(event, Logged)
                got.append(event.text.split()[0])

    thread = threading.Thread(target=read)
    thread.start()
    reader.flush()
    thread.join(10)
    assert got == [str(number) for number in range(100)]


def test_commands_and_the_end_of_the_channel(ends: tuple[ControllerEnd, ReaderEnd]) -> None:
    controller, reader = ends
    controller.send(Used(5))
    controller.send(Interval("n0", 2.0))
    assert list(reader.commands()) == [Interval("n0", 2.0)]
    reader._pair.send(b"not a place")
    with pytest.raises(EndOfChannelError):
        controller.take()
    controller.close()
    with pytest.raises(EndOfChannelError):
        list(reader.commands())
    with pytest.raises(EndOfChannelError):
        reader.wait_for_command()
    reader.add(FRAME, 1, 1, b"x")
    with pytest.raises(EndOfChannelError):
        reader.flush()
