"""A Kubernetes cluster on one machine: a control plane and real kubelets, each with containerd, in Linux namespaces.

    python packaging/cluster/cluster.py up [--nodes 3] [--etcd 1] [--gpus 0]  start it; wait for its nodes
    python packaging/cluster/cluster.py reboot NODE                           end a node at once, and start it again
    python packaging/cluster/cluster.py down                                  stop it and remove all of its files

It needs root; see docs/how-to/cluster.md. The cluster's folder is GANGWATCH_CLUSTER, by default
/tmp/gangwatch-cluster. programs.sh and images.sh install its programs and images.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import namespaces
from certificates import SERVER, kubeconfig, make_authority, make_certificate
from node_files import write_node

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gangwatch"
PROGRAMS = CACHE / "cluster" / "programs"
IMAGES = CACHE / "cluster" / "images"
KUBERNETES = Path(os.environ.get("KUBEBUILDER_ASSETS", CACHE / "kubernetes" / "bin"))
FOLDER = Path(os.environ.get("GANGWATCH_CLUSTER", "/tmp/gangwatch-cluster"))
CONTAINERD = CACHE / "cluster" / "containerd"
PATH = os.pathsep.join(
    (
        str(CONTAINERD),
        f"{PROGRAMS}/usr/bin",
        f"{PROGRAMS}/usr/sbin",
        str(KUBERNETES),
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    )
)
MARK = ".gangwatch-cluster"
"""File that distinguishes the folder of a cluster from any other folder, which is never removed."""
MOST_NODES = 5
COREFILE = """cluster.local:53 {
    bind 10.213.240.10
    errors
    kubernetes cluster.local {
        kubeconfig admin.kubeconfig cluster
    }
}
"""
_PARTS = {
    "control": "",
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
}
_SERVER_NAMES = "IP:10.213.0.1,IP:10.213.240.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"


def missing() -> str:
    """Return the programs and permissions that this machine lacks for a cluster, and how to get them; '' if none."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "root is needed on Linux, for namespaces and mounts"
    for program in ("openssl", "ip", "nsenter", "unshare", "etcd"):
        if shutil.which(program, path=PATH) is None:
            return f"{program} is absent: make components, or apt-get install openssl iproute2 util-linux etcd-server"
    wanted = [
        PROGRAMS / ".complete",
        PROGRAMS / "usr/bin/coredns",
        CONTAINERD / "containerd-shim-runc-v2",
        *(KUBERNETES / name for name in ("kube-apiserver", "kube-scheduler", "kubelet")),
    ]
    for file in wanted:
        if not file.exists():
            return f"{file} is absent: packaging/cluster/programs.sh gets it"
    for name in ("agent.tar", "controller.tar", "pause.tar"):
        if not (IMAGES / name).exists():
            return f"{IMAGES / name} is absent: packaging/cluster/images.sh builds it"
    return ""


def up(nodes: int, members: int = 1, gpus: int = 0) -> None:
    """Start the cluster, and wait until all nodes are ready.

    members: number of etcd's members. gpus: number of GPUs that each node reports, without having them.
    """
    lack = missing() or _in_use()
    if lack:
        raise SystemExit(f"cluster: {lack}")
    control = FOLDER / "control"
    FOLDER.mkdir(parents=True)
    (FOLDER / MARK).touch()
    control.mkdir()
    control.chmod(0o700)
    shutil.copytree(IMAGES, FOLDER / "images")
    make_authority(control)
    make_certificate(control, "server", "/CN=kube-apiserver", _SERVER_NAMES)
    for part, subject in _PARTS.items():
        if subject:
            make_certificate(control, part, subject)
            (control / f"{part}.kubeconfig").write_text(kubeconfig(control, part))
    shutil.copy(control / "admin.kubeconfig", FOLDER / "kubeconfig")
    (control / "Corefile").write_text(COREFILE)
    holder = namespaces.start(FOLDER, "control", ["bash", f"{HERE}/control.sh", str(FOLDER), str(members)], PATH)
    _wait("the control plane's network", (control / "ready").exists, 30)
    namespaces.link_machine(holder)
    _wait("the API server", lambda: _get("/readyz") == b"ok", 120)
    (control / "dns").touch()
    names = [f"node-{index}" for index in range(1, nodes + 1)]
    for index, name in enumerate(names, 1):
        write_node(FOLDER, name, index, PROGRAMS)
        _start_node(name, index)
    _wait(f"{nodes} nodes are ready", lambda: _ready_nodes() == set(names), 240)
    if gpus:
        for name in names:
            _report_gpus(name, gpus)
        _wait("the kubelets have the GPUs", lambda: all(_gpus(name) == gpus for name in names), 120)
    sys.stdout.write(f"{nodes} nodes are ready. export KUBECONFIG={FOLDER}/kubeconfig\n")


def _start_node(name: str, index: int) -> None:
    """Start the programs of a node in new namespaces. index: its number, which its addresses have."""
    namespaces.make_group(name)
    node = namespaces.start(FOLDER, name, ["bash", f"{HERE}/node.sh", str(FOLDER), name, str(index)], PATH)
    namespaces.link_node(int((FOLDER / "control.pid").read_text()), node, name, index)


def reboot(name: str) -> None:
    """End all programs and pods of a node at once, as a power failure does, and start the node with a new boot id.

    The disk stays, and /run is empty. Waits until the kubelet has reported the new boot id and the node is ready.
    """
    own = FOLDER / name
    if not name.startswith("node-") or not (FOLDER / f"{name}.pid").exists():
        raise SystemExit(f"cluster: {name} is not a node of the cluster in {FOLDER}")
    namespaces.end(FOLDER, name)
    shutil.rmtree(own / "run")
    (own / "boot-id").unlink()
    _start_node(name, int(name.rpartition("-")[2]))
    _wait(f"{name} is ready again", lambda: _has_booted(name, own / "boot-id"), 240)


