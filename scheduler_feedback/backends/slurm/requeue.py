"""Requeue: a job leaves its nodes so that it can save, and is started again at once, without those that are accused.

::

    1  is it still the job and attempt that was meant, does its owner still allow it, and are
       enough nodes left without the accused?                                                   else nothing is done
    2  a reservation over the nodes that it is to have next, its own among them: nobody else starts there meanwhile
    3  the checkpoint signal, and a wait: until its processes have ended, or for as long as it said that it takes
    4  what is about to happen is written down                                                  (touched.py)
    5  scontrol requeue: Slurm ends what is left of it, and keeps it from starting for two minutes
    6  once it has been pending for a moment: its exclusion, and StartTime=now, which ends those two minutes
    7  the reservation goes, and the job starts by its place in the queue, which a requeue does not change

Owner, state and consent are read again right before the signal, and again right before the requeue: a save may take a
day, in which its owner may change the comment, and Slurm may give the number to another job.

After a crash 5 to 7 are taken up where they were left: what Slurm says of the job, its count of restarts above all,
tells which of them has happened. Where the reservation can't be had the job is moved all the same; and it ends by
itself some minutes after the save should have. The node is drained or weighed beside this (plan.py), so a job whose
exclusion never came does not return to it first either.
"""

from __future__ import annotations

import asyncio
import getpass
import math
import time
from collections.abc import Awaitable, Callable, Mapping

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import Hands
from scheduler_feedback.backends.slurm.changed_objects import Moving
from scheduler_feedback.backends.slurm.consent import is_another
from scheduler_feedback.backends.slurm.node_plan import enough_left
from scheduler_feedback.backends.slurm.parsing.hostlist import join
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode
from scheduler_feedback.backends.slurm.slurm_names import why_not

LOOK_SECONDS = 0.5
"""Between two looks at the one job that is being moved."""

SETTLED_SECONDS = 1.5
"""From when none of its processes is left until it may start: to its nodes' daemons a credential made in the second in
which they ended the job is one of the attempt that is over, and they kill the new one (slurmd revokes by whole seconds;
Slurm itself waits two minutes). Half a second is for clocks that differ."""

RETRY_SECONDS = 2.0
KEPT = "gangwatch_job_"
KEPT_SECONDS = 300.0
"""How much longer than a save takes the reservation lasts at the most: ours may die before it lets go."""

PATIENCE_SECONDS = 600.0
"""How long slurmctld may be away in the middle of it; a longer absence is taken up when the job is seen again."""


class LeftError(Exception):
    """The attempt is over, or the job is gone, without our doing; the message says what was found."""


