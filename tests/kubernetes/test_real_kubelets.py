"""The program packaging/cluster, which starts a cluster with real kubelets. test_cluster_life.py installs the chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.kubernetes.harness import Api, wait_for
from tests.kubernetes.real_kubelets import RealCluster
from tests.needs import root

pytestmark = [pytest.mark.xdist_group("real-kubelets"), pytest.mark.timeout(900), pytest.mark.slow]


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a path that does not exist and is short enough for containerd's sockets."""
    with TemporaryDirectory(prefix="gw-", dir="/tmp") as folder:
        yield Path(folder) / "cluster"


def test_a_pod_runs_and_nothing_of_the_cluster_remains() -> None:
    with short_folder() as folder:
        cluster = RealCluster(folder)
        with cluster.running(nodes=1) as api:
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            wait_for("pods may be created", lambda: api.find(account))
            api.create("/api/v1/namespaces/default/pods", lone_pod())
            wait_for("its pod runs", lambda: phase(api) == "Running")
            assert api.get("/api/v1/namespaces/default/pods/lone")["status"]["podIP"].startswith("10.213.1.")
            processes = cluster.processes()
            programs = {(process / "comm").read_text().strip() for process in processes}
            assert {"etcd", "kube-apiserver", "containerd", "kubelet", "pause"} <= programs
            second = cluster.command("up")
            assert second.returncode == 1 and "make cluster-down" in second.stderr
            assert remains(folder) == {"folder", "link", "route", "control groups"}
        assert remains(folder) == set()
        wait_for("all processes end", lambda: not [process for process in processes if runs(process)])


def runs(process: Path) -> bool:
    """Return whether the process is alive and not a zombie."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def lone_pod() -> dict[str, Any]:
    container = {"name": "lone", "image": "localhost/pause:1", "imagePullPolicy": "Never"}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lone"}, "spec": spec}


def phase(api: Api) -> str:
    found: str = api.get("/api/v1/namespaces/default/pods/lone")["status"]["phase"]
    return found


def remains(folder: Path) -> set[str]:
    """Return the processes and mounts of the cluster that still exist on this machine."""
    found = {
        "folder": folder.exists(),
        "link": Path("/sys/class/net/gwcluster0").exists(),
        "route": "0000D50A" in Path("/proc/net/route").read_text(),  # 10.213.0.0, as the kernel writes it
        "control groups": any(Path("/sys/fs/cgroup").glob("**/gangwatch-cluster")),
        "mounts": str(folder) in Path("/proc/self/mounts").read_text(),
    }
    return {name for name, there in found.items() if there}


def test_a_folder_that_no_cluster_made_is_not_removed(tmp_path: Path) -> None:
    root("to remove a cluster")
    (tmp_path / "kept").touch()
    done = RealCluster(tmp_path).command("down")
    assert done.returncode == 1 and str(tmp_path) in done.stderr
    assert (tmp_path / "kept").exists()
