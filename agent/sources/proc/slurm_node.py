"""What Slurm leaves on a node besides control groups: its step daemons, the environment of tasks, and job files.

An environment is what its process says of itself: it names no job here, only the rank inside a job that is attested.
"""

from __future__ import annotations

import os
import re

from agent.sources.files import read_file

MAX_ENVIRONMENT_BYTES = 1 << 18
"""As much of an environment is read: where it is longer, what we look for stands before it or is not found."""

_STEP_DAEMON = re.compile(rb"slurmstepd: \[(\d+)\.([0-9A-Za-z_]+)\]")
"""The title that slurmstepd gives its process: ``slurmstepd: [JOB.STEP]`` (slurmstepd.c, init_setproctitle)."""

_DEVICE_FILE = re.compile(r"(?:GPU-|MIG-)?[0-9A-Za-z/._-]{1,120}\Z")

MAX_JOB_FILES = 1024
MAX_JOBS_A_FILE = 64

RANK = ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
ATTEMPT = ("GANGWATCH_ATTEMPT", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
JOB = ("SLURM_JOB_ID",)
"""The names under which launchers tell a process, the first that is there counts; gangwatch/steps.py has the same."""


def read_environment(proc_root: str, pid: int) -> dict[str, str]:
    """The numbers under RANK, ATTEMPT and JOB that the process was started with; {} where it may not be read."""
    try:
        descriptor = os.open(f"{proc_root}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    data = b""
    try:
        while len(data) < MAX_ENVIRONMENT_BYTES and (more := os.read(descriptor, 65536)):
            data += more
    except OSError:
        return {}
    finally:
        os.close(descriptor)
    return parse_environment(data)


_WANTED = {name.encode(): name for name in (*RANK, *ATTEMPT, *JOB)}


def parse_environment(data: bytes) -> dict[str, str]:
    """The wanted names of a NUL-separated environment whose values are numbers. Of a name twice, the first counts."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        key, _, value = entry.partition(b"=")
        name = _WANTED.get(key)
        if name is not None and value.isdigit() and len(value) < 10:
            found.setdefault(name, str(int(value)))
    return found


def step_of_daemon(proc_root: str, pid: int, trusted_uid: int = 0) -> tuple[str, str] | None:
    """Job and step, where the process is a slurmstepd of root's; None for any other.

    Only processes of `trusted_uid` are believed: anybody may give a process of his own any title.
    """
    folder = f"{proc_root}/{pid}"
    try:
        if os.stat(folder).st_uid != trusted_uid:
            return None
        match = _STEP_DAEMON.match(read_file(f"{folder}/cmdline"))
    except OSError:
        return None
    return None if match is None else (match.group(1).decode(), match.group(2).decode())


def read_job_files(folder: str) -> tuple[tuple[str, str], ...]:
    """(GPU, job) of every file in dcgm-exporter's job mapping folder, sorted; a prolog writes them, an epilog removes.

    A file is named by a GPU (index, ``INDEX.GPU-INSTANCE`` or UUID) and holds job ids, one a line
    (dcgm-exporter's README, "--hpc-job-mapping-dir"). One that is not of that form is left out. Raises OSError where
    the folder cannot be listed.
    """
    found: list[tuple[str, str]] = []
    for name in sorted(os.listdir(folder))[:MAX_JOB_FILES]:
        if _DEVICE_FILE.match(name) is None:
            continue
        try:
            lines = read_file(f"{folder}/{name}").decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            continue
        # Some prologs write the user's id after the job's.
        jobs = [line.split()[0] for line in lines[:MAX_JOBS_A_FILE] if line.strip()]
        found.extend((name, job) for job in jobs if len(job) <= 64 and job.isprintable())
    return tuple(found)
