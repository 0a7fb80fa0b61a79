"""Renewal of the chart's certificate with the rights of its CronJob; a running server loads the new certificate."""

from __future__ import annotations

import base64
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from exporter.security.security import Security
from gangwatch.commands.kubernetes import kubernetes
from tests.deploy.test_chart import render
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api
from tests.kubernetes.test_chart_installed import PATHS
from tests.needs import component

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

NAMESPACE = "gangwatch"
NAME = "node-7.gangwatch-agents.gangwatch.svc"
SECRET = f"{PATHS['Secret']}/gangwatch-tls"


@pytest.fixture
def installed(plane: ControlPlane) -> Iterator[tuple[Api, Path]]:
    """Create the chart's secrets and the CronJob's service account. Yield a kubeconfig of that account."""
    api = Api(plane.access())
    if api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    made = [
        body
        for body in render()
        if body["kind"] in ("Secret", "CronJob") or body["metadata"]["name"] == "gangwatch-renewal"
    ]
    for body in made:
        api.create(PATHS[body["kind"]], body)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.create(f"{PATHS['ServiceAccount']}/gangwatch-renewal/token", request)["status"]["token"]
    kubeconfig = plane.kubeconfig()
    own = kubeconfig.with_name("kubeconfig-renewal")
    own.write_text(kubeconfig.read_text().replace("admin-token", token))
    yield api, own
    for body in made:
        api.delete(f"{PATHS[body['kind']]}/{body['metadata']['name']}")
    api.close()


def renew(kubeconfig: Path, *options: str) -> str:
    command = ["renew-certificate", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, *options]
    result = CliRunner().invoke(kubernetes, command)
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.output


def files_of(secret: Any, folder: Path) -> None:
    """Write the secret's files as the kubelet does for pods that mount it."""
    for name, text in secret["data"].items():
        temporary = folder / f".{name}"
        temporary.write_bytes(base64.b64decode(text))
        temporary.replace(folder / name)


def test_a_certificate_is_renewed_before_it_expires_and_clients_trust_the_new_one(
    installed: tuple[Api, Path], tmp_path: Path
) -> None:
    api, kubeconfig = installed
    before = api.get(SECRET)
    assert renew(kubeconfig).startswith("kept")
    assert api.get(SECRET)["data"] == before["data"]
    assert renew(kubeconfig, "--left", "1", "--days", "30").startswith("renewed")
    after = api.get(SECRET)
    assert after["data"]["ca.crt"] == before["data"]["ca.crt"]
    assert after["data"]["tls.crt"] != before["data"]["tls.crt"]
    assert after["data"]["tls.key"] != before["data"]["tls.key"]

    files_of(before, tmp_path)
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n")
    security = Security(tmp_path / "web.yml", clock=iter(range(1_000_000)).__next__)  # checks its files every time
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    shown = [_certificate(security, trust)]
    files_of(after, tmp_path)
    shown.append(_certificate(security, trust))
    wanted = [ssl.PEM_cert_to_DER_cert(base64.b64decode(one["data"]["tls.crt"]).decode()) for one in (before, after)]
    assert shown == wanted
    openssl = component("openssl", "openssl")
    month = str(31 * 86400)
    done = subprocess.run([openssl, "x509", "-in", str(tmp_path / "tls.crt"), "-noout", "-checkend", month])
    assert done.returncode == 1  # it ends before


def _certificate(security: Security, trust: ssl.SSLContext) -> bytes:
    """Return the certificate that an agent's server presents to a client that trusts the authority."""
    ours, theirs = socket.socketpair()
    context = security.context()
    assert context is not None

    def serve() -> None:
        with context.wrap_socket(theirs, server_side=True) as served:
            served.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with trust.wrap_socket(ours, server_hostname=NAME) as connection:
        found = connection.getpeercert(binary_form=True)
        connection.send(b"x")
    thread.join()
    assert found is not None
    return found


def test_a_secret_that_gangwatch_did_not_create_is_named(installed: tuple[Api, Path]) -> None:
    api, kubeconfig = installed
    api.patch(SECRET, {"data": {"tls.crt": base64.b64encode(b"nonsense").decode()}})
    command = ["renew-certificate", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE]
    result = CliRunner().invoke(kubernetes, command)
    assert result.exit_code == 1 and "openssl x509" in str(result.exception)
