"""Messages with earlier samples: from the agent's stream over the wire to the fleet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from agent.schema.errors import FrameError
from agent.schema.frame import (
    MAX_RECORDS,
    MOST_SAMPLES,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
)
from agent.schema.record_table import SAMPLES_TYPE, TABLE_TYPE, reads_samples, wants_table
from agent.schema.wire import Decoder, MessageSplitter, decode, encode_frame, encode_layout
from benchmarks.ingest.frames import Agents, Job
from exporter.server import FrameStream
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.feed.frame_rate import MOST_EVERY, samples_of
from scheduler_feedback.feed.stream_decoder import StreamDecoder
from tests.exporter.sample_frames import small_frame, small_layout

SECOND = 1_000_000_000
LAYOUT = small_layout()
MEMBER = Member("j-1", 1, 0)


def made(seq: int) -> Frame:
    """Return a frame with a finished step and two open ones."""
    records: tuple[Record, ...] = (
        StepRecord(MEMBER, seq, seq * SECOND, 1),
        OpenRecord(MEMBER, "step", seq + 1, seq * SECOND),
        OpenRecord(MEMBER, "collective", seq, seq * SECOND),
    )
    return msgspec.structs.replace(
        small_frame(LAYOUT, seq), monotonic_ns=seq * SECOND, record_seq=3 * seq, records=records,
        gauges=np.array([float(seq)] * 4),
    )  # fmt: skip


def stream(with_samples: bool = True, patterns: tuple[str, ...] = ()) -> FrameStream:
    return FrameStream(patterns, lambda _: None, as_table=True, with_samples=with_samples)


def sent(one: FrameStream, first: int, last: int, reads: bool = True) -> list[Frame]:
    """Return the frames that the stream sends while these are made. reads: whether its reader keeps up."""
    decoder, splitter, found = Decoder(), MessageSplitter(), list[Layout | Frame]()
    for seq in range(first, last + 1):
        one.put(LAYOUT, made(seq))
        if (reads or seq == last) and (part := one.next(0.0)):
            found += map(decoder.decode, splitter.feed(part))
    return [frame for frame in found if isinstance(frame, Frame)]


def assert_nothing_is_missing(frames: list[Frame], last: int) -> None:
    """Assert that every step is in one of the frames, and that their records are counted without a gap."""
    expected = frames[0].record_seq
    for frame in frames:
        assert frame.record_seq == expected
        expected += len(frame.table or ()) + frame.left_out
    assert expected == 3 * (last + 1)
    rows = b"".join(frame.table.rows for frame in frames if frame.table is not None)
    table = np.frombuffer(rows, np.int64).reshape(-1, 8)
    assert table[table[:, 0] == 2, 2].tolist() == list(range(frames[0].seq, last + 1))


@pytest.mark.parametrize("patterns", [(), ("gangwatch_gpu_power_watts",)])
def test_a_message_has_the_values_of_some_frames_and_the_records_of_all(patterns: tuple[str, ...]) -> None:
    one = stream(patterns=patterns)
    assert one.take_request(b"every 8 samples 4\n")
    frames = sent(one, 1, 33)
    later = frames[1:]
    assert {after.seq - before.seq for before, after in pairwise(later)} == {8}
    for frame in later[1:]:
        assert [frame.seq - sample.seq for sample in frame.earlier] == [6, 4, 2]
        assert frame.left_out == 14, "the open step and collective of seven frames"
        for sample in (*frame.earlier, frame):
            assert sample.gauges[0] == sample.seq and sample.monotonic_ns == sample.seq * SECOND
            assert len(sample.gauges) == (2 if patterns else 4) and sample.layout_id == frame.layout_id
            assert sample.counters_valid.tolist() == frame.counters_valid.tolist()
    assert_nothing_is_missing(frames, later[-1].seq)


def test_a_late_reader_loses_no_step_and_gets_some_values_of_the_whole_time() -> None:
    frames = sent(stream(), 1, 500, reads=False)
    assert len(frames) == 1
    assert len(frames[0].earlier) <= MOST_SAMPLES and frames[0].earlier[0].seq < 100
    assert_nothing_is_missing([msgspec.structs.replace(frames[0], seq=1)], 500)


def test_beyond_the_limit_the_oldest_steps_are_dropped_which_leaves_a_gap() -> None:
    last = MAX_RECORDS + 100
    (frame,) = sent(stream(), 1, last, reads=False)
    assert frame.table is not None and len(frame.table) == MAX_RECORDS
    assert frame.record_seq + MAX_RECORDS + frame.left_out == 3 * (last + 1) and frame.record_seq > 3


def test_readers_and_agents_of_earlier_releases_use_plain_frames() -> None:
    """A reader that does not ask for samples gets none, and may not ask for them later."""
    assert reads_samples(SAMPLES_TYPE) and wants_table(SAMPLES_TYPE) and not reads_samples(TABLE_TYPE)
    old = stream(with_samples=False)
    assert old.take_request(b"every 4\n") and not old.take_request(b"every 4 samples 2\n")
    frames = sent(stream(with_samples=False), 1, 20, reads=False)
    assert not frames[0].earlier and len(frames[0].table or ()) == 60 and not frames[0].left_out


@pytest.mark.parametrize(
    "line", [b"every 8 samples 9\n", b"every 99 samples 17\n", b"every 8 samples 0\n", b"samples 2\n"]
)
def test_an_impossible_number_of_samples_is_refused(line: bytes) -> None:
    assert not stream().take_request(line)


def changed(**fields: Any) -> bytes:
    frame = made(9).joined(made(7), keep=True)
    message = msgspec.msgpack.decode(encode_frame(frame, as_table=True))
    return msgspec.msgpack.encode(message | fields)


SAMPLE = msgspec.msgpack.decode(changed())["earlier"][0]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"earlier": [SAMPLE, SAMPLE]}, "sample 7 does not follow sample 7"),
        ({"earlier": [[9, *SAMPLE[1:]]]}, "sample 9 does not follow sample 9"),
        ({"earlier": [[1, 0, 1 << 62, *SAMPLE[3:]]]}, "does not follow"),
        ({"earlier": [[seq, 0, seq, *SAMPLE[3:]] for seq in range(1, 10)] * 2}, "at most 16"),
        ({"earlier": [[*SAMPLE[:4], b"", *SAMPLE[5:]]]}, "other lengths"),
        ({"earlier": [[*SAMPLE[:6], b""]]}, "other lengths"),
        ({"earlier": [SAMPLE[:3]]}, "batch"),
        ({"earlier": 7}, "batch"),
        ({"left_out": -1}, "left_out"),
        ({"left_out": 1 << 40}, "left_out"),
        ({"records": 1}, "records"),
    ],
)
def test_an_invalid_message_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FrameError, match=complaint):
        decode(changed(**fields))


def test_earlier_samples_of_the_wrong_length_for_the_layout_are_refused() -> None:
    decoder = StreamDecoder("n0")
    decoder.take(encode_layout(LAYOUT))
    assert decoder.take(changed()) is not None
    with pytest.raises(FrameError, match="expected 4 by its layout"):
        decoder.take(changed(gauges=b"", earlier=[[*SAMPLE[:4], b"", *SAMPLE[5:]]]))


def everything_of(fleet: Fleet) -> Any:
    """Return what the records and counters of frames change in a fleet."""
    (job,) = Look(fleet).next(10**18 + 10_050 * SECOND, 10_050 * SECOND).jobs
    assert job.consumed is not None
    used = [repr(job.consumed(np.full(8, 10**18 + (10_010 + second) * SECOND))) for second in range(30)]
    (kind,) = fleet.counting.kinds
    return job.steps_finished.tolist(), job.open_steps.tolist(), used, kind.values.copy()


def test_messages_with_samples_have_the_effect_of_a_message_for_each_sample() -> None:
    """A node sends each second frame, or four of them in one message. Both fleets are equal."""
    found: list[Any] = []
    for every in (2, MOST_EVERY):
        agents = Agents(0, [Job("j-1", 0, 3 * SECOND, 0)], WANTED)
        agents.with_samples = True
        decoder = StreamDecoder(agents.names[0])
        fleet = Fleet(Placements(lambda _node, _gang, _at_ns: Placed(1, None)))
        decoder.take(agents.layout_message(0)[4:])
        assert every // samples_of(every) == 2
        for second in range(MOST_EVERY, 7 * MOST_EVERY + 1):
            is_sent = second % every == 0
            held = set[int]() if is_sent else {0}
            now_ns = 10_000 * SECOND + second * SECOND
            agents.advance(slice(0, 1), 10**18 + now_ns, now_ns, held, held if second % 2 == 0 else ())
            if is_sent:
                frame = decoder.take(agents.frame_message(0)[4:])
                assert frame is not None and decoder.layout is not None
                fleet.observe(decoder.layout, frame, 10_100 * SECOND)
        found.append(everything_of(fleet))
        node = fleet.nodes[agents.names[0]]
        assert node.records_missed == 0 and node._record_seq is not None
    assert found[0][:-1] == found[1][:-1]
    single, together = found[0][-1], found[1][-1]
    known = ~np.isnan(single)
    assert (single[known] == together[known]).all()
    assert not np.isnan(together[~np.isnan(single)]).any() and (np.isnan(single) & ~np.isnan(together)).any()
