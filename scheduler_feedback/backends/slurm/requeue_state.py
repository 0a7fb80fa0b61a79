"""Requeues in progress: limits on their number, and resumption after a restart of the controller."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.consent import is_another, who
from scheduler_feedback.backends.slurm.cycle_queries import Cycle
from scheduler_feedback.backends.slurm.desired_state import avoided_by, evidence_of
from scheduler_feedback.backends.slurm.node_plan import Change
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, Snapshot
from scheduler_feedback.backends.slurm.requeue import Requeue
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_names import job_id_of
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State

ROOM_SECONDS = 5.0
"""Seconds between two checks whether the limits allow one more move."""

_log = logging.getLogger(__name__)


class Moves:
    """Jobs being moved, by number and attempt. Used in the event loop.

    consent: returns what a job's owner declares now. snapshot: returns the newest snapshot. audit_once: writes an
    audit line. moved: called after each move.
    """

    def __init__(
        self,
        audited: AuditedCommands,
        settings: SlurmSection,
        cycle: Cycle,
        consent: Callable[[SlurmJob], Awaitable[OptIn]],
        snapshot: Callable[[], Snapshot | None],
        audit_once: Callable[[Change, str], None],
        moved: Callable[[], None],
    ) -> None:
        self._audited, self._settings, self._cycle = audited, settings, cycle
        self._consent, self._snapshot = consent, snapshot
        self._audit_once, self._moved = audit_once, moved
        self._under_way: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._began_at: deque[float] = deque()

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def stop(self, action: StopGang, number: int, job: SlurmJob | None) -> None:
        """Begin to cancel or move an attempt, unless this has begun already. job: from the snapshot; None if not
        there.
        """
        self._begin(action, number, who(job) if job is not None else ("", 0.0))

    def _begin(self, action: StopGang, number: int, meant: tuple[str, float]) -> None:
        key = number, action.attempt
        if key in self._under_way:
            return
        cancels = action.why is StopReason.CANCEL
        work = self._cancel(action, number, meant) if cancels else self._move(action, number, meant)
        self._under_way[key] = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._under_way.pop(key, None))

    def take_up(self) -> None:
        """Continue the requeues that an earlier controller began and did not finish."""
        for text, moving in list(self._audited.touched.moving.items()):
            self._begin(
                StopGang(
                    "a-resumed", job_id_of(int(text)), moving.attempt, "SIGTERM", 0.0, StopReason.MIGRATE,
                    "started before the controller's restart",
                ),
                int(text),
                (moving.user, moving.submitted_seconds),
            )  # fmt: skip

    def end(self) -> None:
        """Stop following the requeues, and leave the jobs as they are."""
        for task in self._under_way.values():
            task.cancel()

    async def _cancel(self, action: StopGang, number: int, meant: tuple[str, float]) -> None:
        """Cancel the intended job, and never another job that now has its number."""
        command = ("scancel", str(number))
        try:
            job = await self._audited.job(number)
            if job is None or is_another(meant, action.attempt, job):
                why = "it no longer exists" if job is None else f"number {number} is now another job"
                self._audited.audit.write("cancel", str(number), f"withheld: {why}", action.reason, command)
            else:
                await self._audited.do("cancel", str(number), command, action.reason)
                await self._audited.job(number)
        except BackendError as error:
            _log.warning("%s: %s", action.action_id, error)
        self._moved()

    async def _move(self, action: StopGang, number: int, meant: tuple[str, float]) -> None:
        """Move the job once the limits allow it. Afterwards, the backend's next round drains the node."""
        while why := self._no_room(number):
            command = ("scontrol", "requeue", str(number))
            self._audit_once(Change("requeue", str(number), command, why), f"withheld: {why}")
            await asyncio.sleep(ROOM_SECONDS)
        self._began_at.append(time.monotonic())
        nothing: tuple[str, ...] = ()
        avoided, evidence, place = await self._cycle.asked(
            lambda state: _of_move(state, action.job_id), (nothing, nothing, nothing)
        )
        why = evidence[0] if evidence else action.reason
        requeue = Requeue(
            self._audited, number, action.attempt, meant, self._consent, self._nodes, self._cycle.frozen, why
        )
        try:
            _log.info("%s: job %d: %s", action.action_id, number, await requeue.run(avoided, evidence, place))
        except BackendError as error:
            _log.warning("%s: job %d: %s; the requeue is tried again", action.action_id, number, error)
        self._moved()

    def _no_room(self, number: int) -> str:
        """Return which limit forbids one more move now; '' if none does. One move at a time is always allowed."""
        now, most = time.monotonic(), self._settings.requeues_per_hour
        while self._began_at and now - self._began_at[0] > 3600.0:
            self._began_at.popleft()
        if len(self._began_at) >= most:
            return f"the limit is {most} moved jobs an hour"
        snapshot = self._snapshot()
        jobs = snapshot.jobs if snapshot is not None else {}
        job = jobs.get(number)
        if job is None:
            return ""
        others = [jobs[other] for other, _ in self._under_way if other != number and other in jobs]
        moving = sum(len(other.nodes) for other in others if other.partition == job.partition)
        nodes = sum(job.partition in node.partitions for node in self._nodes().values())
        if moving and moving + len(job.nodes) > nodes * self._settings.partition_share:
            return f"jobs on {moving} nodes of partition {job.partition} are being moved already"
        return ""

    def _nodes(self) -> dict[str, SlurmNode]:
        snapshot = self._snapshot()
        return snapshot.nodes if snapshot is not None else {}


def _of_move(state: State, job_id: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return three lists for a move: nodes to avoid, evidence of the verdicts, and nodes for the job's next attempt."""
    job = state.jobs.get(job_id)
    place = tuple(sorted({slot.node for slot in job.claim})) if job is not None else ()
    evidence = [
        f"{verdict.verdict_id}: {fact}"
        for verdict in state.verdicts.values()
        if verdict.gang == job_id
        for fact in evidence_of(verdict)
    ]
    return avoided_by(state, job_id), tuple(evidence), place
