"""Faults of a round: each breaks one part of the cluster. The part recovers as on a real node or control plane."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.real_kubelets import NAMESPACE
from tests.kubernetes.real_site import NODES, Site

CUT_SECONDS = (5.0, 50.0)
"""Shortest and longest cut of a network. Kubernetes reports a node as lost after 40 s without a heartbeat
(node-monitor-grace-period was 40 s until 1.31, and is 50 s since), so some cuts are longer and most are not."""
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gangwatch"


def kill_kubelet(site: Site, draw: random.Random) -> str:
    return _kill_on_node(site, draw, "kubelet")


def kill_containerd(site: Site, draw: random.Random) -> str:
    return _kill_on_node(site, draw, "containerd")


def _kill_on_node(site: Site, draw: random.Random, program: str) -> str:
    node = draw.choice(NODES)
    site.kill(node, program)
    return node


def kill_leader(site: Site, _draw: random.Random) -> str:
    """Kill the processes of the controller that holds the Lease. Another takes over; the kubelet restarts this one."""
    holder: str = site.api.get(LEASE)["spec"]["holderIdentity"].rpartition("_")[0]
    uid: str = site.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{holder}")["metadata"]["uid"]
    processes = [process for process in site.real.processes() if _of_pod(process, uid)]
    assert processes, f"no process of {holder} was found"
    for process in processes:
        os.kill(int(process.name), signal.SIGKILL)
    return holder


def _of_pod(process: Path, uid: str) -> bool:
    """Return whether this process is in a container of the pod, other than the one that keeps its network."""
    try:
        return uid in (process / "cgroup").read_text() and (process / "comm").read_text().strip() != "pause"
    except OSError:
        return False  # it has ended


def kill_api_server(site: Site, _draw: random.Random) -> str:
    site.kill("control", "kube-apiserver")
    return "kube-apiserver"


def kill_etcd(site: Site, draw: random.Random) -> str:
    """Kill one of the three members of etcd."""
    members = sorted(site.pids_of("control", "etcd"))
    assert len(members) == 3, f"{len(members)} members of etcd run"
    os.kill(draw.choice(members), signal.SIGKILL)
    return "etcd"


def cut_network(site: Site, draw: random.Random) -> str:
    """Cut a node from all others for some seconds. Its pods run on."""
    node, seconds = draw.choice(NODES), draw.uniform(*CUT_SECONDS)
    control = (site.real.folder / "control.pid").read_text()
    link = ["nsenter", f"--target={control}", "--net", "ip", "link", "set", node]
    subprocess.run([*link, "down"], check=True)
    try:
        time.sleep(seconds)
    finally:
        subprocess.run([*link, "up"], check=True)
    return f"{node} for {seconds:.0f} s"


FAULTS: dict[str, Callable[[Site, random.Random], str]] = {
    "kubelet": kill_kubelet,
    "containerd": kill_containerd,
    "leader": kill_leader,
    "api-server": kill_api_server,
    "etcd": kill_etcd,
    "network": cut_network,
}
"""Faults by name. Each returns what it broke."""


def is_healthy(site: Site, gpus: str) -> bool:
    """Return whether every part runs: nodes ready with this number of GPUs, three members of etcd, a leader."""
    lease: dict[str, Any] = site.api.get(LEASE)["spec"]
    return (
        bool(lease.get("holderIdentity"))
        and len(site.pids_of("control", "etcd")) == 3
        and all(site.is_ready(node) and site.allocatable(node) == gpus for node in NODES)
    )
