"""Counts of ranks by node, and the index for the page, are computed only when they are needed."""

from __future__ import annotations

from scheduler_feedback.api.reading.listing import Kept, Listing
from scheduler_feedback.api.reading.rank_counts import SPARE, RankCounts
from scheduler_feedback.api.reading.state_snapshots import Snapshot
from scheduler_feedback.api.web import timetable
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.core.state_copy import frozen
from scheduler_feedback.policies.index.scheduling_index import index_of

NODES = timetable.MOST_ROWS + 6


def ranks_on(*nodes: str) -> list[RankRecord]:
    slots = [Slot(node, number) for node in nodes for number in range(2)]
    return [RankRecord(rank, slot) for rank, slot in enumerate(slots)]


def running(*nodes: str, job_id: str) -> Job:
    ranks = ranks_on(*nodes)
    spec = JobSpec("train", ("true",), len(ranks))
    return Job(job_id, spec, JobState.RUNNING, 1, ranks=ranks, attempt_started_ns=1)


def cluster() -> State:
    state = State()
    for number in range(NODES):
        state.nodes[f"n{number}"] = Node(f"n{number}", 4)
    state.jobs["j-1"] = running("n0", "n1", job_id="j-1")
    state.jobs["j-2"] = running("n1", "n2", job_id="j-2")
    return state


def test_counts_are_kept_until_a_rank_moves() -> None:
    state, kept = cluster(), Kept()
    first = frozen(state)
    before = Listing(Snapshot(1, first), kept)
    assert before.on_node["n1"] == {"j-1": 2, "j-2": 2}
    assert before.on_node["n9"] == {}
    known = kept.counts.of(first.jobs["j-2"])
    state.jobs["j-1"].ranks = ranks_on("n9", "n1")
    state.jobs["j-2"].run_ns += 1  # a changed job whose ranks stay
    second = frozen(state, first)
    after = Listing(Snapshot(2, second), kept)
    assert after.on_node["n0"] == {}
    assert after.on_node["n1"] == {"j-1": 2, "j-2": 2}
    assert after.on_node["n9"] == {"j-1": 2}
    assert second.jobs["j-2"] is not first.jobs["j-2"]
    assert kept.counts.of(second.jobs["j-2"]) is known


def test_counts_of_ended_jobs_are_deleted() -> None:
    kept = Kept()
    for number in range(SPARE + 10):
        kept.counts.of(running("n0", job_id=f"j-{number}"))
    Listing(Snapshot(1, State(jobs={"j-5": running("n0", job_id="j-5")})), kept)
    assert list(kept.counts._known) == ["j-5"]


def test_the_timetable_is_the_same_with_kept_counts() -> None:
    state, counts = cluster(), RankCounts()
    state.jobs["j-3"] = running("n3", "gone", job_id="j-3")
    for _ in range(2):
        drawn = timetable.of_state(state, counts.of)
        assert drawn == timetable.of_state(state)
        (row,) = drawn["rows"]
        assert {bar["job"]: bar["slots"] for bar in row["bars"]} == {"j-1": 4, "j-2": 4, "j-3": 2}
        state.jobs["j-1"].ranks = ranks_on("n4", "n5")


def test_free_slots_are_planned_only_to_explain_pending_jobs() -> None:
    state, kept = cluster(), Kept()
    without = Listing(Snapshot(1, frozen(state)), kept).reasons
    assert index_of(without).plan_or_none is None
    state.jobs["j-4"] = Job("j-4", JobSpec("train", ("true",), 1), JobState.PENDING, 5)
    waiting = kept.reasons.exactly(frozen(state))
    assert index_of(waiting).plan_or_none is not None
