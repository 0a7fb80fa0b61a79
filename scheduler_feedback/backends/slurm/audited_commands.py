"""Audited commands: every change of Slurm runs here, with an audit line and a record of what must be undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import changed_objects as memory
from scheduler_feedback.backends.slurm.changed_objects import Touched
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.slurm_audit import Audit
from scheduler_feedback.backends.slurm.slurm_commands import Commands


class AuditedCommands:
    """Executor of changes in Slurm. job_read: called with each job that is read singly from Slurm."""

    def __init__(
        self, commands: Commands, audit: Audit, path: Path, job_read: Callable[[int, SlurmJob | None], None]
    ) -> None:
        self.commands = commands
        self.audit = audit
        self.touched: Touched = memory.read(path)
        self._path = path
        self._job_read = job_read

    def remember(self) -> None:
        """Save the record of gangwatch's changes. Call it before each change in Slurm.

        Raises BackendError; the caller must then not make the change.
        """
        memory.write(self._path, self.touched)

    async def do(
        self,
        action: str,
        target: str,
        command: tuple[str, ...],
        why: str,
        verdict: str = "",
        evidence: tuple[str, ...] = (),
        given: str | None = None,
    ) -> str:
        """Run the command, write an audit line and return the output. Raises BackendError if it fails."""
        try:
            output = await self.commands.run(*command, given=given)
        except BackendError as error:
            self.audit.write(action, target, f"failed: {error}", why, command, verdict, evidence)
            raise
        self.audit.write(action, target, "done", why, command, verdict, evidence)
        return output.decode(errors="replace")

    async def job(self, number: int) -> SlurmJob | None:
        """Read one job from Slurm and return it; None if it no longer exists. Raises BackendError if the read fails."""
        found = await self.commands.job(number)
        self._job_read(number, found)
        return found
