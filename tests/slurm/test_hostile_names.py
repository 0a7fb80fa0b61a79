"""A real slurmctld prints hostile job names, comments and folders unchanged; the backend reads its jobs correctly."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Jobs, SlurmJob
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from tests.slurm.bed import Bed

SCRIPT = b"#!/bin/sh\nsleep 600\n"
FORGED = (
    "JobId={victim} JobName=llm UserId=victim(1000) JobState=RUNNING Requeue=1 BatchFlag=1 "
    "Comment=gangwatch:restartable,signal=KILL"
)


def submit(bed: Bed, folder: bytes, *options: bytes) -> int:
    """Submit a job as user "nobody". Raises CalledProcessError if Slurm refuses the bytes."""
    done = subprocess.run(
        [b"sbatch", b"--parsable", b"--output=/dev/null", b"--uid=nobody", b"--chdir=" + folder, *options],
        env=bed.environment, input=SCRIPT, capture_output=True, check=True,
    )  # fmt: skip
    return int(done.stdout.strip().partition(b";")[0])


@pytest.mark.parametrize("text", [True, False], ids=["text", "json"])
def test_slurms_output_for_hostile_jobs_is_read_correctly(bed: Bed, work: Path, text: bool) -> None:
    victim = submit(bed, b"/tmp", b"--job-name=llm", b"--comment=do-not-touch", b"--nodes=2", b"--gpus-per-node=4")
    forged = FORGED.format(victim=victim).encode()
    folder = bytes(work) + b"/x\n" + forged
    Path(folder.decode()).mkdir()
    rivals = [
        (b"--job-name=x\n" + forged, b"--comment=a\n" + forged),
        (b"--job-name=u\xe2\x80\xa8" + forged + b"\xc2\x85\x0c", b"--comment=\x0c"),
        (b"--job-name=bad \xff\xfe utf", b"--comment=c\xffd"),
        (b"--job-name=\x1b]0;owned\x07", b"--comment=\xe2\x80\xae"),
        (b"--job-name=x UserId=root(0) NodeList=gpu[001-002] Restarts=7 ", b"--account=a JobState=PENDING"),
        (b"--job-name=" + b"n" * 1024, b"--comment=" + b"c" * 1024),
    ]
    numbers = [submit(bed, folder, b"--gpus-per-node=1", *options) for options in rivals]
    imitates = submit(bed, folder, b"--gpus-per-node=1", b"--nodelist=gpu009",
                      b"--job-name= Nodes=gpu009 CPU_IDs=0 Mem=0 GRES=gpu:h200:8(IDX:0-7)")  # fmt: skip
    commands = Commands(None, str(bed.configuration), text=text)
    found: Jobs | None = None

    def all_run() -> bool:
        nonlocal found
        found = asyncio.run(commands.jobs())
        if text and not found.refused:
            return False  # the last job has no node yet
        seen = [found.records.get(number) for number in (victim, *numbers, *(() if text else (imitates,)))]
        return all(job is not None and job.runs for job in seen)

    bed.wait_for("the jobs", all_run)
    assert found is not None
    jobs = found.records

    def who(job: SlurmJob) -> tuple[str, int, bool]:
        return job.user, job.restarts, of_comment(job.comment).restartable

    assert who(jobs[victim]) == ("nobody", 0, False)
    assert (jobs[victim].name, jobs[victim].comment, len(jobs[victim].nodes)) == ("llm", "do-not-touch", 2)
    assert jobs[victim].gpus == ((0, 1, 2, 3), (0, 1, 2, 3))
    for number in numbers:
        assert (jobs[number].user, jobs[number].restarts, len(jobs[number].gpus)) == ("nobody", 0, 1)
        assert len(jobs[number].gpus[0]) == 1
    # The job's comment is the owner's text, even on a second line.
    assert who(jobs[numbers[0]])[2] and not who(jobs[numbers[1]])[2]
    if text:
        assert imitates not in jobs and [one.key for one in found.refused] == [imitates]
    else:
        assert jobs[imitates].gpus[0] and not found.refused
    assert asyncio.run(commands.job(victim)) == jobs[victim]
