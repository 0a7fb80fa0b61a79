"""Owner of a process by its control-group path: known forms of paths, forged paths, and arbitrary text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.sources.proc.cgroup import Membership, parse_cgroup

UID = "0123abcd-4567-89ef-0123-456789abcdef"
SYSTEMD_UID = UID.replace("-", "_")
CONTAINER = "f0" * 32

POD = Membership(pod=UID, container=CONTAINER)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        # Kubernetes: systemd and cgroupfs drivers; containerd, CRI-O and Docker; guaranteed, burstable, best effort.
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{CONTAINER}.scope", POD),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD_UID}.slice/crio-{CONTAINER}.scope",
            POD,
        ),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice/docker-{CONTAINER}.scope",
            POD,
        ),
        (f"/kubepods/burstable/pod{UID}/{CONTAINER}", POD),
        (f"/kubepods/pod{UID}/{CONTAINER}/init.scope", POD),
        (f"/../../kubelet/kubepods/burstable/pod{UID}/{CONTAINER}", POD),
        # containerd with its own slice names (cri-containerd:...), a nested node (kind), a static pod.
        (f"/system.slice/containerd.service/kubepods-pod{SYSTEMD_UID}.slice:cri-containerd:{CONTAINER}", POD),
        (f"/docker/{'0e' * 32}/kubelet/kubepods/pod{UID}/{CONTAINER}", POD),
        (f"/kubepods/burstable/pod{'0a' * 16}/{CONTAINER}", Membership(pod="0a" * 16, container=CONTAINER)),
        (f"/kubepods/pod{UID}", Membership(pod=UID)),
        # Slurm: v2 with and without the node's name, batch and extern steps; v1 with and without uid.
        ("/system.slice/slurmstepd.scope/job_871/step_0/user/task_3", Membership("", "", "871", "0", 3)),
        ("/system.slice/gpu001_slurmstepd.scope/job_871/step_batch/user/task_0", Membership("", "", "871", "batch", 0)),
        ("/system.slice/slurmstepd.scope/job_871/step_extern/slurm", Membership("", "", "871", "extern")),
        ("/slurm/uid_1000/job_871/step_2/task_0", Membership("", "", "871", "2", 0)),
        ("/slurm_gpu001/uid_1000/job_871/step_2/task_11", Membership("", "", "871", "2", 11)),
        ("/slurm/uid_1000/job_871", Membership("", "", "871")),
        # Slurm in a pod: the process belongs to a job and to a pod.
        (
            f"/kubepods/pod{UID}/{CONTAINER}/slurmstepd.scope/job_9/step_0/user/task_1",
            Membership(UID, CONTAINER, "9", "0", 1),
        ),
        # No pod and no job.
        ("/user.slice/user-1000.slice/session-2.scope", None),
        ("/system.slice/job_871/step_0", None),
        (f"/docker/{CONTAINER}", None),
        (f"/kubepods/pod{UID}0/{CONTAINER}", None),
        ("/", None),
    ],
)
def test_known_paths_are_recognised(path: str, expected: Membership | None) -> None:
    for text in (f"0::{path}\n", f"12:pids:/\n4:memory:{path}\n1:name=systemd:/\n"):
        assert parse_cgroup(text) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        # A user's systemd manager makes groups of any name.
        (
            f"/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/"
            f"cri-containerd-{CONTAINER}.scope",
            None,
        ),
        ("/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_871/step_0/user/task_0", None),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/slurm/uid_0/job_871/step_0", None),
        ("/system.slice/user@1000.service/slurm/job_871", None),
        # Inside a job or a pod, groups that the user made are nested deeper.
        (
            f"/system.slice/slurmstepd.scope/job_12/step_0/user/task_0/kubepods/pod{UID}/{CONTAINER}",
            Membership("", "", "12", "0", 0),
        ),
        (
            "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0/slurmstepd.scope/job_871/step_1",
            Membership("", "", "12", "0", 0),
        ),
        (f"/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{'1' * 32}/{'2' * 64}", POD),
        # Names that only resemble the known forms.
        ("/system.slice/my-slurm-thing.service/job_871", None),
        ("/system.slice/notslurm/job_871", None),
    ],
)
def test_names_that_a_user_can_choose_are_not_trusted(path: str, expected: Membership | None) -> None:
    assert parse_cgroup(f"0::{path}\n") == expected


@given(st.text(max_size=400))
@example("0::" + "/slurm" * 5000)
@example("0::/" + "pod0123abcd" * 5000)
@example(":::\n::/slurm/job_\n")
def test_arbitrary_text_causes_no_crash_and_no_long_run(text: str) -> None:
    found = parse_cgroup(text)
    assert found is None or found.pod or found.slurm_job


@given(st.from_regex(r"\A[0-9a-z_./@-]{0,40}\Z"), st.integers(1, 2**40))
def test_a_job_number_is_read_exactly_or_not_at_all(prefix: str, job: int) -> None:
    found = parse_cgroup(f"0::/{prefix}/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_1")
    if found is not None and "job_" not in prefix and "pod" not in prefix:
        assert found.slurm_job == str(job) and found.slurm_task == 1
