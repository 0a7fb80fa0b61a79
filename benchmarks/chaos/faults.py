"""Faults of a round: each breaks one part of the cluster. The part recovers as on a real node or control plane.

A fault returns what it broke, and a function that returns whether that part has recovered. The cluster reports a dead
part as healthy for some time: a node for 50 s, a leader until its Lease ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.lease import LEASE_SECONDS
from tests.kubernetes.real_kubelets import NAMESPACE
from tests.kubernetes.real_site import NODES, Site

MEMBERS = 3
"""Members of etcd."""
CUT_SECONDS = (5.0, 50.0)
"""Shortest and longest cut of a network. Kubernetes reports a node as lost after 50 s without a heartbeat
(node-monitor-grace-period; 40 s until 1.31), so these cuts are shorter."""
LOST_SECONDS = (70.0, 130.0)
"""Shortest and longest cut of a network during which Kubernetes reports the node as lost. It evicts pods only after 300
more seconds (defaultTolerationSeconds)."""
EVICTED_SECONDS = (370.0, 430.0)
"""Shortest and longest cut of a network during which Kubernetes also deletes the node's pods: 50 s and 300 s, and some
seconds for the controllers."""
STOPPED_SECONDS = (4.0, 40.0)
"""Shortest and longest time for which the API server is stopped. The leader renews its Lease late after 5 to 8 s, and
gives up after more."""
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gangwatch"


Fault = tuple[str, Callable[[], bool]]


def kill_kubelet(site: Site, draw: random.Random) -> Fault:
    return _kill_on_node(site, draw, "kubelet")


def kill_containerd(site: Site, draw: random.Random) -> Fault:
    return _kill_on_node(site, draw, "containerd")


def _kill_on_node(site: Site, draw: random.Random, program: str) -> Fault:
    node = draw.choice(NODES)
    ended = site.kill(node, program)
    return node, lambda: site.pid_of(node, program) not in (0, ended)


def kill_leader(site: Site, _draw: random.Random) -> Fault:
    """Kill the processes of the controller that holds the Lease. Another takes over; the kubelet restarts this one."""
    lease: dict[str, Any] = site.api.get(LEASE)["spec"]
    holder: str = lease["holderIdentity"].rpartition("_")[0]
    uid: str = site.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{holder}")["metadata"]["uid"]
    processes = [process for process in site.real.processes() if _of_pod(process, uid)]
    assert processes, f"no process of {holder} was found"
    for process in processes:
        os.kill(int(process.name), signal.SIGKILL)
    last: str = site.api.get(LEASE)["spec"]["renewTime"]  # the same controller may lead again, with the same identity
    return holder, lambda: site.api.get(LEASE)["spec"]["renewTime"] != last


def _of_pod(process: Path, uid: str) -> bool:
    """Return whether this process is in a container of the pod, other than the one that keeps its network."""
    try:
        return uid in (process / "cgroup").read_text() and (process / "comm").read_text().strip() != "pause"
    except OSError:
        return False  # it has ended


def kill_api_server(site: Site, _draw: random.Random) -> Fault:
    ended = site.kill("control", "kube-apiserver")
    return "kube-apiserver", lambda: site.pid_of("control", "kube-apiserver") not in (0, ended)


def stop_api_server(site: Site, draw: random.Random) -> Fault:
    """Stop the API server without ending it for some seconds. In half of the rounds a renewal of the Lease is late."""
    seconds = draw.choice((draw.uniform(5.0, 8.0), draw.uniform(*STOPPED_SECONDS)))
    server = site.pid_of("control", "kube-apiserver")
    os.kill(server, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(server, signal.SIGCONT)
    return f"kube-apiserver for {seconds:.0f} s", lambda: _answers(site)


def _answers(site: Site) -> bool:
    try:
        return bool(site.api.get(LEASE))
    except BackendError:
        return False


def kill_etcd(site: Site, draw: random.Random) -> Fault:
    """Kill one of the three members of etcd."""
    members = sorted(site.pids_of("control", "etcd"))
    assert len(members) == MEMBERS, f"{len(members)} members of etcd run"
    ended = draw.choice(members)
    os.kill(ended, signal.SIGKILL)
    return "etcd", lambda: ended not in (running := site.pids_of("control", "etcd")) and len(running) == MEMBERS


def cut_network(site: Site, draw: random.Random) -> Fault:
    """Cut a node from all others for some seconds. Its pods run on."""
    return _cut(site, draw, CUT_SECONDS)


def lose_node(site: Site, draw: random.Random) -> Fault:
    """Cut a node from all others until Kubernetes reports it as lost. Its pods run on."""
    return _cut(site, draw, LOST_SECONDS)


def lose_pods(site: Site, draw: random.Random) -> Fault:
    """Cut a node from all others until Kubernetes has deleted its pods. They run on until the node is back."""
    return _cut(site, draw, EVICTED_SECONDS)


def _cut(site: Site, draw: random.Random, limits: tuple[float, float]) -> Fault:
    node, seconds = draw.choice(NODES), draw.uniform(*limits)
    control = (site.real.folder / "control.pid").read_text()
    link = ["nsenter", f"--target={control}", "--net", "ip", "link", "set", node]
    subprocess.run([*link, "down"], check=True)
    try:
        time.sleep(seconds)
        heartbeat = _heartbeat(site, node)
    finally:
        subprocess.run([*link, "up"], check=True)
    return f"{node} for {seconds:.0f} s", lambda: _heartbeat(site, node) != heartbeat


def _heartbeat(site: Site, node: str) -> str:
    """Return the time of the node's last heartbeat."""
    found: str = site.api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}")["spec"][
        "renewTime"
    ]
    return found


FAULTS: dict[str, Callable[[Site, random.Random], Fault]] = {
    "kubelet": kill_kubelet,
    "containerd": kill_containerd,
    "leader": kill_leader,
    "api-server": kill_api_server,
    "api-stopped": stop_api_server,
    "etcd": kill_etcd,
    "network": cut_network,
    "node-lost": lose_node,
    "pods-evicted": lose_pods,
}
"""Faults by name."""

USUAL = tuple(name for name in FAULTS if name not in ("node-lost", "pods-evicted"))
"""Faults of a campaign unless it names others. Rounds with a lost node take several minutes."""


def _renewed(at: str) -> bool:
    """Return whether a Lease that was renewed at this time (RFC 3339) still holds: its holder may have ended."""
    age_seconds = datetime.now(UTC).timestamp() - datetime.fromisoformat(at).timestamp()
    return age_seconds < LEASE_SECONDS / 2


def is_healthy(site: Site, gpus: str) -> bool:
    """Return whether every part runs: nodes ready with this number of GPUs, three members of etcd, a leader."""
    lease: dict[str, Any] = site.api.get(LEASE)["spec"]
    return (
        bool(lease.get("holderIdentity"))
        and _renewed(lease["renewTime"])
        and len(site.pids_of("control", "etcd")) == MEMBERS
        and all(site.is_ready(node) and site.allocatable(node) == gpus for node in NODES)
    )
