"""Tables of records: they hold exactly what the records hold, and a reader refuses a malformed table."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.errors import FrameError
from agent.schema.frame import MAX_RECORDS, ROW_BYTES, EventRecord, Frame, Member, OpenRecord, Record, StepRecord
from agent.schema.record_table import NOT_REPORTED, records_of, tabulate, wants_table
from agent.schema.wire import Decoder, decode, encode_frame, encode_records

MEMBER = Member("j-1", 1, 0)
NUMBERS = st.one_of(st.integers(0, 1 << 40), st.sampled_from((0, 1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1)))
HOSTILE = st.one_of(NUMBERS, st.integers(-(1 << 63), (1 << 64) - 1))
MEMBERS = st.builds(Member, st.sampled_from(("j-1", "j-2", "slurm-7.0", "")), st.integers(-1, 3), st.integers(-1, 9))


def records(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[list[Record]]:
    given_or_not = st.one_of(st.none(), numbers)
    step: st.SearchStrategy[Record] = st.builds(
        StepRecord, MEMBERS, numbers, numbers, numbers, given_or_not, given_or_not, st.just(0), given_or_not
    )
    opened: st.SearchStrategy[Record] = st.builds(
        OpenRecord, MEMBERS, st.sampled_from(("step", "collective")), numbers, numbers
    )
    return st.lists(st.one_of(step, opened), max_size=12)


def frame_of(*found: Record, seq: int = 1) -> Frame:
    return Frame(
        "n0", "boot", "agent", seq, "layout", 10**18, 10**13, np.ones(1, np.int64), np.zeros(2), np.ones(3, np.uint64),
        np.ones(3, np.bool_), 7, found,
    )  # fmt: skip


def decoded(message: bytes, decoder: Decoder | None = None) -> Frame:
    found = (decoder or Decoder()).decode(message)
    assert isinstance(found, Frame)
    return found


@given(records(NUMBERS))
def test_a_table_holds_the_same_records(found: list[Record]) -> None:
    read = decoded(encode_frame(frame_of(*found), as_table=True))
    assert (read.table is None) == (not found)
    assert list(records_of(read.table) if read.table is not None else read.records) == found


@given(records(HOSTILE))
def test_records_that_a_table_cannot_hold_are_sent_as_records(found: list[Record]) -> None:
    table = tabulate(found)
    if table is not None:
        assert list(records_of(table)) == found
    read = decoded(encode_frame(frame_of(*found), as_table=True))
    assert read.table is not None or list(read.records) == found


def test_events_and_negative_waits_are_sent_as_records() -> None:
    assert tabulate((EventRecord("xid", "gpu", 1),)) is None
    assert tabulate((StepRecord(MEMBER, 1, 1, 1, NOT_REPORTED),)) is None


def test_a_reader_that_does_not_ask_gets_records() -> None:
    found = OpenRecord(MEMBER, "step", 1, 1)
    read = decoded(encode_frame(frame_of(found)))
    assert read.table is None and read.records == (found,)
    assert wants_table("application/vnd.gangwatch.frame;records=table")
    assert wants_table("application/vnd.gangwatch.frame; Records=table")
    assert not wants_table("application/vnd.gangwatch.frame")


def test_a_stream_may_change_between_tables_and_records() -> None:
    """The decoder uses parts of the message before, so each message is also decoded alone."""
    decoder = Decoder()
    rows: list[tuple[Record, ...]] = [
        (),
        (OpenRecord(MEMBER, "step", 1, 5),),
        (OpenRecord(MEMBER, "step", 1, 5),),
        (OpenRecord(MEMBER, "step", 200, 5), OpenRecord(Member("j-1", 1, 1), "step", 200, 5)),
        (EventRecord("xid", "gpu", 1), OpenRecord(MEMBER, "step", 2, 5)),
        tuple(OpenRecord(MEMBER, "step", number, 5) for number in range(5)),
        tuple(OpenRecord(MEMBER, "step", number, 5) for number in range(2000)),
        (StepRecord(MEMBER, 1, 1, 4, None, 7, 0, None), OpenRecord(MEMBER, "step", 2, 5)),
        (),
    ]
    for seq, found in enumerate(rows, 1):
        message = encode_frame(frame_of(*found, seq=seq), as_table=True)
        for read in (decoded(message, decoder), decoded(message)):
            assert read.seq == seq
            assert tuple(records_of(read.table) if read.table is not None else read.records) == found


def test_an_unchanged_table_is_the_same_object() -> None:
    decoder, found = Decoder(), OpenRecord(MEMBER, "step", 1, 5)
    first, second = (decoded(encode_frame(frame_of(found, seq=seq), as_table=True), decoder) for seq in (1, 2))
    assert first.table is second.table is not None
    third = decoded(encode_frame(frame_of(OpenRecord(MEMBER, "step", 2, 6), seq=3), as_table=True), decoder)
    assert third.table is not None and third.table.members is second.table.members


ROW = b"\0" * ROW_BYTES
WRONG: tuple[object, ...] = (
    {"members": [["j-1", 1, 0]], "rows": ROW[1:]},
    {"members": [["j-1", 1, 0]], "rows": ROW * (MAX_RECORDS + 1)},
    {"members": [["j-1", 1, 0]] * (MAX_RECORDS + 1), "rows": ROW},
    {"members": [["j-1", 1]], "rows": ROW},
    {"members": [["j-1", 1, 0.5]], "rows": ROW},
    {"members": [["j-1", 1, 0]], "rows": "text"},
    {"members": [["j-1", 1, 0]]},
    {"rows": ROW},
    {},
    5,
)


@pytest.mark.parametrize("before", (False, True), ids=("first", "after another table"))
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_table_is_refused(wrong: object, before: bool) -> None:
    decoder = Decoder()
    whole = encode_frame(frame_of(OpenRecord(MEMBER, "step", 0, 0)), as_table=True)
    if before:
        decoder.decode(whole)
    part = encode_records((OpenRecord(MEMBER, "step", 0, 0),), as_table=True)
    assert whole.endswith(part)
    with pytest.raises(FrameError):
        decoder.decode(whole[: -len(part)] + msgspec.msgpack.encode(wrong))


@given(st.binary(max_size=8), st.integers(0, 2000), st.data())
def test_changed_bytes_of_a_table_are_refused_or_read_as_alone(more: bytes, at: int, data: st.DataObject) -> None:
    decoder = Decoder()
    message = encode_frame(frame_of(*(OpenRecord(MEMBER, "step", n, 5) for n in range(3))), as_table=True)
    decoder.decode(message)
    at %= len(message)
    changed = message[:at] + more + message[at + data.draw(st.integers(0, 8)) :]
    results = []
    for decode_one in (decoder.decode, decode):
        try:
            read = decode_one(changed)
        except FrameError:
            results.append(None)
            continue
        assert isinstance(read, Frame)
        results.append((read.seq, read.records, None if read.table is None else (read.table.members, read.table.rows)))
    assert results[0] == results[1]
