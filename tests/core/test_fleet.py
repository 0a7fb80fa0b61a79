"""Fleet: it processes each frame once, aligns steps by number, and accepts or refuses any input without a crash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from agent.schema.catalog import BY_NAME
from agent.schema.errors import FrameError
from agent.schema.frame import (
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
    Tier,
    make_layout,
)
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series import series_queue
from scheduler_feedback.core.telemetry.series.consumption_trail import BLOCK_IO, CONSUMED, CPU, SAMPLES
from scheduler_feedback.core.telemetry.steps import fleet_records
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang
from scheduler_feedback.core.telemetry.steps.step_ring import FIRST_ROWS, MOST_CELLS
from scheduler_feedback.core.telemetry.telemetry_update import Look

SECOND = 1_000_000_000
GANG = "j-000001"
WALL = 1_800_000_000 * SECOND
WAITING = "gangwatch_host_pressure_waiting_seconds_total"


def layout_of(node: str, ranks: Sequence[int], attempt: int = 1) -> Layout:
    """Return a layout with the ranks' process counters, followed by CPU pressure."""
    columns = [
        Column(metric, (("attempt", str(attempt)), ("gang", GANG), ("rank", str(rank))), 0)
        for rank in ranks
        for metric in CONSUMED
    ]
    columns.append(Column(WAITING, (("resource", "cpu"),), 0))
    return make_layout(node, (Tier("process", 1.0),), (), columns)


def frame_of(
    layout: Layout,
    seq: int,
    records: Sequence[Record] = (),
    *,
    counters: Sequence[int | None] | None = None,
    record_seq: int = 0,
    agent: str = "a",
    boot: str = "b",
    at_ns: int | None = None,
) -> Frame:
    """Return frame `seq`, taken at second `seq`. Counters that are None are absent."""
    given_counters = [0] * len(layout.counters) if counters is None else list(counters)
    at = seq * SECOND if at_ns is None else at_ns
    return Frame(
        layout.node,
        boot,
        agent,
        seq,
        layout.layout_id,
        WALL + at,
        at,
        np.full(len(layout.tiers), at, np.int64),
        np.zeros(len(layout.gauges)),
        np.array([value or 0 for value in given_counters], np.uint64),
        np.array([value is not None for value in given_counters], np.bool_),
        record_seq,
        tuple(records),
    )


def step(
    rank: int, number: int, start: float, seconds: float, wait: float | None = 0.0, attempt: int = 1
) -> StepRecord:
    wait_ns = None if wait is None else round(wait * SECOND)
    return StepRecord(Member(GANG, attempt, rank), number, round(start * SECOND), round(seconds * SECOND), wait_ns)


BARE = make_layout("n0", (Tier("steps", 1.0),), (), ())


def folded(*frames: tuple[Layout, Frame]) -> Fleet:
    fleet = Fleet()
    for layout, frame in frames:
        fleet.observe(layout, frame, frame.monotonic_ns)
    return fleet


# --- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda frame: structs.replace(frame, layout_id="another"),
        lambda frame: structs.replace(frame, node="n9"),
        lambda frame: structs.replace(frame, counters=np.zeros(3, np.uint64)),
        lambda frame: structs.replace(frame, monotonic_ns=1 << 63),
        lambda frame: structs.replace(frame, seq=-1),
    ],
)
def test_invalid_frame_is_refused_without_a_change(wrong: object) -> None:
    fleet = Fleet()
    with pytest.raises(FrameError):
        fleet.observe(BARE, wrong(frame_of(BARE, 1, [step(0, 0, 0.1, 0.1)])), 0)  # type: ignore[operator]
    assert not fleet.nodes
    assert not fleet.gangs


def test_frame_is_folded_once_and_in_order() -> None:
    fleet = Fleet()
    assert fleet.observe(BARE, frame_of(BARE, 2, [step(0, 0, 1.0, 0.1)]), 0)
    assert not fleet.observe(BARE, frame_of(BARE, 2, [step(0, 1, 1.1, 0.1)]), 0)
    assert not fleet.observe(BARE, frame_of(BARE, 1, [step(0, 2, 0.1, 0.1)]), 0)
    assert fleet.nodes["n0"].frames_refused == 2
    steps = fleet.gangs[GANG].completed()
    assert steps is not None
    assert steps.number.tolist() == [0]


