"""Attribution of processes to ranks: real processes with written rank files, and recorded control-group paths."""

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
def parent_and_child() -> Iterator[tuple[int, int]]:
    """Yield the pids of a process and its child; both are alive."""
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


def test_a_process_and_its_descendants_belong_to_the_rank_in_its_file(
    tmp_path: Path, parent_and_child: tuple[int, int]
) -> None:
    parent, child = parent_and_child
    write_rank(tmp_path / "n0", parent, rank=3)
    attribution = Attribution(str(tmp_path / "n0"))
    rank = Identity("j-000001", 2, 3, "local")
    assert attribution.of_pid(parent) == rank
    assert attribution.of_pid(child) == rank
    assert [one.pid for one in attribution.ranks()] == [parent]


def test_the_nearest_ancestor_with_a_rank_file_wins(tmp_path: Path, parent_and_child: tuple[int, int]) -> None:
    parent, child = parent_and_child
    write_rank(tmp_path / "n0", parent, rank=0)
    write_rank(tmp_path / "n0", child, rank=1)
    found = Attribution(str(tmp_path / "n0")).of_pid(child)
    assert found is not None and found.rank == 1


def test_a_child_of_the_shim_alone_has_a_gang_and_no_rank(tmp_path: Path, parent_and_child: tuple[int, int]) -> None:
    parent, child = parent_and_child
    # The rank's own process has ended (no process has this start time); its shim, the parent here, is alive.
    write_rank(tmp_path / "n0", parent, start_time=1, shim_pid=parent, shim_start_time=start_time(parent))
    attribution = Attribution(str(tmp_path / "n0"))
    assert attribution.of_pid(child) == Identity("j-000001", 2, None, "local")
    assert attribution.ranks() == []


def test_a_reused_pid_is_not_the_rank(tmp_path: Path, parent_and_child: tuple[int, int]) -> None:
    parent, child = parent_and_child
    write_rank(tmp_path / "n0", parent, start_time=start_time(parent) - 1)
    attribution = Attribution(str(tmp_path / "n0"))
    found = attribution.of_pid(child)
    assert found is None or found.source != "local"
    assert attribution.ranks() == []


def test_a_rank_file_of_another_node_does_not_make_the_process_local(
    tmp_path: Path, parent_and_child: tuple[int, int]
) -> None:
    parent, child = parent_and_child
    write_rank(tmp_path / "n1", parent)
    (tmp_path / "n0").mkdir()
    ours, theirs = Attribution(str(tmp_path / "n0")), Attribution(str(tmp_path / "n1"))
    assert ours.other_node(child) == "n1"
    assert theirs.other_node(child) is None
    write_rank(tmp_path / "n0", child, rank=1)
    assert ours.other_node(child) is None, "this node's folder names a nearer ancestor"
    assert ours.other_node(os.getpid()) is None


def test_changes_of_the_folder_are_detected(tmp_path: Path, parent_and_child: tuple[int, int]) -> None:
    parent, _ = parent_and_child
    clock = ManualClock()
    attribution = Attribution(str(tmp_path / "n0"), clock=clock)
    assert attribution.ranks() == []
    path = write_rank(tmp_path / "n0", parent)
    assert len(attribution.ranks()) == 1, "a change of the folder is detected at once"
    path.write_text(path.read_text().replace('"rank": 0', '"rank": 5'))
    clock.advance(1.0)
    assert attribution.ranks()[0].rank == 5, "a rewritten file is detected within a second"
    path.unlink()
    clock.advance(1.0)
    assert attribution.ranks() == []


def test_invalid_rank_files_are_ignored(tmp_path: Path, parent_and_child: tuple[int, int]) -> None:
    parent, _ = parent_and_child
    write_rank(tmp_path / "n0", parent)
    (tmp_path / "n0" / "j-000002.1.0.json").write_text("{")
    (tmp_path / "n0" / "j-000003.1.0.json").write_bytes(b'{"gang": "\xff"}')
    (tmp_path / "n0" / "j-000004.1.0.json").write_text('{"gang": 4, "attempt": 1, "rank": 0, "pid": 1}')
    (tmp_path / "n0" / ".half-written.json").write_text("")
    assert [one.gang for one in Attribution(str(tmp_path / "n0")).ranks()] == ["j-000001"]


def test_without_a_folder_only_control_groups_attribute() -> None:
    attribution = Attribution(None)
    assert attribution.ranks() == []
    assert attribution.other_node(os.getpid()) is None
    assert attribution.of_pid(2**22 + 1) is None


def test_control_groups_attribute_processes_without_a_rank_file(tmp_path: Path) -> None:
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
def test_control_group_paths_give_the_gang(path: str, gang: str | None) -> None:
    for text in (f"0::{path}\n", f"12:pids:/\n4:memory:{path}\n1:name=systemd:/\n"):
        found = identity_of_cgroup(text)
        assert (found.gang if found else None) == gang
        if found is not None:
            assert found.rank is None and found.attempt is None
            assert found.source == ("slurm" if found.gang.startswith("slurm") else "kubernetes")


# --- owners: which claims of a process are trusted, and which are not ------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def owner_of(tree: ProcTree, pid: int) -> Owner | None:
    return Attribution(None, str(tree.root), pod_logs=str(tree.root.parent / "logs")).owner(pid)


JOB = "/system.slice/slurmstepd.scope/job_871/step_0/user/task_1"


