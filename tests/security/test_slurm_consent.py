"""Owners can withdraw consent, for one job each: the Slurm backend reads it again right before it acts on a job.

The backend is the real one with its thread. The queue changes between the backend's poll and its action.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.schema.clock import SystemClock
from agent.schema.errors import BackendError
from benchmarks.slurm.printed import Printed, PrintedCommands, Queue
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.consent import Consents
from scheduler_feedback.backends.slurm.desired_state import DesiredNode, DesiredState
from scheduler_feedback.backends.slurm.node_updates import NodeUpdater
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, Snapshot
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_audit import Audit, lines
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.events import Hosted
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.part_failures import PartFailures

JOB = Printed(7, nodes=("gpu001", "gpu002"), comment=b"gangwatch:restartable,signal=USR1,grace=60")
SCRIPTED = replace(JOB, comment=b"my run", script=b"#!/bin/sh\n#SBATCH --signal=USR1@60\n")
PATIENCE_SECONDS = 20.0


def answered(state: State) -> Callable[[Callable[[State], Any]], Future[Any]]:
    def ask(question: Callable[[State], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(question(state))
        return answer

    return ask


@pytest.fixture(params=[True, False], ids=["text", "json"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[Queue], SlurmBackend]]:
    """Start a backend that has reported job 7 as running and restartable, and that polls no more."""
    started: list[SlurmBackend] = []

    def begin(queue: Queue) -> SlurmBackend:
        commands = PrintedCommands(queue, request.param)
        backend = SlurmBackend(tmp_path, commands, SlurmSection(idle_seconds=3600, attentive_seconds=3600))
        started.append(backend)
        backend.start(PATIENCE_SECONDS)
        found = [event for event in backend.observe(()) if isinstance(event, Hosted)]
        assert [event.spec.restartable for event in found] == [True]
        ask = answered(State(nodes={name: Node(name, 8) for name in queue.nodes}))
        backend.attach(SimpleNamespace(ask=ask), PartFailures())
        return backend

    yield begin
    for backend in started:
        backend.stop()


def stop(why: StopReason = StopReason.MIGRATE) -> StopGang:
    return StopGang("a-1", "slurm-7", 0, "SIGTERM", 0.0, why, "gpu002 is slow")


def audited(folder: Path) -> str:
    """Return the outcome in the first audit entry about job 7."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = [line.outcome for line in lines(folder / "slurm-actions.jsonl") if line.target == "7"]
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError("the audit has no line about job 7")


@pytest.mark.parametrize(
    ("job", "change", "reason"),
    [
        (JOB, {"comment": b"do-not-touch"}, "it may no longer be moved: it has not opted in"),
        (JOB, {"comment": b"gangwatch:restartable,signal=NONE"}, "'NONE' is not a signal"),
        (JOB, {"requeue": False}, "it was submitted with --no-requeue"),
        (JOB, {"user": "victim"}, "number 7 is now another job, of victim"),
        (JOB, {"submitted": JOB.submitted + 5}, "number 7 is now another job"),
        (JOB, {"restarts": 1}, "it was restarted in the meantime"),
        (JOB, {"state": "COMPLETED"}, "it is now COMPLETED"),
        (SCRIPTED, {"script": b"#!/bin/sh\ntrain\n"}, "it may no longer be moved: it has not opted in"),
        (SCRIPTED, {"comment": b"gangwatch:restartable,retries=9"}, "'retries=9' is not in"),
    ],
)
def test_a_change_between_poll_and_move_leaves_the_job_untouched(
    start: Callable[[Queue], SlurmBackend], tmp_path: Path, job: Printed, change: dict[str, Any], reason: str
) -> None:
    queue = Queue([job])
    backend = start(queue)
    queue.change(7, **change)
    backend.apply(stop())
    outcome = audited(tmp_path)
    assert outcome.startswith("withheld: ") and reason in outcome
    assert queue.changes == []


def test_an_unchanged_job_is_signalled(start: Callable[[Queue], SlurmBackend], tmp_path: Path) -> None:
    queue = Queue([JOB])
    start(queue).apply(stop())
    assert audited(tmp_path) == "done"
    assert queue.changes[0] == ("scancel", "--signal=USR1", "7")


