"""Advice of gangwatch to another scheduler, a real kube-scheduler that places the pods.

gangwatch runs with the chart's rights. KAI, Volcano and Kueue cannot run here, because their controllers need images.
So the tests write the labels and annotations with which those leave pods; kube-scheduler applies the node filters that
all of them share.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.api_server.lease import Leadership
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.published.advice import RULES
from scheduler_feedback.backends.kubernetes.published.marks import CONDITION, REASON, SCORE, STATE
from scheduler_feedback.backends.kubernetes.published.uninstall import remove_all
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.events import VerdictJudged
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict
from tests.deploy.test_chart import render
from tests.kubernetes.bed import ControlPlane, assets
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Api, Cluster, wait_for
from tests.kubernetes.makers import pod_body
from tests.kubernetes.test_chart_installed import ASKED_INSIDE, NAMESPACE, PATHS, audit, granted, sign
from tests.needs import absent
from tests.ports import held_port

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

RELEASE = "advisor"
USER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-controller"
UNINSTALLER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-uninstall"
POLICY = Policy(probe_command=(), quarantine_seconds=600.0, suspect_seconds=0.2, probation_seconds=0.2)
GPU_UUID = "GPU-8f4c1f3e-0000-0000-0000-000000000003"


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Control plane with device taints enabled, a real kube-scheduler, and the chart in advise mode."""
    folder = tmp_path_factory.mktemp("advised")
    options = ("--feature-gates=DRADeviceTaintRules=true", "--runtime-config=resource.k8s.io/v1beta2=true")
    with ControlPlane(folder, manager=False, audited=NAMESPACE, options=options) as plane:
        api = Api(plane.access())
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for body in objects():
            api.create(PATHS[body["kind"]], body)
        api.close()
        with kube_scheduler(plane):
            yield plane


def objects() -> list[dict[str, Any]]:
    return render("controller.mode=advise", "controller.deviceTaints=true", release=RELEASE)


@contextmanager
def kube_scheduler(plane: ControlPlane) -> Iterator[None]:
    program = assets() / "kube-scheduler"
    if not program.exists():
        absent(f"{program} is absent: packaging/kubernetes/build.sh builds it (needs go)")
    port = held_port()
    command = [str(program), f"--kubeconfig={plane.kubeconfig()}", "--leader-elect=false", "--bind-address=127.0.0.1"]
    with (plane.folder / "kube-scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--secure-port={port}", f"--cert-dir={plane.folder}/scheduler"], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def access_of(plane: ControlPlane, account: str) -> Access:
    api = Api(plane.access())
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.create(f"{PATHS['ServiceAccount']}/{account}/token", request)["status"]["token"]
    api.close()
    return plane.access(token)


