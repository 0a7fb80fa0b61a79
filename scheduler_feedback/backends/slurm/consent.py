"""Consent of job owners to a restart, as of the newest snapshot; read again before a job is touched.

Consent belongs to one job, not to its number: the owner may change the comment at any time, and Slurm may give the
number to another user's job. So it is stored with the job's owner, and every scan reads the comment again.
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
    """Return the identity of a job among those with its number: its owner and the time of its (last) submission."""
    return job.user, job.submitted_seconds


def is_another(meant: _Who, attempt: int, job: SlurmJob) -> bool:
    """Return whether the number now belongs to another job. meant: ``who`` of the intended job; ('', 0) if unknown."""
    user, submitted_seconds = meant
    if not user:
        return False
    return job.user != user or (job.restarts == attempt and job.submitted_seconds != submitted_seconds)


class Consents:
    """Consent of running GPU jobs. Runs on the loop's thread; any thread may call `known` and `is_known`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._scripts: dict[int, tuple[_Who, OptIn]] = {}

    def is_known(self, job: SlurmJob) -> bool:
        """Return whether everything has been read: the comment, and the script if it is needed."""
        return not _needs_script(job) or self._of_script(job) is not None

    def known(self, job: SlurmJob) -> OptIn:
        """Return the consent as far as it has been read; none while the job's script is still to be read."""
        declared = of_comment(job.comment)
        return declared if not _needs_script(job) else self._of_script(job) or declared

    def _of_script(self, job: SlurmJob) -> OptIn | None:
        """Return what the script declared when last read, even before a requeue: it is read again before acting."""
        found = self._scripts.get(job.number)
        return found[1] if found is not None and found[0][0] == job.user else None

    def _is_due(self, job: SlurmJob) -> bool:
        found = self._scripts.get(job.number)
        return _needs_script(job) and (found is None or found[0] != who(job))

    async def learn(self, jobs: Iterable[SlurmJob]) -> bool:
        """Read each needed script of running GPU jobs once; return whether some are left for the next scan."""
        listed = {job.number: job for job in jobs}
        self._scripts = {number: kept for number, kept in self._scripts.items() if number in listed}
        wanted = [job for job in listed.values() if job.runs and any(job.gpus) and self._is_due(job)]
        for job in wanted[:SCRIPTS_A_SCAN]:
            await self.read(job)
        return len(wanted) > SCRIPTS_A_SCAN

    async def read(self, job: SlurmJob) -> OptIn:
        """Return the consent now, and read the script again. job: as just read from Slurm."""
        if not _needs_script(job):
            return of_comment(job.comment)
        declared = of_script(await self._commands.script(job.number))
        self._scripts[job.number] = who(job), declared
        return declared


def _needs_script(job: SlurmJob) -> bool:
    """Return whether the comment declares nothing and the job's script may."""
    declared = of_comment(job.comment)
    return not declared.restartable and not declared.complaint and job.batch and job.requeue
