"""Certificates of agents on a real API server, with the chart's rights, and forged requests of a compromised node."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.schema.identity import of_node, read_revocations
from gangwatch.certificates.authority import Authority, read
from gangwatch.certificates.signer import PATH, SIGNER, Rules, Signer
from gangwatch.commands.kubernetes import kubernetes
from tests.deploy.test_chart import render
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, Cluster, wait_for
from tests.kubernetes.makers import pod_body
from tests.kubernetes.test_chart_installed import PATHS

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

NAMESPACE = "gangwatch"
SERVICE = "gangwatch-agents.gangwatch.svc"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class Site:
    """The chart's accounts and roles, a certificate authority, and an agent's pod on each of two nodes."""

    api: Api
    plane: ControlPlane
    folder: Path

    def token(self, account: str, pod: str = "") -> str:
        """Return a token of the service account. pod: bind the token to this pod, as a kubelet does."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if pod:
            uid = self.api.get(f"{PODS}/{pod}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = self.api.create(f"{PATHS['ServiceAccount']}/{account}/token", body)
        return str(made["status"]["token"])

    def ask(self, pod: str, node: str, account: str = "gangwatch-agent", wait: str = "20", signer: str = SIGNER) -> Any:
        """Run `gangwatch kubernetes certificate` as this pod would, with the pod's name as its folder."""
        admin = self.plane.kubeconfig()
        own = admin.with_name(f"kubeconfig-{pod or account}")
        own.write_text(admin.read_text().replace("admin-token", self.token(account, pod)))
        command = [
            "certificate", "--kubeconfig", str(own), "--node", node, "--folder", str(self.folder / (pod or account)),
            "--authority", str(self.folder / "ca.crt"), "--host", SERVICE, "--wait", wait, "--signer", signer,
        ]  # fmt: skip
        return CliRunner().invoke(kubernetes, command)

    def signer(self, name: str = SIGNER, revoked: Path | None = None) -> Signer:
        rules = Rules(f"{NAMESPACE}:gangwatch-agent", (SERVICE,), name, 90.0)
        access = self.plane.access(self.token("gangwatch-controller"))
        return Signer(access, rules, self.folder, revoked)

    def requests(self) -> list[Any]:
        return list(self.api.get(PATH)["items"])


@pytest.fixture
def site(plane: ControlPlane, cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    api = cluster.api
    made = [body for body in render() if "Role" in body["kind"] or body["kind"] == "ServiceAccount"]
    if api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for body in made:
        api.create(PATHS[body["kind"]], body)
    cluster.add_nodes("n1", "n2")
    for node in ("n1", "n2"):
        body = pod_body(f"agent-{node}", 0, nodeName=node, serviceAccountName="gangwatch-agent", schedulerName="x")
        body["metadata"]["namespace"] = NAMESPACE
        api.create(PODS, body)
    authority = Authority.make()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "ca.key").write_bytes(authority.key)
    yield Site(api, plane, tmp_path)
    for request in api.get(PATH)["items"]:
        api.delete(f"{PATH}/{request['metadata']['name']}")
    for node in ("n1", "n2"):
        api.delete(f"{PODS}/agent-{node}", {"gracePeriodSeconds": 0})
    for body in made:
        api.delete(f"{PATHS[body['kind']]}/{body['metadata']['name']}")
    api.delete(f"{PATHS['ConfigMap']}/gangwatch-revoked")


@pytest.fixture
def signing(site: Site) -> Iterator[Signer]:
    signer = site.signer()
    signer.start()
    yield signer
    signer.stop()


def test_an_agent_gets_a_certificate_of_its_own_node(site: Site, signing: Signer) -> None:
    done = site.ask("agent-n1", "n1")
    assert done.exit_code == 0, done.output + repr(done.exception)
    folder = site.folder / "agent-n1"
    made = read((folder / "tls.crt").read_bytes())
    assert made.names == (of_node("n1"), SERVICE)
    assert (folder / "ca.crt").read_bytes() == (site.folder / "ca.crt").read_bytes()
    assert (folder / "tls.key").stat().st_mode & 0o777 == 0o600
    (request,) = site.requests()
    assert b"PRIVATE" not in base64.b64decode(request["spec"]["request"]), "the key stays in the pod"
    assert [one["reason"] for one in request["status"]["conditions"]] == ["AttestedByTheApiServer"]
    assert {dict(labels)["outcome"]: value for _, labels, value in signing.measures()} == {"signed": 1, "refused": 0}


def test_root_on_a_node_gets_no_certificate_of_another_node(site: Site, signing: Signer) -> None:
    """A node's kubelet gets tokens only for pods on that node. A token without a pod identifies no node."""
    for pod, node in (("agent-n1", "n2"), ("agent-n2", "n1"), ("agent-n1", "controller"), ("", "n1")):
        done = site.ask(pod, node)
        assert done.exit_code == 1
        assert "denied" in str(done.exception)
    assert "its sender runs on n1" in str(site.ask("agent-n1", "n2").exception)
    assert "not bound to a pod" in str(site.ask("", "n1").exception)
    assert not [one for one in site.requests() if one["status"].get("certificate")]


def test_another_service_account_gets_no_certificate(site: Site, signing: Signer) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "stranger"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gangwatch-agent"},
            "subjects": [{"kind": "ServiceAccount", "name": "gangwatch-renewal", "namespace": NAMESPACE}]}  # fmt: skip
    site.api.create(PATHS["ClusterRoleBinding"], role)
    try:
        done = site.ask("", "n1", account="gangwatch-renewal")
        assert "not the agents' service account" in str(done.exception)
    finally:
        site.api.delete(f"{PATHS['ClusterRoleBinding']}/stranger")


