"""Real cluster for several tests: the chart, fake GPUs, kubectl, and a Prometheus that discovers the pods."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT
from tests.kubernetes.device_plugin import DevicePlugin
from tests.kubernetes.harness import Api, Cluster, wait_for
from tests.kubernetes.real_kubelets import NAMESPACE, RealCluster, parent_folder
from tests.needs import component, otlp_program
from tests.ports import held_port

NODES = ("node-1", "node-2", "node-3")
GPUS = 3
IMAGE = "ghcr.io/gangwatch/gangwatch-agent:0.1.0"
SCRAPE_SECONDS = 15
"""The interval of the chart's monitors. Discovery in Prometheus alone delays the first scrape of a new pod by up to 5 s
(updatert in discovery/manager.go), so a shorter interval would measure Prometheus and not the agent."""
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kubernetes.md"


class Site:
    """Cluster of three nodes with three GPUs each. plugins: of the GPUs, by node."""

    def __init__(self, real: RealCluster, api: Api) -> None:
        self.real, self.api = real, api
        self.plugins: dict[str, DevicePlugin] = {}
        self.gangs = Cluster(api)
        self._opened = ExitStack()

    def complete(self) -> None:
        """Start device plug-ins for the GPUs and install the chart, unless that is done already."""
        if self.plugins:
            return
        for node in NODES:
            folder = self.real.folder / node / "var/lib/kubelet/device-plugins"
            plugin = DevicePlugin(folder, [f"GPU-{node}-{index}" for index in range(GPUS)])
            self.plugins[node] = self._opened.enter_context(plugin)
        if self.api.find(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gangwatch-agent") is None:
            self.real.install()
        wait_for("every node has its GPUs", lambda: all(self.allocatable(node) == str(GPUS) for node in NODES))

    def close(self) -> None:
        self._opened.close()

    def kubectl(self, *arguments: str, seconds: float = 120.0) -> str:
        """Run kubectl as administrator, and return its output. Fail if it fails."""
        environment = {**os.environ, "KUBECONFIG": str(self.real.folder / "kubeconfig")}
        command = [component("kubectl", "kubernetes-client"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def gangwatch(self, *arguments: str) -> str:
        """Run a command of gangwatch in the leading controller."""
        lease = self.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gangwatch")
        pod = lease["spec"]["holderIdentity"].rpartition("_")[0]
        inside = ["exec", pod, "--container=controller", "--", "gangwatch", *arguments]
        return self.kubectl(f"--namespace={NAMESPACE}", *inside, "--state=/var/lib/gangwatch/controller")

    def add_job(self, name: str, ranks: int, **spec: Any) -> None:
        """Create a restartable gang of pods that wait, one GPU each, and the Job that recreates them.

        Like a training without a handler, they end with an error at SIGTERM. A pod that ended with code 0 would
        complete its index, and the Job would never create it again.
        """
        resources = {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": {"nvidia.com/gpu": "1"}}
        image = {"image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "86400"]}
        pod = {"containers": [{"name": "main", "resources": resources, **image}], "enableServiceLinks": False}
        self.gangs.add_job(name, ranks, annotations={"gangwatch.io/restartable": "true"}, pod=pod, **spec)

    def running(self, gang: str, attempt: int = 1) -> dict[str, str]:
        """Return the node of each of the gang's running pods, by uid, from this attempt on."""
        return {
            pod["metadata"]["uid"]: pod["spec"]["nodeName"]
            for pod in self.gangs.pods(gang)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and int(pod["metadata"]["annotations"].get(ATTEMPT, "0")) >= attempt
        }

    @contextmanager
    def without_plugin(self, *nodes: str) -> Iterator[None]:
        """Let the nodes have no GPUs of a device plug-in, as after its removal, and restore them at the end."""
        self._set_health(nodes, healthy=False)
        try:
            yield
        finally:
            self._set_health(nodes, healthy=True)

    def _set_health(self, nodes: tuple[str, ...], *, healthy: bool) -> None:
        for node in nodes:
            for index in range(GPUS):
                self.plugins[node].set_health(f"GPU-{node}-{index}", healthy)
        wanted = str(GPUS if healthy else 0)
        wait_for(f"the nodes have {wanted} GPUs", lambda: all(self.allocatable(node) == wanted for node in nodes))

    def is_ready(self, node: str) -> bool:
        status = self.api.get(f"/api/v1/nodes/{node}")["status"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"])

    def allocatable(self, node: str) -> str:
        found: str = self.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get("nvidia.com/gpu", "0")
        return found

    def kill(self, node: str, program: str) -> int:
        """Kill a program of a node, and return its pid. The node runs it again, as systemd does."""
        pid = self.pid_of(node, program)
        assert pid, f"{program} does not run on {node}"
        os.kill(pid, signal.SIGKILL)
        return pid

    def pid_of(self, node: str, program: str) -> int:
        """Return the pid of a program of a node; 0 if it does not run."""
        return next(iter(self.pids_of(node, program)), 0)

    def pids_of(self, node: str, program: str) -> list[int]:
        """Return the pids of a program of a node, or of the control plane if `node` is 'control'."""
        own = _host_name_space(Path(f"/proc/{(self.real.folder / f'{node}.pid').read_text()}"))
        found = []
        for process in self.real.processes():
            try:
                if (process / "comm").read_text().strip() == program and _host_name_space(process) == own:
                    found.append(int(process.name))
            except OSError:
                continue  # it has ended
        return found

    def clear(self, gang: str) -> None:
        """Delete the gang, and wait until its pods are gone."""
        self.api.delete(
            f"/apis/batch/v1/namespaces/default/jobs/{gang}", {"propagationPolicy": "Background", "apiVersion": "v1"}
        )
        self.api.delete(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/{gang}")
        pods = f"/api/v1/namespaces/default/pods?labelSelector=scheduling.x-k8s.io/pod-group%3D{gang}"
        self.api.delete(pods)  # those without an owner
        wait_for(f"the pods of {gang} are gone", lambda: not self.gangs.pods(gang))


def _host_name_space(process: Path) -> str:
    """Return the namespace of the process that contains its host name. Each node has its own."""
    return str((process / "ns/uts").readlink())


@contextmanager
def bare_site(members: int = 1) -> Iterator[Site]:
    """Start the cluster, whose nodes report GPUs without a device plug-in, and remove everything at the end.

    members: number of etcd's members.
    """
    component("kubectl", "kubernetes-client")
    with TemporaryDirectory(prefix="gw-", dir=parent_folder()) as folder:
        real = RealCluster(Path(folder) / "cluster")  # a short path, for containerd's sockets
        with real.running(nodes=len(NODES), members=members, gpus=GPUS) as api:
            site = Site(real, api)
            try:
                yield site
            finally:
                site.close()


@contextmanager
def real_site(members: int = 1) -> Iterator[Site]:
    """Start the cluster with device plug-ins and the chart, and remove everything at the end."""
    with bare_site(members) as site:
        site.complete()
        yield site


class Prometheus:
    """Prometheus that discovers and scrapes the pods of the chart. folder: of its files."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self._url = folder, f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of a PromQL query."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as response:
            found: list[dict[str, Any]] = json.loads(response.read())["data"]["result"]
        return found

    def nodes(self, expression: str) -> set[str]:
        """Return the label node of each series in the result of a query."""
        return {row["metric"].get("node", "") for row in self.query(expression)}


@contextmanager
def running_prometheus(site: Site, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the scrape configuration of docs/how-to/kubernetes.md."""
    program = otlp_program("prometheus")  # Debian's cannot discover pods
    config = scrape_configuration()
    (scraped,) = config["scrape_configs"]
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    for file, secret, key in (("ca.crt", "gangwatch-tls", "ca.crt"), ("password", "gangwatch-agent", "password")):
        (folder / file).write_bytes(base64.b64decode(site.api.get(f"{secrets}/{secret}")["data"][key]))
    scraped["tls_config"]["ca_file"] = str(folder / "ca.crt")
    scraped["basic_auth"]["password_file"] = str(folder / "password")
    for discovery in scraped["kubernetes_sd_configs"]:  # outside of the cluster, Prometheus has no service account
        discovery["kubeconfig_file"] = str(site.real.folder / "kubeconfig")
    config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = held_port()
    command = [
        str(program),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for("Prometheus is ready", lambda: _answers(port, folder, process))
        yield Prometheus(folder, port)
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int, folder: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (folder / "prometheus.log").read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def scrape_configuration() -> dict[str, Any]:
    """Return the Prometheus configuration in the how-to guide."""
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "kubernetes_sd_configs" in block]
    found: dict[str, Any] = yaml.safe_load(block)
    return found
