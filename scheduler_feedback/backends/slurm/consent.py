"""Consent: what jobs' owners have declared, as of the newest look, and read afresh before a job is touched.

A declaration is of one job, not of a number: its owner may change the comment at any time, and Slurm may give the
number to somebody else's job. So it is kept with the job's owner, and the comment is read again at every look.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn, of_comment, of_script
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.slurm_commands import Commands

SCRIPTS_A_LOOK = 20
"""Most batch scripts read after one look; the rest is read after the next ones."""

_Who = tuple[str, float]


def who(job: SlurmJob) -> _Who:
    """What tells this job from another of its number: the owner, and when it was submitted (again, by a requeue)."""
    return job.user, job.submitted_seconds


def is_another(meant: _Who, attempt: int, job: SlurmJob) -> bool:
    """Whether the number is another job's by now. meant: who the job was in its attempt; ('', 0) where nobody knows."""
    user, submitted_seconds = meant
    if not user:
        return False
    return job.user != user or (job.restarts == attempt and job.submitted_seconds != submitted_seconds)


class Consents:
    """Declarations of running GPU jobs. Called on the loop's thread; `known` and `is_known` from any."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._scripts: dict[int, tuple[_Who, OptIn]] = {}

    def is_known(self, job: SlurmJob) -> bool:
        """Whether all that counts has been read: the comment, and the script where that is needed."""
        return not _needs_script(job) or self._of_script(job) is not None

    def known(self, job: SlurmJob) -> OptIn:
        """What the job has declared, as far as it was read; nothing where its script is to be read yet."""
        declared = of_comment(job.comment)
        return declared if not _needs_script(job) else self._of_script(job) or declared

    def _of_script(self, job: SlurmJob) -> OptIn | None:
        """What its script declared when it was read, be that before a requeue: it is read again before acting."""
        found = self._scripts.get(job.number)
        return found[1] if found is not None and found[0][0] == job.user else None

    def _is_due(self, job: SlurmJob) -> bool:
        found = self._scripts.get(job.number)
        return _needs_script(job) and (found is None or found[0] != who(job))

    async def learn(self, jobs: Iterable[SlurmJob]) -> bool:
        """Read the scripts of running GPU jobs that need it, once a job; whether some are left for the next look."""
        listed = {job.number: job for job in jobs}
        self._scripts = {number: kept for number, kept in self._scripts.items() if number in listed}
        wanted = [job for job in listed.values() if job.runs and any(job.gpus) and self._is_due(job)]
        for job in wanted[:SCRIPTS_A_LOOK]:
            await self.read(job)
        return len(wanted) > SCRIPTS_A_LOOK

    async def read(self, job: SlurmJob) -> OptIn:
        """What the job declares now. job: as it was just looked at; its script is read again."""
        if not _needs_script(job):
            return of_comment(job.comment)
        declared = of_script(await self._commands.script(job.number))
        self._scripts[job.number] = who(job), declared
        return declared


def _needs_script(job: SlurmJob) -> bool:
    """Whether the comment declares nothing, and the job is one whose script may."""
    declared = of_comment(job.comment)
    return not declared.restartable and not declared.complaint and job.batch and job.requeue
