"""Labels of pods: the agent lists those of its node from a real API server, with the rights of its service account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.host.kubelet_pods import PodTable
from agent.collectors.host.pod_labels import LIST_NS, PodLabelCollector
from agent.schema.clock import ManualClock
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.kubelet.pod_labels import PodLabels
from agent.sources.kubelet.pod_resources import Container, Pod
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, wait_for

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

PODS = "/api/v1/namespaces/default/pods"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KIND = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "labels-agent"}}


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    """Yield the API of a control plane with two pods on node n1 and one on n2, and the service account labels-agent."""
    api = Api(plane.access())
    made = [f"{ACCOUNT}/labels-agent"]
    api.create(ACCOUNT, {"metadata": {"name": "labels-agent"}})
    for name, node, labels in (
        ("labelled", "n1", {"team": "vision", "example.com/cost": "7"}),
        ("bare", "n1", None),
        ("elsewhere", "n2", {"team": "speech"}),
    ):
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}
        api.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        made.append(f"{PODS}/{name}")
    yield api
    for path in [*made, f"{RBAC}/clusterrolebindings/labels-agent", f"{RBAC}/clusterroles/labels-agent"]:
        if api.find(path) is not None:
            api.delete(path)
    api.close()


def grant(api: Api) -> None:
    """Give the service account the chart's right."""
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    api.create(f"{RBAC}/clusterroles", KIND | {"kind": "ClusterRole", "rules": [rule]})
    subjects = [{"kind": "ServiceAccount", "name": "labels-agent", "namespace": "default"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "labels-agent"}
    api.create(
        f"{RBAC}/clusterrolebindings", KIND | {"kind": "ClusterRoleBinding", "subjects": subjects, "roleRef": role}
    )


@pytest.fixture
def lister(api: Api, plane: ControlPlane, tmp_path: Path) -> PodLabels:
    """Return the agent's client on node n1, in a pod with the service account labels-agent."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    (tmp_path / "token").write_text(api.create(f"{ACCOUNT}/labels-agent/token", request)["status"]["token"] + "\n")
    (tmp_path / "ca.crt").write_text((plane.folder / "ca.crt").read_text())
    host, port = plane.url.removeprefix("https://").split(":")
    return PodLabels("n1", str(tmp_path), {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})


def listed(lister: PodLabels) -> object:
    try:
        return lister.list()
    except SourceError:
        return None


def test_the_labels_of_the_nodes_pods_are_listed_with_the_charts_right(
    api: Api, lister: PodLabels, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="HTTP status 403: the agent's service account needs the right to list pods"):
        lister.list()
    grant(api)
    expected = {("default", "labelled"): {"team": "vision", "example.com/cost": "7"}, ("default", "bare"): {}}
    wait_for("the API server's authorizer has seen the binding", lambda: listed(lister) == expected)
    (tmp_path / "token").write_text("expired")  # the token is read for each call
    with pytest.raises(SourceError, match="HTTP status 401"):
        lister.list()
    (tmp_path / "ca.crt").write_text((tmp_path / "ca.crt").read_text()[:100])
    with pytest.raises(SourceError, match="list of pods: "):
        lister.list()


def test_an_agent_outside_a_pod_has_no_collector_of_labels(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="pod-labels: not in a pod with a service account"):
        PodLabels("n1", str(tmp_path), {"KUBERNETES_SERVICE_HOST": "127.0.0.1"})
    (tmp_path / "token").write_text("t")
    with pytest.raises(UnsupportedError, match="not in a pod"):
        PodLabels("n1", str(tmp_path), {})


def test_an_absent_api_server_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("")
    lister = PodLabels("n1", str(tmp_path), {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"})
    with pytest.raises(SourceError, match=r"API server 127\.0\.0\.1:1: list of pods: "):
        lister.list()


class Scripted:
    """Lister with set labels that counts its calls."""

    def __init__(self) -> None:
        self.labels: dict[tuple[str, str], dict[str, str]] = {}
        self.calls = 0

    def list(self) -> dict[tuple[str, str], dict[str, str]]:
        self.calls += 1
        return self.labels


def test_only_listed_labels_of_pods_with_devices_are_published_and_few_requests_are_sent() -> None:
    clock, table, lister = ManualClock(), PodTable(), Scripted()
    collector = PodLabelCollector(("team", "example.com/cost"), table, lister, clock)
    device = (Container("c", (("nvidia.com/gpu", "GPU-1"),)),)

    def put(*names: str) -> None:
        pods = [Pod("ml", name, device) for name in names]
        table.put((*pods, Pod("ml", "cpu", (Container("c"),))), clock.monotonic_ns())

    def published() -> set[tuple[str, str, str]]:
        block = collector.collect()
        assert (block.gauges == 1.0).all()
        return {
            (labels["pod"], labels["label"], labels["value"])
            for labels in (dict(one.labels) for one in block.gauge_columns)
        }

    put()
    assert published() == set() and lister.calls == 0
    lister.labels = {("ml", "a"): {"team": "vision", "pod-template-hash": "5"}, ("ml", "cpu"): {"team": "web"}}
    put("a")
    assert published() == {("a", "team", "vision")} and lister.calls == 1
    first = collector.collect()
    assert collector.collect() is first and lister.calls == 1
    put("a", "b")  # the API server does not list it yet
    assert published() == {("a", "team", "vision")} and lister.calls == 2
    lister.labels["ml", "b"] = {"example.com/cost": ""}
    assert published() == {("a", "team", "vision"), ("b", "example.com/cost", "")} and lister.calls == 3
    lister.labels["ml", "a"] = {"team": "speech"}
    assert ("a", "team", "vision") in published() and lister.calls == 3
    clock.advance(LIST_NS / 1e9)
    put("a")
    assert published() == {("a", "team", "speech")} and lister.calls == 4
    put()
    assert published() == set()