def test_a_revoked_node_gets_no_certificate_until_it_is_admitted(site: Site) -> None:
    def command(*words: str) -> None:
        where = ["--kubeconfig", str(site.plane.kubeconfig()), "--namespace", NAMESPACE]
        done = CliRunner().invoke(kubernetes, [words[0], *where, *words[1:]])
        assert done.exit_code == 0, done.output + repr(done.exception)

    def mounted() -> None:
        """Return the revocation list in the form in which the kubelet mounts it for the controller."""
        text = site.api.get(f"{PATHS['ConfigMap']}/gangwatch-revoked")["data"]["revoked.json"]
        (site.folder / "revoked.json").write_text(text)

    signer = site.signer(revoked=site.folder / "revoked.json")
    signer.start()
    try:
        assert site.ask("agent-n1", "n1").exit_code == 0
        command("revoke", "n1", "--reason", "root access by an intruder")
        mounted()
        assert "revoked" in str(site.ask("agent-n1", "n1").exception)
        assert site.ask("agent-n2", "n2").exit_code == 0
        command("admit", "n1")
        mounted()
        done = site.ask("agent-n1", "n1")
        assert done.exit_code == 0, repr(done.exception)
    finally:
        signer.stop()
    revoked = read_revocations((site.folder / "revoked.json").read_bytes(), "x").by_name[of_node("n1")]
    made = read((site.folder / "agent-n1" / "tls.crt").read_bytes())
    assert made.not_before >= revoked.before, "the new certificate is valid, the old one is not"


def test_an_agent_that_waits_for_a_controller_sends_one_request_over_all_restarts(site: Site) -> None:
    for _ in range(3):
        done = site.ask("agent-n1", "n1", wait="1")
        assert "is a controller running?" in str(done.exception)
    assert len(site.requests()) == 1
    signers = [site.signer(), site.signer()]  # the leader's and the standby's
    for signer in signers:
        signer.start()
    try:
        assert site.ask("agent-n1", "n1").exit_code == 0
        assert site.ask("agent-n2", "n2").exit_code == 0
    finally:
        for signer in signers:
            signer.stop()
    assert len(site.requests()) == 2
    assert not (site.folder / "agent-n1" / "pending").exists()


def test_a_request_for_another_signer_is_approved_and_not_signed(site: Site) -> None:
    """cert-manager signs any approved request. The value tls.signer gives gangwatch the right to approve for it."""
    name = "clusterissuers.cert-manager.io/ours"
    role = next(body for body in render(f"tls.signer={name}") if body["metadata"]["name"] == "gangwatch-controller"
                and body["kind"] == "ClusterRole")  # fmt: skip
    site.api.patch(f"{PATHS['ClusterRole']}/gangwatch-controller", {"rules": role["rules"]})
    signer = site.signer(name)
    signer.start()
    try:
        asked = threading.Thread(target=site.ask, args=("agent-n1", "n1"), kwargs={"signer": name, "wait": "3"})
        asked.start()
        wait_for("it is approved", lambda: [one for one in site.requests() if one["status"].get("conditions")])
        asked.join()
    finally:
        signer.stop()
    (request,) = site.requests()
    assert [one["type"] for one in request["status"]["conditions"]] == ["Approved"]
    assert "certificate" not in request["status"]


def test_the_number_of_certificates_per_node_and_hour_is_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from gangwatch.certificates import signer as module

    monkeypatch.setattr(module, "MAX_PER_HOUR", 2)
    signer = site.signer()
    signer.start()
    try:
        assert [site.ask("agent-n1", "n1").exit_code for _ in range(3)] == [0, 0, 1]
        assert "more than 2 certificates within an hour" in str(site.ask("agent-n1", "n1").exception)
        assert site.ask("agent-n2", "n2").exit_code == 0, "requests of another node are not counted"
    finally:
        signer.stop()