def test_consent_withdrawn_during_the_save_ends_the_move(
    start: Callable[[Queue], SlurmBackend], tmp_path: Path
) -> None:
    queue = Queue([JOB])
    queue.effect = lambda _: queue.change(7, state="COMPLETED", comment=b"I have changed my mind")
    start(queue).apply(stop())
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(lines(tmp_path / "slurm-actions.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    outcomes = [line.outcome for line in lines(tmp_path / "slurm-actions.jsonl")]
    assert outcomes == ["done", "withheld: it may no longer be moved: it has not opted in"]
    assert queue.changes == [("scancel", "--signal=USR1", "7")], "the job is not requeued"


def test_a_cancellation_reaches_only_the_intended_job(start: Callable[[Queue], SlurmBackend], tmp_path: Path) -> None:
    queue = Queue([JOB])
    backend = start(queue)
    queue.change(7, user="victim", submitted=JOB.submitted + 9)
    backend.apply(stop(StopReason.CANCEL))
    assert audited(tmp_path) == "withheld: number 7 is now another job"
    assert queue.changes == []


def test_each_poll_reads_the_comment_again(start: Callable[[Queue], SlurmBackend]) -> None:
    queue = Queue([JOB])
    backend = start(queue)
    queue.change(7, comment=b"do-not-touch")
    backend._due_seconds = 0.0
    backend._wake_up()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            backend.apply(stop())
        except BackendError as error:
            assert "it has not opted in" in str(error)
            break
        pytest.fail("a job without its owner's consent was changed") if queue.changes else time.sleep(0.01)
    assert queue.changes == []


def test_a_script_can_consent_only_for_its_owners_job() -> None:
    async def ask() -> list[bool]:
        queue = Queue([SCRIPTED])
        commands = PrintedCommands(queue, text=False)
        consents = Consents(commands)
        job = (await commands.jobs()).records[7]
        assert not consents.is_known(job)
        await consents.learn([job])
        queue.change(7, user="victim", script=b"#!/bin/sh\ntrain\n")
        other = (await commands.jobs()).records[7]
        return [consents.known(job).restartable, consents.is_known(other), consents.known(other).restartable]

    assert asyncio.run(ask()) == [True, False, False]


# --- pending jobs -----------------------------------------------------------------------------------------------------

WAITS = replace(JOB, state="PENDING", nodes=("gpu001", "gpu002"), gpus=(0, 1), limit_minutes=60)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"comment": b"do-not-touch"}, "its owner has withdrawn consent"),
        ({"user": "victim"}, "job 7 no longer exists"),
        ({"state": "RUNNING"}, "it has changed since the scan"),
        ({"excluded": ("gpu004",)}, "it has changed since the scan"),
        (None, "job 7 no longer exists"),
        ({}, ""),
    ],
)
def test_a_pending_job_is_kept_off_a_node_only_if_unchanged(
    tmp_path: Path, change: dict[str, Any] | None, reason: str
) -> None:
    queue = Queue([WAITS])
    commands = PrintedCommands(queue, text=False)
    audit = Audit(tmp_path / "audit.jsonl", SystemClock())
    hands = AuditedCommands(commands, audit, tmp_path / "touched.json", lambda *_: None)
    keeper = NodeUpdater(hands, SlurmSection(comments=False), SystemClock())

    async def keep() -> None:
        jobs: dict[int, SlurmJob] = (await commands.jobs()).records
        snapshot = Snapshot(0, (await commands.nodes()).records, jobs)
        if change is None:
            queue.jobs = []
        else:
            queue.change(7, **change)
        desired = DesiredNode("gpu002", NodeState.SUSPECT, "a fan is bad", "1", 1.0)
        await keeper.keep(DesiredState(True, False, {"gpu002": desired}, frozenset(queue.nodes)), snapshot)

    asyncio.run(keep())
    excluded = [command for command in queue.changes if "JobId=7" in command]
    if reason:
        assert excluded == []
        (line,) = [line for line in lines(audit.path) if line.target == "7"]
        assert line.outcome == f"withheld: {reason}"
        assert "7" not in hands.touched.excluded
    else:
        assert excluded == [("scontrol", "update", "JobId=7", "ExcNodeList=gpu002")]
