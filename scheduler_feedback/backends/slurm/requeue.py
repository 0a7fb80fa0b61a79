"""Requeue of one job: the job saves, leaves its nodes, and starts again at once without the accused nodes.

::

    1  Check that the number is still the same job and attempt, that its owner still consents, and that
       enough nodes are left without the accused ones. If not, nothing is done.
    2  Reserve the nodes of its next attempt, its own among them, so that no other job starts there.
    3  Send the checkpoint signal; wait until its processes have ended, or for the grace time that it declares.
    4  Record the next steps (changed_objects.py).
    5  scontrol requeue: Slurm ends the rest of the job and does not start it for two minutes.
    6  Once it is pending: set its exclusion, and StartTime=now, which ends those two minutes.
    7  Delete the reservation. The job starts by its place in the queue, which a requeue does not change.

Owner, state and consent are read again directly before the signal and directly before the requeue. A save may take a
day; in that time the owner may change the comment, and Slurm may give the number to another job.

After a crash, steps 5 to 7 continue where they stopped: Slurm's record of the job, above all its restart count, shows
which of them are done. The job is moved even if no reservation can be made, and a reservation expires a few minutes
after the save should have ended. Slurm also drains the node or raises its weight (node_plan.py), so even a job without
its exclusion does not go back to that node first.
"""

from __future__ import annotations

import asyncio
import getpass
import math
import time
from collections.abc import Awaitable, Callable, Mapping

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.changed_objects import Moving
from scheduler_feedback.backends.slurm.consent import is_another
from scheduler_feedback.backends.slurm.node_plan import enough_left
from scheduler_feedback.backends.slurm.parsing.hostlist import join
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode
from scheduler_feedback.backends.slurm.slurm_names import why_not

LOOK_SECONDS = 0.5
"""Seconds between two reads of the job that is being moved."""

SETTLED_SECONDS = 1.5
"""Seconds between the end of the job's last process and the job's next start. slurmd revokes credentials by whole
seconds. If the new credential is made in the same second in which the job ended, slurmd takes it for an old one and
kills the new attempt. Half a second is for clock differences. Slurm itself waits two minutes."""

RETRY_SECONDS = 2.0
KEPT = "gangwatch_job_"
KEPT_SECONDS = 300.0
"""Seconds for which the reservation continues after a save. So it ends even if our process dies before deleting it."""

PATIENCE_SECONDS = 600.0
"""Longest outage of slurmctld, in seconds, that a requeue waits for. After a longer one, the requeue continues when a
scan sees the job again."""


class LeftError(Exception):
    """Error: the job must not be moved. Its attempt has ended, it no longer exists, or its owner no longer consents."""


