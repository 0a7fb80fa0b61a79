"""Probe of a drained node, step by step, against a fake Slurm. No Slurm needed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent.schema.clock import ManualClock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import changed_objects as memory
from scheduler_feedback.backends.slurm import probe_reservation
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.changed_objects import Touched
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.probe_reservation import Probe, Probes, release
from scheduler_feedback.backends.slurm.slurm_audit import Audit
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning
from scheduler_feedback.core.job import JobKind, JobSpec, Slot, StopReason

START = StartGang(
    "a-1", "probe-n1-1", 1,
    JobSpec("probe-n1-1", ("gangwatch-probe", "--seconds 2"), 8, kind=JobKind.PROBE, pinned_node="n1",
            time_limit_seconds=120.0),
    tuple(Slot("n1", number) for number in range(8)),
)  # fmt: skip
WAITS = SlurmJob(42, "PENDING")
RUNS = SlurmJob(42, "RUNNING", nodes=("n1",))
PASSED = SlurmJob(42, "COMPLETED", exit_code=0)


class ProbingSlurm(Commands):
    """Fake Slurm that records all commands and returns the job's states in order.

    fails: first words of commands that fail.
    """

    def __init__(self, *looks: SlurmJob | None, number: str = "42") -> None:
        super().__init__()
        self.looks = list(looks)
        self.number = number
        self.done: list[str] = []
        self.given: str | None = None
        self.fails: dict[str, str] = {}
        self.remembered: list[Touched] = []
        self.path = Path()

    async def run(self, *command: str, given: str | None = None) -> bytes:
        words = " ".join(command)
        self.remembered.append(memory.read(self.path))
        for start, why in self.fails.items():
            if words.startswith(start):
                raise BackendError(why)
        self.done.append(words)
        if command[0] == "sbatch":
            self.given = given
            return f"{self.number};cluster\n".encode()
        return b""

    async def job(self, number: int) -> SlurmJob | None:
        assert number == 42
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_reservation, "LOOK_SECONDS", 0.001)


def audited_commands(folder: Path, slurm: ProbingSlurm) -> AuditedCommands:
    slurm.path = folder / "touched.json"
    return AuditedCommands(slurm, Audit(folder / "audit.jsonl", ManualClock()), slurm.path, lambda *_: None)


def probed(folder: Path, slurm: ProbingSlurm, touched: Touched | None = None) -> tuple[Probe, Touched]:
    """Run the probe. Return it and the record of changes that must still be undone."""
    commands = audited_commands(folder, slurm)
    if touched is not None:
        commands.touched = touched
    probe = Probe(commands, START)
    asyncio.run(probe.run())
    return probe, memory.read(slurm.path)


def test_a_probe_runs_alone_on_the_node_and_leaves_it_drained(tmp_path: Path) -> None:
    slurm = ProbingSlurm(WAITS, RUNS, PASSED)
    probe, left = probed(tmp_path, slurm, Touched(drained={"n1": "1/quarantine", "n2": "x"}))
    assert [words.split()[:3] for words in slurm.done] == [
        ["scontrol", "create", "reservation"],
        ["scontrol", "update", "NodeName=n1"],
        ["sbatch", "--parsable", "--job-name=probe-n1-1"],
        ["scontrol", "update", "NodeName=n1"],
        ["scontrol", "delete", "ReservationName=gangwatch_n1"],
    ]
    reserve, resume, submit, drain, _ = slurm.done
    assert "ReservationName=gangwatch_n1" in reserve and "Nodes=n1" in reserve
    assert "Duration=3" in reserve, "its limit and one minute"
    assert "State=RESUME" in resume and "State=DRAIN Reason=gangwatch: " in drain
    for option in ("--reservation=gangwatch_n1", "--nodelist=n1", "--ntasks=8", "--gpus-per-node=8", "--no-requeue"):
        assert option in submit.split()
    assert slurm.given == "#!/bin/sh\nexec srun --ntasks=8 gangwatch-probe '--seconds 2'\n"
    assert (probe.exit_code, probe.running, probe.failure) == (0, True, "")
    assert left == Touched(drained={"n1": "probed", "n2": "x"})
    before = slurm.remembered[0]
    assert (before.reserved, set(before.drained)) == ({"n1": "gangwatch_n1"}, {"n2"}), "recorded before the change"


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (PASSED, 0),
        (SlurmJob(42, "FAILED", exit_code=3), 3),
        (SlurmJob(42, "TIMEOUT", exit_code=0), 1),
        (SlurmJob(42, "CANCELLED", exit_code=None), 1),
        (SlurmJob(42, "COMPLETED", exit_code=None), 1),
    ],
)
def test_only_a_probe_that_completed_with_0_has_passed(tmp_path: Path, ended: SlurmJob, code: int) -> None:
    probe, _ = probed(tmp_path, ProbingSlurm(RUNS, dataclasses.replace(RUNS, completing=True), ended))
    assert probe.exit_code == code


def test_a_lost_or_rejected_probe_has_failed(tmp_path: Path) -> None:
    probe, _ = probed(tmp_path, ProbingSlurm(RUNS, None))
    assert (probe.exit_code, probe.failure) == (1, "job 42, the probe of n1, no longer exists")
    slurm = ProbingSlurm(PASSED, number="no number")
    probe, left = probed(tmp_path, slurm)
    assert (probe.exit_code, probe.number) == (1, None)
    assert "is not a job number" in probe.failure
    assert left.reserved == {} and left.drained == {"n1": "probed"}


def test_a_node_that_cannot_be_reserved_is_not_resumed(tmp_path: Path) -> None:
    slurm = ProbingSlurm(PASSED)
    slurm.fails = {"scontrol create": "no", "scontrol delete": "Requested reservation is invalid"}
    probe, left = probed(tmp_path, slurm)
    assert (probe.exit_code, probe.failure) == (1, "no")
    assert not [words for words in slurm.done if "RESUME" in words or words.startswith("sbatch")]
    assert left == Touched(drained={"n1": "probed"}), "a deleted reservation need not be undone"


def test_a_reservation_that_cannot_be_deleted_now_is_recorded(tmp_path: Path) -> None:
    for start in ("scontrol update", "scontrol delete"):
        slurm = ProbingSlurm(PASSED)
        slurm.fails = {start: "Unable to contact slurm controller"}
        commands = audited_commands(tmp_path, slurm)
        commands.touched = Touched(reserved={"n1": "its name"})
        asyncio.run(release(commands, "n1", "a test"))
        assert commands.touched.reserved == {"n1": "its name"}
        assert ("n1" in commands.touched.drained) is (start == "scontrol delete"), (
            "a failed drain is not a change by gangwatch"
        )
        if start == "scontrol delete":
            assert slurm.remembered[-1].drained == {"n1": "probed"}, "recorded before any other change"


# --- running probes --------------------------------------------------------------------------------------------------


def with_probes(
    folder: Path, slurm: ProbingSlurm, work: Callable[[Probes, AuditedCommands], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        commands = audited_commands(folder, slurm)
        await asyncio.wait_for(work(Probes(commands), commands), 10)

    asyncio.run(run())


async def until(done: Callable[[], object]) -> None:
    while not done():
        await asyncio.sleep(0.001)


def test_start_and_end_of_a_probe_are_reported_once(tmp_path: Path) -> None:
    slurm = ProbingSlurm(WAITS)
    key = ("probe-n1-1", 1)

    async def work(probes: Probes, commands: AuditedCommands) -> None:
        assert not probes and key not in probes
        probes.begin(START)
        probes.begin(START)  # the same once more
        await until(lambda: slurm.given)
        assert probes and key in probes and ("probe-n1-1", 2) not in probes
        assert probes.events_of(*key) == [], "it waits"
        slurm.looks[:] = [RUNS]
        events: list[object] = []
        await until(lambda: events.extend(probes.events_of(*key)) or events)
        assert events == [AttemptRunning("probe-n1-1", 1, ())]
        assert probes.events_of(*key) == []
        slurm.looks[:] = [SlurmJob(42, "FAILED", exit_code=3)]
        await until(lambda: events.extend(probes.events_of(*key)) or len(events) > 1)
        assert events[1] == AttemptEnded("probe-n1-1", 1, (), True, "", all_exited_with=3)
        assert not probes
        assert len([words for words in slurm.done if words.startswith("sbatch")]) == 1

    with_probes(tmp_path, slurm, work)


def test_a_stopped_probe_is_cancelled_in_slurm(tmp_path: Path) -> None:
    slurm = ProbingSlurm(RUNS)

    def stop(job_id: str, attempt: int) -> StopGang:
        return StopGang("a-2", job_id, attempt, "SIGTERM", 5.0, StopReason.CANCEL, "it is released")

    async def work(probes: Probes, commands: AuditedCommands) -> None:
        probes.begin(START)
        await until(lambda: slurm.given)
        probes.end(stop("probe-n1-1", 2))
        probes.end(stop("probe-n2-1", 1))
        probes.end(stop("probe-n1-1", 1))
        await until(lambda: "scancel 42" in slurm.done)
        slurm.looks[:] = [SlurmJob(42, "CANCELLED", exit_code=0)]
        await until(lambda: "scontrol delete ReservationName=gangwatch_n1" in slurm.done)
        assert [words for words in slurm.done if words.startswith("scancel")] == ["scancel 42"]

    with_probes(tmp_path, slurm, work)


def test_only_reservations_of_an_earlier_controller_are_released(tmp_path: Path) -> None:
    slurm = ProbingSlurm(RUNS)

    async def work(probes: Probes, commands: AuditedCommands) -> None:
        probes.begin(START)
        await until(lambda: slurm.given)
        commands.touched.reserved["n2"] = "gangwatch_n2"
        probes.take_up()
        await until(lambda: [words for words in slurm.done if words.startswith("scontrol delete")])
        assert slurm.done[-2:] == [
            "scontrol update NodeName=n2 State=DRAIN Reason=gangwatch: the controller that probed it has ended",
            "scontrol delete ReservationName=gangwatch_n2",
        ]
        assert commands.touched.reserved == {"n1": "gangwatch_n1"}
        probes.leave()

    with_probes(tmp_path, slurm, work)
