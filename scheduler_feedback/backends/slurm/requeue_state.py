"""Moves: which jobs are being requeued, how many may be at once, and what was begun before a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import Hands, Settings
from scheduler_feedback.backends.slurm.consent import is_another, who
from scheduler_feedback.backends.slurm.cycle_queries import Cycle
from scheduler_feedback.backends.slurm.desired_state import avoided_by, evidence_of
from scheduler_feedback.backends.slurm.node_plan import Change
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, Snapshot
from scheduler_feedback.backends.slurm.requeue import Requeue
from scheduler_feedback.backends.slurm.slurm_names import job_id_of
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.job import StopReason
from scheduler_feedback.core.state import State

ROOM_SECONDS = 5.0
"""Between two looks at whether one more job may be moved."""

_log = logging.getLogger(__name__)


class Moves:
    """Jobs on the move, by number and the attempt that each leaves. Called on the loop's thread.

    consent: reads what a job declares, now. snapshot: the newest look. say_once: to the audit. moved: called after
    each.
    """

    def __init__(
        self,
        hands: Hands,
        settings: Settings,
        cycle: Cycle,
        consent: Callable[[SlurmJob], Awaitable[OptIn]],
        snapshot: Callable[[], Snapshot | None],
        say_once: Callable[[Change, str], None],
        moved: Callable[[], None],
    ) -> None:
        self._hands, self._settings, self._cycle = hands, settings, cycle
        self._consent, self._snapshot = consent, snapshot
        self._say_once, self._moved = say_once, moved
        self._under_way: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._began_at: deque[float] = deque()

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def stop(self, action: StopGang, number: int, job: SlurmJob | None) -> None:
        """Set it going; the same once more does nothing while it is under way. job: the one that is meant."""
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
        """What an earlier controller has begun: jobs that were requeued and not let go of yet."""
        for text, moving in list(self._hands.touched.moving.items()):
            self._begin(
                StopGang(
                    "a-resumed", job_id_of(int(text)), moving.attempt, "SIGTERM", 0.0, StopReason.MIGRATE,
                    "begun before a restart",
                ),
                int(text),
                (moving.user, moving.submitted_seconds),
            )  # fmt: skip

    def end(self) -> None:
        """Leave them as they are."""
        for task in self._under_way.values():
            task.cancel()

    async def _cancel(self, action: StopGang, number: int, meant: tuple[str, float]) -> None:
        """The job that was meant, and no other that has got its number since."""
        command = ("scancel", str(number))
        try:
            job = await self._hands.job(number)
            if job is None or is_another(meant, action.attempt, job):
                why = "it has vanished" if job is None else f"number {number} is another job's by now"
                self._hands.audit.write("cancel", str(number), f"withheld: {why}", action.reason, command)
            else:
                await self._hands.do("cancel", str(number), command, action.reason)
                await self._hands.job(number)
        except BackendError as error:
            _log.warning("%s: %s", action.action_id, error)
        self._moved()

    async def _move(self, action: StopGang, number: int, meant: tuple[str, float]) -> None:
        """Once there is room for one more; the node is drained by the round that this has woken."""
        while why := self._no_room(number):
            command = ("scontrol", "requeue", str(number))
            self._say_once(Change("requeue", str(number), command, why), f"withheld: {why}")
            await asyncio.sleep(ROOM_SECONDS)
        self._began_at.append(time.monotonic())
        nothing: tuple[str, ...] = ()
        avoided, evidence, place = await self._cycle.asked(
            lambda state: _of_move(state, action.job_id), (nothing, nothing, nothing)
        )
        why = evidence[0] if evidence else action.reason
        requeue = Requeue(
            self._hands, number, action.attempt, meant, self._consent, self._nodes, self._cycle.frozen, why
        )
        try:
            _log.info("%s: job %d: %s", action.action_id, number, await requeue.run(avoided, evidence, place))
        except BackendError as error:
            _log.warning("%s: job %d: %s; it is tried again", action.action_id, number, error)
        self._moved()

    def _no_room(self, number: int) -> str:
        """Why not one more job may be moved now; '' where it may. One at a time always may, however large it is."""
        now, most = time.monotonic(), self._settings.requeues_per_hour
        while self._began_at and now - self._began_at[0] > 3600.0:
            self._began_at.popleft()
        if len(self._began_at) >= most:
            return f"{most} jobs an hour are the most that may be moved"
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
    """Nodes to keep away from, the evidence of the verdicts for which the job moves, and the nodes meant for it."""
    job = state.jobs.get(job_id)
    place = tuple(sorted({slot.node for slot in job.claim})) if job is not None else ()
    evidence = [
        f"{verdict.verdict_id}: {fact}"
        for verdict in state.verdicts.values()
        if verdict.gang == job_id
        for fact in evidence_of(verdict)
    ]
    return avoided_by(state, job_id), tuple(evidence), place
