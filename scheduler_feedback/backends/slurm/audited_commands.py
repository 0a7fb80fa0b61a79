"""Audited commands: every change of Slurm runs here, with an audit line and a record of what must be undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import changed_objects as memory
from scheduler_feedback.backends.slurm.changed_objects import Touched
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.slurm_audit import Audit
from scheduler_feedback.backends.slurm.slurm_commands import Commands


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and intervals of the Slurm backend."""

    partition_share: float = 0.25
    """Largest fraction of a partition's nodes that gangwatch has drained, or empties by moving jobs, at one time."""

    requeues_per_hour: int = 12
    """Maximum number of jobs moved per hour."""

    changes_per_minute: int = 30
    """Maximum number of changes of nodes and pending jobs per minute."""

    idle_seconds: float = 30.0
    """Interval between two scans while all nodes are healthy."""

    attentive_seconds: float = 5.0
    """Between two scans while one is not."""

    comments: bool = True
    """Whether node comments are written."""


class AuditedCommands:
    """Executor of changes in Slurm. look: called with each job that is read on its own."""

    def __init__(
        self, commands: Commands, audit: Audit, path: Path, look: Callable[[int, SlurmJob | None], None]
    ) -> None:
        self.commands = commands
        self.audit = audit
        self.touched: Touched = memory.read(path)
        self._path = path
        self._look = look

    def remember(self) -> None:
        """Save the record of our changes before changing Slurm. Raises BackendError: then nothing may be changed."""
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
        """Return the job as it is now; None if it no longer exists. Raises BackendError."""
        found = await self.commands.job(number)
        self._look(number, found)
        return found