def test_the_environment_gives_the_rank_of_a_slurm_task(tree: ProcTree) -> None:
    tree.add(77, JOB, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "9", "SLURM_RESTART_COUNT": "2"})
    assert owner_of(tree, 77) == Owner("", "", "", "slurm-871.0", "2", "9", "871")
    # torchrun in a task: RANK is the rank; the task's number is only the node's.
    tree.add(78, JOB, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "1", "RANK": "13"})
    assert owner_of(tree, 78) == Owner("", "", "", "slurm-871.0", "", "13", "871")


def test_the_environment_cannot_set_the_job(tree: ProcTree) -> None:
    tree.add(77, "/user.slice/user-1000.slice/session-2.scope", environment={"SLURM_JOB_ID": "871", "RANK": "0"})
    assert owner_of(tree, 77) is None
    # Inside its own job, a process cannot claim another job by its environment.
    tree.add(78, JOB, environment={"SLURM_JOB_ID": "999", "RANK": "0"})
    assert owner_of(tree, 78) == Owner(gang="slurm-871.0", slurm_job="871")


def test_a_control_group_that_a_user_made_is_not_trusted(tree: ProcTree) -> None:
    own = "/user.slice/user-1000.slice/user@1000.service"
    tree.add(77, f"{own}/slurmstepd.scope/job_871/step_0/user/task_0", environment={"SLURM_JOB_ID": "871"})
    tree.add(78, f"{own}/kubepods/pod{UID}/{CONTAINER}")
    attribution = Attribution(None, str(tree.root))
    assert [attribution.of_pid(pid) for pid in (77, 78)] == [None, None]
    assert [attribution.owner(pid) for pid in (77, 78)] == [None, None]


def test_without_control_groups_the_step_daemon_of_root_gives_the_job(tree: ProcTree) -> None:
    tree.add(5, command=b"slurmstepd: [871.0]\0", start_time=50)
    tree.add(6, parent=5, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "3"})
    tree.add(7, parent=6, environment={"SLURM_JOB_ID": "871", "SLURM_PROCID": "3"})
    uid = os.getuid()
    assert step_of_daemon(str(tree.root), 5, uid) == ("871", "0")
    assert step_of_daemon(str(tree.root), 5, uid + 1) is None, "any user can give a process that title"
    for command in (b"slurmstepd: [871]\0", b"-slurmstepd: [871.0]", b"slurmstepd: [x.0]", b""):
        tree.add(4, command=command)
        assert step_of_daemon(str(tree.root), 4, uid) is None
    if uid == 0:
        assert owner_of(tree, 7) == Owner("", "", "", "slurm-871.0", "", "3", "871")
        os.chown(tree.root / "5", 1000, 1000)
    assert owner_of(tree, 7) is None


def test_the_pod_name_comes_from_the_kubelets_folder(tree: ProcTree) -> None:
    logs = tree.root.parent / "logs"
    (logs / f"team_llama-worker-0_{UID}").mkdir(parents=True)
    tree.add(77, f"/kubepods/pod{UID}/{CONTAINER}", environment={"RANK": "4", "GANGWATCH_ATTEMPT": "1"})
    assert owner_of(tree, 77) == Owner("team", "llama-worker-0", "", f"pod-{UID}", "1", "4")
    tree.add(78, f"/kubepods/pod{UID[:-1]}0/{CONTAINER}")
    assert owner_of(tree, 78) == Owner(gang=f"pod-{UID[:-1]}0")


def test_folders_that_are_not_pods_are_ignored(tmp_path: Path) -> None:
    for name in (f"team_p_{UID}", f"kube-system_etcd-n0_{'0a' * 16}", f"a_b_c_{UID}", f"A_b_{UID}", "team_p", "x"):
        (tmp_path / name).mkdir()
    assert pods_by_uid(str(tmp_path)) == {UID: ("team", "p"), "0a" * 16: ("kube-system", "etcd-n0")}
    assert pods_by_uid(str(tmp_path / "none")) == {}


def test_new_pods_are_found(tree: ProcTree) -> None:
    clock = ManualClock()
    logs = tree.root.parent / "logs"
    logs.mkdir()
    attribution = Attribution(None, str(tree.root), clock, str(logs))
    assert attribution.pod(UID) == ("", "")
    (logs / f"team_p_{UID}").mkdir()
    clock.advance(1)
    assert attribution.pod(UID) == ("team", "p")


@given(st.binary(max_size=200), st.integers(0, 10**9 - 1))
def test_the_rank_is_read_from_an_environment_with_arbitrary_bytes(noise: bytes, rank: int) -> None:
    assert parse_environment(b"RANK=%d\0" % rank + noise)["RANK"] == str(rank)
    for name, value in parse_environment(noise).items():
        assert name.isupper() and value.isdecimal()


def test_invalid_numbers_in_the_environment_are_ignored() -> None:
    for value in (b"", b"-1", b"1e3", b"0x1", b"9" * 30, "٣".encode()):
        assert parse_environment(b"RANK=" + value) == {}
    assert parse_environment(b"RANK=007\0RANK=8") == {"RANK": "7"}


def test_a_registered_rank_is_listed_until_its_process_ends(tmp_path: Path) -> None:
    attribution = Attribution(None)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        attribution.register("slurm-7.0", 1, 3, process.pid)
        attribution.register("slurm-7.0", 1, 4, 2**22 + 1)  # no such process
        assert [(one.gang, one.attempt, one.rank, one.pid) for one in attribution.ranks()] == [
            ("slurm-7.0", 1, 3, process.pid)
        ]
        process.communicate()
    assert attribution.ranks() == []
