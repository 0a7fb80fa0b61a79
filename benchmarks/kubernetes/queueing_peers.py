"""Peers that need more than one program: Kueue with kube-scheduler, and KAI's scheduler with its binder.

Kueue admits groups of plain pods, with its webhooks and the topology of its Topology-Aware Scheduling; kube-scheduler
then places the pods. Its own programs run outside of the cluster, so its webhooks have a URL instead of a service, and
its definitions have one served version, so that no conversion is needed. Its limit of requests is lifted. It reads the
certificate of its metrics only from METRICS_CERTIFICATES, so this folder is created for it, which needs root.

KAI's scheduler writes a BindRequest for each pod, and its binder binds the pod. The benchmark writes the PodGroups that
KAI's podgrouper would make. Their limits of requests are lifted, and the period is 100 ms (default 1 s).
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.kubernetes import contenders
from benchmarks.kubernetes.peers import KAI_QUEUE, KUEUE_API, KUEUE_QUEUE, POOL, SPINE
from benchmarks.kubernetes.watching import until
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, install_crds
from tests.needs import component
from tests.ports import held_port

Started = tuple[subprocess.Popen[bytes], Mapping[str, int]]
"""The peer's main program, and the process ids of the others by name."""

METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
_RECONCILES = 10


def kueue_objects(nodes: int, gpus: int) -> list[tuple[str, dict[str, Any]]]:
    """Return (path, body) of a topology, a flavor and a queue that has the whole cluster as quota."""
    quota = {"cpu": 64 * nodes, "memory": f"{512 * nodes}Gi", "nvidia.com/gpu": gpus * nodes}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    top = f"/apis/{KUEUE_API}"
    levels = [{"nodeLabel": SPINE}, {"nodeLabel": "kubernetes.io/hostname"}]

    def body(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"apiVersion": KUEUE_API, "kind": kind, "metadata": {"name": name}, "spec": spec}

    groups = [{"coveredResources": list(quota), "flavors": [{"name": "all", "resources": resources}]}]
    return [
        (f"{top}/topologies", body("Topology", "spines", {"levels": levels})),
        (
            f"{top}/resourceflavors",
            body("ResourceFlavor", "all", {"nodeLabels": {POOL: "all"}, "topologyName": "spines"}),
        ),
        (
            f"{top}/clusterqueues",
            body("ClusterQueue", "all", {"namespaceSelector": {}, "resourceGroups": groups}),
        ),
        (f"{top}/namespaces/default/localqueues", body("LocalQueue", KUEUE_QUEUE, {"clusterQueue": "all"})),
    ]


@contextmanager
def kueue(plane: ControlPlane, folder: Path, program: Path, source: Path, count: int, gpus: int) -> Iterator[Started]:
    """Run Kueue and kube-scheduler. source: folder `config/components` of Kueue's repository."""
    folder.mkdir(parents=True, exist_ok=True)
    api = Api(plane.access())
    definitions = folder / "definitions"
    definitions.mkdir()
    for file in sorted((source / "crd" / "bases").glob("*.yaml")):
        body = yaml.safe_load(file.read_text())
        body["spec"]["versions"] = [one for one in body["spec"]["versions"] if one["storage"]]
        (definitions / file.name).write_text(yaml.safe_dump(body))
    install_crds(api, definitions)
    api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    certificates, port, health = folder / "certificates", held_port(), held_port()
    certificates.mkdir()
    command = [component("openssl", "openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(certificates / "tls.key"), "-out", str(certificates / "tls.crt")]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    METRICS_CERTIFICATES.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copy(certificates / name, METRICS_CERTIFICATES)
    settings = folder / "kueue.yaml"
    settings.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                "kind": "Configuration",
                "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
                "metrics": {"bindAddress": f"127.0.0.1:{held_port()}"},
                "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(certificates)},
                "leaderElection": {"leaderElect": False},
                "controller": {
                    "groupKindConcurrency": {
                        "Pod": 5,
                        "Workload.kueue.x-k8s.io": 10,
                        "LocalQueue.kueue.x-k8s.io": 5,
                        "ClusterQueue.kueue.x-k8s.io": 5,
                        "ResourceFlavor.kueue.x-k8s.io": 1,
                    }
                },
                "clientConnection": {"qps": 5000, "burst": 10000},
                "internalCertManagement": {"enable": False},
                "integrations": {"frameworks": ["pod"]},
            }
        )
    )
    hooks = [hook for hook in _webhooks(source, certificates / "tls.crt", port) if hook["webhooks"]]
    environment = {"KUBECONFIG": str(plane.kubeconfig())}
    process = contenders.began(
        [str(program), f"--config={settings}", "--feature-gates=VisibilityOnDemand=false"],
        folder / "kueue.log",
        environment,
    )
    try:
        until("Kueue is up", _listens(port, process))
        for hook in hooks:
            api.create(f"/apis/admissionregistration.k8s.io/v1/{hook['kind'].lower()}s", hook)
        for path, body in kueue_objects(count, gpus):
            _created(api, path, body)
        with contenders.kube_scheduler(plane, folder / "scheduler") as scheduler:
            yield process, {"kube_scheduler": scheduler.pid}
    finally:
        for hook in hooks:
            api.delete(f"/apis/admissionregistration.k8s.io/v1/{hook['kind'].lower()}s/{hook['metadata']['name']}")
        api.close()
        contenders.end(process)
        shutil.rmtree(METRICS_CERTIFICATES.parents[1])


