"""Access to a cluster from kubeconfig files, merged as kubectl merges them, or from a pod's service account.

If several files set the current context, or have entries of the same name, the first file takes precedence. A relative
path in a file starts at the folder of that file.
Source: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from agent.schema.errors import ConfigError
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.api_server.exec_credentials import ExecPlugin, exec_command

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Path of a pod's service account: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""

_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""Name of the extension, in a cluster's entry of the kubeconfig, whose content credential plugins get."""

_REFUSED_OF_USER = {
    "auth-provider": "was removed in Kubernetes 1.26; create the kubeconfig again with the provider's exec plugin",
    "username": "basic authentication was removed in Kubernetes 1.19; use a token, a certificate or an exec plugin",
    "as": "impersonation is not supported; use a kubeconfig of the account itself",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a section, for example one user, and the file that contains it."""

    file: Path
    value: Mapping[str, Any]

    def pem(self, key: str) -> str:
        """Return the PEM in the entry, or in the file that it names; '' if there is neither."""
        try:
            if data := self.value.get(f"{key}-data"):
                return base64.b64decode(data, validate=True).decode()
            if file := self.value.get(key):
                return (self.file.parent / str(file)).read_text(encoding="ascii")
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{self.file}: {key}: {error}") from error
        return ""


def in_cluster() -> Access | None:
    """Return a pod's access to its own cluster's API server; None outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (_SERVICE_ACCOUNT / "token").exists():
        return None
    host = f"[{host}]" if ":" in host else host
    return Access(
        f"https://{host}:{port}",
        token_file=_SERVICE_ACCOUNT / "token",
        ca=(_SERVICE_ACCOUNT / "ca.crt").read_text(),
        namespace=(_SERVICE_ACCOUNT / "namespace").read_text().strip(),
    )


def from_environment() -> Access | None:
    """Return the access in the files of $KUBECONFIG, separated by colons; None if the variable is not set.

    Files that do not exist are skipped, as kubectl does. Raises ConfigError if none exists, or for an invalid file.
    """
    named = [Path(name).expanduser() for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    if not named:
        return None
    present = [path for path in named if path.exists()]
    if not present:
        raise ConfigError(f"$KUBECONFIG: no such file: {', '.join(map(str, named))}")
    return _access(present)


def from_kubeconfig(path: Path) -> Access:
    """Return the access in the current context of one kubeconfig. Raises ConfigError with the file and the key."""
    return _access([path])


def _access(files: Sequence[Path]) -> Access:
    documents = [(path, _read(path)) for path in files]
    names = ", ".join(map(str, files))
    current = next((text for _, one in documents if (text := one.get("current-context"))), None)
    if not current:
        raise ConfigError(f"{names}: current-context: missing; set it with `kubectl config use-context NAME`")
    context = _named(documents, "contexts", "context", current)
    cluster = _named(documents, "clusters", "cluster", _text(context, "contexts", "cluster"))
    user_name = context.value.get("user")
    user = _named(documents, "users", "user", user_name) if user_name else _Entry(context.file, {})
    url = _text(cluster, "clusters", "server").rstrip("/")
    for key, reason in _REFUSED_OF_USER.items():
        if user.value.get(key):
            raise ConfigError(f"{user.file}: users: {user_name}: {key}: {reason}")
    if cluster.value.get("insecure-skip-tls-verify"):
        raise ConfigError(
            f"{cluster.file}: clusters: insecure-skip-tls-verify: not supported, because anybody on the network could "
            "pose as the API server; set certificate-authority, and tls-server-name if the names differ"
        )
    token, token_file = str(user.value.get("token") or ""), user.value.get("tokenFile")
    plugin = None
    if user.value.get("exec") is not None and not token and not token_file:  # a token comes first, as in kubectl
        plugin = ExecPlugin(exec_command(user.file, user.value["exec"], _cluster_information(cluster, url)))
    return Access(
        url,
        token=token,
        token_file=user.file.parent / str(token_file) if token_file else None,
        ca=cluster.pem("certificate-authority"),
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        namespace=str(context.value.get("namespace") or "default"),
        plugin=plugin,
        proxy=_proxy(cluster),
        server_name=str(cluster.value.get("tls-server-name") or ""),
    )


def _read(path: Path) -> Mapping[str, Any]:
    """Return a file's document; empty for an empty file. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: not a valid kubeconfig: a table is expected, not {type(document).__name__}")
    return document


def _named(documents: Sequence[tuple[Path, Mapping[str, Any]]], section: str, key: str, name: str) -> _Entry:
    """Return the first entry of this name. Raises ConfigError if there is none, or if its value is not a mapping."""
    for path, document in documents:
        for item in _items(path, document, section):
            if item.get("name") != name:
                continue
            value = item.get(key)
            if value is None:
                value = {}
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}: {section}: {name}: {key} must be a table, not {type(value).__name__}")
            return _Entry(path, value)
    files = ", ".join(str(path) for path, _ in documents)
    raise ConfigError(f"{files}: not a valid kubeconfig: {section}: {name}: missing")


def _items(path: Path, document: Mapping[str, Any], section: str) -> Iterator[Mapping[str, Any]]:
    items = document.get(section)
    if items is None:
        return
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ConfigError(f"{path}: not a valid kubeconfig: {section} must be a list of tables")
    yield from items


def _text(entry: _Entry, section: str, key: str) -> str:
    value = entry.value.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{entry.file}: not a valid kubeconfig: {section}: {key}: missing or no text")
    return value


def _proxy(cluster: _Entry) -> str:
    """Return proxy-url; '' if there is none. Raises ConfigError for a kind of proxy that is not supported."""
    proxy = str(cluster.value.get("proxy-url") or "")
    try:
        parts = urlsplit(proxy)
        usable = not proxy or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        usable = False
    if not usable:  # the URL may contain a password
        raise ConfigError(
            f"{cluster.file}: clusters: proxy-url: only http://HOST:PORT and https://HOST:PORT are supported"
        )
    return proxy


def _cluster_information(cluster: _Entry, url: str) -> Mapping[str, Any]:
    """Return the cluster as content for ExecCredential.spec.cluster, with certificates as data."""
    found: dict[str, Any] = {"server": url}
    for key in ("tls-server-name", "proxy-url", "disable-compression"):
        if value := cluster.value.get(key):
            found[key] = value
    if authority := cluster.pem("certificate-authority"):
        found["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    extensions = cluster.value.get("extensions")
    for one in extensions if isinstance(extensions, list) else ():
        if isinstance(one, Mapping) and one.get("name") == _EXEC_EXTENSION:
            found["config"] = one.get("extension")
    return found