def _has_booted(name: str, boot_id: Path) -> bool:
    """Return whether the API server has the present boot id of a node, and the node is ready."""
    node = json.loads(_get(f"/api/v1/nodes/{name}") or b"{}")
    reported = node.get("status", {}).get("nodeInfo", {}).get("bootID")
    return boot_id.exists() and reported == boot_id.read_text().strip() and name in _ready_nodes()


def down() -> None:
    """Stop the cluster, and remove its processes, network links, control groups and folder."""
    if os.geteuid() != 0:
        raise SystemExit("cluster: root is needed to remove the cluster")
    if FOLDER.exists() and (FOLDER.lstat().st_uid != 0 or not (FOLDER / MARK).exists()):
        raise SystemExit(f"cluster: {FOLDER} is not a folder of a cluster, and nothing in it was removed")
    for file in sorted(FOLDER.glob("*.pid"), reverse=True):  # nodes before the control plane
        namespaces.end(FOLDER, file.stem)
    namespaces.remove_link()
    namespaces.remove_groups()
    shutil.rmtree(FOLDER, ignore_errors=True)
    if FOLDER.exists():
        raise SystemExit(f"cluster: {FOLDER} cannot be removed completely; see what remains with `find {FOLDER}`")


def _report_gpus(name: str, gpus: int) -> None:
    """Let a node report GPUs that do not exist. Pods that request them get no device.

    Source: https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
    """
    body = json.dumps([{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(gpus)}]).encode()
    with _send(f"/api/v1/nodes/{name}/status", body) as response:
        response.read()


def _gpus(name: str) -> int:
    found = json.loads(_get(f"/api/v1/nodes/{name}") or b"{}").get("status", {}).get("allocatable", {})
    return int(found.get("nvidia.com/gpu", 0))


def _in_use() -> str:
    """Return the reason why no cluster can be started, such as a running one; '' if it can."""
    if FOLDER.exists() or Path(f"/sys/class/net/{namespaces.LINK}").exists():
        return f"a cluster is there already ({FOLDER}, {namespaces.LINK}): make cluster-down"
    for part in ("/var/lib", "/var/log", "/run", "/proc", "/sys"):
        if FOLDER.is_relative_to(part):
            return f"GANGWATCH_CLUSTER={FOLDER} is below {part}, of which each node has its own: name another folder"
    routes = subprocess.run(["ip", "route", "show", "root", "10.213.0.0/16"], capture_output=True, text=True).stdout
    return f"this machine uses addresses of 10.213.0.0/16 already: {routes.strip()}" if routes.strip() else ""


def _get(path: str) -> bytes:
    """Return the API server's response to a GET request; b'' if it does not respond."""
    try:
        with _send(path) as response:
            body: bytes = response.read()
            return body
    except OSError:
        return b""


def _send(path: str, patch: bytes | None = None) -> Any:
    """Send a GET request, or this JSON patch, to the API server as administrator. Raises OSError if it fails."""
    control = FOLDER / "control"
    context = ssl.create_default_context(cafile=str(control / "ca.crt"))
    context.load_cert_chain(control / "admin.crt", control / "admin.key")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    headers = {} if patch is None else {"Content-Type": "application/json-patch+json"}
    method = "GET" if patch is None else "PATCH"
    request = urllib.request.Request(f"{SERVER}{path}", data=patch, headers=headers, method=method)
    return opener.open(request, timeout=5)


def _ready_nodes() -> set[str]:
    found = json.loads(_get("/api/v1/nodes") or b'{"items": []}')["items"]
    return {
        node["metadata"]["name"]
        for node in found
        if any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ()))
    }


def _wait(what: str, done: object, seconds: float) -> None:
    assert callable(done)
    until = time.monotonic() + seconds
    while not done():
        ended = [file.stem for file in FOLDER.glob("*.pid") if not namespaces.runs(int(file.read_text()))]
        if ended:
            raise SystemExit(
                f"cluster: {', '.join(ended)} ended; see the logs in {FOLDER}/{ended[0]}; then: make cluster-down"
            )
        if time.monotonic() > until:
            raise SystemExit(
                f"cluster: not in {seconds:g} s: {what}; see the logs in {FOLDER}; then: make cluster-down"
            )
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="start it, and wait until all nodes are ready")
    starting.add_argument("--nodes", type=int, default=3, choices=range(1, MOST_NODES + 1), help="number of nodes")
    starting.add_argument("--etcd", type=int, default=1, choices=(1, 3), help="number of members of etcd")
    starting.add_argument(
        "--gpus", type=int, default=0, choices=range(17), metavar="0..16", help="GPUs that each node reports (fake)"
    )
    rebooting = commands.add_parser("reboot", help="end a node at once, and start it again")
    rebooting.add_argument("node", help="such as node-1")
    commands.add_parser("down", help="remove all of it")
    commands.add_parser("check", help="exit with 1 and a reason if it cannot start here")
    arguments = parser.parse_args()
    if arguments.command == "up":
        up(arguments.nodes, arguments.etcd, arguments.gpus)
    elif arguments.command == "reboot":
        reboot(arguments.node)
    elif arguments.command == "down":
        down()
    elif lack := missing() or _in_use():
        raise SystemExit(f"cluster: {lack}")


if __name__ == "__main__":
    main()