def _webhooks(source: Path, certificate: Path, port: int) -> list[dict[str, Any]]:
    """Return Kueue's webhooks of pods and of its own objects, with the URL of the running program."""
    found = []
    authority = base64.b64encode(certificate.read_bytes()).decode()
    for body in yaml.safe_load_all((source / "webhook" / "manifests.yaml").read_text()):
        kept = []
        for hook in body["webhooks"]:
            groups = {group for rule in hook["rules"] for group in rule["apiGroups"]}
            if groups <= {"", "kueue.x-k8s.io"}:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
                kept.append(hook)
        found.append({**body, "webhooks": kept})
    return found


def _listens(port: int, process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    def check() -> bool:
        assert process.poll() is None, "it has ended: see its log"
        done = subprocess.run([component("openssl", "openssl"), "s_client", "-connect", f"127.0.0.1:{port}"],
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
        return b"BEGIN CERTIFICATE" in done.stdout

    return check


def _created(api: Api, path: str, body: dict[str, Any]) -> None:
    """Create an object. Its webhook may not be called yet directly after its registration."""

    def create() -> bool:
        try:
            api.create(path, body)
        except Exception:
            return False
        return True

    until(f"{path} is created", create, 30)


@contextmanager
def kai(plane: ControlPlane, folder: Path, programs: Path, definitions: Path) -> Iterator[Started]:
    """Run KAI's scheduler and binder. programs: their folder; definitions: `deployments/kai-scheduler/crds`."""
    folder.mkdir(parents=True, exist_ok=True)
    api = Api(plane.access())
    install_crds(api, definitions)
    for name in ("kai-scheduler", "kai-resource-reservation", "kai-scale-adjust"):
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    train = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "train"}, "value": 50}
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", train)
    anything = {"limit": -1, "overQuotaWeight": 1, "quota": 0}
    resources = {"cpu": anything, "gpu": anything, "memory": anything}
    for name, parent in (("default-parent-queue", ""), (KAI_QUEUE, "default-parent-queue")):
        spec = {"resources": resources, **({"parentQueue": parent} if parent else {})}
        body = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        api.create("/apis/scheduling.run.ai/v2/queues", body)
    levels = [{"nodeLabel": SPINE}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "spines"}}
    api.create("/apis/kai.scheduler/v1alpha1/topologies", {**topology, "spec": {"levels": levels}})
    api.close()
    environment = {"KUBECONFIG": str(plane.kubeconfig())}
    limits = ["--qps=5000", "--burst=10000"]
    scheduler = contenders.began(
        [str(programs / "scheduler"), *limits, "--schedule-period=100ms", f"--listen-address=127.0.0.1:{held_port()}",
         f"--plugin-server-port={held_port()}"],
        folder / "scheduler.log", environment,
    )  # fmt: skip
    binder = contenders.began(
        [str(programs / "binder"), *limits, f"--max-concurrent-reconciles={_RECONCILES}",
         f"--health-probe-bind-address=127.0.0.1:{held_port()}", f"--metrics-bind-address=127.0.0.1:{held_port()}"],
        folder / "binder.log", environment,
    )  # fmt: skip
    try:
        yield scheduler, {"binder": binder.pid}
    finally:
        contenders.end(scheduler)
        contenders.end(binder)
