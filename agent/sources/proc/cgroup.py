"""Owner of a process by its control group path: a pod's container, or a Slurm job's step and task.

The creator of a control group chooses its name. The kubelet and slurmstepd create control groups as root. A user
with a systemd session may also create control groups below the user's slice (delegation). Therefore paths below that
slice are not trusted. If groups are nested, the outer group determines the owner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SLURM = re.compile(
    r"/(?:[^/]*slurmstepd\.scope|slurm[^/]*(?:/uid_\d+)?)/job_(\d{1,18})(?!\d)(?:/step_([0-9A-Za-z_]+))?(?:/user)?(?:/task_(\d{1,10})(?!\d))?",
    re.ASCII,
)
"""Pattern of the control group path of a Slurm task: cgroup v1 ``/slurm[_NODE]/uid_U/job_N/step_S/task_T``, v2
``.../[NODE_]slurmstepd.scope/job_N/step_S/user/task_T`` (https://slurm.schedmd.com/cgroup_v2.html). The task number
counts the tasks on this node. It is not the rank."""

_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
"""Pattern of a pod's uid in a control group path, in all forms of the kubelet: with dashes (cgroupfs), with underscores
(systemd), as a hash (static pods)."""

_CONTAINER = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")

_DELEGATED = re.compile(r"/user\.slice/|/user-\d+\.slice/|/user@\d+\.service/")
"""Pattern of control group paths below which users can create control groups with any name. Systemd's user managers and
rootless containers use such paths."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Pod or Slurm job that a control group path names. A value is "" or None if the path does not contain it.

    pod: uid of the pod, with dashes if it is a UUID. container: id of 64 digits that the container runtime chose.
    """

    pod: str = ""
    container: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    slurm_task: int | None = None


def parse_cgroup(text: str) -> Membership | None:
    """Return the pod and Slurm job in the text of /proc/PID/cgroup. Return None if it contains neither of them.

    For a Slurm job inside a pod (Slurm on Kubernetes), return both. A pod path inside a Slurm job is ignored, because
    the job created it.
    """
    # Names of control groups may contain any character but the line end: "\u2028" does not start a new line.
    for line in text.split("\n"):
        # hierarchy:controllers:path; a path may contain colons.
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
    """Return the user id in the text of /proc/PID/cgroup, or None if the path contains no user.

    The path contains the user of the login session or systemd user manager. Only systemd creates control groups
    directly below user.slice. A process with a subordinate id of the user (subuid(5)) is below the user's slice too,
    and cannot leave it without privileges.
    """
    for line in text.split("\n"):
        if (match := _USER_SLICE.match(line.split(":", 2)[-1])) is not None:
            return int(match.group(1))
    return None