@pytest.fixture
def cluster(advised: ControlPlane) -> Iterator[Cluster]:
    api = Api(advised.access())
    made = Cluster(api)
    with FakeKubelet(advised.access()):
        yield made
        api.delete("/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
        api.delete("/api/v1/nodes")
        api.delete("/api/v1/namespaces/default/events")
        api.delete("/apis/resource.k8s.io/v1/resourceslices")
        wait_for("all pods are gone", lambda: not api.get("/api/v1/pods")["items"])
    api.close()


class Advising:
    """Controller in advise mode that runs in this process with the rights of the chart."""

    def __init__(self, backend: AdvisorBackend, controller: Controller) -> None:
        self.backend, self.controller = backend, controller

    def jobs(self) -> dict[str, Job]:
        return self.controller.cycle.ask(lambda state: dict(state.jobs)).result(30)

    def accuse(self, gang: str, node: str, *, quarantine: bool = False, device: str = "") -> str:
        """Publish a verdict that the gang's rank on the node is slow. Return the verdict's id."""
        job = self.jobs()[gang]
        rank = next(record.rank for record in job.ranks if record.slot.node == node)
        level = "gpu" if device else "node"
        began_ns = job.attempt_started_ns or 0
        verdict = Verdict(
            f"{gang}-{job.attempt}-{rank}-{device}", Kind.STRAGGLER, gang, job.attempt, rank, node, Cause.GPU, 0.99,
            1.6, 1.0, 1.6, began_ns, began_ns, device=device, level=level,
        )  # fmt: skip
        self.controller.cycle.report([verdict])
        if quarantine:
            self.controller.cycle.report([VerdictJudged(verdict.verdict_id, True, "ada")])
        return verdict.verdict_id

    def clear(self, verdict_id: str, gang: str) -> None:
        self.controller.cycle.report([Cleared(verdict_id, gang, 0, "it runs at normal speed again")])


@contextmanager
def advising(plane: ControlPlane, folder: Path) -> Iterator[Advising]:
    access = access_of(plane, f"{RELEASE}-controller")
    leadership = Leadership(access, NAMESPACE, RELEASE, "test")
    leadership.start()
    settings = KubernetesSettings(access, may_act=leadership.may_act, device_taints=True, settled_seconds=0.3)
    backend = AdvisorBackend(folder, settings)
    try:
        assert leadership.wait(30)
        with Controller(folder, backend, POLICY, ControllerSettings(detectors=())) as controller:
            yield Advising(backend, controller)
            if controller.failure is not None:
                raise controller.failure
    finally:
        leadership.stop()


def volcano(name: str, members: int, gpus: int = 8, **spec: Any) -> list[dict[str, Any]]:
    """Return pods with the labels and annotations that Volcano's controller writes, for kube-scheduler to place."""
    bodies = [pod_body(f"{name}-{n}", gpus, schedulerName="default-scheduler", **spec) for n in range(members)]
    for body in bodies:
        body["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": name}
    return bodies


def run(cluster: Cluster, bodies: list[dict[str, Any]]) -> dict[str, str]:
    """Create the pods, wait until kube-scheduler has placed them, and return {pod: node}."""
    cluster.api.create_all("/api/v1/namespaces/default/pods", bodies)
    names = [body["metadata"]["name"] for body in bodies]

    def placed() -> dict[str, str]:
        found = {name: cluster.api.get(f"/api/v1/namespaces/default/pods/{name}") for name in names}
        if any(pod["status"].get("phase") != "Running" for pod in found.values()):
            return {}
        return {name: pod["spec"]["nodeName"] for name, pod in found.items()}

    return wait_for("kube-scheduler has placed them", placed)


def node(cluster: Cluster, name: str) -> Any:
    return cluster.api.get(f"/api/v1/nodes/{name}")


def ours(body: Any) -> list[str]:
    """Return the keys of all labels, annotations, taints and conditions that gangwatch wrote on the object."""
    metadata = body["metadata"]
    keys = [*metadata.get("labels", {}), *metadata.get("annotations", {})]
    keys += [taint["key"] for taint in body.get("spec", {}).get("taints", [])]
    keys += [one["type"] for one in body.get("status", {}).get("conditions", []) if one["type"] == CONDITION]
    return [key for key in keys if key.startswith("gangwatch.io/") or key == CONDITION]


def show_devices(cluster: Cluster) -> None:
    """Publish node n1's devices as a ResourceSlice, as the GPU driver for dynamic resource allocation does."""
    devices = [{"name": f"gpu-{n}", "attributes": {"uuid": {"string": f"{GPU_UUID[:-1]}{n}"}}} for n in range(8)]
    cluster.api.create(
        "/apis/resource.k8s.io/v1/resourceslices",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "n1-gpus"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        },
    )


def events(cluster: Cluster, reason: str) -> dict[str, str]:
    """Return {pod: message} of the events with this reason."""
    found = cluster.api.get("/api/v1/namespaces/default/events")["items"]
    return {one["involvedObject"]["name"]: one["message"] for one in found if one["reason"] == reason}


