"""The program packaging/cluster, which starts a cluster with real kubelets. test_cluster_life.py installs the chart.

That nothing of a cluster remains is checked at the end of each (real_kubelets.RealCluster.running).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.harness import Api, wait_for
from tests.kubernetes.real_kubelets import RealCluster
from tests.kubernetes.real_site import GPUS, NODES, Site
from tests.needs import root

pytestmark = [pytest.mark.xdist_group("real-kubelets"), pytest.mark.timeout(900), pytest.mark.slow]

PODS = "/api/v1/namespaces/default/pods"


def test_a_pod_runs_with_a_reported_gpu_and_a_second_cluster_is_refused(bare: Site) -> None:
    cluster, api = bare.real, bare.api
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    wait_for("pods may be created", lambda: api.find(account))
    assert [bare.allocatable(node) for node in NODES] == [str(GPUS)] * len(NODES)
    api.create(PODS, lone_pod())
    wait_for("its pod runs", lambda: phase(api) == "Running")
    status = api.get(f"{PODS}/lone")["status"]
    assert status["podIP"].startswith(tuple(f"10.213.{index}." for index in range(1, len(NODES) + 1)))
    programs = {(process / "comm").read_text().strip() for process in cluster.processes()}
    assert {"etcd", "kube-apiserver", "containerd", "kubelet", "pause"} <= programs
    second = cluster.command("up")
    assert second.returncode == 1 and "make cluster-down" in second.stderr
    assert cluster.remains() == {"folder", "link", "route", "control groups"}
    api.delete(f"{PODS}/lone")
    wait_for("the pod is gone", lambda: api.find(f"{PODS}/lone") is None)


def lone_pod() -> dict[str, Any]:
    container: dict[str, Any] = {"name": "lone", "image": "localhost/pause:1", "imagePullPolicy": "Never"}
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lone"}, "spec": spec}


def phase(api: Api) -> str:
    found: str = api.get(f"{PODS}/lone")["status"]["phase"]
    return found


def test_a_folder_that_no_cluster_made_is_not_removed(tmp_path: Path) -> None:
    root("to remove a cluster")
    (tmp_path / "kept").touch()
    done = RealCluster(tmp_path).command("down")
    assert done.returncode == 1 and str(tmp_path) in done.stderr
    assert (tmp_path / "kept").exists()
