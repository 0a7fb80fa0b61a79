"""Execution of the plan at a limited rate, with a record of the changes that must be undone."""

from __future__ import annotations

import time
from collections import deque

from agent.schema.clock import Clock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.changed_objects import Weighed
from scheduler_feedback.backends.slurm.consent import is_another, who
from scheduler_feedback.backends.slurm.desired_state import DesiredState
from scheduler_feedback.backends.slurm.node_plan import Change, plan
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Snapshot
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_names import number_of


class NodeUpdater:
    """Executor of the plan: it brings Slurm's nodes and pending jobs into the desired state."""

    def __init__(self, audited: AuditedCommands, settings: SlurmSection, clock: Clock) -> None:
        self._audited, self._settings, self._clock = audited, settings, clock
        self._audited_once: set[tuple[str, str, str]] = set()
        self._changed_at: deque[float] = deque()

    async def keep(self, desired: DesiredState, snapshot: Snapshot) -> list[str]:
        """Make the planned changes and return the quarantined nodes that an operator has resumed.

        A failed change is written to the audit; the next scan plans it again if it is still needed.
        """
        settings = self._settings
        found = plan(
            desired,
            snapshot,
            self._audited.touched,
            settings.partition_share,
            settings.comments,
            self._clock.wall_ns() / 1e9,
        )
        for name in found.released:
            self._audited.touched.drained.pop(name, None)
            self._audited.remember()
            self._audited.audit.write("release", name, "done", "an operator resumed it in Slurm; the quarantine ends")
        for change in found.advised:
            self.audit_once(change, "would")
        for job_id, why in desired.moves.items():
            number = str(number_of(job_id))
            change = Change("requeue", number, ("scontrol", "requeue", number), why, verdict=why.partition(": ")[0])
            self.audit_once(change, "would")
        for change, why in found.withheld:
            self.audit_once(change, f"withheld: {why}")
        for change in found.changes:
            if self._too_many(change):
                break
            try:
                if why := await self._stale(change, snapshot):
                    self.audit_once(change, f"withheld: {why}")
                    continue
                await self._make(change)
            except BackendError:
                continue
        return found.released

    async def _stale(self, change: Change, snapshot: Snapshot) -> str:
        """Return why a planned change of a job no longer applies; '' if the job has not changed since the snapshot.

        A snapshot may be 30 s old, and the commands before this one take time. Raises BackendError if the job cannot
        be read.
        """
        if change.action not in ("exclude", "include"):
            return ""
        seen = snapshot.jobs[int(change.target)]
        job = await self._audited.job(seen.number)
        if job is None or is_another(who(seen), seen.restarts, job):
            return f"job {seen.number} no longer exists"
        if not job.waits or set(job.excluded) != set(seen.excluded):
            return "it has changed since the scan"
        if change.action == "exclude" and not of_comment(job.comment).restartable:
            return "its owner has withdrawn consent"
        return ""

    def audit_once(self, change: Change, outcome: str) -> None:
        """Write an audit line about a change that is not made, once per reason."""
        key = change.action, change.target, change.episode or change.why
        if key not in self._audited_once:
            self._audited_once.add(key)
            self._audited.audit.write(
                change.action, change.target, outcome, change.why, change.command, change.verdict, change.evidence
            )

    def _too_many(self, change: Change) -> bool:
        """Return whether the limit of changes a minute is reached; a later scan plans the remaining changes again."""
        now, most = time.monotonic(), self._settings.changes_per_minute
        while self._changed_at and now - self._changed_at[0] > 60.0:
            self._changed_at.popleft()
        if len(self._changed_at) < most:
            self._changed_at.append(now)
            return False
        self.audit_once(change, f"withheld: the limit is {most} changes a minute")
        return True

    async def _make(self, change: Change) -> None:
        """Record the change, run its command, and delete the records of earlier changes that the command undid."""
        touched, name = self._audited.touched, change.target
        if change.action == "drain":
            touched.drained[name] = change.episode
        elif change.action == "weigh" and change.weighs is not None:
            touched.weighed[name] = Weighed(*change.weighs)
        elif change.action == "exclude":
            touched.excluded[name] = list(change.nodes)
        if change.action in ("drain", "weigh", "exclude"):
            self._audited.remember()
        if change.command:
            try:
                await self._audited.do(change.action, name, change.command, change.why, change.verdict, change.evidence)
            except BackendError:
                if change.action == "drain":  # otherwise the next scan would conclude that an operator resumed it
                    del touched.drained[name]
                    self._audited.remember()
                raise
        if change.action == "resume":
            touched.drained.pop(name, None)
        elif change.action == "unweigh":
            touched.weighed.pop(name, None)
        elif change.action == "include":
            touched.excluded.pop(name, None)
        if change.action in ("resume", "unweigh", "include"):
            self._audited.remember()
