"""Encoding of layouts, frames and records: decoding gives the same values, and invalid messages are rejected."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schema.errors import FrameError, VersionError
from agent.schema.frame import (
    MAX_RECORDS,
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
    Tier,
    check_fits,
    make_layout,
    pack,
    select,
)
from agent.schema.wire import (
    MAX_MESSAGE_BYTES,
    WIRE_VERSION,
    Decoder,
    MessageSplitter,
    decode,
    encode_frame,
    encode_layout,
    with_length,
)

words = st.text(max_size=12)
int64 = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
members = st.builds(Member, words, st.integers(0, 2**31), st.integers(0, 2**31))
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(StepRecord, members, int64, int64, int64, st.none() | int64, st.none() | int64, int64),
    st.builds(OpenRecord, members, st.sampled_from(["step", "collective"]), int64, int64),
    st.builds(EventRecord, words, words, int64, st.dictionaries(words, words, max_size=3)),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tiers = draw(st.lists(st.builds(Tier, words, st.floats(0.001, 1e6)), min_size=1, max_size=4))
    columns = st.lists(
        st.builds(
            Column,
            words,
            st.lists(st.tuples(words, words), max_size=3).map(tuple),
            st.integers(0, len(tiers) - 1),
            st.sampled_from([32, 64]),
        ),
        max_size=12,
    )
    return make_layout(draw(words), tiers, draw(columns), draw(columns))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    counters = draw(st.lists(uint64, max_size=20))
    valid = draw(st.lists(st.booleans(), min_size=len(counters), max_size=len(counters)))
    return Frame(
        node=draw(words),
        boot_id=draw(words),
        agent_id=draw(words),
        seq=draw(st.integers(0, 2**63)),
        layout_id=draw(words),
        wall_ns=draw(int64),
        monotonic_ns=draw(int64),
        tier_ns=np.array(draw(st.lists(int64, max_size=5)), np.int64),
        gauges=np.array(draw(st.lists(st.floats(), max_size=20)), np.float64),
        counters=np.array(counters, np.uint64),
        counters_valid=np.array(valid, np.bool_),
        record_seq=draw(st.integers(0, 2**63)),
        records=tuple(draw(st.lists(records, max_size=4))),
    )


def assert_same(one: Frame, other: Frame) -> None:
    for name in ("node", "boot_id", "agent_id", "seq", "layout_id", "wall_ns", "monotonic_ns", "record_seq", "records"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("tier_ns", "counters", "counters_valid"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
    # Compare bits, because NaN differs from itself and -0.0 equals 0.0.
    assert one.gauges.tobytes() == other.gauges.tobytes()


def a_frame(**changed: object) -> Frame:
    values: dict[str, object] = {
        "node": "n0",
        "boot_id": "b",
        "agent_id": "a",
        "seq": 7,
        "layout_id": "l",
        "wall_ns": 1,
        "monotonic_ns": 2,
        "tier_ns": np.array([3], np.int64),
        "gauges": np.array([math.nan, 0.5], np.float64),
        "counters": np.array([2**53 + 1, 2**64 - 1, 0], np.uint64),
        "counters_valid": np.array([True, True, False], np.bool_),
        "record_seq": 9,
        "records": (OpenRecord(Member("j-1", 1, 0), "step", 4, 5),),
    }
    return Frame(**(values | changed))  # type: ignore[arg-type]


@given(frames())
def test_a_frame_survives_a_round_trip(frame: Frame) -> None:
    back = decode(encode_frame(frame))
    assert isinstance(back, Frame)
    assert_same(frame, back)


@given(layouts())
def test_a_layout_survives_a_round_trip(layout: Layout) -> None:
    assert decode(encode_layout(layout)) == layout


def test_counters_keep_all_bits_and_absent_counters_stay_absent() -> None:
    back = decode(encode_frame(a_frame()))
    assert isinstance(back, Frame)
    assert back.counters.tolist() == [2**53 + 1, 2**64 - 1, 0]
    assert back.counters_valid.tolist() == [True, True, False]
    assert math.isnan(back.gauges[0]) and back.gauges[1] == 0.5


@given(frames(), st.data())
def test_a_truncated_message_is_rejected(frame: Frame, data: st.DataObject) -> None:
    message = encode_frame(frame)
    with pytest.raises(FrameError):
        decode(message[: data.draw(st.integers(0, len(message) - 1))])


@given(st.binary(max_size=200))
def test_garbage_is_rejected(garbage: bytes) -> None:
    with pytest.raises(FrameError):
        decode(garbage)


@settings(max_examples=300)
@given(frames() | layouts(), st.data())
def test_a_damaged_message_is_decoded_or_rejected(whole: Frame | Layout, data: st.DataObject) -> None:
    message = bytearray(encode_frame(whole) if isinstance(whole, Frame) else encode_layout(whole))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        back = decode(bytes(message))
    except FrameError:
        return
    assert isinstance(back, (Frame, Layout))


def changed(message: bytes, **fields: object) -> bytes:
    body = msgspec.msgpack.decode(message)
    return msgspec.msgpack.encode(body | fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"gauges": b"\0" * 15}, "gauges"),
        ({"tier_ns": b"\0" * 9}, "tier_ns"),
        ({"counters": b"\0" * 7}, "counters"),
        ({"counters_valid": b"\1\1"}, "counters_valid"),
        ({"counters_valid": b""}, "counters_valid"),
        ({"seq": "7"}, "seq"),
        ({"records": [{"type": "unknown"}]}, "records"),
        ({"k": "picture"}, "picture"),
    ],
)
def test_an_error_names_the_invalid_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(FrameError, match=named):
        decode(changed(encode_frame(a_frame()), **fields))


def test_too_many_records_are_rejected() -> None:
    one = OpenRecord(Member("j-1", 1, 0), "step", 4, 5)
    decode(encode_frame(a_frame(records=(one,) * MAX_RECORDS)))
    with pytest.raises(FrameError, match="records"):
        decode(encode_frame(a_frame(records=(one,) * (MAX_RECORDS + 1))))


@pytest.mark.parametrize(("version", "understood"), [(-1, False), (0, True), (1, True), (2, True), (3, False)])
def test_adjacent_protocol_versions_are_compatible(version: int, understood: bool) -> None:
    message = changed(encode_frame(a_frame()), v=version, field_of_a_later_version=[1, 2])
    if understood:
        assert isinstance(decode(message), Frame)
    else:
        with pytest.raises(VersionError, match=f"version {version}.*upgrade"):
            decode(message)


@pytest.mark.parametrize("version", [WIRE_VERSION - 1, WIRE_VERSION + 1])
def test_additions_of_an_adjacent_release_are_ignored(version: int) -> None:
    """Add unknown fields at every level, and records of unknown kinds; a reader sees the latter as a gap in the
    numbers."""
    known = StepRecord(Member("j-000001", 1, 0), 7, 1, 2)
    frame = a_frame(records=(known, EventRecord("xid", "GPU-1", 5), known), record_seq=10)
    message = msgspec.msgpack.decode(encode_frame(frame))
    message["v"] = version
    message["of_next_year"] = {"deeply": [1, 2]}
    message["records"][0]["colour"] = "green"
    message["records"][1] = {"type": "thermogram", "pixels": b"..."}
    read = decode(msgspec.msgpack.encode(message))
    assert isinstance(read, Frame)
    assert (read.records, read.record_seq) == ((known, known), 11)
    assert read.gauges.tobytes() == frame.gauges.tobytes()
    layout = make_layout("n0", [Tier("any", 1.0)], [Column("gangwatch_host_load1")], [])
    content = msgspec.msgpack.decode(encode_layout(layout))
    content["v"] = version
    content["layout"]["gauges"][0]["statistic"] = "mean"
    content["layout"]["tiers"][0]["phase"] = 0.5
    content["layout"]["layout_id"] = "over fields that are not known here"
    taken = decode(msgspec.msgpack.encode(content))
    assert isinstance(taken, Layout)
    assert taken.gauges == layout.gauges and taken.layout_id == "over fields that are not known here"


def test_a_layout_with_a_wrong_id_is_rejected() -> None:
    layout = make_layout("n0", [Tier("host", 1.0)], [Column("a")], [Column("b")])
    body = msgspec.msgpack.decode(encode_layout(layout))
    for change, named in (
        ({"layout_id": "0" * 16}, "digest"),
        ({"gauges": [{"metric": "a", "tier": 1}]}, "tier 1 of 1"),
        ({"gauges": [{"metric": "a", "tier": -1}]}, "tier -1 of 1"),
        ({"counters": [{"metric": "b", "width": 48}]}, "width 48"),
    ):
        with pytest.raises(FrameError, match=named):
            decode(msgspec.msgpack.encode(body | {"layout": body["layout"] | change}))


def test_layout_ids_are_equal_exactly_for_equal_content() -> None:
    def made(node: str = "n0", metric: str = "a", tier: int = 0) -> str:
        tiers = [Tier("host", 1.0), Tier("gpu", 1.0)]
        return make_layout(node, tiers, [Column(metric, (("x", "y"),), tier)], []).layout_id

    assert made() == made()
    assert len({made(), made(node="n1"), made(metric="b"), made(tier=1)}) == 4


def test_a_frame_that_does_not_match_its_layout_is_rejected() -> None:
    layout = make_layout("n0", [Tier("host", 1.0)], [Column("a"), Column("b")], [Column("c")] * 3)
    fits = a_frame(layout_id=layout.layout_id)
    check_fits(layout, fits)
    with pytest.raises(FrameError, match="gauges"):
        check_fits(layout, a_frame(layout_id=layout.layout_id, gauges=np.zeros(3)))
    with pytest.raises(FrameError, match="layout other"):
        check_fits(layout, a_frame(layout_id="other"))


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_messages_are_read_from_a_stream_split_anywhere(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(with_length, messages))
    splitter = MessageSplitter()
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == messages


def test_an_oversized_message_is_rejected_before_it_is_read() -> None:
    with pytest.raises(FrameError, match=str(MAX_MESSAGE_BYTES)):
        MessageSplitter().feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))


def test_a_selection_keeps_the_named_columns_and_their_values() -> None:
    layout = make_layout(
        "n0",
        [Tier("host", 1.0)],
        [Column("host_load"), Column("rank_threads", (("rank", "0"),))],
        [Column("host_cpu"), Column("rank_cpu"), Column("rank_cpu_more")],
    )
    frame = a_frame(layout_id=layout.layout_id)
    narrowed = select(layout, ["rank_threads", "rank_cpu*"])
    got = narrowed.apply(frame)
    check_fits(narrowed.layout, got)
    assert [column.metric for column in narrowed.layout.gauges] == ["rank_threads"]
    assert [column.metric for column in narrowed.layout.counters] == ["rank_cpu", "rank_cpu_more"]
    assert got.gauges.tolist() == [0.5]
    assert got.counters.tolist() == [2**64 - 1, 0]
    assert got.counters_valid.tolist() == [True, False]
    assert got.records == frame.records
    assert select(layout, []).layout == layout


RECORDS = (OpenRecord(Member("g", 1, 0), "step", 7, 5), OpenRecord(Member("g", 1, 1), "collective", 9, 6))


def test_unchanged_records_are_the_same_objects() -> None:
    decoder = Decoder()
    first, second = (decoder.decode(encode_frame(a_frame(seq=seq, records=RECORDS))) for seq in (1, 2))
    assert isinstance(first, Frame) and isinstance(second, Frame)
    assert first.records and second.records is first.records
    third = decoder.decode(encode_frame(a_frame(records=RECORDS[:1])))
    assert isinstance(third, Frame) and third.records == RECORDS[:1]


def test_a_stored_layout_is_read_back_unchanged() -> None:
    layout = make_layout("n0", [Tier("host", 1.0)], [Column("gangwatch_host_load1")], [])
    packed = pack(layout)
    assert packed.whole() == layout.whole() == layout
    assert (packed.layout_id, packed.node, packed.sizes) == (layout.layout_id, layout.node, layout.sizes)
