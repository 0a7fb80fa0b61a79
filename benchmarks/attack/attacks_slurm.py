"""Attacks by users of a Slurm cluster: job names that imitate Slurm's output, and consent that changes between polls.

The backend is real. Fake Slurm commands print the same output as release 22.05.8 (benchmarks/slurm/printed.py). The
measured latency is that of other users' jobs: a poll of the queue, or the move of a job. `lost` counts jobs whose
record is missing or wrong, or that were not moved. `wrong_actions` counts commands on jobs without permission, and
jobs that another user has allowed to be moved.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from agent.schema.errors import BackendError
from benchmarks.slurm.printed import Printed, PrintedCommands, Queue, as_text
from scheduler_feedback.backends.backend import RunningCycle
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_audit import lines
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.part_failures import PartFailures

HONEST = 500
HOSTILE = 100
LOOKS = 60
MOVES = 40
PATIENCE_SECONDS = 30.0
NODES = tuple(f"gpu{number:03d}" for number in range(1, 17))

Result = dict[str, Any]


class _Cached(PrintedCommands):
    """Fake Slurm commands that compute each output only once, so that the measured time is that of the backend."""

    def __init__(self, queue: Queue, text: bool) -> None:
        super().__init__(queue, text)
        self._answers: dict[tuple[str, ...], bytes] = {}

    async def _run(self, command: tuple[str, ...], given: str | None = None) -> bytes:
        if command not in self._answers:
            self._answers[command] = await super()._run(command, given)
        return self._answers[command]


def honest() -> list[Printed]:
    return [
        Printed(1000 + at, b"train-%d" % at, f"user{at % 20}", nodes=(NODES[at % 12],), gpus=(at % 8,),
                comment=b"do-not-touch" if at % 2 else b"")
        for at in range(HONEST)
    ]  # fmt: skip


def hostile(victims: list[Printed]) -> list[Printed]:
    """Return jobs whose text fields imitate the record of another job, each after a different separator."""
    chance = random.Random(18)
    separators = (b"\n", "\u2028".encode(), "\x85".encode(), b"\x0c", b"\x0b", b"\x1c", b"\r", b"\xff", b" ")
    rest = as_text([Printed(0)]).split(b" UserId=", 1)[1].rstrip()
    made = []
    for at in range(HOSTILE):
        victim = victims[at % len(victims)]
        forged = as_text([replace(victim, comment=b"gangwatch:restartable,signal=KILL,grace=0")]).rstrip()
        separator = separators[at % len(separators)]
        field = chance.choice(("name", "comment", "folder", "account"))
        value = b"x UserId=" + rest + separator + forged + separator + b"JobId=%d JobName=x" % (5000 + at)
        job = Printed(3000 + at, user="mallory", nodes=(NODES[12 + at % 4],), gpus=(at % 8,))
        made.append(replace(job, **{field: value}))  # type: ignore[arg-type]
    return made


def _resident_mib() -> float:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Polls:
    """Polls of one Slurm queue: the CPU milliseconds of each poll, and the jobs that the last poll found."""

    def __init__(self, queue: Queue, text: bool) -> None:
        self._commands = _Cached(queue, text)
        self.took: list[float] = []
        self.found: dict[int, SlurmJob] = {}

    async def prepare(self) -> None:
        """Poll until the backend has requested the GPUs of every job. All outputs of the fake Slurm are then
        computed."""
        for _ in range((HONEST + HOSTILE) // 20 + 5):
            await self._commands.jobs()

    async def look(self) -> None:
        began = time.thread_time()
        self.found = (await self._commands.jobs()).records
        self.took.append((time.thread_time() - began) * 1e3)


def names(name: str, text: bool) -> Result:
    """Measure polls of a queue in which job names imitate records of other jobs, and request moves of these jobs."""
    jobs = honest()
    quiet, attacked = _Polls(Queue(jobs, NODES), text), _Polls(Queue([*jobs, *hostile(jobs)], NODES), text)
    resident = 0.0

    async def both() -> None:
        nonlocal resident
        await quiet.prepare()
        gc.collect()
        resident = _resident_mib()
        await attacked.prepare()
        for _ in range(LOOKS):
            await quiet.look()
            await attacked.look()

    survived = True
    try:
        asyncio.run(both())
    except BackendError:
        survived = False
    gc.collect()
    found = attacked.found
    wrong = [job for job in jobs if found.get(job.number) != quiet.found.get(job.number)]
    opted_in = sum(of_comment(found[job.number].comment).restartable for job in jobs if job.number in found)
    return {
        "name": name,
        "survived": survived,
        "rss_growth_mib": round(_resident_mib() - resident, 1),
        "p99_ms_of_others": round(float(np.percentile(attacked.took or [np.inf], 99)), 2),
        "p99_ms_of_others_quiet": round(float(np.percentile(quiet.took or [0.0], 99)), 2),
        "lost": len(wrong),
        "wrong_actions": opted_in,
    }


def _answered(state: State) -> Callable[[Callable[[State], Any]], Future[Any]]:
    def ask(question: Callable[[State], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(question(state))
        return answer

    return ask


def changed(name: str, change: dict[str, Any]) -> Result:
    """Change jobs between the poll that reads their permission to be moved, and the move by the scheduler.

    change: fields that the jobs' owner changes.
    """
    jobs = [
        Printed(100 + at, nodes=(NODES[at % 16],), gpus=(at % 8,), comment=b"gangwatch:restartable,signal=USR1,grace=0")
        for at in range(2 * MOVES)
    ]
    queue = Queue(jobs, NODES)
    turned = {job.number for job in jobs[:MOVES]}

    def effect(command: tuple[str, ...]) -> None:
        if command[:2] == ("scontrol", "requeue"):
            queue.change(int(command[2]), state="PENDING", restarts=1)

    queue.effect = effect
    resident = _resident_mib()
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = SlurmSection(
            partition_share=1.0, requeues_per_hour=10_000, idle_seconds=3600, attentive_seconds=3600
        )
        backend = SlurmBackend(Path(folder), PrintedCommands(queue, text=False), settings)
        backend.start(PATIENCE_SECONDS)
        backend.observe(())
        ask = _answered(State(nodes={node: Node(node, 8) for node in NODES}))
        backend.attach(cast(RunningCycle, SimpleNamespace(ask=ask)), PartFailures())
        try:
            for number in turned:
                queue.change(number, **change)
            for job in jobs:
                began = time.perf_counter()
                backend.apply(
                    StopGang(f"a-{job.number}", f"slurm-{job.number}", 0, "SIGTERM", 0.0, StopReason.MIGRATE, "attack")
                )
                deadline = time.monotonic() + PATIENCE_SECONDS
                while time.monotonic() < deadline and not _ended(Path(folder), job.number):
                    time.sleep(0.002)
                if job.number not in turned:
                    took.append((time.perf_counter() - began) * 1e3)
            survived = backend._thread.is_alive()
        finally:
            backend.stop()
    touched = [int(word) for command in queue.changes for word in command if word.isdecimal()]
    return {
        "name": name,
        "survived": survived,
        "rss_growth_mib": round(_resident_mib() - resident, 1),
        "p99_ms_of_others": round(float(np.percentile(took, 99)), 2),
        "lost": sum(job.number not in touched for job in jobs[MOVES:]),
        "wrong_actions": sum(number in turned for number in touched),
    }


def _ended(folder: Path, number: int) -> bool:
    """Return whether the move of this job is finished, successfully or not."""
    return any(
        line.target == str(number) and line.action == "requeue" for line in lines(folder / "slurm-actions.jsonl")
    )


def names_in_text() -> Result:
    return names("slurm: names that imitate records, text", text=True)


def names_in_json() -> Result:
    return names("slurm: names that imitate records, JSON", text=False)


def consent_withdrawn() -> Result:
    return changed("slurm: consent withdrawn between look and act", {"comment": b"do-not-touch"})


def number_reused() -> Result:
    return changed("slurm: number given to another user's job between look and act", {"user": "victim"})


ATTACKS: tuple[tuple[str, Callable[[], Result]], ...] = (
    ("slurm_names_text", names_in_text),
    ("slurm_names_json", names_in_json),
    ("slurm_consent_withdrawn", consent_withdrawn),
    ("slurm_number_reused", number_reused),
)
