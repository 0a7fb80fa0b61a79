"""Hands: the one way by which Slurm is changed: a command, its line in the audit, the memory of what to put back."""

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
    """partition_share: of a partition's nodes, the most that are drained by us, or left by jobs that we move, at once.
    requeues_per_hour: most jobs that are moved. changes_per_minute: most changes of nodes and pending jobs.
    idle_seconds, attentive_seconds: between two looks while nothing is the matter, and while something is.
    comments: whether nodes' comments are written.
    """

    partition_share: float = 0.25
    requeues_per_hour: int = 12
    changes_per_minute: int = 30
    idle_seconds: float = 30.0
    attentive_seconds: float = 5.0
    comments: bool = True


class Hands:
    """Changes Slurm. look: told of each job that was looked at on its own."""

    def __init__(
        self, commands: Commands, audit: Audit, path: Path, look: Callable[[int, SlurmJob | None], None]
    ) -> None:
        self.commands = commands
        self.audit = audit
        self.touched: Touched = memory.read(path)
        self._path = path
        self._look = look

    def remember(self) -> None:
        """Write down what was, or is about to be, changed. Raises BackendError: then it must not be changed."""
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
        """Run it, with a line about it; what it printed. Raises BackendError where it failed, which is a line too."""
        try:
            told = await self.commands.run(*command, given=given)
        except BackendError as error:
            self.audit.write(action, target, f"failed: {error}", why, command, verdict, evidence)
            raise
        self.audit.write(action, target, "done", why, command, verdict, evidence)
        return told.decode(errors="replace")

    async def job(self, number: int) -> SlurmJob | None:
        """The job as it is now; None where it has vanished. Raises BackendError."""
        found = await self.commands.job(number)
        self._look(number, found)
        return found
