"""Kubeconfig files: one file, several merged, those of cloud providers, proxies and server names."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.schema.errors import ConfigError
from gangwatch.commands.kubernetes import access_of
from scheduler_feedback.backends.kubernetes.api_server import kubeconfig as kubeconfig_module
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, UnreachableError
from scheduler_feedback.backends.kubernetes.api_server.kubeconfig import from_environment, from_kubeconfig, in_cluster
from tests.kubernetes.tls_server import SERVER_NAME, V1BETA1, FakePlugin, TlsServer, proxying

CLOUDS = Path(__file__).with_name("kubeconfigs")
_anything = msgspec.json.Decoder()


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


# --- one file --------------------------------------------------------------------------------------------------------


def kubeconfig(**user: Any) -> dict[str, Any]:
    return {
        "current-context": "b",
        "contexts": [
            {"name": "a", "context": {"cluster": "x", "user": "x"}},
            {"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        ],
        "clusters": [
            {"name": "x", "cluster": {"server": "https://wrong"}},
            {"name": "c", "cluster": {"server": "https://right/", "certificate-authority": "ca.pem"}},
        ],
        "users": [{"name": "x", "user": {"token": "wrong"}}, {"name": "u", "user": user}],
    }


def cluster_with(more: dict[str, Any]) -> dict[str, Any]:
    return {"clusters": [{"name": "c", "cluster": {"server": "https://right", **more}}]}


def test_a_kubeconfig_s_current_context_gives_server_and_user(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("the ca")
    path = tmp_path / "config"
    key = base64.b64encode(b"the key").decode()
    path.write_text(json.dumps(kubeconfig(token="t", **{"client-key-data": key})))
    access = from_kubeconfig(path)
    assert (access.url, access.token, access.ca, access.key, access.namespace) == (
        "https://right", "t", "the ca", "the key", "team",
    )  # fmt: skip
    path.write_text(json.dumps(kubeconfig(tokenFile=str(tmp_path / "ca.pem"))))
    assert from_kubeconfig(path).bearer() == "the ca"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"users": []}, "users: u"),
        ({"current-context": "c"}, "contexts: c"),
        ({"clusters": None}, "clusters: c: missing"),
        ({"current-context": ""}, "current-context: missing"),
        ({"contexts": [{"name": "b", "context": {"user": "u"}}]}, "contexts: cluster: missing"),
        ({"contexts": "b"}, "contexts must be a list of tables"),
        ({"clusters": [{"name": "c", "cluster": {"server": 7}}]}, "clusters: server: missing or no text"),
        ({"clusters": [{"name": "c", "cluster": []}]}, "clusters: c: cluster must be a table, not list"),
        (cluster_with({"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify: not supported"),
        (cluster_with({"proxy-url": "socks5://user:secret@proxy:1080"}), "proxy-url: only http://HOST:PORT"),
        (cluster_with({"proxy-url": "http://[proxy"}), "proxy-url: only"),
        (cluster_with({"proxy-url": "proxy:3128"}), "proxy-url: only"),
        ({"users": [{"name": "u", "user": {"exec": {}}}]}, "exec.apiVersion: None is not supported"),
        ({"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]}, "auth-provider: was removed"),
        ({"users": [{"name": "u", "user": {"username": "a"}}]}, "username: basic authentication"),
        ({"users": [{"name": "u", "user": {"as": "admin"}}]}, "as: impersonation is not supported"),
        ({"users": [{"name": "u", "user": {"client-key-data": "!"}}]}, "client-key"),
    ],
)
def test_an_invalid_kubeconfig_is_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    (tmp_path / "ca.pem").write_text("the ca")
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig() | change))
    with pytest.raises(ConfigError, match=f"^{path}.*{expected}") as caught:
        from_kubeconfig(path)
    assert "secret" not in str(caught.value)


def test_a_pod_finds_its_own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig_module, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert in_cluster() is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert in_cluster() is None, "it has no token"
    for name, text in (("token", "t"), ("ca.crt", "ca"), ("namespace", "ours\n")):
        (tmp_path / name).write_text(text)
    access = in_cluster()
    assert access is not None
    assert (access.url, access.bearer(), access.namespace) == ("https://[fd00::1]:443", "t", "ours")


# --- several files ---------------------------------------------------------------------------------------------------


def write(path: Path, **document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_first_file_with_a_context_or_an_entry_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = [{"name": "u", "user": {"tokenFile": "token"}}]
    first = write(tmp_path / "a" / "config", users=users, clusters=None)
    (tmp_path / "a" / "token").write_text("of the first file")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ca.pem").write_text("of the second file")
    second = tmp_path / "b" / "config"
    second.write_text(json.dumps(kubeconfig(token="hidden by the first file")))
    third = write(tmp_path / "c", **{"current-context": "a"}, clusters=[{"name": "c", "cluster": {"server": "x"}}])
    (tmp_path / "empty").write_text("")
    files = ["", str(tmp_path / "absent"), str(tmp_path / "empty"), str(first), str(second), str(third)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    access = access_of(None)
    assert (access.url, access.bearer(), access.ca) == ("https://right", "of the first file", "of the second file")
    assert access_of(second).bearer() == "hidden by the first file", "an option excludes the variable"


def test_a_missing_or_invalid_file_of_the_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="not running in a pod: set \\$KUBECONFIG, or pass a kubeconfig"):
        access_of(None)
    monkeypatch.setenv("KUBECONFIG", "")
    assert from_environment() is None
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a{os.pathsep}{tmp_path}/b")
    with pytest.raises(ConfigError, match=f"no such file: {tmp_path}/a, {tmp_path}/b$"):
        from_environment()
    (tmp_path / "a").write_text("current-context: [")
    (tmp_path / "b").write_text(json.dumps(kubeconfig(token="t")))
    with pytest.raises(ConfigError, match=f"^{tmp_path}/a: "):
        from_environment()
    (tmp_path / "a").write_text("- a list")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/a: not a valid kubeconfig: a table is expected, not list"):
        from_environment()
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/a: "):
        from_environment()


def test_a_user_without_a_section_has_no_credentials(tmp_path: Path) -> None:
    document = kubeconfig() | {"users": [{"name": "u", "user": None}]}
    (tmp_path / "ca.pem").write_text("the ca")
    (tmp_path / "config").write_text(json.dumps(document))
    access = from_kubeconfig(tmp_path / "config")
    assert (access.bearer(), access.certificate, access.plugin) == ("", "", None)


# --- cloud providers, against a server behind TLS --------------------------------------------------------------------

PLUGINS = {
    "eks": ("aws", "--region eu-central-1 eks get-token --cluster-name training --output json", "training-admin"),
    "gke": ("gke-gcloud-auth-plugin", "", ""),
    "aks": ("kubelogin", "get-token --login azurecli --server-id 6dae42f8-4368-4678-94ff-3960e28e3630", ""),
}


def cloud_document(name: str, server: TlsServer, url: str) -> dict[str, Any]:
    """Return a cloud provider's kubeconfig of the fixtures, with the address and CA of the test's server."""
    document: dict[str, Any] = yaml.safe_load((CLOUDS / f"{name}.yaml").read_text())
    authority = base64.b64encode(server.ca.encode()).decode()
    document["clusters"][0]["cluster"] |= {"server": url, "certificate-authority-data": authority}
    return document


def get(access: Access) -> Any:
    async def run() -> Any:
        async with Client(access) as client:
            return await client.get("/api", _anything)

    return run()


@pytest.mark.parametrize("name", PLUGINS)
def test_the_kubeconfig_of_a_cloud_provider_gives_access(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, arguments, profile = PLUGINS[name]
    server, fake = TlsServer(tmp_path), FakePlugin(tmp_path / "bin", program)
    fake.answers(V1BETA1, token=f"{name}-token", expirationTimestamp="2099-01-01T00:00:00Z")
    server.valid = {f"{name}-token"}
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("AWS_PROFILE", raising=False)

    async def run() -> tuple[Any, str]:
        async with server.serving() as port:
            url = f"https://localhost:{port}"
            (tmp_path / "config").write_text(yaml.safe_dump(cloud_document(name, server, url)))
            return await get(from_kubeconfig(tmp_path / "config")), url

    answer, url = asyncio.run(run())
    assert answer == {"identity": f"{name}-token"}
    ((given, profile_given, info),) = fake.runs
    assert (given, profile_given) == (arguments, profile)
    authority = base64.b64encode(server.ca.encode()).decode()
    expected = {"server": url, "certificate-authority-data": authority} if name == "gke" else None
    assert info["spec"].get("cluster") == expected, "only gke's plugin gets the cluster"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("eks", r"'aws' not found: install it"),
        ("gke", r"'gke-gcloud-auth-plugin' not found\. Install gke-gcloud-auth-plugin for use with kubectl"),
        ("aks", r"'kubelogin' not found\. kubelogin is not installed .* https://aka.ms/aks/kubelogin$"),
    ],
)
def test_a_missing_plugin_of_a_cloud_provider_is_reported(
    name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    document = yaml.safe_load((CLOUDS / f"{name}.yaml").read_text())
    del document["clusters"][0]["cluster"]["certificate-authority-data"]
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    with pytest.raises(UnreachableError, match=hint):
        asyncio.run(get(from_kubeconfig(tmp_path / "config")))


def test_a_plugin_gets_the_clusters_own_settings_and_a_token_comes_before_it(tmp_path: Path) -> None:
    section = {"apiVersion": V1BETA1, "command": "aws", "provideClusterInfo": True}
    document = kubeconfig(exec=section)
    (tmp_path / "ca.pem").write_text("the ca")
    document["clusters"][1]["cluster"] |= {
        "tls-server-name": "name", "proxy-url": "http://proxy:3128", "disable-compression": True,
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "gpu"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(document))
    plugin = from_kubeconfig(tmp_path / "config").plugin
    assert plugin is not None and plugin.command.cluster == {
        "server": "https://right",
        "tls-server-name": "name",
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
        "certificate-authority-data": base64.b64encode(b"the ca").decode(),
        "config": {"audience": "gpu"},
    }
    (tmp_path / "config").write_text(json.dumps(kubeconfig(exec=section, token="t")))
    access = from_kubeconfig(tmp_path / "config")
    assert (access.plugin, access.bearer()) == (None, "t")


# --- proxies and server names ----------------------------------------------------------------------------------------


def test_requests_go_through_the_proxy_and_expect_the_servers_name(tmp_path: Path) -> None:
    server = TlsServer(tmp_path)
    server.valid = {"t"}
    (tmp_path / "ca.pem").write_text(server.ca)
    connects: list[str] = []

    async def run(more: dict[str, str]) -> Any:
        async with server.serving() as port, proxying(port, connects) as proxy_port:
            more = {key: value.format(proxy_port=proxy_port) for key, value in more.items()}
            document = kubeconfig(token="t")
            document["clusters"][1]["cluster"] |= {"server": f"https://127.0.0.1:{port}", **more}
            (tmp_path / "config").write_text(json.dumps(document))
            return await get(from_kubeconfig(tmp_path / "config"))

    with pytest.raises(UnreachableError, match="certificate"):
        asyncio.run(run({}))
    with pytest.raises(UnreachableError, match="certificate"):
        asyncio.run(run({"tls-server-name": "other.example"}))
    assert asyncio.run(run({"tls-server-name": SERVER_NAME})) == {"identity": "t"}
    assert connects == []
    proxy = {"tls-server-name": SERVER_NAME, "proxy-url": "http://user:word@127.0.0.1:{proxy_port}"}
    assert asyncio.run(run(proxy)) == {"identity": "t"}
    (head,) = connects
    assert head.startswith("CONNECT 127.0.0.1:")
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'user:word').decode()}" in head
    assert "Bearer" not in head, "the proxy must not get the token"
