"""Resource attributes of gangwatch's processes, by OpenTelemetry's conventions for services, hosts and Kubernetes."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Values of host.arch, by the kernel's name of the architecture."""

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def resource_of_node(node: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the resource of an agent. node: name of its node, which is Kubernetes' name in a pod.

    Prometheus makes its label `instance` from service.instance.id: without it, series of two nodes would be one.
    """
    found = {**_host(node), "service.instance.id": node}
    return {**found, "k8s.node.name": node} if _in_a_pod(environ) else found


def resource_of_controller(host: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the resource of the controller. host: name of its host, which is the pod's name in a pod."""
    found = {**_host(host), "service.instance.id": "controller"}
    if _in_a_pod(environ):
        found["k8s.pod.name"] = host
        try:
            found["k8s.namespace.name"] = _SERVICE_ACCOUNT.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            pass  # a pod without a service account's token
    return found


def _host(name: str) -> dict[str, str]:
    machine = platform.machine()
    return {
        "service.name": "gangwatch",
        "service.version": version("gangwatch"),
        "host.name": name,
        "host.arch": _ARCHITECTURES.get(machine, machine),
        "os.type": "linux",
    }


def _in_a_pod(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST"))
