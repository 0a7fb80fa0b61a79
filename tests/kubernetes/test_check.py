"""`gangwatch check --kubernetes` on a real API server: output for an empty cluster and for a complete one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gangwatch.commands.check import check as command
from gangwatch.health.kubernetes_health import cluster_findings
from scheduler_feedback.backends.kubernetes.api_server.lease import Leadership
from scheduler_feedback.backends.kubernetes.api_server.rights import RIGHTS
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import KINDS
from tests.deploy.test_chart import render
from tests.kubernetes import device_driver as driver
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, Cluster, wait_for
from tests.kubernetes.makers import node, pod, pod_body
from tests.kubernetes.test_chart_installed import PATHS

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

NAMESPACE = "gangwatch"


def check(plane: ControlPlane, *options: str) -> Result:
    where = ["--kubeconfig", str(plane.kubeconfig()), "--namespace", NAMESPACE]
    return CliRunner().invoke(command, ["--kubernetes", *where, *options])


def states(plane: ControlPlane) -> dict[str, str]:
    result = check(plane, "--json")
    assert result.exit_code == 0, result.output
    return {one["name"]: one["state"] for one in json.loads(result.stdout)["findings"]}


@pytest.fixture
def chart(plane: ControlPlane, cluster: Cluster) -> Iterator[Api]:
    """Create the chart's namespace, account and roles."""
    api = cluster.api
    made = [body for body in render() if "Role" in body["kind"] or body["kind"] == "ServiceAccount"]
    if api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for body in made:
        api.create(PATHS[body["kind"]], body)
    yield api
    for body in made:
        api.delete(f"{PATHS[body['kind']]}/{body['metadata']['name']}")


def test_missing_objects_of_an_empty_cluster_are_reported_with_remedies(plane: ControlPlane, cluster: Cluster) -> None:
    found = states(plane)
    assert {name for name, state in found.items() if state == "found"} == {
        "server",
        "schedulers",
        "pod-groups",
        "queues",
    }
    assert {"gpus", "controller", "rights", "certificates"} <= {
        name for name, state in found.items() if state == "missing"
    }
    words = check(plane).output
    assert "no node has a GPU" in words and "-> install NVIDIA's GPU operator" in words
    assert "-> install the chart" in words
    refused = check(plane, "--require", "gpus")
    assert refused.exit_code == 1 and "required and not found: gpus (missing)" in str(refused.exception)
    assert check(plane, "--require", "server").exit_code == 0
    assert check(plane, "--require", "nonsense").exit_code == 2
    cluster.add_nodes("n1")  # so that the fixture has something to clear


def test_a_complete_cluster_passes_every_check(plane: ControlPlane, cluster: Cluster, chart: Api) -> None:
    spine: dict[str, Any] = {"topology.gangwatch.io/spine": "s1"}
    cluster.add_nodes("n1", "n2", **spine)
    for name in ("n1", "n2"):
        agent = pod_body(f"agent-{name}", 0, nodeName=name, schedulerName="default-scheduler")
        agent["metadata"]["labels"] = {"app.kubernetes.io/name": "gangwatch", "app.kubernetes.io/component": "agent"}
        chart.create("/api/v1/namespaces/default/pods", agent)
    leadership = Leadership(plane.access(), NAMESPACE, "gangwatch", "tester")
    leadership.start()
    try:
        assert leadership.wait(30)
        wanted = ("server", "gpus", "topology", "agents", "schedulers", "controller", "rights", "pod-groups", "queues")
        wait_for("all is found", lambda: {states(plane)[name] for name in wanted} == {"found"})
        assert "tester leads" in check(plane).output
    finally:
        leadership.stop()
    assert states(plane)["controller"] == "missing"


def test_gpus_that_are_only_in_slices_are_counted(plane: ControlPlane, cluster: Cluster) -> None:
    cluster.add_nodes("n1", gpus=0)
    cluster.api.create(f"{driver.API}/deviceclasses", driver.class_body())
    driver.publish(cluster.api, "n1", [driver.gpu(0), driver.gpu(1)])
    result = check(plane, "--require", "gpus")
    assert result.exit_code == 0, result.output
    assert "2 gpu.nvidia.com in ResourceSlices on 1 nodes" in result.output


def test_a_removed_right_is_named(plane: ControlPlane, cluster: Cluster, chart: Api) -> None:
    path = f"{PATHS['ClusterRole']}/gangwatch-controller"
    rules = [rule for rule in chart.get(path)["rules"] if "poddisruptionbudgets" not in rule["resources"]]
    chart.patch(path, {"rules": rules})
    wait_for("it is seen", lambda: "may not list poddisruptionbudgets" in check(plane).output)
    cluster.add_nodes("n1")


def test_the_checked_rights_are_the_chart_s() -> None:
    roles = [
        body for body in render() if body["kind"] == "ClusterRole" and body["metadata"]["name"].endswith("-controller")
    ]
    granted = {
        (group, resource, verb)
        for body in roles
        for rule in body["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    signing = {  # fewer are needed if another signer signs, so `check` does not require them
        *(("certificates.k8s.io", "certificatesigningrequests", verb) for verb in ("get", "list", "watch")),
        ("certificates.k8s.io", "certificatesigningrequests/approval", "update"),
        ("certificates.k8s.io", "certificatesigningrequests/status", "update"),
        ("certificates.k8s.io", "signers", "approve"),
        ("certificates.k8s.io", "signers", "sign"),
    }
    owners = {  # only gangs of these owners need them, and `check` does not require them
        (group, kind.plural, verb)
        for (group, _), kind in KINDS.items()
        if group != "batch"
        for verb in ("get", "list", "patch")
    }
    assert granted == {*RIGHTS, *signing, *owners}


def test_an_unreachable_server_ends_the_check_and_is_named(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "current-context": "away",
        "contexts": [{"name": "away", "context": {"cluster": "away", "user": "away"}}],
        "clusters": [{"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "away", "user": {"token": "x"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(command, ["--kubernetes", "--kubeconfig", str(tmp_path / "config")])
    assert result.exit_code != 0
    assert "127.0.0.1:1" in str(result.exception) + result.output


def test_missing_parts_are_named() -> None:
    spine: dict[str, Any] = {"topology.gangwatch.io/spine": "s"}
    nodes = [node("n0"), *(node(f"n{n}", **spine) for n in range(1, 5))]
    agents = [
        pod(
            "a",
            0,
            labels={"app.kubernetes.io/name": "gangwatch", "app.kubernetes.io/component": "agent"},
            nodeName="n0",
        )
    ]
    agents[0].status.phase = "Running"
    theirs = pod("t", 1, schedulerName="kai-scheduler")
    found = {one.name: one for one in cluster_findings(nodes, [*agents, theirs, pod("o", 1)])}
    assert found["gpus"].detail == "40 nvidia.com/gpu on 5 nodes"
    assert (found["topology"].state, found["topology"].detail) == ("limited", "spine of 4 of 5 nodes is known")
    assert found["agents"].detail == "an agent runs on 1 of 5 GPU nodes; none on n1, n2, n3 and 1 more"
    assert found["schedulers"].state == "limited" and "kai-scheduler 1" in found["schedulers"].detail
