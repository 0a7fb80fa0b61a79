"""Sources of data about Slurm jobs on a node, besides control groups: step daemons, environments and job files.

A process can choose its own environment. The agent therefore takes only the attempt and the rank from it, and the job
from another source.
"""

from __future__ import annotations

import os
import re

from agent.sources.files import read_file

MAX_ENVIRONMENT_BYTES = 1 << 18
"""Maximum number of bytes of a process's environment that are read. Variables after this limit are not found."""

_STEP_DAEMON = re.compile(rb"slurmstepd: \[(\d+)\.([0-9A-Za-z_]+)\]")
"""Pattern of the process title of a Slurm step daemon: ``slurmstepd: [JOB.STEP]`` (slurmstepd.c, init_setproctitle)."""

_DEVICE_FILE = re.compile(r"(?:GPU-|MIG-)?[0-9A-Za-z/._-]{1,120}\Z")

MAX_JOB_FILES = 1024
MAX_JOBS_A_FILE = 64

RANK = ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Environment variables that launchers set to the rank. The first variable that is set is used. gangwatch/steps.py has
the same list."""

ATTEMPT = ("GANGWATCH_ATTEMPT", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
"""Environment variables that launchers set to the attempt. The first variable that is set is used. gangwatch/steps.py
has the same list."""

JOB = ("SLURM_JOB_ID",)
"""Environment variables that contain the Slurm job id."""


def read_environment(proc_root: str, pid: int) -> dict[str, str]:
    """Return the environment variables in RANK, ATTEMPT and JOB with which the process started; {} if not readable."""
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
    """Parse an environment whose variables are separated by NUL.

    Return those in RANK, ATTEMPT and JOB with numeric values.

    If a variable occurs several times, its first value is returned.
    """
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        key, _, value = entry.partition(b"=")
        name = _WANTED.get(key)
        if name is not None and value.isdigit() and len(value) < 10:
            found.setdefault(name, str(int(value)))
    return found


def step_of_daemon(proc_root: str, pid: int, trusted_uid: int = 0) -> tuple[str, str] | None:
    """Return (job, step) if the process is a Slurm step daemon (slurmstepd) of the user `trusted_uid`; otherwise None.

    Only processes of this user are accepted, since users can set any title for their own processes.
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
    """Return the (GPU, job) pairs of the files in dcgm-exporter's job mapping folder, sorted.

    A Slurm prolog writes these files, and an epilog removes them. The name of a file is a GPU (index,
    ``INDEX.GPU-INSTANCE`` or UUID), and each line is a job id (dcgm-exporter's README, "--hpc-job-mapping-dir").
    Malformed files are ignored. Raise OSError if the folder cannot be listed.
    """
    found: list[tuple[str, str]] = []
    for name in sorted(os.listdir(folder))[:MAX_JOB_FILES]:
        if _DEVICE_FILE.match(name) is None:
            continue
        try:
            lines = read_file(f"{folder}/{name}").decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            continue
        # Some prologs write the user id after the job id.
        jobs = [line.split()[0] for line in lines[:MAX_JOBS_A_FILE] if line.strip()]
        found.extend((name, job) for job in jobs if len(job) <= 64 and job.isprintable())
    return tuple(found)
