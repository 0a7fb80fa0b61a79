"""Streams with messages of several samples: faulty and incomplete ones, and ends of agents and readers between two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from agent.schema.frame import MOST_SAMPLE_BYTES, EventRecord, Frame
from agent.schema.wire import MessageSplitter, decode, encode_frame, with_length
from exporter.server import FrameStream
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from scheduler_feedback.feed import feed as feed_module
from scheduler_feedback.feed.feed import PART_BYTES
from tests.feed.test_earlier_samples import LAYOUT, SECOND, made, stream
from tests.feed.test_feed import Agent, Send, feeding, frame_of, layout_of, quick, sending, stream_of, until

__all__ = ["quick"]


def batch_of(node: str, last: int, **fields: Any) -> bytes:
    """Return a message with four samples up to number `last`, as bytes of a stream. fields: changes in it."""
    joined = frame_of(layout_of(node), last - 6)
    for seq in (last - 4, last - 2, last):
        joined = frame_of(layout_of(node), seq).joined(joined, keep=True)
    assert len(joined.earlier) == 3
    message = msgspec.msgpack.decode(encode_frame(joined))
    fields = {name: change(message[name]) if callable(change) else change for name, change in fields.items()}
    return with_length(msgspec.msgpack.encode(message | fields))


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (batch_of("n0", 9, earlier=lambda samples: samples[::-1]), "earlier: sample 5 does not follow sample 7"),
        (batch_of("n0", 9, earlier=lambda samples: samples * 6), "earlier: 18 samples, at most 16"),
        (batch_of("n0", 9, left_out=-1), "left_out: -1, expected 0 to"),
        (batch_of("n0", 9, gauges=b""), "earlier: sample 3 has arrays of other lengths than frame 9"),
        (batch_of("n0", 9, v=7), "wire version 7 is not supported"),
        (batch_of("n1", 9), "the stream of 'n0' contains a message of 'n1'"),
        ((5 << 20).to_bytes(4, "big") + batch_of("n0", 9)[4:], "message of 5242880 bytes"),
    ],
)
def test_a_faulty_message_ends_only_its_stream(tmp_path: Path, faulty: bytes, complaint: str) -> None:
    """Frames of other agents are used. The stream is opened again."""

    async def scene() -> None:
        bad = Agent(sending(stream_of("n0", 1), faulty))
        good = Agent(sending(stream_of("n1", 1), batch_of("n1", 9), batch_of("n1", 17)))
        async with bad.listening(tmp_path, "n0"), good.listening(tmp_path, "n1"), feeding(tmp_path) as (feed, got):
            await until(lambda: bool(feed.streams) and feed.streams["n0"].malformed >= 1 and ("n1", 17) in got)
            assert complaint in feed.streams["n0"].complaint
            assert [seq for node, seq in got if node == "n1"] == [1, 9, 17] and feed.streams["n1"].connected
            assert {seq for node, seq in got if node == "n0"} <= {1}, "frame 1 may be in the same read as the length"
            bad.speak = sending(stream_of("n0", 10), batch_of("n0", 18))
            await until(lambda: ("n0", 18) in got)
            assert feed.streams["n0"].connected and not feed.streams["n1"].malformed

    asyncio.run(scene())


def test_an_agent_that_ends_in_the_middle_of_a_message(tmp_path: Path) -> None:
    async def scene() -> None:
        message = batch_of("n0", 9)
        agent = Agent(sending(stream_of("n0", 1), message[: len(message) // 2]), stays=False)
        async with agent.listening(tmp_path, "n0"), feeding(tmp_path) as (feed, got):
            await until(lambda: len(agent.asked) >= 2)
            assert set(got) == {("n0", 1)}
            agent.speak, agent.stays = sending(stream_of("n0", 10), batch_of("n0", 18)), True
            await until(lambda: ("n0", 18) in got)
            assert not feed.streams["n0"].malformed

    asyncio.run(scene())


def test_parts_of_a_long_message_are_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late feed reads the message of an agent in several parts. The stream had fallen silent between two of them, and
    the records of the message were lost."""
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 0.5)
    event = EventRecord("xid", "GPU-1", 1, {"message": "x" * 5 * PART_BYTES})
    message = with_length(encode_frame(structs.replace(frame_of(layout_of("n0"), 2), records=(event,))))

    async def speak(send: Send) -> None:
        await send(stream_of("n0", 1))
        for at in range(0, len(message), PART_BYTES + 100):
            await asyncio.sleep(0.2)
            await send(message[at : at + PART_BYTES + 100])

    async def scene() -> None:
        agent = Agent(speak)
        async with agent.listening(tmp_path, "n0"), feeding(tmp_path) as (feed, got):
            await until(lambda: got == [("n0", 1), ("n0", 2)])
            assert len(agent.asked) == 1 and not feed.streams["n0"].complaint

    asyncio.run(scene())


def taken(one: FrameStream) -> list[Frame]:
    """Return the frames that a stream sends now."""
    messages = MessageSplitter().feed(one.next(0.0) or b"")
    return [frame for frame in map(decode, messages) if isinstance(frame, Frame)]


def test_a_reader_that_ends_between_two_messages_misses_the_records_since_the_last_one() -> None:
    """Its next stream begins with the newest frame, and has every frame. The gap is counted."""
    fleet = Fleet(Placements(lambda _node, _gang, _at_ns: Placed(1, None)))
    first = stream()
    assert first.take_request(b"every 8 samples 4\n")
    got: list[Frame] = []
    for seq in range(1, 21):
        first.put(LAYOUT, made(seq))
        got += taken(first)
    last = got[-1].seq
    assert 12 < last < 20 and len(got[-1].earlier) == 3
    first.close()
    second = stream()
    for seq in (20, 21, 22):
        second.put(LAYOUT, made(seq))
        got += taken(second)
    assert [frame.seq for frame in got[-3:]] == [20, 21, 22]
    for frame in got:
        assert fleet.observe(LAYOUT, frame, 100 * SECOND)
    node = fleet.nodes["n0"]
    assert node.records_missed == 3 * (19 - last)
    assert node.frames_missed == 22 - sum(1 + len(frame.earlier) for frame in got)
    # The agent is killed and started again: its numbers begin again.
    assert fleet.observe(LAYOUT, structs.replace(made(1), agent_id="agent-2", monotonic_ns=60 * SECOND), 101 * SECOND)
    assert node.records_missed == 3 * (19 - last) and not node.frames_refused


def test_samples_of_many_series_stay_below_the_limit_of_a_message() -> None:
    one = made(1)
    many = structs.replace(one, gauges=one.gauges.repeat(MOST_SAMPLE_BYTES // 200))
    joined = many
    for seq in range(2, 30):
        joined = structs.replace(many, seq=seq).joined(joined, keep=True)
    assert 1 <= len(joined.earlier) <= 6
    assert len(encode_frame(joined)) < 2 * MOST_SAMPLE_BYTES