def test_older_frame_is_refused_from_any_agent() -> None:
    """After a restart two agents run on one node for a moment, and the older agent's last frame arrives late."""
    fleet = folded((BARE, frame_of(BARE, 5, agent="new")))
    assert not fleet.observe(BARE, frame_of(BARE, 90, [step(0, 1, 4.0, 0.1)], agent="old", at_ns=4 * SECOND), 0)
    assert fleet.nodes["n0"].frames_refused == 1
    assert not fleet.gangs
    rebooted = frame_of(BARE, 1, agent="old", boot="another", at_ns=SECOND)
    assert fleet.observe(BARE, rebooted, 0), "after a reboot the node's clock restarts"


def test_superseded_frame_gives_only_records_unless_it_is_the_first() -> None:
    layout, fleet = layout_of("n0", [0]), Fleet()
    reported = {10: True, 11: False, 12: True, 13: False}
    for second, superseded in reported.items():
        frame = frame_of(layout, second, [step(0, second, second - 0.5, 0.1)], counters=consumed(second),
                         record_seq=second - 10)  # fmt: skip
        fleet.observe(layout, frame, frame.monotonic_ns, superseded)
    gang = fleet.gangs[GANG]
    steps = gang.completed()
    assert steps is not None and steps.number.tolist() == [10, 11, 12, 13]
    kept = [gang.consumed(np.array([at * SECOND])) for at in reported]
    assert [at.at_ns[0] // SECOND for at in kept] == [10, 11, 12, 13]
    sampled_ns = gang._trails.sampled_ns[gang._slots[0]]
    assert sampled_ns[sampled_ns >= 0].tolist() == [10 * SECOND, 11 * SECOND, 13 * SECOND]
    assert kept[-1].values[0, CPU] - kept[0].values[0, CPU] == pytest.approx(3 * SECOND / 2), "no frame is lost"


def test_set_clock_is_noticed_and_adjusted_clock_is_not() -> None:
    fleet = folded((BARE, frame_of(BARE, 1)))
    moves = [(1, False), (-1, False), (3600, True), (3600, False), (-3600, True), (0, True)]
    for seq, (seconds, noticed) in enumerate(moves, 2):
        fleet.touched()
        near = 1 if abs(seconds) > 1 else SECOND // 2
        wall_ns = WALL + seq * SECOND + (seconds * SECOND if abs(seconds) > 1 else seconds * near)
        fleet.observe(BARE, structs.replace(frame_of(BARE, seq), wall_ns=wall_ns), 0)
        assert fleet.touched() == ({"n0"} if noticed else set()), seconds
        assert abs(fleet.nodes["n0"].wall_of(seq * SECOND) - wall_ns) == 0, "by its newest frame"


def test_gaps_in_both_sequences_are_counted() -> None:
    fleet = folded(
        (BARE, frame_of(BARE, 1, [step(0, 0, 0.1, 0.1)])),
        (BARE, frame_of(BARE, 4, [step(0, 9, 1.1, 0.1)], record_seq=5)),
    )
    assert fleet.nodes["n0"].frames_missed == 2
    assert fleet.nodes["n0"].records_missed == 4


def test_repeated_records_count_once() -> None:
    first = [step(0, 0, 0.1, 0.1), step(0, 1, 0.2, 0.1)]
    fleet = folded(
        (BARE, frame_of(BARE, 1, first)),
        (BARE, frame_of(BARE, 2, [*first[1:], step(0, 2, 0.3, 0.1)], record_seq=1)),
    )
    gang = fleet.gangs[GANG]
    assert gang.newest_sequence == 3
    assert gang.repeated == 0


def test_restarted_agent_starts_a_new_sequence() -> None:
    records = [step(0, number, 0.1 * number, 0.1) for number in range(1, 6)]
    fleet = folded(
        (BARE, frame_of(BARE, 7, records)),
        (BARE, frame_of(BARE, 1, records, agent="b", at_ns=8 * SECOND)),
    )
    assert fleet.nodes["n0"].frames_missed == 0
    steps = fleet.gangs[GANG].completed()
    assert steps is not None
    assert steps.number.tolist() == [1, 2, 3, 4, 5]
    assert fleet.gangs[GANG].newest_sequence == 5


def test_nodes_of_one_boot_share_a_machine() -> None:
    other, far = (make_layout(name, (), (), ()) for name in ("n1", "n2"))
    fleet = folded((BARE, frame_of(BARE, 1)), (other, frame_of(other, 1)), (far, frame_of(far, 1, boot="c")))
    assert fleet.shares_machine("n0")
    assert fleet.shares_machine("n1")
    assert not fleet.shares_machine("n2")
    assert not fleet.shares_machine("unknown")
    fleet.observe(other, frame_of(other, 2, boot="c"), 0)
    assert [fleet.shares_machine(name) for name in ("n0", "n1", "n2")] == [False, True, True], "the node has moved"


def test_node_is_touched_when_its_layout_clock_or_machine_changes() -> None:
    first, second = layout_of("n0", [0]), layout_of("n1", [1])
    fleet = folded((first, frame_of(first, 1)))
    assert fleet.touched() == {"n0"}
    fleet.observe(first, frame_of(first, 2), 0)
    assert fleet.touched() == set()
    fleet.observe(second, frame_of(second, 1), 0)
    assert fleet.touched() == {"n0", "n1"}, "both nodes are on one machine now"
    fleet.observe(second, frame_of(second, 2, boot="another"), 0)
    assert fleet.touched() == {"n0", "n1"}, "no node shares a machine now"
    fleet.observe(first, structs.replace(frame_of(first, 3), wall_ns=2 * WALL), 0)
    assert fleet.touched() == {"n0"}
    changed = layout_of("n0", [0, 2])
    fleet.observe(changed, structs.replace(frame_of(changed, 4), wall_ns=2 * WALL), 0)
    assert fleet.touched() == {"n0"}


def test_shape_changes_only_with_a_touched_node() -> None:
    here, elsewhere = layout_of("n0", [0, 1]), make_layout("n9", (Tier("steps", 1.0),), (), ())
    fleet = folded((here, frame_of(here, 1, [step(0, 1, 0.5, 0.4), step(1, 1, 0.5, 0.4)])))
    reader = Look(fleet)
    before = reader.next(WALL).jobs[0]
    assert before.shared_machine is not None and not before.shared_machine.any()
    fleet.observe(elsewhere, frame_of(elsewhere, 1, boot="another"), 0)
    same = reader.next(WALL + SECOND).jobs[0]
    assert same.shared_machine is before.shared_machine
    moved = structs.replace(frame_of(elsewhere, 2), boot_id="b")
    fleet.observe(elsewhere, moved, 0)
    after = reader.next(WALL + 2 * SECOND).jobs[0]
    assert after.shared_machine is not None and after.shared_machine.all(), "another node is on its machine"


def test_node_set_aside_is_received_but_not_folded() -> None:
    other = make_layout("n1", (Tier("steps", 1.0),), (), ())
    fleet = folded(
        (BARE, frame_of(BARE, 1, [step(0, 1, 0.5, 0.1)])), (other, frame_of(other, 1, [step(1, 1, 0.5, 0.1)])),
        (other, frame_of(other, 2, [StepRecord(Member("else", 1, 0), 1, SECOND, SECOND // 2)], record_seq=1)),
    )  # fmt: skip
    fleet.touched()
    fleet.set_aside("n0")
    assert fleet.aside == {"n0": {(GANG, 1)}}, "the gang without a rank on that node is not affected"
    assert fleet.nodes["n0"].received_ns == SECOND, "the time of the last frame is kept"
    assert fleet.touched() == {"n0"}
    fleet.note_receipt("n0", 5 * SECOND)
    fleet.note_receipt("unknown", 4 * SECOND)
    assert fleet.nodes["n0"].received_ns == fleet.newest_received_ns == 5 * SECOND
    assert "unknown" not in fleet.nodes
    fleet.readmit("n0")
    assert fleet.aside == {}
    assert set(fleet.gangs) == {"else"}, "part of its steps is missing"
    fleet.readmit("n0")
    assert fleet.observe(BARE, frame_of(BARE, 2, [step(0, 2, 1.5, 0.1)], at_ns=6 * SECOND), 6 * SECOND)


def test_newer_attempt_survives_readmission() -> None:
    other = make_layout("n1", (Tier("steps", 1.0),), (), ())
    fleet = folded((BARE, frame_of(BARE, 1, [step(0, 1, 0.5, 0.1)])))
    fleet.set_aside("n0")
    fleet.observe(other, frame_of(other, 1, [step(0, 1, 0.5, 0.1, attempt=2)]), SECOND)
    fleet.readmit("n0")
    assert fleet.gangs[GANG].attempt == 2


# --- steps -----------------------------------------------------------------------------------------------------------


def test_steps_are_aligned_by_number_with_late_reports() -> None:
    other = make_layout("n1", (), (), ())
    fleet = folded(
        (BARE, frame_of(BARE, 1, [step(0, n, 0.1 * n, 0.1, 0.02) for n in range(5)])),
        (other, frame_of(other, 1, [step(3, 0, 500.0, 0.1, 0.05)], at_ns=501 * SECOND)),
        (other, frame_of(other, 2, [step(3, 1, 500.1, 0.1, None)], record_seq=1, at_ns=502 * SECOND)),
    )
    gang = fleet.gangs[GANG]
    steps = gang.completed()
    assert steps is not None
    assert gang.ranks == (0, 3)
    assert gang.nodes == ("n0", "n1")
    assert steps.number.tolist() == [0, 1]
    assert steps.wait_seconds[0].tolist() == pytest.approx([0.02, 0.05])
    assert np.isnan(steps.wait_seconds[1, 1])
    assert fleet.gang_step_seconds(GANG) == pytest.approx(0.1)


def test_steps_contain_tokens_and_squares() -> None:
    def reported(rank: int, number: int, tokens: int | None, squares: int | None = None) -> StepRecord:
        record = step(rank, number, 0.1 * number, 0.1)
        return structs.replace(record, tokens=tokens, squares=squares)

    silent = [reported(rank, n, None) for n in range(2) for rank in range(2)]
    fleet = folded((BARE, frame_of(BARE, 1, silent)))
    reader = Look(fleet)
    steps = reader.next(WALL + SECOND).jobs[0].steps
    assert steps is not None and steps.tokens is None and steps.squares is None, "no rank has reported"

    of_rank_1 = (reported(1, 2, None), reported(1, 3, 5), *(reported(1, n, 6, 36) for n in range(4, 90)))
    more = [reported(0, n, n * 1000, n**2 * 10**6) for n in range(2, 90)]  # more than the initial rows of the ring
    fleet.observe(BARE, frame_of(BARE, 9, [*more, *of_rank_1], record_seq=4), 9 * SECOND)
    steps = reader.next(WALL + 9 * SECOND).jobs[0].steps
    assert steps is not None and steps.tokens is not None and steps.squares is not None
    assert steps.number.tolist() == list(range(2, 90))
    assert steps.tokens[:, 0].tolist() == [n * 1000 for n in range(2, 90)]
    assert steps.squares[:, 0] == pytest.approx([n**2 * 10**6 for n in range(2, 90)], rel=1e-6)
    assert np.isnan(steps.tokens[0, 1]) and np.isnan(steps.squares[:2, 1]).all(), "a missing value is not zero"
    assert (steps.tokens[1, 1], steps.tokens[2, 1], steps.squares[2, 1]) == (5, 6, 36)

    absurd = [reported(0, 90, -1), reported(0, 90, 5, -1), reported(0, 90, 2**62)]
    fleet.observe(BARE, frame_of(BARE, 10, absurd, record_seq=4 + len(more) + len(of_rank_1)), 10 * SECOND)
    assert fleet.records_refused == 3


def test_time_between_steps_counts_for_the_rank() -> None:
    fleet = folded((BARE, frame_of(BARE, 3, [step(0, 0, 0.1, 0.1), step(0, 1, 0.7, 0.1), step(0, 3, 2.0, 0.2)])))
    steps = fleet.gangs[GANG].completed()
    assert steps is not None
    assert steps.seconds[:, 0].tolist() == pytest.approx([0.1, 0.6, 0.2]), "step 3 does not follow a known step"


def test_new_rank_makes_earlier_rows_incomplete() -> None:
    fleet = folded((BARE, frame_of(BARE, 1, [step(0, 0, 0.1, 0.1)])))
    before = fleet.gangs[GANG].newest_sequence
    fleet.observe(BARE, frame_of(BARE, 2, [step(1, 7, 1.0, 0.1), step(0, 7, 1.0, 0.1)], record_seq=1), 2 * SECOND)
    steps = fleet.gangs[GANG].completed()
    assert steps is not None
    assert steps.number.tolist() == [7]
    assert steps.sequence[0] > before


def test_history_reaches_back_sixteen_seconds_and_no_further_than_memory_allows() -> None:
    gang = Gang(GANG, 1)
    columns = [gang.column(rank, "n0") for rank in range(64)]
    for number in range(20_000):
        at = number * SECOND // 1000
        for column in columns[:1] if number < 19_000 else columns:
            gang.finish(column, number, at, SECOND // 1000, 0, at)
    assert gang._steps._end.size <= MOST_CELLS
    steps = gang.completed()
    assert steps is not None
    assert steps.number.tolist() == list(range(19_000, 20_000))


def test_restart_from_a_checkpoint_is_followed() -> None:
    gang = Gang(GANG, 1)
    columns = [gang.column(rank, "n0") for rank in range(2)]
    course = [*range(500), *range(200, 260)]
    for moment, number in enumerate(course):
        for column in columns:
            gang.finish(column, number, moment * SECOND, SECOND // 2, 0, moment * SECOND)
    steps = gang.completed()
    assert steps is not None
    assert steps.number[-FIRST_ROWS + 1 :].tolist() == list(range(261 - FIRST_ROWS, 260))
    assert steps.end_ns[-1].tolist() == [559 * SECOND + SECOND // 2] * 2


def test_absurd_step_number_costs_its_sender_one_step() -> None:
    gang = Gang(GANG, 1)
    columns = [gang.column(rank, "n0") for rank in range(2)]
    in_the_first_row = (1 << 60) // FIRST_ROWS * FIRST_ROWS
    gang.finish(columns[0], in_the_first_row, 0, SECOND, 0, 0)
    found: list[int] = []
    for number in range(200):
        before = gang.newest_sequence
        for column in columns:
            gang.finish(column, number, number * SECOND, SECOND, 0, number * SECOND)
        steps = gang.completed(before)
        found += [] if steps is None else steps.number.tolist()
    assert found == list(range(1, 200))


def test_invalid_records_are_refused_one_by_one() -> None:
    member = Member(GANG, 1, 0)
    wrong: list[Record] = [
        StepRecord(member, -1, SECOND, SECOND),
        StepRecord(member, 1, SECOND, 0),
        StepRecord(member, 1, SECOND, -5),
        StepRecord(member, 1, SECOND, SECOND, 2 * SECOND),
        StepRecord(member, 1, SECOND, SECOND, -1),
        StepRecord(member, 1, -SECOND, SECOND),
        StepRecord(member, 1, 100 * SECOND, SECOND),  # ends in the future
        StepRecord(Member(GANG, 1, -1), 1, SECOND, SECOND),
        StepRecord(Member(GANG, 1, 1 << 40), 1, SECOND, SECOND),
        StepRecord(Member("g" * 1000, 1, 0), 1, SECOND, SECOND),
        OpenRecord(member, "step", -1, SECOND),
    ]
    fleet = folded((BARE, frame_of(BARE, 5, [*wrong, step(0, 2, 1.0, 0.5)])))
    assert fleet.records_refused == len(wrong)
    steps = fleet.gangs[GANG].completed()
    assert steps is not None
    assert steps.number.tolist() == [2]


def test_record_older_than_an_hour_is_refused() -> None:
    old, new = step(0, 1, 1399.0, 0.9), step(0, 2, 1401.0, 0.5)
    fleet = folded((BARE, frame_of(BARE, 5001, [old, new])))
    assert fleet.records_refused == 1
    steps = fleet.gangs[GANG].completed()
    assert steps is not None and steps.number.tolist() == [2]


# --- attempts --------------------------------------------------------------------------------------------------------


def test_new_attempt_replaces_the_old_one() -> None:
    fleet = folded(
        (BARE, frame_of(BARE, 1, [step(0, 5, 0.1, 0.1)])),
        (BARE, frame_of(BARE, 2, [step(0, 3, 1.1, 0.1, attempt=2), step(0, 6, 1.1, 0.1)], record_seq=1)),
    )
    assert fleet.gangs[GANG].attempt == 2
    assert fleet.records_of_ended_attempts == 1
    steps = fleet.gangs[GANG].completed()
    assert steps is not None
    assert steps.number.tolist() == [3]


def test_open_records_belong_to_the_current_gang() -> None:
    """Frames with unchanged records are processed on a short path. The gang may have restarted in between."""
    inside = (
        OpenRecord(Member(GANG, 1, 0), "step", 7, SECOND),
        OpenRecord(Member(GANG, 1, 1), "collective", 9, SECOND),
    )
    fleet = folded(*((BARE, frame_of(BARE, seq, inside, record_seq=2 * seq)) for seq in (1, 2)))
    first = fleet.gangs[GANG]
    assert first.open_steps().tolist() == [[7, SECOND, 2 * SECOND], [-1, -1, -1]]
    assert first.open_collectives().tolist() == [[-1, -1, -1], [9, SECOND, 2 * SECOND]]
    fleet.observe(BARE, frame_of(BARE, 3, inside, record_seq=6), 3 * SECOND)
    assert fleet.gangs[GANG] is first
    assert first.received_ns == 3 * SECOND
    fleet.forget(GANG)
    fleet.observe(BARE, frame_of(BARE, 4, inside, record_seq=8), 4 * SECOND)
    assert fleet.gangs[GANG] is not first
    assert fleet.gangs[GANG].open_steps()[0].tolist() == [7, SECOND, 4 * SECOND]


def test_number_of_gangs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_records, "MOST_GANGS", 2)
    records = [StepRecord(Member(name, 1, 0), 1, SECOND // 2, SECOND // 4) for name in ("a", "b", "c", "a")]
    fleet = folded((BARE, frame_of(BARE, 1, records)))
    assert set(fleet.gangs) == {"a", "b"}
    assert fleet.records_refused == 1
    fleet.observe(BARE, frame_of(BARE, 2, [step(0, 2, 1.0, 0.1)], record_seq=4), 0)
    assert fleet.records_refused == 2, "also the next time"


def test_first_step_of_each_attempt_is_reported_once() -> None:
    fleet = folded((BARE, frame_of(BARE, 1, [step(0, 5, 0.1, 0.1), step(1, 5, 0.1, 0.2), step(0, 6, 0.3, 0.1)])))
    assert fleet.first_steps() == [(GANG, 1, 5, WALL + SECOND // 5)]
    assert fleet.first_steps() == []
    fleet.forget(GANG)
    fleet.observe(BARE, frame_of(BARE, 2, [step(0, 7, 1.0, 0.1), step(0, 5, 1.1, 0.1, attempt=2)], record_seq=3), 0)
    assert fleet.first_steps() == [(GANG, 2, 5, WALL + SECOND * 12 // 10)]


def test_stale_gangs_are_forgotten() -> None:
    fleet = folded((BARE, frame_of(BARE, 1, [step(0, 5, 0.1, 0.1)])))
    assert fleet.forget_silent(300 * SECOND) == []
    assert fleet.forget_silent(700 * SECOND) == [GANG]
    assert not fleet.gangs


# --- counters --------------------------------------------------------------------------------------------------------


def consumed(seconds: int, *, io: int | None = 0) -> list[int | None]:
    """Return counters at a second: 0.5 s of CPU and 0.25 s of run-queue delay per second, no page faults, then
    pressure."""
    return [seconds * SECOND // 2, seconds * SECOND // 4, io, 0, seconds, 0, seconds * SECOND // 10]


@pytest.mark.parametrize("together_at_most", [256, 3, 1])
def test_consumption_is_available_for_any_recent_time(monkeypatch: pytest.MonkeyPatch, together_at_most: int) -> None:
    monkeypatch.setattr(series_queue, "MOST_QUEUED", together_at_most)
    layout = layout_of("n0", [0])
    fleet = folded(*((layout, frame_of(layout, s, counters=consumed(s, io=None))) for s in range(10, 20)))
    gang = fleet.gangs[GANG]
    early, late = (gang.consumed(np.array([at], np.int64)) for at in (12 * SECOND + SECOND // 2, 17 * SECOND))
    advance = late.values - early.values
    assert advance[0, CPU] == pytest.approx(4.5 * SECOND / 2)
    assert advance[0, SAMPLES] == pytest.approx(4.5)
    assert np.isnan(advance[0, BLOCK_IO]), "absent is not zero"
    outside = gang.consumed(np.array([99 * SECOND], np.int64))
    assert outside.at_ns[0] == 19 * SECOND, "the result says which time it covers"


def test_counters_of_a_restarted_agent_are_not_compared_with_the_old_ones() -> None:
    layout = layout_of("n0", [0])
    fleet = folded(
        *((layout, frame_of(layout, s, counters=consumed(s))) for s in range(10, 15)),
        *((layout, frame_of(layout, s, counters=consumed(s - 15), agent="b")) for s in range(15, 18)),
    )
    values = fleet.gangs[GANG].consumed(np.array([16 * SECOND], np.int64)).values
    assert values[0, CPU] == pytest.approx(SECOND / 2)
    before = fleet.gangs[GANG].consumed(np.array([12 * SECOND], np.int64))
    assert before.at_ns[0] == 15 * SECOND, "values from before the restart are missing, not wrong"


def test_counters_continue_across_a_layout_change() -> None:
    one, two = layout_of("n0", [0]), make_layout("n0", (Tier("other", 1.0), Tier("process", 1.0)), (), [])
    wider = make_layout(
        "n0",
        two.tiers,
        (),
        [Column("gangwatch_host_cpu_seconds_total", (("mode", "idle"),), 0)]
        + [replace_tier(column) for column in one.counters],
    )
    fleet = folded(
        *((one, frame_of(one, s, counters=consumed(s))) for s in range(10, 13)),
        *((wider, frame_of(wider, s, counters=[7, *consumed(s)])) for s in range(13, 16)),
    )
    gang = fleet.gangs[GANG]
    advance = gang.consumed(np.array([15 * SECOND])).values - gang.consumed(np.array([10 * SECOND])).values
    assert advance[0, CPU] == pytest.approx(5 * SECOND / 2)


def replace_tier(column: Column) -> Column:
    return Column(column.metric, column.labels, 1, column.width)


def test_fleet_metrics_are_in_the_catalogue() -> None:
    fleet = folded((BARE, frame_of(BARE, 1, [step(0, 0, 0.1, 0.1)])))
    samples = list(fleet.measures())
    assert [(name, value) for name, _, value in samples] == [("gangwatch_gang_step_seconds", pytest.approx(0.1))]
    for name, labels, _ in samples:
        assert tuple(key for key, _ in labels) == BY_NAME[name].labels


# --- random input ----------------------------------------------------------------------------------------------------

numbers = st.one_of(st.integers(-5, 200), st.integers(-(2**63), 2**63 - 1))
members = st.builds(Member, st.sampled_from([GANG, "", "other", "x" * 300]), numbers, numbers)
records = st.lists(
    st.one_of(
        st.builds(StepRecord, members, numbers, numbers, numbers, st.one_of(st.none(), numbers)),
        st.builds(
            StepRecord,
            st.builds(Member, st.just(GANG), st.integers(1, 2), st.integers(0, 3)),
            st.integers(0, 300),
            st.integers(0, 5 * SECOND),
            st.integers(1, SECOND),
        ),
        st.builds(OpenRecord, members, st.sampled_from(["step", "collective"]), numbers, numbers),
        st.builds(EventRecord, st.just("xid"), st.just("gpu"), numbers),
    ),
    max_size=12,
)
frames = st.lists(
    st.tuples(
        records,
        st.integers(0, 20),
        st.integers(-3, 30),
        st.sampled_from(["a", "b"]),
        st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1)), min_size=11, max_size=11),
        numbers,
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(frames)
def test_random_records_and_counters_do_not_crash(
    stream: list[tuple[list[Record], int, int, str, list[int | None], int]],
) -> None:
    layout = layout_of("n0", [0, 1])
    fleet = Fleet()
    for found, seq, record_seq, agent, counters, at_ns in stream:
        frame = frame_of(layout, seq, found, counters=counters, record_seq=record_seq, agent=agent, at_ns=at_ns)
        try:
            fleet.observe(layout, frame, seq * SECOND)
        except FrameError:
            continue
    for gang in fleet.gangs.values():
        steps = gang.completed()
        if steps is not None:
            assert steps.seconds.shape == (len(steps.number), len(gang))
            assert (steps.seconds > 0).all()
            assert (np.diff(steps.sequence) > 0).all()
        assert gang.consumed(np.zeros(len(gang), np.int64)).values.shape == (len(gang), len(CONSUMED))
    list(fleet.measures())
