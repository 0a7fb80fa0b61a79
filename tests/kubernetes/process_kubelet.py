"""Fake kubelet that runs the command in a pod's annotation as a process, on nodes with real agents.

No containers can run here. So each agent reads a /proc in which only the `cgroup` files are written by the test, with
the paths that a kubelet's cgroup driver makes. Agents, step reporters, sockets, rings and frames are real.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gangwatch.state_folder import StateFolder
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from tests.kubernetes.fake_kubelet import FakeKubelet, ended
from tests.kubernetes.harness import wait_for

COMMAND = "tests.gangwatch.io/command"
"""Annotation of a pod: JSON list with the command of its process."""

_HELD = "import os, sys; sys.stdin.readline(); os.execv(sys.argv[1], sys.argv[1:])"
_SHARED = ("sys", "stat", "meminfo", "self", "uptime", "loadavg", "cpuinfo", "vmstat", "pressure", "diskstats")
_CONTAINER = "ab" * 32
_ENDS_SECONDS = 10.0


class Agents:
    """One real agent for each node, with folders below the controller's state folder. They run inside the ``with``."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.state = StateFolder(folder)
        self._nodes = nodes
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Agents:
        self.state.path.mkdir(parents=True, exist_ok=True)
        try:
            for node in self._nodes:
                proc = self._proc(node)
                proc.mkdir()
                for name in _SHARED:
                    if Path("/proc", name).exists():
                        (proc / name).symlink_to(Path("/proc", name))
                command = [
                    sys.executable, "-m", "gangwatch", "agent", "--state", str(self.state.path), "--node", node,
                    "--slots", "1", "--proc-root", str(proc), "--kubelet-socket", "", "--listen", "127.0.0.1:0",
                ]  # fmt: skip
                with (self.state.path / f"agent-{node}.output").open("ab") as output:
                    self._processes.append(
                        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                    )
            wait_for("every agent is up", lambda: len(self.state.agents()) == len(self._nodes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(_ENDS_SECONDS)

    def socket_of(self, node: str) -> Path:
        return self.state.socket_path(node)

    def admit(self, node: str, pid: int, uid: str) -> None:
        """Show the process to the node's agent as a member of the control group of the pod `uid`."""
        mine = self._proc(node) / str(pid)
        mine.mkdir()
        for entry in Path(f"/proc/{pid}").iterdir():
            if entry.name != "cgroup":
                (mine / entry.name).symlink_to(entry)
        slice_name = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        path = f"/kubepods.slice/kubepods-burstable.slice/{slice_name}/cri-containerd-{_CONTAINER}.scope"
        (mine / "cgroup").write_text(f"0::{path}\n")

    def _proc(self, node: str) -> Path:
        return self.state.path / f"proc-{node}"


class ProcessKubelet(FakeKubelet):
    """Fake kubelet that runs pods as processes.

    environment: variables of every process, in addition to RANK, the index of its pod. output: file for the output of
    all processes.
    """

    def __init__(self, access: Access, agents: Agents, environment: Mapping[str, str], output: Path) -> None:
        super().__init__(access)
        self._agents, self._environment, self._output = agents, environment, output
        self._processes: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}  # by uid, with the node

    def pid_on(self, node: str) -> int:
        """Return the pid of the process that runs on the node; 0 if there is none."""
        return next((one.pid for at, one in self._processes.values() if at == node and one.poll() is None), 0)

    def __enter__(self) -> ProcessKubelet:
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for _node, process in self._processes.values():
            process.kill()
            process.wait()

    async def _start(self, client: Client, pod: Pod) -> None:
        command = pod.metadata.annotation(COMMAND)
        if not command:
            await super()._start(client, pod)
            return
        process = self._run(pod, json.loads(command))
        self._processes[pod.metadata.uid] = pod.spec.node_name, process
        await super()._start(client, pod)
        while process.poll() is None:
            await asyncio.sleep(0.1)
        if pod.metadata.uid not in self._removed:
            await self._patch(client, pod, ended(pod, process.returncode))

    def _run(self, pod: Pod, command: list[str]) -> subprocess.Popen[bytes]:
        """Start the pod's process, which waits until the node's agent can attribute it to the pod."""
        environment = {
            **os.environ,
            **self._environment,
            "RANK": pod.metadata.label("batch.kubernetes.io/job-completion-index", "0"),
            "GANGWATCH_SOCKET": str(self._agents.socket_of(pod.spec.node_name)),
        }
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _HELD, *command],
                env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        self._agents.admit(pod.spec.node_name, process.pid, pod.metadata.uid)
        _release(process)
        return process

    async def _remove(self, client: Client, pod: Pod) -> None:
        """Send SIGTERM, and SIGKILL after the pod's grace period, as a kubelet does."""
        _, process = self._processes.get(pod.metadata.uid, ("", None))
        if process is not None and process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGCONT):
                process.send_signal(number)
            loop = asyncio.get_running_loop()
            until = loop.time() + pod.spec.termination_grace_period_seconds
            while process.poll() is None and loop.time() < until:
                await asyncio.sleep(0.05)
            process.kill()
        await super()._remove(client, pod)


def _release(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
