"""Only a job whose owner declares it restartable is signalled, requeued or kept off a node. No Slurm needed.

The backend is real; its commands return the output of Slurm 22.05.8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.schema.errors import BackendError
from benchmarks.slurm.printed import Printed, PrintedCommands, Queue
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn, of_comment, of_script
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.backends.slurm.slurm_names import external_job, why_not
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.events import Hosted
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.part_failures import PartFailures

OPTED_IN = "gangwatch:restartable,signal=USR1,grace=60"
NUMBER = 1


class OneJob(PrintedCommands):
    """Slurm with one job that runs on two nodes. comment, script, facts: of the job."""

    def __init__(self, comment: str, script: str = "", facts: dict[str, Any] | None = None, text: bool = True) -> None:
        job = Printed(
            NUMBER,
            nodes=("gpu001", "gpu002"),
            comment=comment.encode(),
            script=script.encode(),
            **(facts or {}),
        )
        super().__init__(Queue([job]), text)

    @property
    def changes(self) -> list[tuple[str, ...]]:
        return self.queue.changes


def asked(state: State) -> Callable[[Callable[[State], Any]], Future[Any]]:
    def ask(question: Callable[[State], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(question(state))
        return answer

    return ask


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[OneJob], SlurmBackend]]:
    """Start a backend with these commands and a cycle."""
    started: list[SlurmBackend] = []

    def start(commands: OneJob) -> SlurmBackend:
        backend = SlurmBackend(tmp_path, commands, SlurmSection(idle_seconds=0.2, attentive_seconds=0.2))
        started.append(backend)
        backend.start(20.0)
        ask = asked(State(nodes={name: Node(name, 8) for name in ("gpu001", "gpu002")}))
        backend.attach(SimpleNamespace(ask=ask), PartFailures())
        return backend

    yield start
    for backend in started:
        backend.stop()


def move() -> StopGang:
    return StopGang("a-1", f"slurm-{NUMBER}", 0, "SIGTERM", 0.0, StopReason.MIGRATE, "gpu002 is slow")


def seen(backend: SlurmBackend) -> Hosted:
    """Return the running job as the backend reported it to the cycle."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for event in backend.observe(()):
            if isinstance(event, Hosted) and event.job_id == f"slurm-{NUMBER}":
                return event
        time.sleep(0.01)
    raise AssertionError("the running job is not reported")


DECLARED = [
    (OPTED_IN, "", {}),
    ("gangwatch:restartable", "", {}),
    ("my run", "#!/bin/sh\n#SBATCH --signal=B:USR1@90\n", {}),
]
UNDECLARED = [
    ("my run", "", {}, "it has not opted in"),
    ("gangwatch:signal=USR1", "#!/bin/sh\ntrain\n", {}, "it has not opted in"),
    ("restartable", "", {}, "it has not opted in"),
    ("gangwatch:restartable,retries=3", "#SBATCH --signal=USR1", {}, "'retries=3' is not in"),
    (OPTED_IN, "", {"requeue": False}, "--no-requeue"),
    (OPTED_IN, "", {"batch": False}, "not a batch job"),
    ("my run", "#SBATCH --signal=USR1", {"requeue": False}, "it has not opted in"),
]


@pytest.mark.parametrize(("comment", "script", "facts"), DECLARED)
def test_a_job_that_has_opted_in_is_moved(
    running: Callable[[OneJob], SlurmBackend], comment: str, script: str, facts: dict[str, Any]
) -> None:
    commands = OneJob(comment, script, facts)
    backend = running(commands)
    assert seen(backend).spec.restartable
    backend.apply(move())
    deadline = time.monotonic() + 20
    while not commands.changes and time.monotonic() < deadline:
        time.sleep(0.01)
    first = commands.changes[0]
    assert first[0] == "scancel" or first == ("scontrol", "requeue", str(NUMBER))
    assert str(NUMBER) in first


@pytest.mark.parametrize(("comment", "script", "facts", "why"), UNDECLARED)
def test_a_job_that_has_not_opted_in_is_never_touched(
    running: Callable[[OneJob], SlurmBackend], comment: str, script: str, facts: dict[str, Any], why: str
) -> None:
    commands = OneJob(comment, script, facts)
    backend = running(commands)
    assert not seen(backend).spec.restartable, "so the cycle never asks for a move"
    with pytest.raises(BackendError, match=f"slurm-1 is not moved: .*{why}"):
        backend.apply(move())
    requests = commands.requests
    deadline = time.monotonic() + 20
    while commands.requests < requests + 3 and time.monotonic() < deadline:
        time.sleep(0.01)  # some looks more
    assert commands.changes == []


def test_a_cancellation_needs_no_opt_in(running: Callable[[OneJob], SlurmBackend]) -> None:
    commands = OneJob("my run")
    backend = running(commands)
    seen(backend)
    backend.apply(StopGang("a-1", "slurm-1", 0, "SIGTERM", 0.0, StopReason.CANCEL, "ann has asked"))
    deadline = time.monotonic() + 20
    while not commands.changes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert commands.changes[0] == ("scancel", "1")


# --- the pure parts --------------------------------------------------------------------------------------------------

JOB = SlurmJob(7, "RUNNING", nodes=("n1",), gpus=((0, 1),), partition="batch")
NODES = {"n1": SlurmNode("n1", 8)}


@pytest.mark.parametrize(
    ("opted", "batch", "requeue", "may"),
    [
        (OptIn(True), True, True, True),
        (OptIn(), True, True, False),
        (OptIn(True), False, True, False),
        (OptIn(True), True, False, False),
        (OptIn(complaint="'x' is not in"), True, True, False),
    ],
)
def test_reported_restartable_flag_and_backend_refusals_agree(
    opted: OptIn, batch: bool, requeue: bool, may: bool
) -> None:
    job = SlurmJob(7, "RUNNING", nodes=("n1",), gpus=((0, 1),), partition="batch", batch=batch, requeue=requeue)
    event = external_job(job, opted, NODES)
    assert event is not None
    assert event.spec.restartable is may
    assert (why_not(job, opted) == "") is may


def test_the_declaration_determines_how_a_job_is_stopped() -> None:
    event = external_job(JOB, of_comment("gangwatch:restartable,signal=USR2,grace=7,restart=90,every=600"), NODES)
    assert event is not None
    spec = event.spec
    assert (spec.checkpoint_signal, spec.grace_seconds) == ("SIGUSR2", 7.0)
    assert (spec.restart_cost_seconds, spec.checkpoint_interval_seconds) == (90.0, 600.0)
    without = external_job(JOB, of_comment("gangwatch:restartable,grace=7"), NODES)
    assert without is not None
    assert without.spec.grace_seconds == 0.0, "a job that is not signalled gets no grace period"


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\n# SBATCH --signal=USR1\n",
        "#!/bin/sh\necho '#SBATCH' --signal=USR1\n",
        "#SBATCH --signal=NONSENSE\n",
        "#SBATCH --signals=USR1\n",
    ],
)
def test_a_script_that_declares_no_signal_has_not_opted_in(script: str) -> None:
    assert not of_script(script).restartable
