"""Text output of the commands, rendered from real API documents. No name breaks the output."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec import structs

from gangwatch.display import rendering, slot_map, times
from gangwatch.health.machine import Finding, Machine
from scheduler_feedback.api import documents as documents
from scheduler_feedback.core.actions import Entry
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.explanation import Blocker, Explanation, WaitsFor
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict
from scheduler_feedback.feed.agent_reporting import AgentStatus
from scheduler_feedback.journal.store import NumberedEntry

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND
VERDICT = Verdict(
    *("v-7", Kind.STRAGGLER, "j-000001", 1, 2, "node-1", Cause.SUSPENDED, 0.97, 1.8, 0.1, 0.18, WALL, WALL + SECOND),
    evidence=(Evidence("time off the processor", 0.42, 0.01, "ratio", "the other ranks", 9.0),),
)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def state() -> State:
    job = Job("j-000001", JobSpec("train [bold]", ("true",), 4), JobState.RUNNING, WALL, attempt=1)
    job.ranks = [RankRecord(rank, Slot(f"node-{rank // 2}", rank % 2)) for rank in range(4)]
    head = Job("j-000002", JobSpec("head", ("true",), 6), JobState.PENDING, WALL)
    nodes = {
        "node-0": Node("node-0", 2),
        "node-1": Node("node-1", 2, state=NodeState.QUARANTINE, reason="verdict v-7"),
        "node-2": Node("node-2", 2, present=False),
    }
    return State(jobs={job.job_id: job, head.job_id: head}, nodes=nodes, verdicts={"v-7": VERDICT})


def test_jobs(state: State, capsys: pytest.CaptureFixture[str]) -> None:
    rendering.jobs(documents.jobs_document(state, active=False))
    header, running, waiting = capsys.readouterr().out.splitlines()
    assert header.split() == ["JOB", "NAME", "USER", "QUEUE", "STATE", "RANKS", "TIME", "REASON"]
    assert "train [bold]" in running
    assert "rank 2 on node-1: straggler (suspended), 97 % sure" in running
    assert waiting.split()[:7] == ["j-000002", "head", "-", "default", "pending", "6", "-"]
    assert len(waiting.split()) > 8, "the row says why the job waits"
    rendering.jobs([])
    assert capsys.readouterr().out == "no jobs\n"


def test_a_narrow_terminal_shows_fewer_columns_and_whole_words(
    state: State, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    rendering.jobs(documents.jobs_document(state, active=False))
    shown = capsys.readouterr().out
    assert shown.split()[:6] == ["JOB", "NAME", "STATE", "RANKS", "TIME", "REASON"]
    for word in ("straggler", "(suspended),", "j-000001", "running"):
        assert word in shown.split()
    assert all(len(line) <= 70 for line in shown.splitlines())


def test_job_shows_all_fields_of_one_job(state: State, capsys: pytest.CaptureFixture[str]) -> None:
    job = state.jobs["j-000001"]
    job.ranks = [structs.replace(rank, exit_code=143 * (rank.rank == 3)) for rank in job.ranks]
    job.started_ns = job.attempt_started_ns = WALL
    state.now_ns = WALL + 3700 * SECOND
    rendering.job_details(documents.jobs_document(state, active=False))
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "job: j-000001 (train [bold])",
        "ranks: 4: node-0: 0-1; node-1: 2-3",
        "run time: 1:01:40",
        "exit codes: 0 of rank 0-2; 143 of rank 3",
        "verdict: rank 2 of j-000001 on node-1 is a straggler (suspended)",
        "command: true",
        "state: pending reason:",
    ):
        assert words in shown


def test_run_time_stops_when_the_job_ends() -> None:
    job = Job("j", JobSpec("x", ("true",), 1), JobState.RUNNING, WALL, attempt=1, run_ns=5 * SECOND)
    job.attempt_started_ns = WALL
    state = State(jobs={"j": job}, now_ns=WALL + 10 * SECOND)
    assert documents.run_seconds(state, job) == 15
    job.state, job.ended_ns = JobState.COMPLETED, WALL + 10 * SECOND
    state.now_ns += 1000 * SECOND
    assert documents.run_seconds(state, job) == 5


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (62, "1:02"), (7500, "2:05:00"), (187200, "2-04:00:00")])
def test_durations_are_rendered_for_people(seconds: float, shown: str) -> None:
    assert times.span(seconds) == shown


@pytest.mark.parametrize("columns", ["40", "80", "99", "100", "160", None])
def test_check_never_breaks_a_word(
    columns: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    detail = "waits for block I/O are not counted; /proc/sys/kernel/task_delayacct_of_a_long_name is 0"
    remedy = "sysctl kernel.task_delayacct=1, or boot with delayacct"
    findings = (Finding("delay accounting", "missing", detail, remedy), Finding("pidfd", "found", "pidfd_open"))
    rendering.machine(Machine("host", 2, (), findings))
    shown = capsys.readouterr().out
    for word in (*detail.split(), *remedy.split(), "missing", "found", "pidfd"):
        assert word in shown.replace(":", " ").split() or word in shown.split(), word
    if columns is None:
        assert any(detail in line and remedy in line for line in shown.splitlines()), (
            "piped output has one line per item"
        )


def test_nodes(state: State, capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {"node-0": AgentStatus(0.4, WALL, False), "node-1": AgentStatus(None, None, True)}
    rendering.nodes(documents.with_agent_status(documents.nodes_document(state), statuses))
    rows = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert [row[:5] for row in rows[1:]] == [
        ["node-0", "healthy", "fresh", "2", "0"],
        ["node-1", "quarantine", "no frame yet", "2", "0"],
        ["node-2", "absent", "–", "2", "0"],
    ]
    assert "j-000001 (2)" in rows[2][5]
    assert "verdict v-7" in rows[2][6]


def test_queue(state: State, capsys: pytest.CaptureFixture[str]) -> None:
    state.jobs["j-000002"].expected_start_ns = WALL
    state.frozen, state.frozen_by = True, "ana"
    rendering.queue(
        documents.queue_document(state), documents.nodes_document(state), documents.jobs_document(state, active=True)
    )
    out = capsys.readouterr().out
    assert out.startswith("frozen by ana: no job starts\n")
    assert "2027-01-1" in out
    assert "all actions are frozen by ana" in out


def test_the_cluster_map_shows_the_reservation(state: State) -> None:
    ahead = Job("j-000003", JobSpec("hole", ("true",), 1), JobState.RUNNING, WALL + SECOND, attempt=1)
    ahead.ranks = [RankRecord(0, Slot("node-3", 0))]
    state.jobs["j-000003"] = ahead
    for number in range(3, 7):
        state.nodes[f"node-{number}"] = Node(f"node-{number}", 4)
    state.reserved_for, state.reserved_from_ns = "j-000002", WALL
    state.reserved_nodes = {"node-0": 2, "node-3": 2}
    drawn = slot_map.slot_map(
        documents.queue_document(state), documents.nodes_document(state), documents.jobs_document(state, active=True)
    )
    assert drawn[:5] == [
        "node-0                       [AA]  2 reserved",
        "node-1                       [AA]  quarantine",
        "node-2                       [xx]  absent",
        "node-3                       [B++.]  2 reserved",
        "node-4 ... node-6 (3 nodes)  [....]",
    ]
    assert drawn[5].startswith("+ reserved for j-000002: 4 slots from 2027-01-1")
    assert drawn[6:] == ["A j-000001 (train [bold])", "B j-000003 (hole), backfilled ahead of j-000002"]


def test_the_cluster_map_shows_more_jobs_than_letters(state: State) -> None:
    state.nodes["large"] = Node("large", 100)
    for number in range(100):
        job = Job(f"k-{number:03d}", JobSpec("", ("true",), 1), JobState.RUNNING, WALL, attempt=1)
        job.ranks = [RankRecord(0, Slot("large", number))]
        state.jobs[job.job_id] = job
    drawn = slot_map.slot_map(
        documents.queue_document(state), documents.nodes_document(state), documents.jobs_document(state, active=True)
    )
    [large] = [line for line in drawn if line.startswith("large")]
    assert large.count("#") == 100 - len(slot_map.LETTERS), "the job is on the first nodes by name"
    assert drawn[-1] == "61 more jobs"


def test_verdicts_are_shown_with_their_evidence(state: State, capsys: pytest.CaptureFixture[str]) -> None:
    rendering.verdicts(documents.verdicts_document(state))
    assert capsys.readouterr().out == (
        "v-7  rank 2 of j-000001 on node-1 is a straggler (suspended): it slows the job down by 80 %, confidence 0.97\n"
        "    time off the processor: 0.42 ratio, the other ranks 0.01\n"
    )


def test_story_prints_each_sentence_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    entry = Entry(WALL, "j-000001", "migrate", "moves " + "far " * 100, applied=False, detail=(("gain", "12 s"),))
    rendering.story([documents.entry_document(NumberedEntry(1, 1, entry))])
    sentence, detail = capsys.readouterr().out.splitlines()
    assert sentence.endswith("far  (not applied)")
    assert detail.strip() == "gain: 12 s"


def test_explain_prints_the_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    explained = Explanation(
        "j-000002",
        JobState.PENDING,
        "6 slots are needed, 2 are free",
        waits_for=(WaitsFor("j-000001", 4, WALL),),
        expected_start_ns=WALL,
        reservation=(Slot("node-0", 1),),
        blockers=(Blocker("node-1", "quarantine", 0, "verdict v-7"),),
        what_would_change_it=("releasing node-1",),
    )
    rendering.explanation(msgspec.to_builtins(explained))
    out = capsys.readouterr().out
    assert out.startswith("j-000002 is pending: 6 slots are needed, 2 are free\nexpected start: ")
    for part in (
        "j-000001 to free 4 slots",
        "node-0 slot 1",
        "node-1 (quarantine, 0 free): verdict v-7",
        "    releasing",
    ):
        assert part in out
