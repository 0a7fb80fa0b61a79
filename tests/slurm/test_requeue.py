"""Moves of jobs and updates of nodes, step by step, against a fake Slurm. No Slurm needed.

Every error path is forced here; test_troubles.py tests the behaviour of the real Slurm.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.schema.clock import SystemClock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import changed_objects as memory
from scheduler_feedback.backends.slurm import requeue
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.changed_objects import Moving, Touched
from scheduler_feedback.backends.slurm.consent import who
from scheduler_feedback.backends.slurm.cycle_queries import Cycle
from scheduler_feedback.backends.slurm.desired_state import DesiredNode, DesiredState
from scheduler_feedback.backends.slurm.node_updates import NodeUpdater
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, Snapshot
from scheduler_feedback.backends.slurm.requeue import Requeue
from scheduler_feedback.backends.slurm.requeue_state import Moves
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_audit import Audit, lines
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import AttemptEnded

NODES = {f"n{number}": SlurmNode(f"n{number}", 8, states=frozenset({"IDLE"}), partitions=("batch",)) for number in range(4)}  # fmt: skip  # noqa: E501
JOB = SlurmJob(
    7,
    "RUNNING",
    nodes=("n0", "n1"),
    gpus=((0,), (0,)),
    partition="batch",
    least_nodes=2,
    user="ann",
    submitted_seconds=5e8,
)
OPTED = OptIn(True, "USR1", grace_seconds=0.3)


class FakeSlurm(Commands):
    """Fake Slurm with one job.

    fails: first words of commands that return an error. done_all_the_same: whether these commands take effect.
    """

    def __init__(self, job: SlurmJob | None = JOB) -> None:
        super().__init__()
        self.job_now = job
        self.done: list[str] = []
        self.fails: dict[str, bool] = {}
        self.on_signal: Callable[[SlurmJob], SlurmJob] = lambda job: job

    async def run(self, *command: str, given: str | None = None) -> bytes:
        words = " ".join(command)
        failing = next((start for start in self.fails if words.startswith(start)), None)
        if failing is not None and not self.fails[failing]:
            raise BackendError(f"{words}: no")
        self.done.append(words)
        job = self.job_now
        if job is not None and words.startswith("scancel --signal"):
            self.job_now = self.on_signal(job)
        elif job is not None and words.startswith("scontrol requeue"):
            begins = time.time() + 120
            self.job_now = dataclasses.replace(
                job, state="PENDING", nodes=(), gpus=(), restarts=job.restarts + 1, begins_seconds=begins,
                submitted_seconds=begins - 120,
            )  # fmt: skip
        elif job is not None and words.startswith("scontrol update JobId"):
            named = tuple(command[-1].partition("=")[2].split(",")) if "ExcNodeList" in words else job.excluded
            self.job_now = dataclasses.replace(job, begins_seconds=0.0, excluded=named)
        if failing is not None:
            raise BackendError(f"{words}: no answer")
        return b""

    async def job(self, number: int) -> SlurmJob | None:
        return self.job_now


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_SECONDS", 0.01), ("SETTLED_SECONDS", 0.0), ("RETRY_SECONDS", 0.01)):
        monkeypatch.setattr(requeue, name, seconds)


def audited_commands(folder: Path, slurm: FakeSlurm) -> AuditedCommands:
    return AuditedCommands(
        slurm, Audit(folder / "audit.jsonl", SystemClock()), folder / "touched.json", lambda *_: None
    )


async def never() -> bool:
    return False


async def always() -> bool:
    return True


Consent = Callable[[SlurmJob], Awaitable[OptIn]]


def always_declares(opted: OptIn) -> Consent:
    async def read(_: SlurmJob) -> OptIn:
        return opted

    return read


def moved(
    folder: Path, slurm: FakeSlurm, opted: OptIn = OPTED, *, avoided: tuple[str, ...] = ("n1",),
    place: tuple[str, ...] = ("n2", "n3"), frozen: Callable[[], Awaitable[bool]] = never, attempt: int = 0,
    consent: Consent | None = None,
) -> str:  # fmt: skip
    """Move the job. Return the result as text."""
    requeued = Requeue(
        audited_commands(folder, slurm), 7, attempt, who(JOB), consent or always_declares(opted), lambda: NODES, frozen,
        "n1 is slow",
    )  # fmt: skip
    return asyncio.run(requeued.run(avoided, (), place))


def memory_of(folder: Path) -> Touched:
    return memory.read(folder / "touched.json")


# --- a move ----------------------------------------------------------------------------------------------------------


def test_a_move_reserves_saves_requeues_excludes_and_releases(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    assert moved(tmp_path, slurm) == "requeued without n1"
    assert [words.split()[:2] for words in slurm.done] == [
        ["scontrol", "create"],
        ["scancel", "--signal=USR1"],
        ["scontrol", "requeue"],
        ["scontrol", "update"],
        ["scontrol", "delete"],
    ]
    assert "Nodes=n2,n3" in slurm.done[0] or "Nodes=n[2-3]" in slurm.done[0]
    assert slurm.done[3].endswith("StartTime=now ExcNodeList=n1")
    assert memory_of(tmp_path) == Touched(), "no change is left to be undone"


def test_a_job_without_a_signal_is_requeued_at_once(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    moved(tmp_path, slurm, OptIn(True), place=())
    assert [words.split()[1] for words in slurm.done] == ["requeue", "update"]


def test_the_signal_is_sent_to_the_script_if_it_declares_so(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    moved(tmp_path, slurm, OptIn(True, "USR2", True, 0.01), place=())
    assert slurm.done[0] == "scancel --signal=USR2 --batch 7"


def test_a_job_that_ended_after_its_save_is_not_awaited(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.on_signal = lambda job: dataclasses.replace(job, state="COMPLETED")
    began = time.monotonic()
    moved(tmp_path, slurm, dataclasses.replace(OPTED, grace_seconds=300.0))
    assert time.monotonic() - began < 100
    assert "scontrol requeue 7" in slurm.done


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (dataclasses.replace(JOB, restarts=1), "it was restarted in the meantime"),
        (dataclasses.replace(JOB, state="COMPLETED"), "it is now COMPLETED"),
        (dataclasses.replace(JOB, completing=True), "it is now"),
        (None, "it no longer exists"),
    ],
)
def test_an_ended_attempt_is_not_touched(tmp_path: Path, job: SlurmJob | None, expected: str) -> None:
    slurm = FakeSlurm(job)
    assert expected in moved(tmp_path, slurm)
    assert slurm.done == []
    assert memory_of(tmp_path) == Touched()
    (line,) = lines(tmp_path / "audit.jsonl")
    assert line.outcome.startswith("withheld: ")


def test_a_job_stays_if_too_few_nodes_would_be_left(tmp_path: Path) -> None:
    slurm = FakeSlurm(dataclasses.replace(JOB, least_nodes=4))
    assert "too few nodes" in moved(tmp_path, slurm)
    assert slurm.done == []
    own = FakeSlurm(dataclasses.replace(JOB, least_nodes=3, excluded=("n3",)))
    assert "too few nodes" in moved(tmp_path, own), "its own exclusions count too"


def test_no_move_starts_while_actions_are_frozen(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    assert "frozen" in moved(tmp_path, slurm, frozen=always)
    assert slurm.done == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"state": "CANCELLED"}, "it was cancelled"), ({"restarts": 1}, "it was restarted in the meantime")],
)
def test_changes_during_the_save_take_precedence(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    slurm = FakeSlurm()
    slurm.on_signal = lambda job: dataclasses.replace(job, **change)  # type: ignore[arg-type]
    assert expected in moved(tmp_path, slurm)
    assert [words.split()[1] for words in slurm.done] == ["create", "--signal=USR1", "delete"], (
        "its reservation is deleted"
    )
    assert memory_of(tmp_path) == Touched()


@pytest.mark.parametrize(
    "change",
    [{"user": "bob"}, {"submitted_seconds": 6e8}, {"user": "bob", "restarts": 1}],
)
def test_another_job_with_the_same_number_is_not_touched(tmp_path: Path, change: dict[str, object]) -> None:
    slurm = FakeSlurm(dataclasses.replace(JOB, **change))  # type: ignore[arg-type]
    assert "is now another job" in moved(tmp_path, slurm) or "restarted in the meantime" in moved(tmp_path, slurm)
    assert slurm.done == []
    later = FakeSlurm()
    later.on_signal = lambda job: dataclasses.replace(job, user="bob", submitted_seconds=6e8)
    assert "is now another job, of bob" in moved(tmp_path, later)
    assert not any("requeue" in words for words in later.done), "the number was reused during the save"


def test_consent_is_read_before_each_of_the_two_commands(tmp_path: Path) -> None:
    for reads, done in ((0, []), (1, ["create", "delete"]), (2, ["create", "--signal=USR1", "delete"])):
        slurm = FakeSlurm()
        declared = [OPTED] * reads + [OptIn()]

        async def read(_: SlurmJob, declared: list[OptIn] = declared) -> OptIn:
            return declared.pop(0)

        assert "it may no longer be moved: it has not opted in" in moved(tmp_path, slurm, consent=read)
        assert [words.split()[1] for words in slurm.done] == done
        assert memory_of(tmp_path) == Touched(), "its reservation is deleted"


def test_a_requeue_without_a_response_is_not_repeated(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.fails["scontrol requeue"] = True
    moved(tmp_path, slurm)
    assert slurm.done.count("scontrol requeue 7") == 1
    assert slurm.job_now is not None and slurm.job_now.restarts == 1


def test_a_job_moves_even_if_its_nodes_cannot_be_reserved(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.fails["scontrol create"] = False
    assert moved(tmp_path, slurm) == "requeued without n1"
    assert not any("delete" in words for words in slurm.done)


@pytest.mark.parametrize("requeued", [True, False])
def test_moves_of_an_earlier_controller_are_continued(tmp_path: Path, requeued: bool) -> None:
    """The job is saved once and requeued once, by either controller."""
    slurm = FakeSlurm()
    if requeued:
        slurm.job_now = dataclasses.replace(
            JOB, state="PENDING", nodes=(), gpus=(), restarts=1, begins_seconds=time.time() + 99
        )
    memory.write(tmp_path / "touched.json", Touched(moving={"7": Moving(0, ["n1"], True, "gangwatch_job_7")}))
    assert moved(tmp_path, slurm, avoided=(), place=()) == "requeued without n1"
    wanted = ["update", "delete"] if requeued else ["requeue", "update", "delete"]
    assert [words.split()[1] for words in slurm.done] == wanted
    assert "ExcNodeList=n1" in slurm.done[-2]


# --- limits ----------------------------------------------------------------------------------------------------------


def moves_of(folder: Path, jobs: dict[int, SlurmJob], **settings: float) -> Moves:
    snapshot = Snapshot(0, NODES, jobs)
    commands = audited_commands(folder, FakeSlurm())
    return Moves(
        commands, SlurmSection(**settings), Cycle(),  # type: ignore[arg-type]
        always_declares(OPTED), lambda: snapshot, lambda *_: None, lambda: None,
    )  # fmt: skip


def test_one_job_of_any_size_may_always_move(tmp_path: Path) -> None:
    other = dataclasses.replace(JOB, number=8, nodes=("n2", "n3"))
    moves = moves_of(tmp_path, {7: JOB, 8: other}, partition_share=0.25)
    assert moves._no_room(7) == "", "two of four nodes exceed the share, but no other job is moving"
    moves._under_way[8, 0] = None  # type: ignore[assignment]
    assert "jobs on 2 nodes of partition batch are being moved already" in moves._no_room(7)
    elsewhere = moves_of(tmp_path, {7: JOB, 8: dataclasses.replace(other, partition="debug")}, partition_share=0.25)
    elsewhere._under_way[8, 0] = None  # type: ignore[assignment]
    assert elsewhere._no_room(7) == "", "a job of another partition"


def test_moves_an_hour_are_limited(tmp_path: Path) -> None:
    moves = moves_of(tmp_path, {7: JOB}, requeues_per_hour=2)
    now = time.monotonic()
    moves._began_at.extend([now - 4000, now - 10])
    assert moves._no_room(7) == "", "one of them was more than an hour ago"
    moves._began_at.append(now)
    assert "2 moved jobs an hour" in moves._no_room(7)


# --- ends of attempts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "expected", "code"),
    [
        (None, "Slurm no longer has this job", None),
        (dataclasses.replace(JOB, state="PENDING"), "Slurm has requeued it", None),
        (dataclasses.replace(JOB, restarts=1), "Slurm has requeued it", None),
        (dataclasses.replace(JOB, state="FAILED", exit_code=3), "failed, according to Slurm", 3),
        (dataclasses.replace(JOB, state="COMPLETED"), "completed, according to Slurm", 0),
        (dataclasses.replace(JOB, state="CANCELLED", exit_code=0), "cancelled, according to Slurm", None),
        (JOB, "", None),
        (dataclasses.replace(JOB, state="COMPLETED", completing=True), "", None),
        (dataclasses.replace(JOB, state="PENDING", completing=True), "", None),
    ],
)
def test_events_of_an_attempt(tmp_path: Path, job: SlurmJob | None, expected: str, code: int | None) -> None:
    backend = SlurmBackend(tmp_path, FakeSlurm())
    events = backend._events_of(Snapshot(0, NODES, {} if job is None else {7: job}), "slurm-7", 0)
    assert events == ([AttemptEnded("slurm-7", 0, (), reason=expected, all_exited_with=code)] if expected else [])


# --- updates of nodes ------------------------------------------------------------------------------------------------


def kept(folder: Path, slurm: FakeSlurm, names: list[str], nodes: dict[str, SlurmNode] | None = None, **settings: float) -> tuple[AuditedCommands, list[str]]:  # noqa: E501  # fmt: skip
    goals = {name: DesiredNode(name, NodeState.QUARANTINE, "it is slow", "1/quarantine", 1.3) for name in names}
    desired = DesiredState(True, False, goals, frozenset(NODES), {})
    commands = audited_commands(folder, slurm)
    keeper = NodeUpdater(commands, SlurmSection(partition_share=1.0, comments=False, **settings), SystemClock())  # type: ignore[arg-type]

    async def twice() -> list[str]:
        found = await keeper.keep(desired, Snapshot(0, nodes or NODES))
        return found + await keeper.keep(desired, Snapshot(0, nodes or NODES))

    return commands, asyncio.run(twice())


def test_a_failed_drain_is_not_an_operator_s_resume(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.fails["scontrol update NodeName=n1"] = False
    commands, released = kept(tmp_path, slurm, ["n1"])
    assert released == []
    assert commands.touched.drained == {} == memory_of(tmp_path).drained


def test_a_drain_is_recorded_before_it_is_made(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    found: list[dict[str, str]] = []
    run = slurm.run

    async def looking(*command: str, given: str | None = None) -> bytes:
        found.append(memory_of(tmp_path).drained)
        return await run(*command, given=given)

    slurm.run = looking  # type: ignore[method-assign]
    kept(tmp_path, slurm, ["n1"])
    assert found[0] == {"n1": "1/quarantine"}


def test_changes_a_minute_are_limited(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    kept(tmp_path, slurm, ["n0", "n1", "n2"], changes_per_minute=2)
    assert len(slurm.done) == 2
    withheld = [line for line in lines(tmp_path / "audit.jsonl") if line.outcome.startswith("withheld")]
    assert [line.target for line in withheld] == ["n2"], "logged once"


def test_an_operator_s_resume_releases_the_node(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    memory.write(tmp_path / "touched.json", Touched({"n1": "1/quarantine"}))
    _, released = kept(tmp_path, slurm, ["n1"])
    assert released[:1] == ["n1"]
    assert any(line.action == "release" for line in lines(tmp_path / "audit.jsonl"))