class Requeue:
    """Moves one attempt of one job.

    meant: its owner, and when it was submitted; ('', 0) where that is not known. consent: reads what it declares, now.
    nodes: as of now. frozen: whether nothing may be done any more.
    """

    def __init__(
        self,
        hands: Hands,
        number: int,
        attempt: int,
        meant: tuple[str, float],
        consent: Callable[[SlurmJob], Awaitable[OptIn]],
        nodes: Callable[[], Mapping[str, SlurmNode]],
        frozen: Callable[[], Awaitable[bool]],
        why: str,
    ) -> None:
        self._hands, self._number, self._attempt = hands, number, attempt
        self._meant, self._consent = meant, consent
        self._nodes, self._frozen = nodes, frozen
        self._why = why
        self._target = str(number)

    async def run(self, avoided: tuple[str, ...], evidence: tuple[str, ...] = (), place: tuple[str, ...] = ()) -> str:
        """Move it; what came of it, in words. Raises BackendError where it could not be done to the end.

        place: the nodes that are meant for its next attempt, where there are such.
        """
        try:
            return await self._run(avoided, evidence, place)
        except LeftError as left:
            await self._let_go()
            self._hands.touched.moving.pop(self._target, None)
            self._hands.remember()
            self._hands.audit.write("requeue", self._target, f"withheld: {left}", self._why)
            return str(left)

    async def _run(self, avoided: tuple[str, ...], evidence: tuple[str, ...], place: tuple[str, ...]) -> str:
        moving = self._hands.touched.moving.get(self._target)
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
            self._hands.touched.moving[self._target] = moving
            self._hands.remember()
        await self._requeue(evidence)
        await self._start_again(tuple(moving.avoided))
        await self._let_go()
        self._hands.touched.moving.pop(self._target, None)
        self._hands.remember()
        return f"requeued without {join(moving.avoided) or 'any exclusion'}"

    # --- 1 -----------------------------------------------------------------------------------------------------------

    async def _look(self) -> SlurmJob:
        """The job, however long slurmctld takes to answer. Raises LeftError where it is gone."""
        began = time.monotonic()
        while True:
            try:
                job = await self._hands.job(self._number)
            except BackendError:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if job is None:
                raise LeftError("it has vanished")
            return job

    async def _allowed(self, job: SlurmJob) -> OptIn:
        """What the job, as it was just looked at, declares. Raises LeftError where it may not be touched."""
        if is_another(self._meant, self._attempt, job):
            raise LeftError(f"number {self._number} is another job's by now, of {job.user}")
        opted = await self._consent(job)
        if refusal := why_not(job, opted):
            raise LeftError(f"by now it may not be moved: {refusal}")
        return opted

    def _still(self, job: SlurmJob) -> SlurmJob:
        if job.restarts != self._attempt:
            raise LeftError(f"it was restarted meanwhile ({job.restarts} times in all)")
        if not job.runs:
            raise LeftError(f"it is {job.state} by now")
        return job

    # --- 2 and 7 -----------------------------------------------------------------------------------------------------

    async def _keep(self, place: tuple[str, ...], opted: OptIn) -> str:
        """The name of the reservation, '' where there is none. It is written down before it is made."""
        if not place:
            return ""
        name = f"{KEPT}{self._target}"
        user, submitted_seconds = self._meant
        self._hands.touched.moving[self._target] = Moving(
            self._attempt, kept=name, user=user, submitted_seconds=submitted_seconds
        )
        self._hands.remember()
        minutes = math.ceil((opted.grace_seconds + KEPT_SECONDS) / 60)
        command = (
            "scontrol", "create", "reservation", f"ReservationName={name}", f"Users={getpass.getuser()}",
            "StartTime=now", f"Duration={minutes}", f"Nodes={join(sorted(place))}", "Flags=IGNORE_JOBS",
        )  # fmt: skip
        try:
            await self._hands.do("keep", self._target, command, "nobody else is to start there meanwhile")
        except BackendError:
            return ""  # there is a line about it; another reservation may stand there, or we may not make any
        return name

    async def _let_go(self) -> None:
        """The place is free for whoever is next, which is the job. What is not deleted ends by itself."""
        moving = self._hands.touched.moving.get(self._target)
        if moving is None or not moving.kept:
            return
        command = ("scontrol", "delete", f"ReservationName={moving.kept}")
        try:
            await self._hands.do("unkeep", self._target, command, "it may start")
        except BackendError:
            pass

    # --- 3 -----------------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Signal, and wait until it has exited or its time is up; one that has exited meanwhile is requeued too."""
        opted = await self._allowed(self._still(await self._look()))
        if not opted.signal:
            return
        command = ["scancel", f"--signal={opted.signal}"]
        command += ["--batch"] if opted.batch else []
        await self._hands.do("signal", self._target, (*command, self._target), f"to save: {self._why}")
        until = time.monotonic() + opted.grace_seconds
        while time.monotonic() < until:
            await asyncio.sleep(min(LOOK_SECONDS, max(until - time.monotonic(), 0.0)))
            job = await self._look()
            if job.restarts != self._attempt:
                raise LeftError(f"it was restarted meanwhile ({job.restarts} times in all)")
            if job.state == "CANCELLED":
                raise LeftError("somebody has cancelled it")
            if not job.runs:
                return

    # --- 5 and 6 -----------------------------------------------------------------------------------------------------

    async def _requeue(self, evidence: tuple[str, ...]) -> None:
        """Once: the job's count of restarts tells whether a command that failed or hung has done it all the same."""
        began = time.monotonic()
        while (job := await self._look()).restarts == self._attempt:
            if job.state == "CANCELLED":
                raise LeftError("somebody has cancelled it")
            await self._allowed(job)
            try:
                command = ("scontrol", "requeue", self._target)
                await self._hands.do("requeue", self._target, command, self._why, evidence=evidence)
            except BackendError:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _start_again(self, avoided: tuple[str, ...]) -> None:
        """Until it waits with its exclusion and may start, or runs. A start time set while it is completing is lost."""
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
                    await self._hands.do(
                        "start", self._target, tuple(command), "requeued: it need not wait two minutes"
                    )
                except BackendError:
                    if time.monotonic() - began > PATIENCE_SECONDS:
                        raise
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
            await asyncio.sleep(LOOK_SECONDS / 2)
