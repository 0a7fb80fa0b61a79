"""Cluster of packaging/cluster for tests: real kubelets, and the chart installed by Helm."""

from __future__ import annotations

import base64
import fcntl
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gangwatch.state_folder import start_time_of
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.deploy.test_chart import CHART, helm
from tests.kubernetes.harness import Api, wait_for
from tests.needs import absent

PROGRAM = Path(__file__).resolve().parents[2] / "packaging" / "cluster" / "cluster.py"
LOCK = Path("/tmp/gangwatch-cluster-tests.lock")
NAMESPACE = "gangwatch"
CLUSTER_BYTES = 5 << 30
"""Size of the files of a cluster of three nodes."""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values of a scrape, by name and labels."""


def parent_folder() -> Path:
    """Return where the files of a cluster are written: in memory if there is room, else /tmp. The path is short.

    Most of these 5 GB are the images that each node unpacks. On a disk, their removal alone can take a minute.
    """
    memory = Path("/dev/shm")
    wanted = 2 * CLUSTER_BYTES
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)
    if available < wanted or not memory.is_dir() or shutil.disk_usage(memory).free < wanted:
        return Path("/tmp")
    return memory


class RealCluster:
    """Cluster with real kubelets, whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "GANGWATCH_CLUSTER": str(folder)}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run packaging/cluster/cluster.py."""
        command = [sys.executable, str(PROGRAM), *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True)

    @contextmanager
    def running(self, nodes: int, members: int = 1, gpus: int = 0) -> Iterator[Api]:
        """Start the cluster, yield its administrator's client, and remove the cluster. Skip if it cannot run here.

        members: number of etcd's members. gpus: number of GPUs that each node reports without a device plug-in.
        """
        with LOCK.open("w") as lock:  # a machine has room for one cluster; another run of the tests may have it
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self._running(nodes, members, gpus) as api:
                yield api

    @contextmanager
    def _running(self, nodes: int, members: int, gpus: int) -> Iterator[Api]:
        if (checked := self.command("check")).returncode != 0:
            absent(checked.stderr.strip())
        try:
            started = self.command("up", f"--nodes={nodes}", f"--etcd={members}", f"--gpus={gpus}")
            assert started.returncode == 0, started.stderr + self.logs()
            api = Api(self._access())
            try:
                yield api
            finally:
                api.close()
        finally:
            processes = {int(one.name): start_time_of(int(one.name)) for one in self.processes()}
            removed = self.command("down")
        assert removed.returncode == 0, removed.stderr
        assert self.remains() == set()
        known = [(pid, began) for pid, began in processes.items() if began is not None]  # pids are used again
        wait_for("all processes end", lambda: not any(start_time_of(pid) == began for pid, began in known))

    def remains(self) -> set[str]:
        """Return what of the cluster exists on this machine, apart from its processes."""
        found = {
            "folder": self.folder.exists(),
            "link": Path("/sys/class/net/gwcluster0").exists(),
            "route": "0000D50A" in Path("/proc/net/route").read_text(),  # 10.213.0.0, as the kernel writes it
            "control groups": any(Path("/sys/fs/cgroup").glob("*/gangwatch-cluster"))
            or Path("/sys/fs/cgroup/gangwatch-cluster").exists(),
            "mounts": str(self.folder) in Path("/proc/self/mounts").read_text(),
        }
        return {name for name, there in found.items() if there}

    def _access(self) -> Access:
        control = self.folder / "control"
        ca, certificate, key = ((control / name).read_text() for name in ("ca.crt", "admin.crt", "admin.key"))
        return Access("https://10.213.0.1:443", ca=ca, certificate=certificate, key=key)

    def install(self, values: dict[str, Any] | None = None) -> None:
        """Install the chart with these values, and wait until all of its pods are ready."""
        self._helm("install", values or {}, "--create-namespace")

    def upgrade(self, values: dict[str, Any]) -> None:
        """Upgrade the release to the chart's defaults with these values, and wait until all of its pods are ready."""
        self._helm("upgrade", values)

    def _helm(self, command: str, values: dict[str, Any], *options: str) -> None:
        file = self.folder / "values.json"  # JSON is YAML
        file.write_text(json.dumps(values))
        where = ["--namespace", NAMESPACE, "--kubeconfig", str(self.folder / "kubeconfig"), "--values", str(file)]
        waiting = ["--wait", "--timeout", "4m"]
        arguments = [helm(), command, "gangwatch", str(CHART), *where, *waiting, *options]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + self.logs()

    def logs(self) -> str:
        """Return the last lines of each log of the cluster and of gangwatch's pods."""
        found = [*self.folder.glob("*/*.log"), *self.folder.glob("*/var/log/pods/gangwatch_*/*/*.log")]
        return "".join(f"\n== {file}\n{file.read_text(errors='replace')[-1500:]}" for file in found)

    def processes(self) -> list[Path]:
        """Return the /proc folders of the processes that hold the cluster's namespaces, and of their descendants."""
        parents: dict[int, int] = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
        found = {int(file.read_text()) for file in self.folder.glob("*.pid")}
        while more := {child for child, parent in parents.items() if parent in found} - found:
            found |= more
        return [Path(f"/proc/{process}") for process in sorted(found)]


def scrape(api: Api, name: str, address: str, port: int, *, password: bool = True) -> tuple[int, Samples]:
    """Scrape an endpoint over TLS, as Prometheus does. Return the status and the samples.

    name: required name in the certificate, which the chart's authority must have signed.
    """
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    authority = base64.b64decode(api.get(f"{path}/gangwatch-tls")["data"]["ca.crt"]).decode()
    secret = api.get(f"{path}/gangwatch-agent")["data"]
    user = b":".join(base64.b64decode(secret[key]) for key in ("username", "password"))
    headers = {"Authorization": f"Basic {base64.b64encode(user).decode()}"} if password else {}
    context = ssl.create_default_context(cadata=authority)
    connection = http.client.HTTPSConnection(address, port, context=context)
    plain = socket.create_connection((address, port), timeout=10)
    connection.sock = context.wrap_socket(plain, server_hostname=name)
    try:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    samples: Samples = {}
    for family in text_string_to_metric_families(text) if response.status == 200 else ():
        for sample in family.samples:
            samples[sample.name, frozenset(sample.labels.items())] = sample.value
    return response.status, samples
