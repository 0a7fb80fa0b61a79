"""Configuration files of one node of the test cluster: containerd, the CNI plug-ins and the kubelet."""

from __future__ import annotations

import json
from pathlib import Path

from certificates import kubeconfig, make_certificate

GROUP = "gangwatch-cluster"
"""Control group of all nodes; each has one of its name below it."""


def write_node(folder: Path, name: str, index: int, programs: Path) -> None:
    """Write the files of a node into FOLDER/NAME. programs: folder of the unpacked Debian packages."""
    own, control = folder / name, folder / "control"
    (own / "cni").mkdir(parents=True)
    make_certificate(control, name, f"/O=system:nodes/CN=system:node:{name}", f"DNS:{name},IP:10.213.0.{10 + index}")
    (own / "kubelet.kubeconfig").write_text(kubeconfig(control, name))
    (own / "kubelet.yaml").write_text(_kubelet(own, control, name))
    (own / "containerd.toml").write_text(_containerd(own, programs))
    (own / "cni" / "10-bridge.conflist").write_text(json.dumps(_network(index), indent=2))


def _kubelet(own: Path, control: Path, name: str) -> str:
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{control}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{control}/{name}.crt",
        "tlsPrivateKeyFile": f"{control}/{name}.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{GROUP}/{name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        # The disk is the machine's: its level says nothing about a pod.
        "evictionHard": {"memory.available": "1%", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": ["10.213.240.10"],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{own}/resolv.conf",
    }
    return json.dumps(settings, indent=2)  # JSON is YAML


def _containerd(own: Path, programs: Path) -> str:
    """Return containerd's configuration for a node. The node has its own /var/lib and /run.

    own: the node's folder. programs: folder of the unpacked Debian packages.
    """
    disabled = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("btrfs", "zfs", "devmapper", "aufs"))
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [{disabled}]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
# Without it, runc fails where the machine lets nobody lower the score of a process.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs}/usr/lib/cni"
conf_dir = "{own}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "{programs}/usr/sbin/runc"
"""


def _network(index: int) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": f"10.213.{index}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
