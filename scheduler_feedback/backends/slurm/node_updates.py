"""The keeper of nodes: carries a plan out, at a bounded rate, and keeps the memory of what has to be put back."""

from __future__ import annotations

import time
from collections import deque

from agent.schema.clock import Clock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import Hands, Settings
from scheduler_feedback.backends.slurm.changed_objects import Weighed
from scheduler_feedback.backends.slurm.consent import is_another, who
from scheduler_feedback.backends.slurm.desired_state import Wishes
from scheduler_feedback.backends.slurm.node_plan import Change, plan
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Snapshot
from scheduler_feedback.backends.slurm.slurm_names import number_of


class Keeper:
    """Makes Slurm's nodes and waiting jobs as the cycle wishes them."""

    def __init__(self, hands: Hands, settings: Settings, clock: Clock) -> None:
        self._hands, self._settings, self._clock = hands, settings, clock
        self._said: set[tuple[str, str, str]] = set()
        self._changed_at: deque[float] = deque()

    async def keep(self, wishes: Wishes, snapshot: Snapshot) -> list[str]:
        """Change what is not as it should be; nodes that an operator has released by resuming them.

        What fails is in the audit, and the next look shows whether it is still to be done.
        """
        settings = self._settings
        found = plan(
            wishes,
            snapshot,
            self._hands.touched,
            settings.partition_share,
            settings.comments,
            self._clock.wall_ns() / 1e9,
        )
        for name in found.released:
            self._hands.touched.drained.pop(name, None)
            self._hands.remember()
            self._hands.audit.write("release", name, "done", "somebody has resumed it: that word goes before ours")
        for change in found.advised:
            self.say_once(change, "would")
        for job_id, why in wishes.moves.items():
            number = str(number_of(job_id))
            change = Change("requeue", number, ("scontrol", "requeue", number), why, verdict=why.partition(": ")[0])
            self.say_once(change, "would")
        for change, why in found.withheld:
            self.say_once(change, f"withheld: {why}")
        for change in found.changes:
            if self._too_many(change):
                break
            try:
                if why := await self._stale(change, snapshot):
                    self.say_once(change, f"withheld: {why}")
                    continue
                await self._make(change)
            except BackendError:
                continue
        return found.released

    async def _stale(self, change: Change, snapshot: Snapshot) -> str:
        """Why a change of a job is not made that the look called for; '' where the job is still as it was then.

        A look may be half a minute old, and the commands before this one take their time. Raises BackendError.
        """
        if change.action not in ("exclude", "include"):
            return ""
        seen = snapshot.jobs[int(change.target)]
        job = await self._hands.job(seen.number)
        if job is None or is_another(who(seen), seen.restarts, job):
            return f"job {seen.number} is gone"
        if not job.waits or set(job.excluded) != set(seen.excluded):
            return "it has changed since the look"
        if change.action == "exclude" and not of_comment(job.comment).restartable:
            return "its owner has withdrawn the consent"
        return ""

    def say_once(self, change: Change, outcome: str) -> None:
        """A line in the audit about what is not done, the first time that it is so."""
        key = change.action, change.target, change.episode or change.why
        if key not in self._said:
            self._said.add(key)
            self._hands.audit.write(
                change.action, change.target, outcome, change.why, change.command, change.verdict, change.evidence
            )

    def _too_many(self, change: Change) -> bool:
        """Whether the minute's changes are used up; what is left over is done after a later look."""
        now, most = time.monotonic(), self._settings.changes_per_minute
        while self._changed_at and now - self._changed_at[0] > 60.0:
            self._changed_at.popleft()
        if len(self._changed_at) < most:
            self._changed_at.append(now)
            return False
        self.say_once(change, f"withheld: {most} changes a minute are the most allowed")
        return True

    async def _make(self, change: Change) -> None:
        """Write down what will have to be put back, change it, forget what has been put back."""
        touched, name = self._hands.touched, change.target
        if change.action == "drain":
            touched.drained[name] = change.episode
        elif change.action == "weigh" and change.weighs is not None:
            touched.weighed[name] = Weighed(*change.weighs)
        elif change.action == "exclude":
            touched.excluded[name] = list(change.nodes)
        if change.action in ("drain", "weigh", "exclude"):
            self._hands.remember()
        if change.command:
            try:
                await self._hands.do(change.action, name, change.command, change.why, change.verdict, change.evidence)
            except BackendError:
                if change.action == "drain":  # else the next look would take it for somebody's resume
                    del touched.drained[name]
                    self._hands.remember()
                raise
        if change.action == "resume":
            touched.drained.pop(name, None)
        elif change.action == "unweigh":
            touched.weighed.pop(name, None)
        elif change.action == "include":
            touched.excluded.pop(name, None)
        if change.action in ("resume", "unweigh", "include"):
            self._hands.remember()
