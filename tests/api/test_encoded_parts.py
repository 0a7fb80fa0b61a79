"""Encoded nodes and ranks are those of the present snapshot, and are encoded only when they have changed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from scheduler_feedback.api import documents
from scheduler_feedback.api.reading import lists
from scheduler_feedback.api.reading.encoded_parts import SPARE, EncodedParts, with_field
from scheduler_feedback.api.reading.listing import Kept, Listing
from scheduler_feedback.api.reading.state_snapshots import Snapshot
from scheduler_feedback.api.web import timetable
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import OpenDecision, PastVerdict, State
from scheduler_feedback.core.state_copy import frozen
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.feed.agent_reporting import AgentStatus


def state_of() -> State:
    state = State(nodes={name: Node(name, 2, devices=("GPU-\u00e9", "GPU-1")) for name in ("n0", "n1", "n2")})
    ranks = [RankRecord(rank, Slot(f"n{rank // 2}", rank % 2), pid=70 + rank) for rank in range(4)]
    spec = JobSpec("train", ("true",), 4, user="ann")
    state.jobs["j-1"] = Job("j-1", spec, JobState.RUNNING, 1, ranks=ranks, attempt_started_ns=1)
    return state


def read(listing: Listing, lister: lists.Lister) -> object:
    return msgspec.json.decode(msgspec.json.encode(lister(listing, None, 100).items))


def plain(document: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(document))


def test_lists_are_those_of_each_snapshot() -> None:
    state, kept = state_of(), Kept()
    statuses = {"n0": AgentStatus(0.5, 7, False), "n1": AgentStatus(90.0, 7, True), "n2": AgentStatus(None, None, True)}
    before: State | None = None
    for turn in range(3):
        before = frozen(state, before)
        listing = Listing(Snapshot(turn, before), kept)
        nodes = documents.with_agent_status(documents.nodes_document(state), statuses)
        assert read(listing, lists.nodes(lambda: statuses)) == plain(nodes)
        assert read(listing, lists.jobs(lists.Wanted())) == plain(documents.jobs_document(state, active=False))
        state.nodes["n1"].state, state.nodes["n1"].reason = NodeState.QUARANTINE, f"because of {turn}"
        state.jobs["j-1"].ranks[turn] = RankRecord(turn, Slot("n2", turn % 2), pid=90)
        statuses.pop("n0", None)


def test_only_changed_parts_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state, kept = state_of(), Kept()
    first = frozen(state)
    read(Listing(Snapshot(1, first), kept), lists.nodes(dict))
    made: list[str] = []
    original = documents.node_document

    def counted(node: Node, jobs: Mapping[str, int]) -> documents.Document:
        made.append(node.name)
        return original(node, jobs)

    monkeypatch.setattr(documents, "node_document", counted)
    state.nodes["n2"].draining = True
    read(Listing(Snapshot(2, frozen(state, first)), kept), lists.nodes(dict))
    assert made == ["n2"]


def test_a_verdict_is_encoded_again_if_something_about_it_has_changed() -> None:
    """The lists of verdicts and of jobs share the encoded verdicts."""
    state, kept = state_of(), Kept()
    verdict = Verdict(
        "v-1", Kind.STRAGGLER, "j-1", 1, 2, "n1", Cause.GPU, 0.9, 1.5, 1.0, 1.5, 1, 2, frames=(("n0", 5), ("n1", 6))
    )
    state.verdicts[verdict.verdict_id] = verdict
    before: State | None = None
    texts = []
    for turn in range(5):
        if turn == 2:
            state.judged[verdict.verdict_id] = True
        elif turn == 3:
            state.open_decisions[verdict.verdict_id] = OpenDecision(choice="cost", reason="it costs more")
        elif turn == 4:
            del state.verdicts[verdict.verdict_id]
            state.past_verdicts.append(PastVerdict(verdict, 7, "it has ended"))
        before = frozen(state, before)
        listing = Listing(Snapshot(turn, before), kept)
        listed = read(listing, lists.verdicts)
        assert listed == plain(documents.verdicts_document(state))
        (job,) = lists.jobs(lists.Wanted())(listing, None, 9).items
        assert plain(job["verdicts"]) == listed
        texts.append(kept.verdicts._known[verdict.verdict_id][1])
    assert texts[0] is texts[1] and len(set(texts)) == 4


def test_snapshots_share_unchanged_tables_and_the_timetable_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    state, kept = state_of(), Kept()
    first = frozen(state)
    assert frozen(state, first).nodes is first.nodes
    state.nodes["n3"] = Node("n3", 2)
    second = frozen(state, first)
    assert second.nodes is not first.nodes and second.nodes["n1"] is first.nodes["n1"] and second.jobs is first.jobs
    del state.nodes["n0"]
    third = frozen(state, second)
    assert [*third.nodes] == ["n1", "n2", "n3"]
    monkeypatch.setattr(timetable, "MOST_ROWS", 1)
    for snapshot in (first, first, second, third):
        drawn = timetable.of_state(snapshot, kept=kept.rows)
        assert drawn == timetable.of_state(snapshot)
        assert sum(row["nodes"] for row in drawn["rows"]) == len(snapshot.nodes)


def test_parts_of_gone_objects_are_deleted() -> None:
    parts = EncodedParts()
    for number in range(SPARE + 3):
        parts.of(f"n{number}", (number,), lambda: 1)
    parts.keep({"n5", "n6"})
    assert set(parts._known) == {"n5", "n6"}


def test_a_field_is_added_at_the_end() -> None:
    raw = with_field(b'{"a":1}', "b", {"c": None})
    assert msgspec.json.encode([raw]) == b'[{"a":1,"b":{"c":null}}]'