class Requeue:
    """Move of one attempt of one job.

    meant: owner and submission time of the job; ('', 0) if unknown. consent: reads what the job declares now. nodes:
    returns the current nodes. frozen: returns whether actions are frozen.
    """

    def __init__(
        self,
        audited: AuditedCommands,
        number: int,
        attempt: int,
        meant: tuple[str, float],
        consent: Callable[[SlurmJob], Awaitable[OptIn]],
        nodes: Callable[[], Mapping[str, SlurmNode]],
        frozen: Callable[[], Awaitable[bool]],
        why: str,
    ) -> None:
        self._audited, self._number, self._attempt = audited, number, attempt
        self._meant, self._consent = meant, consent
        self._nodes, self._frozen = nodes, frozen
        self._why = why
        self._target = str(number)

    async def run(self, avoided: tuple[str, ...], evidence: tuple[str, ...] = (), place: tuple[str, ...] = ()) -> str:
        """Move the job and return the result in words. Raises BackendError if the move could not be completed.

        avoided: nodes that the next attempt must avoid. place: nodes for the next attempt; may be empty.
        """
        try:
            return await self._run(avoided, evidence, place)
        except LeftError as left:
            await self._release_place()
            self._audited.touched.moving.pop(self._target, None)
            self._audited.remember()
            self._audited.audit.write("requeue", self._target, f"withheld: {left}", self._why)
            return str(left)

    async def _run(self, avoided: tuple[str, ...], evidence: tuple[str, ...], place: tuple[str, ...]) -> str:
        moving = self._audited.touched.moving.get(self._target)
        if moving is None or moving.attempt != self._attempt or not moving.requeued:
            job = self._still(await self._look())
            opted = await self._allowed(job)
            if not enough_left(job, self._nodes().values(), {*job.excluded, *avoided}):
                raise LeftError(f"too few nodes would be left without {join(avoided)}")
            if await self._frozen():
                raise LeftError("all actions are frozen")
            kept = await self._keep(place, opted)
            await self._save()
            moving = Moving(self._attempt, list(avoided), True, kept, job.user, job.submitted_seconds)
            self._audited.touched.moving[self._target] = moving
            self._audited.remember()
        await self._requeue(evidence)
        await self._start_again(tuple(moving.avoided))
        await self._release_place()
        self._audited.touched.moving.pop(self._target, None)
        self._audited.remember()
        return f"requeued without {join(moving.avoided) or 'any exclusion'}"

    # --- 1 -----------------------------------------------------------------------------------------------------------

    async def _look(self) -> SlurmJob:
        """Read the job from Slurm; retry while slurmctld does not respond. Raises LeftError if the job is gone."""
        began = time.monotonic()
        while True:
            try:
                job = await self._audited.job(self._number)
            except BackendError:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if job is None:
                raise LeftError("it no longer exists")
            return job

    async def _allowed(self, job: SlurmJob) -> OptIn:
        """Return what the job's owner declares now. Raises LeftError if the job must not be signalled or requeued."""
        if is_another(self._meant, self._attempt, job):
            raise LeftError(f"number {self._number} is now another job, of {job.user}")
        opted = await self._consent(job)
        if refusal := why_not(job, opted):
            raise LeftError(f"it may no longer be moved: {refusal}")
        return opted

    def _still(self, job: SlurmJob) -> SlurmJob:
        if job.restarts != self._attempt:
            raise LeftError(f"it was restarted in the meantime ({job.restarts} times in all)")
        if not job.runs:
            raise LeftError(f"it is now {job.state}")
        return job

    # --- 2 and 7 -----------------------------------------------------------------------------------------------------

    async def _keep(self, place: tuple[str, ...], opted: OptIn) -> str:
        """Reserve the nodes of the job's next attempt and return the reservation's name; '' if none was made.

        The reservation is recorded first.
        """
        if not place:
            return ""
        name = f"{KEPT}{self._target}"
        user, submitted_seconds = self._meant
        self._audited.touched.moving[self._target] = Moving(
            self._attempt, kept=name, user=user, submitted_seconds=submitted_seconds
        )
        self._audited.remember()
        minutes = math.ceil((opted.grace_seconds + KEPT_SECONDS) / 60)
        command = (
            "scontrol", "create", "reservation", f"ReservationName={name}", f"Users={getpass.getuser()}",
            "StartTime=now", f"Duration={minutes}", f"Nodes={join(sorted(place))}", "Flags=IGNORE_JOBS",
        )  # fmt: skip
        try:
            await self._audited.do("keep", self._target, command, "no other job may start there in the meantime")
        except BackendError:
            return ""  # the audit has the error: a reservation of that name exists, or we may not make any
        return name

    async def _release_place(self) -> None:
        """Delete the reservation, so that the job can start. If that fails, the reservation expires."""
        moving = self._audited.touched.moving.get(self._target)
        if moving is None or not moving.kept:
            return
        command = ("scontrol", "delete", f"ReservationName={moving.kept}")
        try:
            await self._audited.do("unkeep", self._target, command, "it may start")
        except BackendError:
            pass

    # --- 3 -----------------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Send the checkpoint signal, and wait until the job has exited or its grace time is over."""
        opted = await self._allowed(self._still(await self._look()))
        if not opted.signal:
            return
        command = ["scancel", f"--signal={opted.signal}"]
        command += ["--batch"] if opted.batch else []
        await self._audited.do("signal", self._target, (*command, self._target), f"to save: {self._why}")
        until = time.monotonic() + opted.grace_seconds
        while time.monotonic() < until:
            await asyncio.sleep(min(LOOK_SECONDS, max(until - time.monotonic(), 0.0)))
            job = await self._look()
            if job.restarts != self._attempt:
                raise LeftError(f"it was restarted in the meantime ({job.restarts} times in all)")
            if job.state == "CANCELLED":
                raise LeftError("it was cancelled")
            if not job.runs:
                return

    # --- 5 and 6 -----------------------------------------------------------------------------------------------------

    async def _requeue(self, evidence: tuple[str, ...]) -> None:
        """Requeue the job exactly once. Its restart count shows whether a command that failed or hung has taken
        effect.
        """
        began = time.monotonic()
        while (job := await self._look()).restarts == self._attempt:
            if job.state == "CANCELLED":
                raise LeftError("it was cancelled")
            await self._allowed(job)
            try:
                command = ("scontrol", "requeue", self._target)
                await self._audited.do("requeue", self._target, command, self._why, evidence=evidence)
            except BackendError:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _start_again(self, avoided: tuple[str, ...]) -> None:
        """Start the requeued job at once, without these nodes. Return when it runs, or is pending with the exclusion.

        Repeats the command, because Slurm ignores a StartTime that is set while the old attempt completes.
        """
        began = time.monotonic()
        waits_since: float | None = None
        while True:
            job = await self._look()
            if job.runs or job.state not in ("PENDING", "COMPLETED") or is_another(self._meant, self._attempt, job):
                return
            wanted = {*job.excluded, *avoided}
            ready = wanted == set(job.excluded) and job.begins_seconds <= time.time()
            if job.waits and ready:
                return
            waits_since = (waits_since or time.monotonic()) if job.waits else None
            if waits_since is not None and time.monotonic() - waits_since >= SETTLED_SECONDS:
                command = ["scontrol", "update", f"JobId={self._target}", "StartTime=now"]
                command += [f"ExcNodeList={join(sorted(wanted))}"] if wanted else []
                try:
                    await self._audited.do(
                        "start", self._target, tuple(command), "requeued: ends Slurm's two minutes of waiting"
                    )
                except BackendError:
                    if time.monotonic() - began > PATIENCE_SECONDS:
                        raise
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
            await asyncio.sleep(LOOK_SECONDS / 2)
