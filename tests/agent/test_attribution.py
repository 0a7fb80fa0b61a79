"""Which process is which rank: real processes against written rank files, and recorded control-group paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rank_attribution import Attribution, Identity, Owner, identity_of_cgroup
from agent.schema.clock import ManualClock
from agent.sources.kubelet.pod_logs import pods_by_uid
from agent.sources.proc.proc import read_process_stat
from agent.sources.proc.slurm_node import parse_environment, step_of_daemon
from tests.fakes.processes import ProcTree

PARENT_OF_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process and its child, both alive: (pid, pid)."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT_OF_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline())
        parent.communicate()


def start_time(pid: int) -> int:
    stat = read_process_stat("/proc", pid)
    assert stat is not None
    return stat.start_time


def write_rank(folder: Path, pid: int, rank: int = 0, gang: str = "j-000001", **changed: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"gang": gang, "attempt": 2, "rank": rank, "pid": pid, "start_time": start_time(pid), "slot": "0"}
    path = folder / f"{gang}.2.{rank}.json"
    path.write_text(json.dumps(content | changed))
    return path


def test_a_process_and_its_descendants_are_the_rank_that_its_file_names(
    tmp_path: Path, family: tuple[int, int]
) -> None:
    parent, child = family
    write_rank(tmp_path / "n0", parent, rank=3)
    attribution = Attribution(str(tmp_path / "n0"))
    rank = Identity("j-000001", 2, 3, "local")
    assert attribution.of_pid(parent) == rank
    assert attribution.of_pid(child) == rank
    assert [one.pid for one in attribution.ranks()] == [parent]


def test_the_nearest_ancestor_counts(tmp_path: Path, family: tuple[int, int]) -> None:
    parent, child = family
    write_rank(tmp_path / "n0", parent, rank=0)
    write_rank(tmp_path / "n0", child, rank=1)
    found = Attribution(str(tmp_path / "n0")).of_pid(child)
    assert found is not None and found.rank == 1


def test_below_the_shim_alone_the_gang_is_known_and_the_rank_is_not(tmp_path: Path, family: tuple[int, int]) -> None:
    parent, child = family
    # The rank's own process has ended (nothing has this start time); its shim, our parent here, is alive.
    write_rank(tmp_path / "n0", parent, start_time=1, shim_pid=parent, shim_start_time=start_time(parent))
    attribution = Attribution(str(tmp_path / "n0"))
    assert attribution.of_pid(child) == Identity("j-000001", 2, None, "local")
    assert attribution.ranks() == []


def test_a_pid_with_another_start_time_is_another_process(tmp_path: Path, family: tuple[int, int]) -> None:
    parent, child = family
    write_rank(tmp_path / "n0", parent, start_time=start_time(parent) - 1)
    attribution = Attribution(str(tmp_path / "n0"))
    found = attribution.of_pid(child)
    assert found is None or found.source != "local"
    assert attribution.ranks() == []


def test_what_another_nodes_folder_attests_is_elsewhere(tmp_path: Path, family: tuple[int, int]) -> None:
    parent, child = family
    write_rank(tmp_path / "n1", parent)
    (tmp_path / "n0").mkdir()
    ours, theirs = Attribution(str(tmp_path / "n0")), Attribution(str(tmp_path / "n1"))
    assert ours.elsewhere(child) == "n1"
    assert theirs.elsewhere(child) is None
    write_rank(tmp_path / "n0", child, rank=1)
    assert ours.elsewhere(child) is None, "our own folder names a nearer ancestor"
    assert ours.elsewhere(os.getpid()) is None


def test_the_folder_is_followed(tmp_path: Path, family: tuple[int, int]) -> None:
    parent, _ = family
    clock = ManualClock()
    attribution = Attribution(str(tmp_path / "n0"), clock=clock)
    assert attribution.ranks() == []
    path = write_rank(tmp_path / "n0", parent)
    assert len(attribution.ranks()) == 1, "the folder changed: seen at once"
    path.write_text(path.read_text().replace('"rank": 0', '"rank": 5'))
    clock.advance(1.0)
    assert attribution.ranks()[0].rank == 5, "a file rewritten in place is seen within a second"
    path.unlink()
    clock.advance(1.0)
    assert attribution.ranks() == []


def test_a_file_that_is_no_rank_file_is_none(tmp_path: Path, family: tuple[int, int]) -> None:
    parent, _ = family
    write_rank(tmp_path / "n0", parent)
    (tmp_path / "n0" / "j-000002.1.0.json").write_text("{")
    (tmp_path / "n0" / "j-000003.1.0.json").write_bytes(b'{"gang": "\xff"}')
    (tmp_path / "n0" / "j-000004.1.0.json").write_text('{"gang": 4, "attempt": 1, "rank": 0, "pid": 1}')
    (tmp_path / "n0" / ".half-written.json").write_text("")
    assert [one.gang for one in Attribution(str(tmp_path / "n0")).ranks()] == ["j-000001"]


def test_without_a_folder_only_control_groups_tell() -> None:
    attribution = Attribution(None)
    assert attribution.ranks() == []
    assert attribution.elsewhere(os.getpid()) is None
    assert attribution.of_pid(2**22 + 1) is None


def test_control_groups_tell_where_no_rank_file_does(tmp_path: Path) -> None:
    process = tmp_path / "proc" / "77"
    process.mkdir(parents=True)
    (process / "stat").write_bytes(b"77 (python) S 0 " + b"0 " * 48)
    (process / "cgroup").write_bytes(b"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_3\n")
    found = Attribution(str(tmp_path / "ranks"), str(tmp_path / "proc")).of_pid(77)
    assert found == Identity("slurm-12.0", None, None, "slurm")


UID = "0123abcd-4567-89ef-0123-456789abcdef"
CONTAINER = "f0" * 32


@pytest.mark.parametrize(
    ("path", "gang"),
    [
        # cgroup v2 and v1, systemd and cgroupfs drivers, guaranteed, burstable and best-effort, static pods.
        (f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope", f"pod-{UID}"),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice/"
            f"cri-containerd-{CONTAINER}.scope",
            f"pod-{UID}",
        ),
        (f"/kubepods/burstable/pod{UID}/{CONTAINER}", f"pod-{UID}"),
        (f"/kubepods/pod{UID}/{CONTAINER}", f"pod-{UID}"),
        (f"/../../kubelet/kubepods/burstable/pod{UID}/{CONTAINER}", f"pod-{UID}"),
        (f"/kubepods/burstable/pod{'0a' * 16}/{CONTAINER}", f"pod-{'0a' * 16}"),
        ("/system.slice/slurmstepd.scope/job_871/step_0/user/task_3", "slurm-871.0"),
        ("/system.slice/gpu001_slurmstepd.scope/job_871/step_batch/user/task_0", "slurm-871.batch"),
        ("/slurm/uid_1000/job_871/step_2/task_0", "slurm-871.2"),
        ("/slurm/uid_1000/job_871", "slurm-871"),
        ("/user.slice/user-1000.slice/session-2.scope", None),
        ("/system.slice/job_871/step_0", None),
        (f"/docker/{CONTAINER}", None),
        ("/", None),
    ],
)
def test_control_group_paths(path: str, gang: str | None) -> None:
    for text in (f"0::{path}\n", f"12:pids:/\n4:memory:{path}\n1:name=systemd:/\n"):
        found = identity_of_cgroup(text)
        assert (found.gang if found else None) == gang
        if found is not None:
            assert found.rank is None and found.attempt is None
            assert found.source == ("slurm" if found.gang.startswith("slurm") else "kubernetes")


# --- owners: what a process may say of itself, and what it may not ---------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def told_of(tree: ProcTree, pid: int) -> Owner | None:
    return Attribution(None, str(tree.root), pod_logs=str(tree.root.parent / "logs")).owner(pid)


JOB = "/system.slice/slurmstepd.scope/job_871/step_0/user/task_1"


def test_a_slurm_task_is_the_rank_that_it_was_started_as(tree: ProcTree) -> None:
    tree.add(77, JOB, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "9", "SLURM_RESTART_COUNT": "2"})
    assert told_of(tree, 77) == Owner("", "", "", "slurm-871.0", "2", "9", "871")
    # torchrun in a task: its RANK counts, the task's number is the node's.
    tree.add(78, JOB, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "1", "RANK": "13"})
    assert told_of(tree, 78) == Owner("", "", "", "slurm-871.0", "", "13", "871")


def test_an_environment_names_no_job(tree: ProcTree) -> None:
    tree.add(77, "/user.slice/user-1000.slice/session-2.scope", environment={"SLURM_JOB_ID": "871", "RANK": "0"})
    assert told_of(tree, 77) is None
    # In a job of one's own, another's environment tells nothing.
    tree.add(78, JOB, environment={"SLURM_JOB_ID": "999", "RANK": "0"})
    assert told_of(tree, 78) == Owner(gang="slurm-871.0", slurm_job="871")


def test_a_users_own_control_group_attests_nothing(tree: ProcTree) -> None:
    own = "/user.slice/user-1000.slice/user@1000.service"
    tree.add(77, f"{own}/slurmstepd.scope/job_871/step_0/user/task_0", environment={"SLURM_JOB_ID": "871"})
    tree.add(78, f"{own}/kubepods/pod{UID}/{CONTAINER}")
    attribution = Attribution(None, str(tree.root))
    assert [attribution.of_pid(pid) for pid in (77, 78)] == [None, None]
    assert [attribution.owner(pid) for pid in (77, 78)] == [None, None]


def test_without_control_groups_roots_step_daemon_attests_the_job(tree: ProcTree) -> None:
    tree.add(5, command=b"slurmstepd: [871.0]\0", start_time=50)
    tree.add(6, parent=5, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "3"})
    tree.add(7, parent=6, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "3"})
    uid = os.getuid()
    assert step_of_daemon(str(tree.root), 5, uid) == ("871", "0")
    assert step_of_daemon(str(tree.root), 5, uid + 1) is None, "anybody can give a process that title"
    for command in (b"slurmstepd: [871]\0", b"-slurmstepd: [871.0]", b"slurmstepd: [x.0]", b""):
        tree.add(4, command=command)
        assert step_of_daemon(str(tree.root), 4, uid) is None
    if uid == 0:
        assert told_of(tree, 7) == Owner("", "", "", "slurm-871.0", "", "3", "871")
        os.chown(tree.root / "5", 1000, 1000)
    assert told_of(tree, 7) is None


def test_a_pods_name_comes_from_the_kubelets_folder(tree: ProcTree) -> None:
    logs = tree.root.parent / "logs"
    (logs / f"team_llama-worker-0_{UID}").mkdir(parents=True)
    tree.add(77, f"/kubepods/pod{UID}/{CONTAINER}", environment={"RANK": "4", "GANGWATCH_ATTEMPT": "1"})
    assert told_of(tree, 77) == Owner("team", "llama-worker-0", "", f"pod-{UID}", "1", "4")
    tree.add(78, f"/kubepods/pod{UID[:-1]}0/{CONTAINER}")
    assert told_of(tree, 78) == Owner(gang=f"pod-{UID[:-1]}0")


def test_folders_that_are_no_pods(tmp_path: Path) -> None:
    for name in (f"team_p_{UID}", f"kube-system_etcd-n0_{'0a' * 16}", f"a_b_c_{UID}", f"A_b_{UID}", "team_p", "x"):
        (tmp_path / name).mkdir()
    assert pods_by_uid(str(tmp_path)) == {UID: ("team", "p"), "0a" * 16: ("kube-system", "etcd-n0")}
    assert pods_by_uid(str(tmp_path / "none")) == {}


def test_pods_that_come_are_found(tree: ProcTree) -> None:
    clock = ManualClock()
    logs = tree.root.parent / "logs"
    logs.mkdir()
    attribution = Attribution(None, str(tree.root), clock, str(logs))
    assert attribution.pod(UID) == ("", "")
    (logs / f"team_p_{UID}").mkdir()
    clock.advance(1)
    assert attribution.pod(UID) == ("team", "p")


@given(st.binary(max_size=200), st.integers(0, 10**9 - 1))
def test_an_environment_of_any_octets(noise: bytes, rank: int) -> None:
    assert parse_environment(b"RANK=%d\0" % rank + noise)["RANK"] == str(rank)
    for name, value in parse_environment(noise).items():
        assert name.isupper() and value.isdecimal()


def test_numbers_that_are_none() -> None:
    for value in (b"", b"-1", b"1e3", b"0x1", b"9" * 30, "٣".encode()):
        assert parse_environment(b"RANK=" + value) == {}
    assert parse_environment(b"RANK=007\0RANK=8") == {"RANK": "7"}


def test_a_registered_rank_is_one_of_the_node_until_its_process_has_ended(tmp_path: Path) -> None:
    attribution = Attribution(None)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        attribution.register("slurm-7.0", 1, 3, process.pid)
        attribution.register("slurm-7.0", 1, 4, 2**22 + 1)  # there is no such process
        assert [(one.gang, one.attempt, one.rank, one.pid) for one in attribution.ranks()] == [
            ("slurm-7.0", 1, 3, process.pid)
        ]
        process.communicate()
    assert attribution.ranks() == []
