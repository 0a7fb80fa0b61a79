"""Pods without host mounts report steps through a socket in their own volume, and only under their own name."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agent.sources.steps.pod_sockets import SOCKET_NAME, PodSockets
from gangwatch.state_folder import StateFolder

UIDS = ("11111111-2222-3333-4444-555555555555", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
_WORKER = """
import os, sys, time
sys.stdin.readline()
from gangwatch import steps
reporter = steps.reporter()
while True:
    with reporter.step():
        time.sleep(0.02)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path, because a socket path has at most 107 bytes (unix(7))."""
    folder = Path(tempfile.mkdtemp(prefix="gw", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def volume(pods: Path, uid: str, name: str = "gangwatch") -> Path:
    """Make an emptyDir as the kubelet does: any user can write to it."""
    folder = pods / uid / "volumes" / "kubernetes.io~empty-dir" / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    return folder


# --- the sockets alone-----------------------------------------------------------------------------------------------


def close(listeners: list[socket.socket]) -> int:
    for listener in listeners:
        listener.close()
    return len(listeners)


def test_a_pod_with_the_volume_has_a_socket_for_any_user_while_it_lives(short_folder: Path) -> None:
    sockets = PodSockets(str(short_folder))
    folder = volume(short_folder, UIDS[0])
    volume(short_folder, UIDS[1], "cache")
    opened, gone = sockets.scan()
    assert (len(opened), gone) == (1, [])
    status = (folder / SOCKET_NAME).lstat()
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o666
    assert sockets.scan() == ([], [])
    shutil.rmtree(short_folder / UIDS[0])
    assert sockets.scan() == ([], opened)
    close(opened)


def test_a_socket_that_a_pod_damaged_is_restored_and_no_link_is_followed(short_folder: Path) -> None:
    pods, secret = short_folder / "pods", short_folder / "secret"
    pods.mkdir()
    secret.write_text("the host's")
    secret.chmod(0o600)
    folder = volume(pods, UIDS[0])
    (folder / SOCKET_NAME).symlink_to(secret)
    sockets = PodSockets(str(pods))
    first, _ = sockets.scan()
    assert len(first) == 1 and stat.S_ISSOCK((folder / SOCKET_NAME).lstat().st_mode)
    (folder / SOCKET_NAME).unlink()
    (folder / SOCKET_NAME).symlink_to(secret)
    second, gone = sockets.scan()
    assert gone == first and len(second) == 1 and stat.S_ISSOCK((folder / SOCKET_NAME).lstat().st_mode)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and secret.read_text() == "the host's"

    elsewhere = short_folder / "elsewhere"
    elsewhere.mkdir()
    other = pods / UIDS[1] / "volumes" / "kubernetes.io~empty-dir"
    other.mkdir(parents=True)
    (other / "gangwatch").symlink_to(elsewhere)
    assert sockets.scan() == ([], [])
    assert not list(elsewhere.iterdir())
    close(first)
    assert len(list(sockets.close())) == 1


def test_a_missing_folder_of_pods_is_not_an_error(tmp_path: Path) -> None:
    assert PodSockets(str(tmp_path / "absent")).scan() == ([], [])


# --- a real agent ----------------------------------------------------------------------------------------------------


class Pods:
    """Processes in control groups of pods, and a real agent that finds them by these control groups."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pods, self.proc = folder, folder / "pods", folder / "proc"
        self.state = StateFolder(folder / "state")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.proc.mkdir()
        for name in ("stat", "meminfo", "self", "sys", "uptime", "loadavg", "cpuinfo"):
            (self.proc / name).symlink_to(Path("/proc", name))

    def agent(self) -> None:
        command = [
            sys.executable, "-m", "gangwatch", "agent", "--state", str(self.state.path), "--node", "n1",
            "--proc-root", str(self.proc), "--kubelet-socket", "", "--kubelet-pods", str(self.pods),
            "--listen", "127.0.0.1:0",
        ]  # fmt: skip
        with (self.folder / "agent.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        until("the agent is up", lambda: bool(self.state.agents()))

    def start(self, uid: str, number: int, **claims: str) -> None:
        """Start a pod of one process that sees its emptyDir at a path of its own, as in a container."""
        inside = self.folder / f"run{number}"
        inside.symlink_to(volume(self.pods, uid))
        environment = {**os.environ, "GANGWATCH_SOCKET": str(inside / SOCKET_NAME), "RANK": str(number), **claims}
        command = [sys.executable, "-c", _WORKER]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        self._processes.append(process)
        mine = self.proc / str(process.pid)
        mine.mkdir()
        for entry in Path(f"/proc/{process.pid}").iterdir():
            if entry.name != "cgroup":
                (mine / entry.name).symlink_to(entry)
        part = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        (mine / "cgroup").write_text(f"0::/kubepods.slice/kubepods-burstable.slice/{part}/cri-{'ab' * 32}.scope\n")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()

    def ranks(self) -> set[tuple[str, str]]:
        """Return (gang, rank) of each rank with published steps."""
        (record,) = self.state.agents().values()
        try:
            with urlopen(f"{record.url}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except HTTPError:  # 503: no frame yet
            return set()
        found = set()
        for line in lines:
            if line.startswith("gangwatch_rank_steps_total{"):
                labels = dict(part.split("=", 1) for part in line[line.index("{") + 1 : line.index("}")].split(","))
                found.add((labels["gang"].strip('"'), labels["rank"].strip('"')))
        return found

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)


def until(what: str, condition: Callable[[], bool], seconds: float = 40.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.1)


def test_a_real_agent_receives_steps_of_pods_and_each_only_under_its_own_name(short_folder: Path) -> None:
    pods = Pods(short_folder)
    try:
        pods.agent()
        pods.start(UIDS[0], 0)
        until("the first pod reports", lambda: pods.ranks() == {(f"pod-{UIDS[0]}", "0")})
        # It claims to be the other pod; the agent rejects the claim.
        pods.start(UIDS[1], 1, GANGWATCH_JOB=f"pod-{UIDS[0]}", RANK="0")
        time.sleep(3)
        assert pods.ranks() == {(f"pod-{UIDS[0]}", "0")}
        pods.start("0" * 8 + UIDS[1][8:], 2, GANGWATCH_JOB="train")
        wanted = {(f"pod-{UIDS[0]}", "0"), (f"pod-{'0' * 8}{UIDS[1][8:]}", "2")}
        until("the third pod reports under its own name", lambda: pods.ranks() == wanted)
    finally:
        pods.stop()
