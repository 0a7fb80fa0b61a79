"""Renaming of pods to ranks in the agents' frames: only pods that were placed for a gang become its ranks."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from agent.schema.frame import Column, EventRecord, Frame, Layout, Member, Record, StepRecord, Tier, make_layout
from agent.schema.record_table import records_of, tabulate
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place, RankNames
from scheduler_feedback.core.telemetry.fleet import Fleet

SECOND = 1_000_000_000


def layout_of(node: str, *members: Member, attempts: bool = True) -> Layout:
    def labels(member: Member) -> tuple[tuple[str, str], ...]:
        attempt = str(member.attempt) if attempts else ""
        return ("attempt", attempt), ("gang", member.gang), ("rank", str(member.rank))

    counters = [Column("gangwatch_rank_steps_total", labels(member), 1) for member in members]
    tiers = (Tier("node", 1.0), Tier("steps", 0.5))
    return make_layout(node, tiers, [Column("gangwatch_host_memory_bytes")], counters)


def step(member: Member, number: int = 1) -> StepRecord:
    return StepRecord(member, number, number * SECOND, SECOND // 2, SECOND // 8)


def frame_of(layout: Layout, *records: Record, seq: int = 1) -> Frame:
    tiers, gauges, counters = layout.sizes
    at_ns = 10 * SECOND + seq
    return Frame(
        layout.node, "boot", "agent", seq, layout.layout_id, at_ns, at_ns, np.full(tiers, at_ns, np.int64),
        np.zeros(gauges), np.zeros(counters, np.uint64), np.ones(counters, np.bool_), 0, tuple(records),
    )  # fmt: skip


class Places:
    def __init__(self, **places: Place) -> None:
        self.places, self.version = places, 1
        self.naming = RankNames(lambda uid: self.places.get(uid), lambda: self.version)

    def put(self, uid: str, place: Place) -> None:
        self.places[uid] = place
        self.version += 1


def members_of(layout: Layout) -> list[tuple[str, str, str]]:
    named = [dict(column.labels) for column in layout.counters]
    return [(one["gang"], one["attempt"], one["rank"]) for one in named]


def test_ranks_of_two_pods_become_ranks_of_one_gang_in_any_numbering() -> None:
    places = Places(a=Place("g", 2, "n1", range(4, 6)), b=Place("g", 2, "n2", range(6)[:4]))
    one, two = (Member("pod-a", 0, rank) for rank in (0, 1))
    layout, frame = places.naming(plain := layout_of("n1", one, two), frame_of(plain, step(one), step(two)))
    assert members_of(layout.whole()) == [("g", "2", "4"), ("g", "2", "5")]
    assert [record.member for record in frame.records if isinstance(record, StepRecord)] == [
        Member("g", 2, 4),
        Member("g", 2, 5),
    ]
    fleet = Fleet()
    assert fleet.observe(layout, frame, 1)
    three = Member("pod-b", 0, 3)
    other = layout_of("n2", three)
    assert fleet.observe(*places.naming(other, frame_of(other, step(three))), 1)
    assert sorted(fleet.gangs) == ["g"]
    assert sorted(zip(fleet.gangs["g"].ranks, fleet.gangs["g"].nodes, strict=True)) == [(3, "n2"), (4, "n1"), (5, "n1")]


def test_ranks_numbered_like_the_gang_s_keep_their_numbers() -> None:
    places = Places(a=Place("g", 1, "n1", range(3, 11)))
    claimed = [Member("pod-a", 0, rank) for rank in range(3, 11)]
    layout, _ = places.naming(plain := layout_of("n1", *claimed), frame_of(plain))
    assert members_of(layout.whole()) == [("g", "1", str(rank)) for rank in range(3, 11)]


def test_reports_for_pods_of_another_node_or_unplaced_pods_are_not_renamed() -> None:
    places = Places(a=Place("g", 1, "n1", range(1)), launcher=Place("g", 1, "n2", range(0)))
    for gang in ("pod-a", "pod-unknown", "pod-launcher", "g"):
        plain = layout_of("n2", member := Member(gang, 1, 0))
        layout, frame = places.naming(plain, raw := frame_of(plain, step(member)))
        assert layout is plain
        assert frame is raw


def test_more_processes_than_gpus_keep_separate_ranks() -> None:
    places = Places(a=Place("g", 1, "n1", range(2)))
    claimed = [Member("pod-a", 0, rank) for rank in range(4)]
    layout, _ = places.naming(plain := layout_of("n1", *claimed), frame_of(plain))
    assert members_of(layout.whole()) == [("g", "1", "0"), ("g", "1", "1"), ("pod-a", "0", "2"), ("pod-a", "0", "3")]


def test_only_the_newest_processes_of_a_restarted_pod_count() -> None:
    places = Places(a=Place("g", 3, "n1", range(2)))
    layout, _ = places.naming(plain := layout_of("n1", Member("pod-a", 0, 0), Member("pod-a", 1, 0)), frame_of(plain))
    assert members_of(layout.whole()) == [("pod-a", "0", "0"), ("g", "3", "0")]


def test_a_column_without_an_attempt_belongs_to_the_newest() -> None:
    places = Places(a=Place("g", 3, "n1", range(2)))
    layout, _ = places.naming(plain := layout_of("n1", Member("pod-a", 0, 1), attempts=False), frame_of(plain))
    assert members_of(layout.whole()) == [("g", "3", "1")]


def test_a_pod_is_renamed_exactly_while_it_is_placed() -> None:
    places = Places()
    member = Member("pod-a", 0, 0)
    plain = layout_of("n1", member)
    assert places.naming(plain, frame_of(plain))[0] is plain
    places.put("a", Place("g", 1, "n1", range(1)))
    first, _ = places.naming(plain, frame_of(plain, seq=2))
    assert members_of(first.whole()) == [("g", "1", "0")]
    assert places.naming(plain, frame_of(plain, seq=3))[0] is first
    places.put("a", Place("g", 2, "n1", range(1)))
    assert members_of(places.naming(plain, frame_of(plain, seq=4))[0].whole()) == [("g", "2", "0")]
    del places.places["a"]
    places.version += 1
    assert places.naming(plain, frame_of(plain, seq=5))[0] is plain


def test_a_rank_that_reports_before_its_layout_is_renamed_and_events_are_unchanged() -> None:
    places = Places(a=Place("g", 1, "n1", range(1)))
    event = EventRecord("xid", "GPU-1", 1)
    plain = layout_of("n1")
    layout, frame = places.naming(plain, frame_of(plain, step(Member("pod-a", 0, 0)), event))
    assert frame.layout_id == layout.layout_id
    assert frame.records == (step(Member("g", 1, 0)), event)


def test_unchanged_records_are_the_same_object() -> None:
    """The fleet recognises unchanged records by identity."""
    places = Places(a=Place("g", 1, "n1", range(1)))
    plain = layout_of("n1", member := Member("pod-a", 0, 0))
    first = frame_of(plain, step(member))
    second = structs.replace(first, seq=2)
    assert places.naming(plain, first)[1].records is places.naming(plain, second)[1].records


def test_an_event_about_a_rank_gets_the_rank_s_new_name() -> None:
    places = Places(a=Place("g", 3, "n1", range(4, 6)))
    member = Member("pod-a", 0, 1)
    event = EventRecord("rank-blocked", "rank 1", 1, {"where": "train.py:3 in f"}, member)
    plain = layout_of("n1", Member("pod-a", 0, 0), member)
    (renamed,) = places.naming(plain, frame_of(plain, event))[1].records
    assert renamed.member == Member("g", 3, 5)
    _, alone = places.naming(layout_of("n1"), frame_of(layout_of("n1"), event, seq=2))
    assert alone.records[0].member is not None


# --- tables of records ------------------------------------------------------------------------------------------------


def with_table(frame: Frame) -> Frame:
    """Return the frame with its records as a table."""
    return structs.replace(frame, records=(), table=tabulate(frame.records))


def test_a_table_gets_the_same_names_as_its_records() -> None:
    members = [Member("pod-a", 0, rank) for rank in (0, 1)]
    other = Member("pod-b", 0, 0)
    records = [step(members[0]), step(members[1]), step(other), step(members[0], 2)]
    plain = layout_of("n1")
    by_record, by_table = (Places(a=Place("g", 2, "n1", range(4, 6))) for _ in range(2))
    _, expected = by_record.naming(plain, frame_of(plain, *records))
    _, found = by_table.naming(plain, with_table(frame_of(plain, *records)))
    assert found.table is not None and found.records == ()
    assert tuple(records_of(found.table)) == expected.records
    assert expected.records[0].member == Member("g", 2, 4), "a rank that reports before the layout has it"


def test_an_unchanged_table_is_the_same_object_until_its_pod_moves() -> None:
    member, other = Member("pod-a", 0, 0), Member("pod-a", 0, 1)
    places = Places(a=Place("g", 1, "n1", range(2)))
    plain = layout_of("n1", member, other)
    first = with_table(frame_of(plain, step(member), step(other)))
    _, one = places.naming(plain, first)
    _, two = places.naming(plain, structs.replace(first, seq=2))
    assert one.table is two.table is not None
    assert first.table is not None
    _, three = places.naming(plain, structs.replace(first, seq=3, table=first.table.after(1)))
    assert three.table is not None and three.table.members is one.table.members and len(three.table) == 1
    places.put("a", Place("g", 2, "n1", range(2)))
    _, four = places.naming(plain, structs.replace(first, seq=4))
    assert four.table is not None and four.table.members == (Member("g", 2, 0), Member("g", 2, 1))
    _, five = places.naming(plain, frame_of(plain, step(member), seq=5))
    assert five.table is None and five.records[0].member == Member("g", 2, 0)
