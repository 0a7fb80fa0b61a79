"""Reports of blocked ranks: earlier verdicts, and the sentence about the collective and the places of the ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.schema.frame import RANK_BLOCKED, EventRecord, Member
from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.steps import blocked_ranks
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked, BlockedRanks
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Abstention, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.detectors.hang.blocked_evidence import (
    EARLY_CONFIDENCE,
    behind,
    in_another_operation,
    in_words,
)
from scheduler_feedback.detectors.hang.certain_hangs import blocked_before_peers
from scheduler_feedback.detectors.hang.hang import CONFIDENT, HangDetector
from tests.detectors.alone import alone
from tests.detectors.test_detectors import NS, START, course, verdicts
from tests.detectors.test_hang import Training, reported


def waiting(rank: int, sequence: int | None = 7, group: str = "0", **fields: object) -> Blocked:
    report = Blocked(rank, f"n{rank}", 0, 0, 2, True, 9.0, "train.py:50 in train", "thread MainThread", "all_reduce",
                     group, "0-7", sequence, 64)  # fmt: skip
    return replace(report, **fields)  # type: ignore[arg-type]


def stuck(rank: int, **fields: object) -> Blocked:
    return replace(waiting(rank), where="train.py:9 in load", operation="", group="", sequence=None, **fields)  # type: ignore[arg-type]


class Reporting(Training):
    """Training whose ranks report where they are blocked, from nine seconds after the hang begins."""

    def __init__(self, *reports: Blocked, **options: float) -> None:
        super().__init__(**options)
        self.reports = reports

    def look(self, second: float, random: np.random.Generator) -> JobTelemetry:
        found = super().look(second, random)
        held = self._begun(second)
        if held is None or second < held[0] + 9:
            return found
        at_ns = START + round(second * NS)
        now = {one.rank: replace(one, at_ns=at_ns) for one in self.reports}
        return replace(found, blocked=lambda: now)


def hanging(*reports: Blocked, idle: bool = True) -> Reporting:
    job = Reporting(*reports)
    job.stops = [(60.0, 1e9, (3,), ProcessState.RUNNING)]
    job.idle = {3} if idle else set()
    return job


ALL = (*(waiting(rank) for rank in range(8) if rank != 3), stuck(3))


def test_two_equal_reports_give_an_early_verdict_that_nothing_acts_on_and_later_a_sure_one() -> None:
    first, second = course(alone(HangDetector()), [hanging(*ALL)], 130)
    assert isinstance(first[1], Verdict)
    assert isinstance(second[1], Verdict)
    assert 10 <= first[0] - 60 <= 15
    assert 40 <= second[0] - 60 <= 47
    assert first[1].verdict_id == second[1].verdict_id
    assert first[1].rank == second[1].rank == 3
    assert first[1].confidence == pytest.approx(EARLY_CONFIDENCE)
    assert second[1].confidence >= CONFIDENT
    text = sentence(first[1])
    assert "rank 3 is blocked at train.py:9 in load; " in text
    assert "ranks 0-2,4-7 wait in all_reduce number 7 of group 0 (ranks 0-7), at train.py:50 in train" in text


@pytest.mark.parametrize(
    ("reports", "idle"),
    [
        ((), True),
        ((waiting(0), stuck(3, reports=1)), True),
        ((waiting(0, reports=1), stuck(3)), True),
        ((stuck(3),), True),
        (ALL, False),
    ],
    ids=["no reports", "the culprit only once", "its peers only once", "no peer", "the culprit uses a CPU"],
)
def test_without_enough_reports_the_verdict_comes_after_forty_seconds(reports: tuple[Blocked, ...], idle: bool) -> None:
    job = hanging(*reports, idle=idle)
    seconds = [second for second, _ in reported(course(alone(HangDetector()), [job], 130))]
    assert min(seconds) - 60 >= 39


@pytest.mark.parametrize("state", [ProcessState.GONE, ProcessState.ZOMBIE, ProcessState.STOPPED])
def test_an_ended_or_stopped_process_gives_a_sure_verdict_within_fifteen_seconds(state: ProcessState) -> None:
    job = hanging()
    job.stops = [(60.0, 1e9, (3,), state)]
    (second, verdict), *_ = course(alone(HangDetector()), [job], 130)
    assert isinstance(verdict, Verdict)
    assert verdict.rank == 3 and verdict.confidence >= CONFIDENT
    assert 10 <= second - 60 <= 15


@pytest.mark.parametrize("state", [ProcessState.UNINTERRUPTIBLE, ProcessState.RUNNING])
def test_a_rank_that_waits_for_a_disk_or_runs_may_be_saving(state: ProcessState) -> None:
    """An fsync of a checkpoint keeps a process in state D for as long as the disk writes."""
    job = hanging(*ALL, idle=False)
    job.stops = [(60.0, 100.0, (3,), state)]
    found = course(alone(HangDetector()), [job], 130)
    assert all(second - 60 >= 39 for second, _ in reported(found))
    assert all(one.confidence < CONFIDENT for _, one in found if isinstance(one, Verdict))


def test_a_process_that_is_stopped_again_and_again_is_no_hang() -> None:
    job = hanging()
    job.stops = [(60.0 + 7 * k, 60.0 + 7 * k + 6, (3,), ProcessState.STOPPED) for k in range(8)]
    assert not reported(course(alone(HangDetector()), [job], 130))


def test_a_stopped_process_is_certain_only_while_a_peer_has_waited_for_it() -> None:
    now, stopped = 100 * NS, {1: 90 * NS}
    states = np.array([ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.RUNNING])
    nowhere = np.full((3, 3), -1, np.int64)
    assert not blocked_before_peers(states, stopped, nowhere, now).any()
    for entered, sure in ((92 * NS, True), (97 * NS, False)):
        opened = nowhere.copy()
        opened[0] = (7, entered, now)
        assert blocked_before_peers(states, stopped, opened, now).tolist() == [False, sure, False]
    opened[0] = (7, 90 * NS, now)
    assert not blocked_before_peers(states, {1: 95 * NS}, opened, now).any(), "it may be continued soon"


def test_a_job_whose_ranks_end_is_no_hang_while_none_waits_in_a_collective() -> None:
    job = hanging()
    job.stops = [(60.0, 1e9, (3,), ProcessState.GONE)]
    look = job.look

    def outside(second: float, random: np.random.Generator) -> JobTelemetry:
        found = look(second, random)
        nowhere = np.full((len(found.shape), 3), -1, np.int64)
        return replace(found, given_open_collectives=nowhere) if second > 60 else found

    job.look = outside  # type: ignore[method-assign]
    assert not [second for second, _ in reported(course(alone(HangDetector()), [job], 130)) if second < 99]


def test_reports_from_before_the_newest_step_are_ignored() -> None:
    job = hanging(*ALL)
    look = job.look

    def old(second: float, random: np.random.Generator) -> JobTelemetry:
        found = look(second, random)
        return replace(found, blocked=lambda: {one.rank: replace(one, at_ns=START + 30 * NS) for one in ALL})

    job.look = old  # type: ignore[method-assign]
    (verdict,) = verdicts(course(alone(HangDetector()), [job], 130))
    assert verdict.confidence >= CONFIDENT
    assert not [one for one in verdict.evidence if one.measure == "blocked_at"]


def test_an_abstention_names_the_places_too() -> None:
    job = Reporting(*(waiting(rank) for rank in range(8)))
    job.pauses = [(60.0, 1e9)]
    look = job.look

    def all_inside(second: float, random: np.random.Generator) -> JobTelemetry:
        found = look(second, random)
        assert found.open_collectives is not None
        if second > 60:
            found.open_collectives[:] = (7, START + 60 * NS, START + round(second * NS))
        return found

    job.look = all_inside  # type: ignore[method-assign]
    found = [one for _, one in course(alone(HangDetector()), [job], 130) if isinstance(one, Abstention)]
    assert len(found) == 1
    assert "suspect the transport; ranks 0-7 wait in all_reduce number 7" in found[0].reason


def test_a_rank_that_is_behind_in_its_group_is_the_culprit_whatever_its_own_number_is() -> None:
    """Each stage counts its own collectives, and the job has reported no stages."""
    job = Reporting(*(waiting(rank, sequence=8 - (rank == 5), group="ab"[rank // 4]) for rank in range(8)))
    job.pauses = [(60.0, 1e9)]
    look = job.look

    def all_inside(second: float, random: np.random.Generator) -> JobTelemetry:
        found = look(second, random)
        assert found.open_collectives is not None
        if second > 60:
            found.open_collectives[:, 0] = [70, 70, 70, 70, 9, 9, 9, 9]
            found.open_collectives[:, 1:] = (START + 60 * NS, START + round(second * NS))
        return found

    job.look = all_inside  # type: ignore[method-assign]
    found = verdicts(course(alone(HangDetector()), [job], 130))
    assert {one.rank for one in found} == {5}


def all_inside(*reports: Blocked) -> Reporting:
    """Return a training in which all ranks are in their seventh collective when it hangs."""
    job = Reporting(*reports)
    job.stops = [(60.0, 1e9, (), ProcessState.RUNNING)]
    return job


def test_another_operation_with_the_same_number_is_a_sure_hang() -> None:
    broadcast = waiting(3, operation="broadcast")
    found = course(alone(HangDetector()), [all_inside(*(waiting(r) for r in range(8) if r != 3), broadcast)], 130)
    (second, verdict), *_ = found
    assert isinstance(verdict, Verdict)
    assert (verdict.rank, verdict.confidence >= CONFIDENT) == (3, True)
    assert 10 <= second - 60 <= 15
    assert "rank 3 waits in broadcast number 7 of group 0" in sentence(verdict)


@pytest.mark.parametrize(
    "third", [waiting(3), waiting(3, reports=1, operation="broadcast"), waiting(3, operation="recv"), stuck(3)], ids=str
)
def test_without_a_proven_mismatch_no_early_verdict_is_sure(third: Blocked) -> None:
    found = course(alone(HangDetector()), [all_inside(*(waiting(r) for r in range(8) if r != 3), third)], 99)
    assert all(one.confidence < CONFIDENT for _, one in found if isinstance(one, Verdict))


def test_only_a_minority_called_another_operation() -> None:
    ranks = np.arange(4)
    calls = {rank: waiting(rank, operation="barrier" if rank < 2 else "all_reduce") for rank in range(4)}
    assert not len(in_another_operation(calls, ranks))
    calls[1] = waiting(1)
    assert in_another_operation(calls, ranks).tolist() == [0]
    assert not len(in_another_operation({0: calls[0], 1: calls[1]}, ranks))


def test_a_rank_is_behind_only_in_its_own_group() -> None:
    """Two groups number their collectives separately, so a lower number in another group says nothing."""
    ranks = np.arange(4)
    reports = {rank: waiting(rank, sequence=number, group=group)
               for rank, (group, number) in enumerate((("a", 5), ("a", 5), ("b", 90), ("b", 89)))}  # fmt: skip
    assert (found := behind(reports, ranks)) is not None
    assert found.tolist() == [3]
    assert behind({**reports, 0: waiting(0, sequence=None)}, ranks) is None


def test_a_rank_that_does_not_answer_is_named() -> None:
    text = in_words({0: waiting(0), 1: replace(stuck(1), answered=False)}, [1])
    assert text.startswith(
        "rank 1 does not answer (stopped, or a C call holds Python's interpreter lock); rank 0 waits"
    )


def test_the_sentence_has_what_nccl_reports_once() -> None:
    words = "communicator 0xae94 of 8 ranks: rank 3 not responding"
    reports = [replace(one, communicators=words if one.rank in (2, 7) else "") for one in ALL]
    first = course(alone(HangDetector()), [hanging(*reports)], 80)[0]
    assert isinstance(first[1], Verdict)
    assert sentence(first[1]).count(f"; NCCL reports: {words}") == 1


def test_a_sentence_about_many_places_is_short() -> None:
    reports = {rank: stuck(rank, node="n") for rank in range(500)}
    reports = {rank: replace(one, where=f"train.py:{rank} in f") for rank, one in reports.items()}
    assert len(in_words(reports, [])) < 300
    assert in_words(reports, []).endswith("496 other ranks elsewhere")


# --- the store ---


def event(**detail: str) -> EventRecord:
    return EventRecord(RANK_BLOCKED, "rank 1", 5, {"answered": "1", **detail}, Member("g", 1, 1))


def test_content_of_an_agent_s_event_is_bounded_and_plain() -> None:
    found = blocked_ranks.read(
        event(where="x" * 9999, stacks="y" * 99999, sequence="9" * 5000, bytes="-1", quiet_seconds="nan",
              group="a\x1bb", communicators="z" * 9999),
        1, "n", 9,
    )  # fmt: skip
    assert found is not None
    assert (len(found.where), len(found.stacks)) == (blocked_ranks.MOST_WORD, blocked_ranks.MOST_STACKS_CHARACTERS)
    assert found.communicators == "z" * blocked_ranks.MOST_WORD
    assert (found.sequence, found.bytes, found.quiet_seconds, found.at_ns) == (None, None, 0.0, 9)
    assert "\x1b" not in found.group
    assert blocked_ranks.read(replace_kind(event()), 1, "n", 9) is None


def replace_kind(one: EventRecord) -> EventRecord:
    return EventRecord("other", one.entity, one.time_ns, one.detail, one.member)


def test_equal_reports_are_counted_and_a_moved_rank_starts_again() -> None:
    kept = BlockedRanks()
    for at_ns in (1, 2, 3):
        kept.add("g", stuck(1, at_ns=at_ns, since_ns=at_ns, reports=1))
    assert (kept.of("g")[1].reports, kept.of("g")[1].since_ns) == (3, 1)
    kept.add("g", stuck(1, at_ns=4, since_ns=4, reports=1, stacks="thread MainThread\n  b.py:1 in g"))
    assert (kept.of("g")[1].reports, kept.of("g")[1].since_ns) == (1, 4)
    kept.add("g", stuck(1, reports=1, stacks="thread MainThread\n  b.py:1 in g\nthread other"))
    assert kept.of("g")[1].reports == 2, "another thread may move"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_ranks, "MOST_STACKS", 3)
    monkeypatch.setattr(blocked_ranks, "MOST_REPORTS", 5)
    kept = BlockedRanks()
    for rank in range(9):
        kept.add("g", stuck(rank))
    assert [bool(one.stacks) for one in kept.of("g").values()] == [True] * 3 + [False] * 2
    assert kept.dropped == 4
    kept.add("other", stuck(0))
    assert kept.of("other") == {}
    kept.forget("g")
    kept.add("other", stuck(0))
    assert kept.of("other")[0].stacks
