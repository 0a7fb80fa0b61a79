"""Frames with tables of records have the same effect as frames with the same records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.schema.frame import MAX_RECORDS, Frame, Member, OpenRecord, Record, RecordTable, StepRecord, make_layout
from agent.schema.record_table import ROW, tabulate
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placed, Placements, Refusal
from scheduler_feedback.core.telemetry.telemetry_update import Look

SECOND = 1_000_000_000
NODES = ("n0", "n1")
LAYOUTS = {node: make_layout(node, (), (), ()) for node in NODES}
RANKS = {"n0": frozenset({0, 1, 2}), "n1": frozenset({3, 4})}

NUMBERS = st.one_of(st.integers(0, 3), st.sampled_from((1 << 61, 1 << 62, (1 << 63) - 1)))
NANOSECONDS = st.one_of(
    st.integers(0, 30).map(lambda half: 10_000 * SECOND + half * SECOND // 2),
    st.sampled_from((0, 1, SECOND, 1 << 62, (1 << 63) - 1)),
)
DURATIONS = st.sampled_from((0, 1, SECOND // 2, SECOND, 2 * SECOND, 1 << 62, (1 << 63) - 1))
GIVEN = st.one_of(st.none(), DURATIONS)
MEMBERS = st.builds(
    Member,
    st.sampled_from(("j-1", "j-1", "j-1", "slurm-7.0", "uid-0/x", "j-9", "late", "")),
    st.sampled_from((1, 1, 1, 2, 0, -1)),
    st.sampled_from((0, 1, 2, 3, 4, 4, 9, -1, 1 << 17)),
)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(StepRecord, MEMBERS, NUMBERS, NANOSECONDS, DURATIONS, GIVEN, GIVEN, st.just(0), GIVEN),
    st.builds(OpenRecord, MEMBERS, st.sampled_from(("step", "collective")), NUMBERS, NANOSECONDS),
)
ORDINARY = st.tuples(
    st.integers(0, 3), st.sampled_from(("j-1", "j-1", "late", "slurm-7.0")), NUMBERS, NANOSECONDS, DURATIONS, GIVEN
)
"""Records of all ranks of the node: 1 has finished steps, 2 open steps, 3 both, 0 the last rank alone an open step."""

FRAMES = st.lists(
    st.tuples(
        st.sampled_from(NODES),
        st.one_of(st.lists(RECORDS, max_size=5), ORDINARY, ORDINARY, ORDINARY),
        st.sampled_from((1, 1, 1, 1, 0, -1, 2)),  # how far the frame's sequence number advances
        st.sampled_from((0, 0, 0, 0, -3, -1, 2)),  # how far its records' sequence number is from the expected one
        st.booleans(),  # whether it repeats the records of the node's last frame
        st.sampled_from(("a", "a", "a", "a", "a", "b")),
    ),
    min_size=1,
    max_size=12,
)


def attest(node: str, gang: str, at_ns: int) -> Placed | Refusal | None:
    if gang == "j-1":
        return Placed(1, RANKS[node])
    if gang == "late":
        return Placed(1, None) if at_ns > 10_006 * SECOND else Refusal.NOT_KNOWN_YET
    return Placed(1, None) if gang.startswith("slurm") and node == "n0" else None


def state_of(fleet: Fleet) -> Any:
    """Return everything that records change in a fleet."""
    telemetry = Look(fleet).next(10**18 + 10_020 * SECOND, 10_020 * SECOND)
    jobs = []
    for job in telemetry.jobs:
        steps = job.steps
        arrays = [job.open_steps, job.open_collectives, job.steps_finished]
        if steps is not None:
            arrays += [steps.number, steps.end_ns, steps.seconds, steps.wait_seconds, steps.tokens, steps.squares]
        found = [None if array is None else (array.dtype.str, array.shape, array.tobytes()) for array in arrays]
        jobs.append((job.shape.job, job.shape.attempt, job.shape.ranks.tolist(), job.shape.nodes, found))
    gangs = [(one.name, one.attempt, one.received_ns, one.late, one.repeated) for one in fleet.gangs.values()]
    nodes = [(one.name, one.records_missed, one.frames_refused, len(one._waiting)) for one in fleet.nodes.values()]
    counts = fleet.records_refused, fleet.records_of_ended_attempts, sorted(fleet.measures()), fleet.newly_refused()
    return jobs, gangs, nodes, counts


def ordinary(node: str, of: tuple[int, str, int, int, int, int | None], at_ns: int) -> list[Record]:
    """Return the records of ORDINARY; mostly of steps that have just ended."""
    what, gang, number, start_ns, duration_ns, given = of
    found: list[Record] = []
    ranks = sorted(RANKS[node])
    for rank in ranks:
        member = Member(gang, 1, rank)
        if what & 1:
            wait_ns = None if given is None else given if number > 1 else min(given, duration_ns)
            start_ns = at_ns - duration_ns if 0 < duration_ns < 3 * SECOND else start_ns
            found.append(StepRecord(member, number, start_ns, duration_ns, wait_ns, given, 0, given))
        if what & 2 or (not what and rank == ranks[-1]):
            found.append(OpenRecord(member, "step", number + 1, at_ns))
    return found


def frames(made: Sequence[tuple[str, Any, int, int, bool, str]], as_tables: bool) -> list[Frame]:
    found = []
    known: dict[tuple[Member, ...], tuple[Member, ...]] = {}  # a decoder returns equal ranks as the same object
    last: dict[str, tuple[int, int, tuple[Record, ...], RecordTable | None]] = {}
    for place, (node, records, ahead, shift, repeats, agent) in enumerate(made):
        seq, record_seq, before, table = last.get(node, (1, 10, (), None))
        seq = max(1, seq + ahead)
        at_ns = 10_000 * SECOND + place * SECOND
        if not repeats:
            before = tuple(records if isinstance(records, list) else ordinary(node, records, at_ns))
            table = tabulate(before) if as_tables else None
            if table is not None:
                table = RecordTable(known.setdefault(table.members, table.members), table.rows)
        sent = () if table is not None else before
        found.append(
            Frame(
                node, "boot", agent, seq, LAYOUTS[node].layout_id, 10**18 + at_ns, at_ns, np.zeros(0, np.int64),
                np.zeros(0), np.zeros(0, np.uint64), np.zeros(0, np.bool_), max(0, record_seq + shift), sent, table,
            )
        )  # fmt: skip
        last[node] = seq, max(0, record_seq + shift) + len(before), before, table
    return found


@settings(max_examples=300)
@example(  # a table of an attempt that has ended, from a node whose ranks were known
    [
        ("n0", (0, "j-1", 0, 10_000 * SECOND, 0, None), 1, 0, False, "a"),
        ("n1", [OpenRecord(Member("j-1", 2, 0), "step", 0, 10_000 * SECOND)], 1, 0, False, "a"),
        ("n0", (0, "j-1", 0, 10_000 * SECOND, 0, None), 1, 0, False, "a"),
    ],
    False,
)
@given(FRAMES, st.booleans())
def test_tables_and_records_have_the_same_effect(made: Any, guarded: bool) -> None:
    compare(made, guarded)


def test_a_table_of_known_ranks_is_checked_and_repeated_as_records_are() -> None:
    """The third table has waits that are longer than the steps; the last one is sent twice."""
    tables = [(3, "j-1", number, 0, SECOND, wait_ns) for number, wait_ns in ((1, 0), (2, 0), (3, 2 * SECOND), (4, 0))]
    made = [("n0", one, 1, 0, False, "a") for one in tables]
    jobs, gangs, _, counts = compare([*made, ("n0", tables[-1], 1, 0, True, "a")], guarded=True)
    assert counts[0] == 3, "the steps of three ranks"
    assert [gang[-1] for gang in gangs] == [3], "repeated steps"
    assert len(jobs) == 1


def compare(made: Any, guarded: bool) -> Any:
    """Return the state of the fleet after these frames. It must not depend on the form of their records, or on whether
    the backend is asked again without news."""
    states = []
    for as_tables, news in ((False, None), (True, None), (True, "unchanged")):
        fleet = Fleet(Placements(attest, lambda _node, news=news: news) if guarded else None)
        first_steps = []
        for frame in frames(made, as_tables):
            fleet.observe(LAYOUTS[frame.node], frame, frame.monotonic_ns)
            first_steps += fleet.first_steps()
        states.append((state_of(fleet), first_steps))
    assert states[0] == states[1] == states[2]
    return states[0][0]


def test_the_backend_is_asked_about_a_table_again_after_news() -> None:
    asked: list[str] = []
    allowed: Placed | Refusal = Placed(1, None)
    data = object()

    def decide(node: str, gang: str, at_ns: int) -> Placed | Refusal:
        asked.append(gang)
        return allowed

    fleet = Fleet(Placements(decide, lambda _node: data))
    made = [("n0", (2, "slurm-7.0", number, 0, 0, None), 1, 0, False, "a") for number in range(6)]
    sent = frames(made, as_tables=True)

    def questions(frame: Frame) -> int:
        asked.clear()
        fleet.observe(LAYOUTS["n0"], frame, frame.monotonic_ns)
        return len(asked)

    assert [questions(frame) for frame in sent[:4]][1:] == [1, 0, 0]
    data = object()
    assert questions(sent[4]) == 1
    allowed, data = Refusal.NOT_PLACED, object()
    assert questions(sent[5]) >= 1
    refused = [count for name, _, count in fleet.measures() if name == "gangwatch_watch_records_refused_total"]
    assert refused == [len(sent[5].table or ())]


@given(
    st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=8, max_size=8), max_size=4), st.integers(0, 2)
)
def test_any_rows_are_accepted_or_refused(rows: list[list[int]], members: int) -> None:
    fleet = Fleet()
    table = RecordTable(
        tuple(Member("j-1", 1, rank) for rank in range(members)), b"".join(ROW.pack(*row) for row in rows)
    )
    frame = frames([("n0", [], 0, 0, False, "a")], as_tables=False)[0]
    frame = msgspec.structs.replace(frame, table=table)
    assert fleet.observe(LAYOUTS["n0"], frame, 1)
    assert fleet.records_refused <= len(rows)


def test_a_row_of_an_unknown_kind_or_rank_is_refused() -> None:
    fleet = Fleet()
    rows = [(3, 0, 1, 1, 0, 0, 0, 0), (-1, 0, 1, 1, 0, 0, 0, 0), (0, 1, 1, 1, 0, 0, 0, 0), (0, -1, 1, 1, 0, 0, 0, 0)]
    table = RecordTable((Member("j-1", 1, 0),), b"".join(ROW.pack(*row) for row in rows))
    frame = frames([("n0", [], 0, 0, False, "a")], as_tables=False)[0]
    fleet.observe(LAYOUTS["n0"], msgspec.structs.replace(frame, table=table), 1)
    assert fleet.records_refused == 4 and not fleet.gangs


def test_ranks_are_checked_again_if_another_node_has_taken_one() -> None:
    """Without a placement, the last node that reports a rank has it."""
    fleet, members = Fleet(), (Member("j-1", 1, 0), Member("j-1", 1, 1))

    def take(node: str, seq: int, *numbers: int) -> None:
        at_ns = (10_000 + seq) * SECOND
        rows = b"".join(ROW.pack(0, place, number, at_ns, 0, 0, 0, 0) for place, number in enumerate(numbers))
        frame = frames([(node, [], 0, 0, False, "a")], as_tables=False)[0]
        frame = msgspec.structs.replace(
            frame, seq=seq, record_seq=10 * seq, monotonic_ns=at_ns, table=RecordTable(members[: len(numbers)], rows)
        )
        assert fleet.observe(LAYOUTS[node], frame, at_ns)

    take("n0", 1, 5, 5)
    take("n1", 1, 6)
    take("n0", 2, 7, 7)
    gang = fleet.gangs["j-1"]
    assert gang.nodes == ("n0", "n0") and gang.open_steps()[:, 0].tolist() == [7, 7]


@pytest.mark.parametrize("as_tables", [False, True])
def test_a_frame_with_the_records_of_those_before_it_has_their_effect(as_tables: bool) -> None:
    """An agent joins the frames that a late controller does not read."""
    made = [
        ("n0", (what, "j-1", number, 0, SECOND, 1), 1, 0, False, "a")
        for number, what in enumerate((2, 2, 3, 2, 3, 3, 0, 3, 2))
    ]
    every = frames(made, as_tables=False)
    joined = every[2]
    for frame in every[3:7]:
        joined = frame.with_records_of(joined)
    assert len(joined.records) == sum(len(frame.records) for frame in every[2:7])
    states = []
    for sent in (every, [*every[:2], joined, *every[7:]]):
        fleet = Fleet(Placements(attest))
        for frame in sent:
            if as_tables:
                table = tabulate(frame.records)
                assert table is not None
                frame = msgspec.structs.replace(frame, records=(), table=table)
            fleet.observe(LAYOUTS["n0"], frame, 10_020 * SECOND)
        states.append(state_of(fleet))
    assert states[0] == states[1]
    assert states[0][0][0][4][3] is not None, "steps were finished"


def test_the_oldest_of_too_many_records_are_counted_as_missed() -> None:
    records = tuple(OpenRecord(Member("j-1", 1, 0), "step", number, 1) for number in range(MAX_RECORDS))
    first, second, third = frames([("n0", [*records[:5]], 1, 0, False, "a")] * 3, as_tables=False)
    second = msgspec.structs.replace(second, records=records, record_seq=first.record_seq + 5)
    third = msgspec.structs.replace(third, record_seq=second.record_seq + MAX_RECORDS)
    joined = third.with_records_of(second)
    assert joined.records == (*records[5:], *records[:5])
    fleet = Fleet(Placements(attest))
    for frame in (first, joined):
        fleet.observe(LAYOUTS["n0"], frame, 10_020 * SECOND)
    assert fleet.nodes["n0"].records_missed == 5


def test_rows_of_known_ranks_are_checked() -> None:
    """After the first table, the ranks are known: a step and a collective, a step in the future, and no such rank."""
    fleet, members = Fleet(), tuple(Member("j-1", 1, rank) for rank in range(2))
    at_ns = 10_000 * SECOND
    first = [(2, rank, 1, at_ns - SECOND, SECOND, 0, 0, 0) for rank in range(2)]
    opened = [(0, 0, 5, at_ns, 0, 0, 0, 0), (1, 1, 70, at_ns, 0, 0, 0, 0)]
    future, nobody = (2, 0, 9, at_ns + 60 * SECOND, SECOND, 0, 0, 0), (0, 7, 6, at_ns, 0, 0, 0, 0)
    count = 0
    for seq, rows in enumerate((first, opened, [future], [nobody]), 1):
        table = RecordTable(members, b"".join(ROW.pack(*row) for row in rows))
        none = np.zeros(0)
        frame = Frame(
            "n0", "boot", "a", seq, LAYOUTS["n0"].layout_id, 10**18, at_ns, none.astype(np.int64), none,
            none.astype(np.uint64), none.astype(np.bool_), count, (), table,
        )  # fmt: skip
        count += len(rows)
        assert fleet.observe(LAYOUTS["n0"], frame, seq * SECOND)
    gang = fleet.gangs["j-1"]
    assert gang.open_steps()[:, 0].tolist() == [5, -1] and gang.open_collectives()[:, 0].tolist() == [-1, 70]
    assert fleet.records_refused == 2 and not fleet.failed()
