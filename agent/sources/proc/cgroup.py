"""Owner of a process by its control group path: a pod's container, or a Slurm job's step and task.

The creator of a control group chooses its name. The kubelet and slurmstepd create them as root. A user with a systemd
session may also create them below the user's slice (delegation), so such paths are not trusted. In nested paths, the
outer group takes precedence over the inner one.
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
"""Pod uid in all kubelet layouts: with dashes (cgroupfs), with underscores (systemd), as a hash (static pods)."""

_CONTAINER = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")

_DELEGATED = re.compile(r"/user\.slice/|/user-\d+\.slice/|/user@\d+\.service/")
"""Groups below which users can create control groups with any name (systemd's user managers, rootless containers)."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Values attested by a control group path; "" or None if not contained.

    pod: uid, with dashes if it is a UUID. container: 64-digit id of the runtime.
    """

    pod: str = ""
    container: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    slurm_task: int | None = None


def parse_cgroup(text: str) -> Membership | None:
    """Parse the text of /proc/PID/cgroup; None if it names neither a pod nor a Slurm job.

    A Slurm job inside a pod (Slurm on Kubernetes) is both. A pod path inside a Slurm job was created by the job and is
    ignored.
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
    """Return the user of the process's login session or manager from the text of /proc/PID/cgroup; None if none.

    Only systemd creates control groups directly below user.slice. Processes with other ids of the user (a user
    namespace with subordinate ids, subuid(5)) stay below the user's slice and cannot leave it without privileges.
    """
    for line in text.split("\n"):
        if (match := _USER_SLICE.match(line.split(":", 2)[-1])) is not None:
            return int(match.group(1))
    return None
