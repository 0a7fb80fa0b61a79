"""Probing: a drained node runs our probe and nothing else: it is resumed inside of a reservation that is ours alone."""

from __future__ import annotations

import asyncio
import getpass
import math
import shlex

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.hands import Hands
from scheduler_feedback.backends.slurm.translate import OURS
from scheduler_feedback.core.actions import StartGang

LOOK_SECONDS = 1.0

FAILED = 1
"""Exit code of a probe of which Slurm does not tell how it ended."""


def reservation_of(node: str) -> str:
    return f"gangwatch_{node}"


class Probe:
    """One probe of one node. number: its job, once it is submitted. exit_code: once it has ended."""

    def __init__(self, hands: Hands, action: StartGang) -> None:
        assert action.spec.pinned_node is not None
        self._hands, self._action = hands, action
        self.node = action.spec.pinned_node
        self.number: int | None = None
        self.running = False
        self.exit_code: int | None = None
        self.failure = ""

    async def run(self) -> None:
        """Reserve, resume, run, drain, let go. What goes wrong is the probe's failure, and the node stays drained."""
        try:
            await self._run()
        except BackendError as error:
            self.failure = str(error)
        finally:
            await let_go(self._hands, self.node, "its probe has ended")
        if self.exit_code is None:
            self.exit_code = FAILED

    async def _run(self) -> None:
        hands, spec, node = self._hands, self._action.spec, self.node
        name = reservation_of(node)
        minutes = math.ceil((spec.time_limit_seconds or 60.0) / 60) + 1
        why = f"{self._action.job_id} measures it"
        hands.touched.reserved[node] = name
        hands.touched.drained.pop(node, None)
        hands.remember()
        await hands.do(
            "reserve", node,
            ("scontrol", "create", "reservation", f"ReservationName={name}", f"Users={getpass.getuser()}",
             "StartTime=now", f"Duration={minutes}", f"Nodes={node}", "Flags=IGNORE_JOBS"),
            why,
        )  # fmt: skip
        await hands.do("resume", node, ("scontrol", "update", f"NodeName={node}", "State=RESUME"), why)
        told = await hands.do(
            "probe", node,
            ("sbatch", "--parsable", f"--job-name={self._action.job_id}", f"--reservation={name}", "--nodes=1",
             f"--nodelist={node}", f"--ntasks={spec.ranks}", f"--gpus-per-node={spec.ranks}", f"--time={minutes}",
             "--output=/dev/null", "--no-requeue"),
            why,
            given=f"#!/bin/sh\nexec srun --ntasks={spec.ranks} {shlex.join(spec.command)}\n",
        )  # fmt: skip
        number = told.strip().partition(";")[0]
        if not number.isdecimal():
            raise BackendError(f"sbatch: {told[:60]!r} is no job's number")
        self.number = int(number)
        while (job := await hands.job(self.number)) is not None and (job.waits or job.runs or job.completing):
            self.running |= job.runs
            await asyncio.sleep(LOOK_SECONDS)
        self.running = True
        if job is None:
            raise BackendError(f"job {self.number}, the probe of {node}, has vanished")
        self.exit_code = job.exit_code if job.state == "COMPLETED" or job.exit_code else FAILED


async def let_go(hands: Hands, node: str, why: str) -> None:
    """End the reservation; the node is drained first, so that nothing starts on it before the cycle has decided."""
    reason = f"Reason={OURS}{why}"
    try:
        await hands.do("drain", node, ("scontrol", "update", f"NodeName={node}", "State=DRAIN", reason), why)
        hands.touched.drained[node] = "probed"
        hands.remember()
        name = hands.touched.reserved.get(node, reservation_of(node))
        await hands.do("unreserve", node, ("scontrol", "delete", f"ReservationName={name}"), why)
    except BackendError as error:
        if "Requested reservation is invalid" not in str(error):
            return  # it stays in `reserved`, and is let go of at the next start or probe
    hands.touched.reserved.pop(node, None)
    hands.remember()
