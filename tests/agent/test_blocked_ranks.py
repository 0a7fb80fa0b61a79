"""Questions to ranks that make no progress: when they are asked, and what a rank can do with its answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.collectors.steps import step_collector as module
from agent.collectors.steps.blocked_ranks import (
    AGAIN_NS,
    QUESTIONS_A_RUN,
    QUIET_NS,
    QUIET_STEPS,
    UNKNOWN_QUIET_NS,
    BlockedRanks,
    event_of,
)
from agent.schema.frame import RANK_BLOCKED, EventRecord, Member
from agent.sources.steps.step_messages import MAX_REPORT_BYTES, BlockedReport, CollectiveReport
from agent.sources.steps.step_socket import StepSocket
from agent.sources.steps.tenants import Tenant
from gangwatch.reporting import rank_stacks
from tests.agent.test_rings import WHOLE, memory_file
from tests.agent.test_step_socket import admit_all, answer, claim, connect, message, refusals, send, wait_until
from tests.agent.test_steps_collector import SELF, Bench, write_rank_file

SECOND = 1_000_000_000
JOB = Tenant("job", "g")


def ranks(
    number: int, newest_ns: int, usual_ns: float, tenant: Tenant = JOB
) -> dict[Member, tuple[Tenant, int, float]]:
    return {Member(tenant.name, 1, rank): (tenant, newest_ns, usual_ns) for rank in range(number)}


def test_a_rank_is_asked_only_after_several_of_its_own_steps() -> None:
    for usual_ns, after_ns in (
        (SECOND / 10, QUIET_NS),
        (4 * SECOND, QUIET_STEPS * 4 * SECOND),
        (0.0, UNKNOWN_QUIET_NS),
    ):
        asked = BlockedRanks()
        assert asked.due(ranks(2, 0, usual_ns), after_ns - 1) == []
        assert len(asked.due(ranks(2, 0, usual_ns), after_ns)) == 2
        assert asked.due(ranks(2, 0, usual_ns), after_ns + SECOND) == [], "not again before an answer"


def test_a_rank_is_asked_again_after_longer_pauses_and_not_after_progress() -> None:
    asked, times = BlockedRanks(), []
    for now_ns in range(0, 300 * SECOND, SECOND // 2):
        for member in asked.due(ranks(1, 0, 1.0), now_ns):
            times.append(now_ns)
            assert asked.answered(member, BlockedReport(), now_ns, now_ns) is not None
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses[: len(AGAIN_NS)] == list(AGAIN_NS)
    assert set(pauses[len(AGAIN_NS) :]) == {AGAIN_NS[-1]}
    assert asked.due(ranks(1, 299 * SECOND, 1.0), 300 * SECOND) == [], "it has made progress"
    assert asked.answered(Member("g", 1, 0), BlockedReport(), 300 * SECOND, 0) is None, "a late answer says nothing"


def test_a_rank_that_does_not_answer_is_reported_once_per_question() -> None:
    asked = BlockedRanks()
    (member,) = asked.due(ranks(1, 0, 1.0), QUIET_NS)
    assert asked.silent(QUIET_NS + 2 * SECOND, 0) == []
    (event,) = asked.silent(QUIET_NS + 3 * SECOND, 7)
    assert (event.kind, event.member, event.time_ns, event.detail["answered"]) == (RANK_BLOCKED, member, 7, "0")
    assert asked.silent(QUIET_NS + 4 * SECOND, 0) == []
    assert asked.due(ranks(1, 0, 1.0), QUIET_NS + 5 * SECOND) == [member]


def test_a_tenant_with_many_blocked_ranks_does_not_delay_the_questions_to_another() -> None:
    many = ranks(200, 0, 1.0, Tenant("user", "7"))
    found = BlockedRanks().due({**many, **ranks(2, 0, 1.0)}, QUIET_NS)
    assert len(found) == QUESTIONS_A_RUN
    assert {Member("g", 1, 0), Member("g", 1, 1)} <= set(found)


def test_an_answer_cannot_put_control_characters_into_a_text() -> None:
    report = BlockedReport(
        "a\x1b[2Jb", "thread M\n  x\x07.py:1 in f\u2028", CollectiveReport("all\nreduce", "0", 3, "0-1", 8)
    )
    detail = event_of(Member("g", 1, 0), report, SECOND, 0).detail
    assert detail["where"] == "a?[2Jb"
    assert detail["stacks"] == "thread M\n  x?.py:1 in f?"
    assert (detail["operation"], detail["sequence"], detail["bytes"]) == ("all?reduce", "3", "8")
    assert "communicators" not in detail
    words = event_of(Member("g", 1, 0), BlockedReport(communicators="rank 1\x1b missing"), SECOND, 0).detail
    assert words["communicators"] == "rank 1? missing"


# --- the socket ---


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[StepSocket]:
    made = StepSocket(str(tmp_path / "run" / "n.sock"), admit_all, message_seconds=0.3)
    yield made
    made.close()


def registered(listening: StepSocket, rank: int = 0) -> socket.socket:
    client = connect(listening._path)
    descriptor = memory_file(WHOLE)
    send(client, claim(gang="g", rank=rank, attempt=1, answers=1), [descriptor])
    assert answer(client) == {"ok": True}
    return client


def report(**fields: Any) -> bytes:
    return message(json.dumps({"v": 1, "blocked": fields}).encode())


def test_a_question_is_answered_over_the_rank_s_own_connection(listening: StepSocket) -> None:
    with registered(listening) as client:
        (rank,) = listening.registered()
        listening.ask(rank)
        assert answer(client) == {"v": 1, "ask": "blocked"}
        client.sendall(report(where="train.py:3 in f", stacks="thread MainThread", collective={"operation": "barrier"}))
        wait_until(lambda: listening.reports, "no report")
        found, said = listening.reports.popleft()
        assert found is rank
        assert (said.where, said.collective) == ("train.py:3 in f", CollectiveReport("barrier"))


@pytest.mark.parametrize(
    "data",
    [
        report(where="not asked"),
        report(stacks="x" * 9000),
        message(b'{"v": 1, "blocked": {"where": "' + b"x" * MAX_REPORT_BYTES + b'"}}'),
        (MAX_REPORT_BYTES + 1).to_bytes(4, "big"),
        message(b'{"v": 1}'),
    ],
    ids=["unasked", "stacks too long", "message too long", "length too long", "nothing"],
)
@pytest.mark.parametrize("asked", [False, True])
def test_invalid_and_unasked_reports_close_the_connection(listening: StepSocket, data: bytes, asked: bool) -> None:
    with registered(listening) as client:
        if asked:
            listening.ask(listening.registered()[0])
            answer(client)
        if asked and b"not asked" in data:
            client.sendall(data)  # the answer; only a second one is not asked for
        try:
            client.sendall(data)
        except BrokenPipeError:
            pass
        wait_until(lambda: refusals(listening) == 1, "the connection stays open")
        assert len(listening.reports) <= (asked and b"not asked" in data)


def test_a_rank_that_never_answers_and_one_that_never_reads_delay_no_other(listening: StepSocket) -> None:
    """A second question is not sent before the first is answered, so nothing piles up."""
    with registered(listening, 0) as never, registered(listening, 1) as other:
        first, second = listening.registered()
        for _ in range(1000):
            listening.ask(first)
        listening.ask(second)
        listening.ask(second)
        assert answer(other) == {"v": 1, "ask": "blocked"}
        other.sendall(report(where="here"))
        wait_until(lambda: listening.reports, "no report")
        assert answer(never) == {"v": 1, "ask": "blocked"}
        never.settimeout(0.3)
        with pytest.raises(TimeoutError):
            never.recv(1)


def test_a_flood_after_the_registration_closes_only_that_connection(listening: StepSocket) -> None:
    with registered(listening, 0) as flood, registered(listening, 1) as other:
        first, second = listening.registered()
        listening.ask(first)
        try:
            for _ in range(200):
                flood.sendall(report(where="again", stacks="y" * 8000))
        except (BrokenPipeError, ConnectionResetError):
            pass
        listening.ask(second)
        assert answer(other) == {"v": 1, "ask": "blocked"}
        wait_until(lambda: first.closed, "the flood goes on")
        assert not second.closed


def test_a_descriptor_with_an_answer_is_refused(listening: StepSocket) -> None:
    with registered(listening) as client:
        listening.ask(listening.registered()[0])
        answer(client)
        send(client, report(where="here"), [0])
        wait_until(lambda: listening.refused["descriptors"] == 1, "accepted")


# --- with the reporter ---


def test_a_real_reporter_answers_with_its_stacks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        write_rank_file(bench.ranks)
        reporter = bench.reporter(GANGWATCH_JOB=SELF.gang, RANK="3", GANGWATCH_ATTEMPT="2")
        reporter.collective_in_progress = lambda: {"operation": "all_reduce", "group": "0", "sequence": 7}
        with reporter.step():
            bench.collector.collect()
            bench.clock.ahead_ns += UNKNOWN_QUIET_NS + SECOND
            bench.collector.collect()
            wait_until(lambda: bench.collector._socket.reports, "no answer")
            bench.collector.collect()
        (event,) = (one for one in bench.collector.take_records() if isinstance(one, EventRecord))
        assert event.member == SELF
        assert "test_a_real_reporter_answers_with_its_stacks" in event.detail["stacks"]
        assert (event.detail["operation"], event.detail["sequence"]) == ("all_reduce", "7")
        assert " in " in event.detail["where"]
    finally:
        bench.close()


def test_a_reporter_that_is_told_not_to_answer_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(module.StepSocket, "ask", lambda _, registered: asked.append(registered))
    bench = Bench(tmp_path)
    try:
        bench.reporter(GANGWATCH_STACKS="off")
        bench.collector.collect()
        bench.clock.ahead_ns += UNKNOWN_QUIET_NS + SECOND
        bench.collector.collect()
        assert asked == []
    finally:
        bench.close()


def test_a_report_of_many_deep_threads_is_bounded_and_begins_with_the_main_thread() -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        else:
            time.sleep(0.5)

    threads = [threading.Thread(target=deep, args=(100,), name="t" * 300) for _ in range(60)]
    for one in threads:
        one.start()
    found: dict[str, Any] = {}
    asker = threading.Thread(target=lambda: found.update(rank_stacks.blocked(None)))
    asker.start()
    asker.join()
    assert len(found["stacks"]) <= rank_stacks.MAX_STACKS_CHARACTERS + 100
    assert found["stacks"].startswith("thread MainThread\n")
    assert "more threads" in found["stacks"]
    assert "in join" in found["where"] or "in test_a_report" in found["where"]
    for one in threads:
        one.join()
