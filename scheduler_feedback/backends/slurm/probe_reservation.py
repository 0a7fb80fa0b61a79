"""Probes of drained nodes: the node is resumed inside a reservation, so that no other job starts on it."""

from __future__ import annotations

import asyncio
import getpass
import logging
import math
import shlex
from collections.abc import Coroutine

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.slurm_names import OURS
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, Event

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

FAILED = 1
"""Exit code that a probe gets if Slurm reports none."""


def reservation_of(node: str) -> str:
    return f"gangwatch_{node}"


class Probe:
    """One probe of one node.

    number: Slurm's number of the probe's job, once it is submitted. exit_code: set when the job has ended. reported:
    whether the cycle has received the event that the probe runs.
    """

    def __init__(self, audited: AuditedCommands, action: StartGang) -> None:
        assert action.spec.pinned_node is not None
        self._audited, self._action = audited, action
        self.node = action.spec.pinned_node
        self.number: int | None = None
        self.running = self.reported = False
        self.exit_code: int | None = None
        self.failure = ""

    async def run(self) -> None:
        """Probe the node in a reservation, drain it again, and delete the reservation. An error counts as a failed
        probe.
        """
        try:
            await self._run()
        except BackendError as error:
            self.failure = str(error)
        finally:
            await release(self._audited, self.node, "its probe has ended")
        if self.exit_code is None:
            self.exit_code = FAILED

    async def _run(self) -> None:
        audited, spec, node = self._audited, self._action.spec, self.node
        name = reservation_of(node)
        minutes = math.ceil((spec.time_limit_seconds or 60.0) / 60) + 1
        why = f"{self._action.job_id} measures it"
        audited.touched.reserved[node] = name
        audited.touched.drained.pop(node, None)
        audited.remember()
        await audited.do(
            "reserve", node,
            ("scontrol", "create", "reservation", f"ReservationName={name}", f"Users={getpass.getuser()}",
             "StartTime=now", f"Duration={minutes}", f"Nodes={node}", "Flags=IGNORE_JOBS"),
            why,
        )  # fmt: skip
        await audited.do("resume", node, ("scontrol", "update", f"NodeName={node}", "State=RESUME"), why)
        output = await audited.do(
            "probe", node,
            ("sbatch", "--parsable", f"--job-name={self._action.job_id}", f"--reservation={name}", "--nodes=1",
             f"--nodelist={node}", f"--ntasks={spec.ranks}", f"--gpus-per-node={spec.ranks}", f"--time={minutes}",
             "--output=/dev/null", "--no-requeue"),
            why,
            given=f"#!/bin/sh\nexec srun --ntasks={spec.ranks} {shlex.join(spec.command)}\n",
        )  # fmt: skip
        number = output.strip().partition(";")[0]
        if not number.isdecimal():
            raise BackendError(f"sbatch: {output[:60]!r} is not a job number")
        self.number = int(number)
        while (job := await audited.job(self.number)) is not None and (job.waits or job.runs or job.completing):
            self.running |= job.runs
            await asyncio.sleep(LOOK_SECONDS)
        self.running = True
        if job is None:
            raise BackendError(f"job {self.number}, the probe of {node}, no longer exists")
        self.exit_code = job.exit_code if job.state == "COMPLETED" or job.exit_code else FAILED


class Probes:
    """Probes in progress, by job and attempt. The event loop starts and ends them; the cycle's thread reads their
    events.
    """

    def __init__(self, audited: AuditedCommands) -> None:
        self._audited = audited
        self._by_attempt: dict[tuple[str, int], Probe] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._by_attempt)

    def __contains__(self, attempt: tuple[str, int]) -> bool:
        return attempt in self._by_attempt

    def begin(self, action: StartGang) -> None:
        """Start the probe of this action, unless it has been started already."""
        key = action.job_id, action.attempt
        if key not in self._by_attempt:
            self._by_attempt[key] = probe = Probe(self._audited, action)
            self._keep(probe.run())

    def end(self, action: StopGang) -> None:
        """Cancel the probe's job in Slurm. The running probe then reports the result."""
        probe = self._by_attempt.get((action.job_id, action.attempt))
        if probe is not None and probe.number is not None:
            self._keep(self._cancel(str(probe.number), action.reason))

    async def _cancel(self, number: str, why: str) -> None:
        try:
            await self._audited.do("cancel", number, ("scancel", number), why)
        except BackendError as error:
            _log.warning("scancel %s: %s", number, error)

    def events_of(self, job_id: str, attempt: int) -> list[Event]:
        """Return the events of a probe that the cycle does not have yet, and drop the probe once it has ended."""
        probe = self._by_attempt[job_id, attempt]
        if probe.exit_code is not None:
            del self._by_attempt[job_id, attempt]
            return [AttemptEnded(job_id, attempt, (), probe.running, probe.failure, all_exited_with=probe.exit_code)]
        if not probe.running or probe.reported:
            return []
        probe.reported = True
        return [AttemptRunning(job_id, attempt, ())]

    def take_up(self) -> None:
        """Release the reservations of probes that an earlier controller started."""
        for node in list(self._audited.touched.reserved):
            if not any(probe.node == node for probe in self._by_attempt.values()):
                self._audited.touched.reserved.pop(node)
                self._keep(release(self._audited, node, "the controller that probed it has ended"))

    def leave(self) -> None:
        """Stop following the probes in progress, and leave their jobs as they are."""
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def release(audited: AuditedCommands, node: str, why: str) -> None:
    """Drain the node, so that nothing starts on it before the cycle has decided, then delete the reservation."""
    reason = f"Reason={OURS}{why}"
    try:
        await audited.do("drain", node, ("scontrol", "update", f"NodeName={node}", "State=DRAIN", reason), why)
        audited.touched.drained[node] = "probed"
        audited.remember()
        name = audited.touched.reserved.get(node, reservation_of(node))
        await audited.do("unreserve", node, ("scontrol", "delete", f"ReservationName={name}"), why)
    except BackendError as error:
        if "Requested reservation is invalid" not in str(error):
            return  # it stays in `reserved` until the next start or probe
    audited.touched.reserved.pop(node, None)
    audited.remember()
