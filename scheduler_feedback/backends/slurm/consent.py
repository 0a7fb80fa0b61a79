"""Consent of job owners to a restart, as of the newest snapshot.

It is read again before a job is signalled or requeued.

Consent belongs to one job, not to its number: the owner may change the comment at any time, and Slurm may give the
number to another user's job. So the consent is stored with the job's owner, and every scan reads the comment again.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn, of_comment, of_script
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.slurm_commands import Commands

SCRIPTS_A_SCAN = 20
"""Maximum number of batch scripts read after one scan; later scans read the rest."""

_Who = tuple[str, float]


def who(job: SlurmJob) -> _Who:
    """Return the job's owner and last submission time, which distinguish jobs that had the same number."""
    return job.user, job.submitted_seconds


def is_another(meant: _Who, attempt: int, job: SlurmJob) -> bool:
    """Return whether another job now has the number of the intended job.

    meant: ``who()`` of the intended job; ('', 0) if unknown. attempt: number of the intended attempt. job: as Slurm
    has it.
    """
    user, submitted_seconds = meant
    if not user:
        return False
    return job.user != user or (job.restarts == attempt and job.submitted_seconds != submitted_seconds)


class Consents:
    """Consent of the owners of running GPU jobs. Used in the event loop; any thread may call `known` and `is_known`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._scripts: dict[int, tuple[_Who, OptIn]] = {}

    def is_known(self, job: SlurmJob) -> bool:
        """Return whether the job's comment, and its batch script if needed, have been read."""
        return not _needs_script(job) or self._of_script(job) is not None

    def known(self, job: SlurmJob) -> OptIn:
        """Return the owner's consent; no consent if the job's batch script is needed and has not been read yet."""
        declared = of_comment(job.comment)
        return declared if not _needs_script(job) else self._of_script(job) or declared

    def _of_script(self, job: SlurmJob) -> OptIn | None:
        """Return the consent in the job's batch script when it was last read; None if it was never read.

        The job may have been requeued since, so the script is read again before the job is signalled or requeued.
        """
        found = self._scripts.get(job.number)
        return found[1] if found is not None and found[0][0] == job.user else None

    def _is_due(self, job: SlurmJob) -> bool:
        found = self._scripts.get(job.number)
        return _needs_script(job) and (found is None or found[0] != who(job))

    async def learn(self, jobs: Iterable[SlurmJob]) -> bool:
        """Read each needed batch script of running GPU jobs once. Return whether the next scan must read more."""
        listed = {job.number: job for job in jobs}
        self._scripts = {number: kept for number, kept in self._scripts.items() if number in listed}
        wanted = [job for job in listed.values() if job.runs and any(job.gpus) and self._is_due(job)]
        for job in wanted[:SCRIPTS_A_SCAN]:
            await self.read(job)
        return len(wanted) > SCRIPTS_A_SCAN

    async def read(self, job: SlurmJob) -> OptIn:
        """Return the owner's present consent. Read the batch script again if needed. job: just read from Slurm."""
        if not _needs_script(job):
            return of_comment(job.comment)
        declared = of_script(await self._commands.script(job.number))
        self._scripts[job.number] = who(job), declared
        return declared


def _needs_script(job: SlurmJob) -> bool:
    """Return whether the job's comment declares nothing, so that its batch script must be read for a declaration."""
    declared = of_comment(job.comment)
    return not declared.restartable and not declared.complaint and job.batch and job.requeue
