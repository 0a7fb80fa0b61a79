"""Fuzz targets: data of users' processes that the agent parses: files in /proc, and positions of a job's ranks.

Inputs are valid data with a change in a value, a length or the order of events. Few inputs are changed byte by byte.
"""

from __future__ import annotations

import random

from agent.schema.errors import SourceError
from agent.sources.proc.cgroup import Membership, parse_cgroup, user_of_cgroup
from agent.sources.proc.proc import parse_process_stat
from agent.sources.proc.slurm_node import parse_environment
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from gangwatch.steps import place_in_layout

# --- process files in /proc ------------------------------------------------------------------------------------------

_CGROUPS = (
    "/kubepods.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-{}.scope",
    "/kubepods/pod01234567-89ab-cdef-0123-456789abcdef/{}",
    "/system.slice/slurmstepd.scope/job_12/step_0/user/task_3",
    "/slurm_n1/uid_1000/job_7/step_batch/task_0",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_871/step_0",
    "/../../user.slice/user-5.slice/session-1.scope",
    "/system.slice/ssh.service",
    "/",
)


def make_cgroup(rng: random.Random) -> bytes:
    """Make the content of /proc/PID/cgroup with one or more lines, some with subfolders of a tenant."""
    lines = []
    for number in range(rng.choice((1, 1, 1, 3, 12))):
        path = "".join(rng.choice(_CGROUPS) for _ in range(rng.choice((1, 1, 1, 2, 3)))).replace("{}", "ab" * 32)
        if rng.random() < 0.2:
            path = octets(rng, path.encode(), rng.randint(1, 4)).decode("utf-8", "replace")
        lines.append(f"{number}:{rng.choice(('', 'name=systemd', 'memory', 'a:b'))}:{path}")
    return ("\n".join(lines) + "\n").encode()


def parse_membership(data: bytes) -> str:
    """Parse the pod or job of the process. Check that the names in the result are valid labels."""
    text = data.decode("utf-8", "replace")
    if ":" not in text:
        return REFUSED_FIRST
    found, user = parse_cgroup(text), user_of_cgroup(text)
    assert user is None or user >= 0
    if found is None:
        return REFUSED if user is None else ACCEPTED
    assert found != Membership() and (found.slurm_job or found.pod)
    assert not found.slurm_job or found.slurm_job.isdecimal()
    assert len(found.pod) in (0, 32, 36) and (found.slurm_task is None or found.slurm_task >= 0)
    return ACCEPTED


def make_environment(rng: random.Random) -> bytes:
    """Make the content of /proc/PID/environ."""
    names = ("RANK", "SLURM_PROCID", "GANGWATCH_ATTEMPT", "SLURM_JOB_ID", "PATH", "", "RANK ", "OMPI_COMM_WORLD_RANK")
    values = ("0", "7", "123456789", "1234567890", "-1", "", "１", "0x1", "a" * 5000, "1=2")
    entries = [f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.randint(1, 12))]
    data = "\0".join((*entries, "")).encode()
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < 0.3 else data


def parse_words(data: bytes) -> str:
    """Parse rank, attempt and job in an environment. Check that each is a number or absent."""
    if b"=" not in data:
        return REFUSED_FIRST
    found = parse_environment(data)
    assert all(value.isascii() and value.isdecimal() and int(value) < 10**9 for value in found.values())
    return ACCEPTED if found else REFUSED


def make_stat(rng: random.Random) -> bytes:
    """Make the content of /proc/PID/stat with a malicious process name."""
    name = rng.choice((b"python", b") R 1 (", b"a b c", b"", b"))))", b"\n", rng.randbytes(15)))
    words = [
        b"S",
        *(str(rng.choice((0, 1, 20, rng.randrange(2**32)))).encode() for _ in range(rng.choice((49, 49, 40, 39, 3)))),
    ]
    data = b"%d (%s) %s\n" % (rng.randrange(1, 2**22), name, b" ".join(words))
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < 0.3 else data


def parse_stat(data: bytes) -> str:
    """Parse the process in the content of /proc/PID/stat."""
    try:
        found = parse_process_stat(data)
    except SourceError:
        return REFUSED if b")" in data else REFUSED_FIRST
    assert found.pid >= 0 and found.parent >= 0 and found.start_time >= 0
    return ACCEPTED


# --- layouts ---------------------------------------------------------------------------------------------------------


def make_layout(rng: random.Random) -> bytes:
    """Make the variable GANGWATCH_LAYOUT, with a rank and a world size."""
    names = ["tensor", "context", "expert", "data", "pipeline"]
    rng.shuffle(names)
    sizes = {name: rng.choice((1, 2, 4, 8)) for name in names[: rng.randint(1, 5)]}
    ranks = 1
    for size in sizes.values():
        ranks *= size
    layout = ",".join(f"{name}={size}" for name, size in sizes.items())
    if rng.random() < 0.3:
        layout = rng.choice((layout + ",tensor=0", layout + ",", layout.upper(), layout + ",x=1", f"{layout},{layout}"))
    rank, world = rng.randrange(ranks), ranks
    if rng.random() < 0.1:
        rank, world = rng.choice((ranks, -1, 2**70)), rng.choice((ranks, 0, ranks + 1))
    data = f"{rank} {world} {layout}".encode()
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < 0.2 else data


def parse_layout(data: bytes) -> str:
    """Parse a rank's position. Check that each coordinate is smaller than the size of its dimension."""
    parts = data.decode("utf-8", "replace").split(" ", 2)
    if len(parts) < 3 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return REFUSED_FIRST
    if max(map(len, parts[:2])) > 30:
        return REFUSED_FIRST
    try:
        place = place_in_layout(parts[2], int(parts[0]), int(parts[1]))
    except ValueError:
        return REFUSED
    assert all(index >= 0 for index in place.values())
    return ACCEPTED


TARGETS: tuple[Target, ...] = (
    Target("node-cgroup", make_cgroup, parse_membership, ("agent.sources.proc.cgroup",)),
    Target("node-environment", make_environment, parse_words, ("agent.sources.proc.slurm_node:parse_environment",)),
    Target("node-stat", make_stat, parse_stat, ("agent.sources.proc.proc:parse_process_stat",)),
    Target("node-layout", make_layout, parse_layout, ("gangwatch.steps:place_in_layout",)),
)
