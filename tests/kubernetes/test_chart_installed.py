"""The chart on a real API server: all objects are accepted, and the controller uses exactly the rights it is given."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.api_server.lease import Leadership
from scheduler_feedback.backends.kubernetes.attempts.binding import bind_one
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes, is_probe
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import KINDS
from scheduler_feedback.backends.kubernetes.objects.translate import RESTARTABLE, TIME_LIMIT
from scheduler_feedback.core.events import CancelRequested
from scheduler_feedback.core.job import JobState
from tests.deploy.test_chart import render
from tests.kubernetes import device_driver
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.fake_kubelet import FakeKubelet
from tests.kubernetes.harness import Api, Cluster, Running, install_crds, needs_manager, running, wait_for
from tests.kubernetes.test_feedback import POLICY, accuse

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

NAMESPACE = "gangwatch"
USER = "system:serviceaccount:gangwatch:gangwatch-controller"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/gangwatch/serviceaccounts",
    "Service": "/api/v1/namespaces/gangwatch/services",
    "Secret": "/api/v1/namespaces/gangwatch/secrets",
    "ConfigMap": "/api/v1/namespaces/gangwatch/configmaps",
    "DaemonSet": "/apis/apps/v1/namespaces/gangwatch/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/gangwatch/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/gangwatch/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/gangwatch/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/gangwatch/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/gangwatch/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Job": "/apis/batch/v1/namespaces/gangwatch/jobs",
    "CronJob": "/apis/batch/v1/namespaces/gangwatch/cronjobs",
}

ASKED_INSIDE = {("signers", "approve"), ("signers", "sign"), ("resourceclaims/binding", "patch")}
"""(resource, verb) that the API server checks itself, without a line in its audit log."""

NOT_SERVED = {("network-attachment-definitions", "watch")}
"""(resource, verb) for a definition that this cluster does not have. It is listed all the same."""

OTHER_OWNERS = {
    (kind.plural, verb) for (group, _), kind in KINDS.items() if group != "batch" for verb in ("get", "patch")
}
"""(resource, verb) for owners of gangs that this cluster does not serve. They are listed at the start all the same."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane that records the requests of the controller's service account."""
    with ControlPlane(tmp_path_factory.mktemp("audited"), audited=NAMESPACE) as plane:
        api = Api(plane.access())
        install_crds(api)
        api.close()
        yield plane


def granted(
    objects: list[dict[str, Any]], name: str = "gangwatch-controller", group: str | None = None
) -> set[tuple[str, str]]:
    """Return each (resource, verb) that the roles with this name allow. group: only of this API group."""
    return {
        (resource, verb)
        for body in objects
        if body["kind"] in ("ClusterRole", "Role") and body["metadata"]["name"] == name
        for rule in body["rules"]
        if group in (None, *rule["apiGroups"])
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_chart_s_controller_uses_exactly_its_rights(audited: ControlPlane, folder: Path) -> None:
    needs_manager(audited)
    api = Api(audited.access())
    objects = render("controller.probeImage=probe")
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for body in objects:
        api.create(PATHS[body["kind"]], body)
    access = audited.access(token_of(api))
    cluster = Cluster(api)
    leadership = Leadership(access, NAMESPACE, "gangwatch", "test")
    leadership.start()
    try:
        assert leadership.wait(30)
        with FakeKubelet(audited.access()) as kubelet:
            work(cluster, access, folder, kubelet)
        sign(api, access, folder)
    finally:
        leadership.stop()
        api.close()
    used, refused = audit(audited)
    assert not refused
    assert granted(objects) - used == ASKED_INSIDE | OTHER_OWNERS | NOT_SERVED
    assert used - granted(objects) == set()


def token_of(api: Api, account: str = "gangwatch-controller", bound: dict[str, str] | None = None) -> str:
    """Return a token of the chart's service account. bound: reference to the pod to which the token is bound."""
    spec = {} if bound is None else {"boundObjectRef": bound}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token: str = api.create(f"{PATHS['ServiceAccount']}/{account}/token", request)["status"]["token"]
    return token


def work(cluster: Cluster, access: Access, folder: Path, kubelet: FakeKubelet) -> None:
    """Make the controller use all of its rights: gangs are bound, rejected, suspended and evicted, and a node is
    marked."""
    cluster.add_nodes("n1", "n2", "n3")
    kubelet.rejects["n3"] = "UnexpectedAdmissionError"
    restartable = {RESTARTABLE: "true", TIME_LIMIT: "36000"}
    cluster.add_job("moved", 1, annotations=restartable)
    kubelet.exits = lambda pod: 0 if is_probe(pod) else None
    policy = replace(POLICY, probe_command=("measure",))
    probes, memory = Probes("probe", NAMESPACE, "gangwatch"), (NAMESPACE, "gangwatch-memory")
    with running(access, folder, policy, probes=probes, memory=memory) as it:
        wait_for("it runs", lambda: "moved" in it.jobs() and it.jobs()["moved"].state is JobState.RUNNING)
        bind_again(it, access)
        slow = next(iter(cluster.nodes_of("moved").values()))
        accuse(it, "moved", slow, slowdown=10.0)
        wait_for("it is moved", lambda: it.jobs()["moved"].attempt >= 2)
        wait_for("the node is measured", lambda: ended_well(it, f"probe-{slow}-1"))
        kubelet.rejects.clear()
        wait_for("it runs again", lambda: it.jobs()["moved"].state is JobState.RUNNING)
        claim_a_device(cluster)
        cluster.add_gang("evicted", 1)  # without a Job to suspend
        wait_for("it runs", lambda: "evicted" in it.jobs() and it.jobs()["evicted"].state is JobState.RUNNING)
        it.controller.cycle.report([CancelRequested(it.jobs()["evicted"].job_id, "ada")])
        wait_for("it is evicted", lambda: it.jobs()["evicted"].state is JobState.CANCELLED)
        cluster.api.create("/api/v1/namespaces/default/pods", lone_pod())
        path = "/api/v1/namespaces/default/pods/lone"
        wait_for("a lone pod says why", lambda: cluster.api.get(path)["status"].get("conditions"))
        cluster.add_gang("never", 9)
        wait_for("a gang says why", lambda: cluster.condition("never"))
        cluster.add_gang("rejected", 1)
        for node in ("n1", "n2", "n3"):
            kubelet.rejects[node] = "UnexpectedAdmissionError"
        cluster.finish("moved")
        wait_for("it was tried", lambda: "rejected" in it.jobs() and it.jobs()["rejected"].attempt >= 1)
        wait_for("and deleted", lambda: not cluster.pods("rejected"))


def claim_a_device(cluster: Cluster) -> None:
    """Bind a pod with a claim, to the only GPU of another node."""
    cluster.api.create(f"{device_driver.API}/deviceclasses", device_driver.class_body())
    claim = device_driver.claim_body("claim", device_driver.request())
    cluster.api.create(f"{device_driver.API}/namespaces/default/resourceclaims", claim)
    cluster.add_nodes("devices", gpus=0)
    device_driver.publish(cluster.api, "devices", [device_driver.gpu(0)])
    cluster.add_gang("claiming", 1, gpus=0, **device_driver.claiming(claim="claim"))
    wait_for("it has the device", lambda: cluster.bound("claiming") == 1)
    cluster.finish("claiming")


def sign(api: Api, access: Access, folder: Path, release: str = "gangwatch") -> None:
    """Request a certificate as an agent's pod on node n1, and wait until it is signed."""
    from gangwatch.certificates.authority import Authority, new_key, new_request
    from gangwatch.certificates.signer import PATH, Rules, Signer

    authority = Authority.make()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.certificate)
    (folder / "ca.key").write_bytes(authority.key)
    signer = Signer(access, Rules(f"{NAMESPACE}:{release}-agent", ()), folder)
    signer.start()
    try:
        request = base64.b64encode(new_request(new_key(), ("n1.node.gangwatch.internal",))).decode()
        spec = {"request": request, "signerName": "gangwatch.io/agent", "usages": ["digital signature", "server auth"]}
        own = Api(replace(access, token=token_of(api, f"{release}-agent", agent_pod(api, release))))
        body = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "spec": spec}
        own.create(PATH, {**body, "metadata": {"name": "agent"}})
        wait_for("it is signed", lambda: own.get(f"{PATH}/agent")["status"].get("certificate"))
        own.close()
        api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/agent", {"gracePeriodSeconds": 0})
    finally:
        signer.stop()


