"""Kubernetes' own PodGroups, on an API server that serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.objects.translate import REQUIRED_TOPOLOGY, TIME_LIMIT, TopologyLabels
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API, UpstreamGroup, as_group
from scheduler_feedback.core.job import JobState
from tests.deploy.test_chart import render
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Api, Cluster, Running, install_crds, running, wait_for
from tests.kubernetes.makers import pod_body
from tests.kubernetes.test_chart_installed import NAMESPACE, PATHS, audit, granted, token_of

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

GROUPS = f"/apis/{API}/namespaces/default/podgroups"
OPTIONS = ("--feature-gates=GenericWorkload=true", f"--runtime-config={API}=true")


def group_body(name: str, least: int | None, *topology: str) -> dict[str, Any]:
    """Return a PodGroup. least: minimum of its gang policy; None: the policy is basic."""
    policy: dict[str, Any] = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    spec: dict[str, Any] = {"schedulingPolicy": policy}
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": key} for key in topology]}
    metadata = {"name": name, "namespace": "default", "annotations": {TIME_LIMIT: "36000" if least else "60"}}
    return {"apiVersion": API, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def test_a_topology_is_the_level_of_its_label_and_an_unknown_one_is_refused_by_name() -> None:
    def level(*topology: str) -> str:
        body = group_body("g", 2, *topology)
        return as_group(msgspec.convert(body, UpstreamGroup), TopologyLabels()).metadata.annotation(REQUIRED_TOPOLOGY)

    assert level() == ""
    assert level("topology.gangwatch.io/rack") == "rack"
    assert level("example.com/row") == "example.com/row"
    assert level("a", "b") == "a and b"


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("gangs"), manager=False, options=OPTIONS) as plane:
        api = Api(plane.access())
        install_crds(api)
        api.close()
        yield plane


def test_upstream_gangs_are_bound_completely_explained_and_adopted_again(gangs: ControlPlane, tmp_path: Path) -> None:
    access = gangs.access()
    api = Api(access)
    cluster = Cluster(api)
    with FakeKubelet(access):
        cluster.add_nodes("n1", "n2", "n3")
        for name, least in (("train", 2), ("wide", 3), ("each", None)):
            api.create(GROUPS, group_body(name, least))
            count = least or 2
            bodies = [
                pod_body(f"{name}-{n}", 8 if least else 1, schedulingGroup={"podGroupName": name}) for n in range(count)
            ]
            if name != "each":
                api.create_all("/api/v1/namespaces/default/pods", bodies)

        def bound(name: str) -> dict[str, str]:
            pods = api.get("/api/v1/namespaces/default/pods")["items"]
            return {
                pod["metadata"]["name"]: pod["spec"]["nodeName"]
                for pod in pods
                if pod["metadata"]["name"].startswith(f"{name}-") and pod["spec"].get("nodeName")
            }

        def condition(name: str) -> dict[str, str]:
            found = api.get(f"{GROUPS}/{name}").get("status", {}).get("conditions", [])
            return next((dict(one) for one in found if one["type"] == "Scheduled"), {})

        with running(access, tmp_path / "first", upstream=True) as it:
            wait_for("one gang is bound", lambda: len(bound("train")) == 2)
            wait_for("the other says why it waits", lambda: condition("wide").get("status") == "False")
            wait_for("the first says that it runs", lambda: condition("train").get("status") == "True")
            assert not bound("wide")
            assert "gangwatch.io/placement" in api.get(f"{GROUPS}/train")["metadata"]["annotations"]
            api.create_all("/api/v1/namespaces/default/pods", bodies)
            wait_for("pods of a basic group are bound one by one", lambda: len(bound("each")) == 2)
        with running(access, tmp_path / "second", upstream=True) as it:
            wait_for("it is taken up", lambda: runs(it, "train"))
            assert it.jobs()["train"].attempt == 1
            cluster.api.delete(f"{GROUPS}/wide")
    api.close()


def test_the_controller_uses_exactly_its_rights_to_upstream_groups(tmp_path: Path) -> None:
    """Use the chart with `controller.upstreamGroups`."""
    group = API.partition("/")[0]
    with ControlPlane(tmp_path / "plane", manager=False, audited=NAMESPACE, options=OPTIONS) as plane:
        api = Api(plane.access())
        install_crds(api)
        objects = render("controller.upstreamGroups=true")
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for body in objects:
            if body["kind"] in PATHS:
                api.create(PATHS[body["kind"]], body)
        Cluster(api).add_nodes("n1", "n2")
        api.create(GROUPS, group_body("train", 2))
        bodies = [pod_body(f"train-{n}", 8, schedulingGroup={"podGroupName": "train"}) for n in range(2)]
        api.create_all("/api/v1/namespaces/default/pods", bodies)
        with FakeKubelet(plane.access()), running(plane.access(token_of(api)), tmp_path / "it", upstream=True) as it:
            wait_for("it runs", lambda: runs(it, "train"))
            wait_for(
                "it is said so",
                lambda: api.get(f"{GROUPS}/train").get("status", {}).get("conditions"),
            )
        api.close()
        used, refused = audit(plane, group=group)
    assert [event for event in refused if event["objectRef"].get("apiGroup") == group] == []
    assert used == granted(objects, group=group)
    assert used


def runs(it: Running, name: str) -> bool:
    return name in it.jobs() and it.jobs()[name].state is JobState.RUNNING
