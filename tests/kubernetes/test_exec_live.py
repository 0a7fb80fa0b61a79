"""A credential plugin against a real API server: its token is revoked while the client is in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangwatch.commands.kubernetes import access_of
from tests.kubernetes.bed import ADMIN, ControlPlane
from tests.kubernetes.harness import Api, wait_for
from tests.kubernetes.tls_server import V1, FakePlugin

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]

CORE = "/api/v1/namespaces/default"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def user_of(api: Api) -> str:
    """Return the name of the user as which the API server identifies the client."""
    return str(api.create(REVIEW, REVIEW_BODY)["status"]["userInfo"]["username"])


def bound_token(admin: Api, secret: str) -> str:
    """Return a token of a new service account. The token is valid while the secret exists."""
    admin.create(f"{CORE}/serviceaccounts", {"metadata": {"name": secret}})
    bound = admin.create(f"{CORE}/secrets", {"metadata": {"name": secret}})
    reference = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": bound["metadata"]["uid"]}
    body: dict[str, Any] = {"spec": {"boundObjectRef": reference, "expirationSeconds": 600}}
    return str(admin.create(f"{CORE}/serviceaccounts/{secret}/token", body)["status"]["token"])


def test_a_revoked_token_is_replaced_by_the_plugin_of_merged_kubeconfigs(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, fake = Api(plane.access()), FakePlugin(tmp_path / "user")
    section = {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", "provideClusterInfo": True}
    users = [{"name": "bed", "user": {"exec": section}}]
    (tmp_path / "user" / "config").write_text(yaml.safe_dump({"users": users}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'user' / 'config'}{os.pathsep}{plane.kubeconfig()}")
    fake.answers(token=bound_token(admin, "plugin-test"))
    api = Api(access_of(None))
    try:
        assert user_of(api) == "system:serviceaccount:default:plugin-test"
        assert user_of(api) == "system:serviceaccount:default:plugin-test" and len(fake.runs) == 1
        fake.answers(token=ADMIN)
        admin.delete(f"{CORE}/secrets/plugin-test")
        # The API server accepts a known token for another ten seconds.
        wait_for("the plugin's new token", lambda: user_of(api) == "admin", 30.0)
        assert len(fake.runs) == 2
        assert fake.runs[0][2]["spec"]["cluster"]["server"] == plane.url
    finally:
        api.close()
        admin.delete(f"{CORE}/serviceaccounts/plugin-test")
        admin.close()