def test_a_slow_node_of_another_schedulers_gang_is_marked_published_avoided_and_cleared(
    advised: ControlPlane, cluster: Cluster, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2", "n3")
    with advising(advised, folder) as it:
        gang = "default.train.volcano"
        places = run(cluster, volcano("train", 2))
        wait_for("it is watched", lambda: gang in it.jobs())
        slow, pod = places["train-1"], "train-1"
        verdict = it.accuse(gang, slow)
        wait_for("the node is suspect", lambda: node(cluster, slow)["metadata"]["labels"].get(STATE) == "suspect")
        body = node(cluster, slow)
        assert body["spec"]["taints"] == [{"key": "gangwatch.io/suspect", "effect": "PreferNoSchedule"}]
        assert body["metadata"]["labels"][SCORE] == "62"  # a speed of 1/1.6
        assert "slows the job down by 60 %" in body["metadata"]["annotations"][REASON]
        wait_for("its condition follows", lambda: CONDITION in ours(node(cluster, slow)))
        written = wait_for("the pod has an event", lambda: events(cluster, "NodeDoubted"))
        assert list(written) == [pod] and slow in written[pod]
        assert it.jobs()[gang].ranks and it.jobs()[gang].migrations == 0
        it.clear(verdict, gang)
        wait_for("no mark is left", lambda: not ours(node(cluster, slow)))
        wait_for("the pod has an event", lambda: pod in events(cluster, "NodeCleared"))
        pods = {name: cluster.api.get(f"/api/v1/namespaces/default/pods/{name}") for name in places}
        assert {name: body["spec"]["nodeName"] for name, body in pods.items()} == places  # no pod was moved
        assert not any(ours(body) for body in pods.values())


def test_kube_scheduler_avoids_a_quarantined_node_and_claims_avoid_the_accused_gpu(
    advised: ControlPlane, cluster: Cluster, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    show_devices(cluster)
    with advising(advised, folder) as it:
        gang = "default.one.volcano"
        assert run(cluster, volcano("one", 1, 4, nodeSelector={"kubernetes.io/hostname": "n1"})) == {"one-0": "n1"}
        wait_for("it is watched", lambda: gang in it.jobs())
        verdict = it.accuse(gang, "n1", quarantine=True, device=GPU_UUID)
        wait_for("the node is out", lambda: node(cluster, "n1")["metadata"]["labels"].get(STATE) == "quarantine")
        rule = wait_for("a rule exists", lambda: cluster.api.get(RULES)["items"])[0]["spec"]
        assert rule["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-3"}
        assert (rule["taint"]["key"], rule["taint"]["effect"]) == ("gangwatch.io/quarantine", "NoSchedule")
        assert set(run(cluster, volcano("next", 4, 2)).values()) == {"n2"}
        it.controller.cycle.report([VerdictJudged(verdict, False, "ada")])
        wait_for("no rule is left", lambda: not cluster.api.get(RULES)["items"])
        wait_for("no mark is left", lambda: not ours(node(cluster, "n1")))
        assert set(run(cluster, volcano("last", 4, 1)).values()) == {"n1"}


def test_a_preferred_speed_is_an_affinity_for_any_scheduler(
    advised: ControlPlane, cluster: Cluster, folder: Path
) -> None:
    cluster.add_nodes("n1", "n2")
    with advising(advised, folder) as it:
        places = run(cluster, volcano("train", 1, 4))
        wait_for("it is watched", lambda: "default.train.volcano" in it.jobs())
        slow = places["train-0"]
        it.accuse("default.train.volcano", slow)
        wait_for("the node is suspect", lambda: SCORE in ours(node(cluster, slow)))
        unscored = {"key": SCORE, "operator": "DoesNotExist"}
        fast = {"key": SCORE, "operator": "Gt", "values": ["90"]}
        terms = [{"matchExpressions": [unscored]}, {"matchExpressions": [fast]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec = {"affinity": {"nodeAffinity": required}}
        assert slow not in run(cluster, volcano("picky", 2, 1, **spec)).values()


def test_the_chart_s_advisor_uses_exactly_its_rights_and_is_uninstalled_completely(
    advised: ControlPlane, cluster: Cluster, folder: Path
) -> None:
    cluster.add_nodes("n1")
    show_devices(cluster)
    rule = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "not-ours"},
        "spec": {"taint": {"key": "example.com/own", "effect": "NoSchedule"}, "deviceSelector": {"driver": "x"}},
    }
    cluster.api.create(RULES, rule)
    mine = {**rule, "metadata": {"name": "left", "labels": {"app.kubernetes.io/managed-by": "gangwatch"}}}
    cluster.api.create(RULES, mine)
    with advising(advised, folder) as it:
        run(cluster, volcano("train", 1))
        wait_for("it is watched", lambda: "default.train.volcano" in it.jobs())
        wait_for("what a controller before left is gone", lambda: len(cluster.api.get(RULES)["items"]) == 1)
        it.accuse("default.train.volcano", "n1", quarantine=True, device=GPU_UUID)
        wait_for("the node is out", lambda: "gangwatch.io/quarantine" in ours(node(cluster, "n1")))
        wait_for("a rule exists", lambda: len(cluster.api.get(RULES)["items"]) == 2)
        wait_for("the lease is renewed", lambda: ("leases", "update") in audit(advised, USER)[0])
    sign(cluster.api, access_of(advised, f"{RELEASE}-controller"), folder, RELEASE)
    roles = objects()
    used, refused = audit(advised, USER)
    assert not refused
    # Before Kubernetes 1.30 a token does not name its pod's node: then the signer reads the pod.
    allocates = {("resourceclaims/binding", "patch")}  # an advisor allocates no devices
    assert granted(roles, f"{RELEASE}-controller") - used == ASKED_INSIDE - allocates | {("pods", "get")}
    assert used - granted(roles, f"{RELEASE}-controller") == set()

    async def uninstall() -> dict[str, int]:
        async with Client(access_of(advised, f"{RELEASE}-uninstall")) as client:
            return await remove_all(client, NAMESPACE, RELEASE)

    removed = asyncio.run(uninstall())
    assert (removed["nodes"], removed["device rules"], removed["leases"]) == (1, 1, 1)
    assert not ours(node(cluster, "n1"))
    assert [one["metadata"]["name"] for one in cluster.api.get(RULES)["items"]] == ["not-ours"]
    cluster.api.delete(f"{RULES}/not-ours")
    assert not cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]
    _, refused = audit(advised, UNINSTALLER)
    assert not refused


def test_the_command_advises_and_places_nothing(advised: ControlPlane, cluster: Cluster, folder: Path) -> None:
    cluster.add_nodes("n1")
    command = [sys.executable, "-m", "gangwatch", "kubernetes", "controller", "--advise", "--evict", "--port", "0"]
    where = ["--state", str(folder), "--kubeconfig", str(advised.kubeconfig()), "--namespace", "default"]
    with (folder.parent / "controller.log").open("wb") as log:
        process = subprocess.Popen([*command, *where], stdout=log, stderr=log)
    try:
        record = folder / "controller.json"
        wait_for("it is up", lambda: record.exists() or process.poll() is not None)
        assert process.poll() is None, (folder.parent / "controller.log").read_text()
        cluster.api.create("/api/v1/namespaces/default/pods", pod_body("ours", 1))
        url = json.loads(record.read_text())["url"]
        request = Request(f"{url}/api/nodes/n1/quarantine", b'{"reason": "smokes"}', method="POST")
        request.add_header("Authorization", f"Bearer {(folder / 'token').read_text().strip()}")
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=30) as answer:
            assert answer.status < 300
        taints = wait_for("the node is tainted", lambda: node(cluster, "n1")["spec"].get("taints"))
        assert [(taint["key"], taint["effect"]) for taint in taints] == [("gangwatch.io/quarantine", "NoExecute")]
        assert "nodeName" not in cluster.api.get("/api/v1/namespaces/default/pods/ours")["spec"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
