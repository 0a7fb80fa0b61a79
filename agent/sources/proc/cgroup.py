"""Whose a process is, by the path of its control group: a pod's container, a Slurm job's step and task.

Whoever may create control groups decides what the path says. That is the kubelet and slurmstepd, as root; and, below
its own slice, any user with a systemd session (delegation): such a path is believed no word. Inside a container or a
job, what stands further out counts before what stands further in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SLURM = re.compile(
    r"/(?:[^/]*slurmstepd\.scope|slurm[^/]*(?:/uid_\d+)?)/job_(\d{1,18})(?!\d)(?:/step_([0-9A-Za-z_]+))?(?:/user)?(?:/task_(\d{1,10})(?!\d))?",
    re.ASCII,
)
"""cgroup v1 ``/slurm[_NODE]/uid_U/job_N/step_S/task_T``, v2 ``.../[NODE_]slurmstepd.scope/job_N/step_S/user/task_T``
(https://slurm.schedmd.com/cgroup_v2.html). The task is the number on this node, not the rank."""

_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
"""Pod uid in every kubelet layout: cgroupfs with dashes, systemd slices with underscores, static pods as one hash."""

_CONTAINER = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")

_DELEGATED = re.compile(r"/user\.slice/|/user-\d+\.slice/|/user@\d+\.service/")
"""Below these a user makes control groups of any name (systemd's user managers, rootless containers)."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a control group's path attests; "" and None where it tells nothing.

    pod: uid, with dashes where it is a UUID. container: its runtime's 64-digit id.
    """

    pod: str = ""
    container: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    slurm_task: int | None = None


def parse_cgroup(text: str) -> Membership | None:
    """What the text of /proc/PID/cgroup attests; None for neither a pod nor a Slurm job.

    A Slurm job inside a pod (Slurm run on Kubernetes) is both; a pod's path inside a Slurm job is the job's own doing.
    """
    # The kernel allows every character in a control group's name but the line end: "\u2028" in one is no new line.
    for line in text.split("\n"):
        # hierarchy:controllers:path; a path may hold colons.
        path = line.split(":", 2)[-1]
        slurm = _SLURM.search(path)
        pod = _POD.search(path)
        if slurm is not None and pod is not None and slurm.start() < pod.start():
            pod = None
        outermost = pod or slurm
        if outermost is None or _DELEGATED.search(path, 0, outermost.start() + 1):
            continue
        job, step, task = slurm.groups() if slurm is not None else ("", "", None)
        container = None if pod is None else _CONTAINER.search(path, pod.end())
        return Membership(
            "" if pod is None else pod.group(1).replace("_", "-"),
            "" if container is None else container.group(1),
            job,
            step or "",
            None if task is None else int(task),
        )
    return None


_USER_SLICE = re.compile(r"(?:/\.\.)*/user\.slice/user-(\d{1,10})\.slice(?:/|\Z)", re.ASCII)


def user_of_cgroup(text: str) -> int | None:
    """The user whose login session or manager the process is of, by the text of /proc/PID/cgroup; None where of none.

    Only systemd makes control groups directly below user.slice. Processes that a user runs under other ids (a user
    namespace with subordinate ids, subuid(5)) stay below the user's own slice, and nobody can leave it by himself.
    """
    for line in text.split("\n"):
        if (match := _USER_SLICE.match(line.split(":", 2)[-1])) is not None:
            return int(match.group(1))
    return None