def agent_pod(api: Api, release: str) -> dict[str, str]:
    """Create an agent's pod on node n1. Return the reference with which a token can be bound to the pod."""
    from tests.kubernetes.makers import pod_body

    body = pod_body("agent", 0, nodeName="n1", schedulerName="x")
    body["metadata"]["namespace"] = NAMESPACE
    body["spec"]["serviceAccountName"] = f"{release}-agent"
    uid = api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", body)["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": uid}


def ended_well(it: Running, job_id: str) -> bool:
    job = it.jobs().get(job_id)
    return job is not None and job.state is JobState.COMPLETED


def bind_again(it: Running, access: Access) -> None:
    """Repeat a binding whose response was lost. The server refuses it, and the earlier binding counts."""
    attempt = next(attempt for attempt in it.backend._attempts.values() if attempt.reported)
    (member,) = attempt.members

    async def ask() -> str:
        async with Client(access) as client:
            return await bind_one(client, attempt, member, lambda: True)

    assert asyncio.run(ask()) == ""


def lone_pod() -> dict[str, Any]:
    from tests.kubernetes.makers import pod_body

    return pod_body("lone", 8, nodeSelector={"pool": "none"})


def audit(
    plane: ControlPlane, user: str = USER, group: str | None = None
) -> tuple[set[tuple[str, str]], list[dict[str, Any]]]:
    """Return each (resource, verb) that the user has requested, and the audit entries of forbidden requests.

    group: only requests of this API group.
    """
    used: set[tuple[str, str]] = set()
    refused: list[dict[str, Any]] = []
    for line in (plane.folder / "audit.log").read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] != user:
            continue
        about = event["objectRef"]
        resource = "/".join(part for part in (about["resource"], about.get("subresource", "")) if part)
        if group in (None, about.get("apiGroup", "")):
            used.add((resource, event["verb"]))
        if event.get("responseStatus", {}).get("code") == 403:
            refused.append(event)
    return used, refused


def test_the_plain_manifests_are_accepted_too(audited: ControlPlane) -> None:
    """Use a dry run, because the manifests contain the same objects as the chart."""
    api = Api(audited.access())
    manifests = Path(__file__).parents[2] / "deploy" / "manifests" / "gangwatch.yaml"
    for body in yaml.safe_load_all(manifests.read_text()):
        if body["kind"] in PATHS:
            body["metadata"]["name"] += "-plain"
            api.create(f"{PATHS[body['kind']]}?dryRun=All", body)
    api.close()
