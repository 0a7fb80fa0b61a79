"""Kubeflow's training operator as a process at a control plane of tests. packaging/kubernetes/operators builds it."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.bed import ControlPlane, assets
from tests.kubernetes.harness import Api, wait_for
from tests.needs import absent, root
from tests.ports import held_port

JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
_SECRET = "training-operator-webhook-cert"
_CERTIFICATES = "/tmp/k8s-webhook-server"
"""Folder above the operator's certificates, which is fixed (kubeflow/training-operator, pkg/cert/cert.go, certDir)."""
_START = f'mkdir -p {_CERTIFICATES} && mount --bind "$0" {_CERTIFICATES} && exec "$@"'


def pytorch_job(name: str, workers: int, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a PyTorchJob without a master, whose pods belong to the PodGroup of its name. pod: specification of its
    pods."""
    template = {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": name}}, "spec": pod}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": "Never", "template": template}},
        },
    }


@contextmanager
def training_operator(plane: ControlPlane, api: Api, folder: Path) -> Iterator[None]:
    """Run the operator. folder: of its certificates and log.

    Its webhook is registered for no kind: the API server has no services through which it would call it.
    """
    program, definition = assets() / "training-operator", assets() / "pytorchjobs.yaml"
    if not program.exists():
        absent(f"{program} is absent: packaging/kubernetes/operators/build.sh builds it (needs go)")
    root("to give the operator a folder of its own at its fixed path")
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    hook = {"metadata": {"name": "validator.training-operator.kubeflow.org"}, "webhooks": []}
    secret = {"metadata": {"name": _SECRET, "namespace": "default"}}
    body = yaml.load(definition.read_text(), yaml.CSafeLoader)
    made = ((crds, body), (hooks, hook), ("/api/v1/namespaces/default/secrets", secret))
    for path, one in made:
        api.create(path, one)
    try:
        wait_for("PyTorchJobs are served", lambda: api.find(JOBS))
        with _running(plane, program, folder):
            wait_for("the operator has certificates", lambda: _write_certificates(api, folder))
            yield
    finally:
        for path, one in made:
            api.delete(f"{path}/{one['metadata']['name']}")
        definition_path = f"{crds}/{body['metadata']['name']}"  # the next test creates it again
        wait_for("the definition is gone", lambda: api.find(definition_path) is None)


@contextmanager
def _running(plane: ControlPlane, program: Path, folder: Path) -> Iterator[None]:
    (folder / "serving-certs").mkdir(parents=True)
    start = ["unshare", "--mount", "sh", "-c", _START, str(folder), str(program)]
    own = ["--metrics-bind-address=0", "--health-probe-bind-address=0", f"--webhook-server-port={held_port()}"]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig()), "MY_POD_NAMESPACE": "default"}
    command = [*start, "--enable-scheme=pytorchjob", *own]
    with (folder / "operator.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _write_certificates(api: Api, folder: Path) -> bool:
    """Write the certificates that the operator has made into its folder, as a mounted Secret appears there."""
    data = api.get(f"/api/v1/namespaces/default/secrets/{_SECRET}").get("data") or {}
    for name, content in data.items():
        (folder / "serving-certs" / name).write_bytes(base64.b64decode(content))
    return "tls.crt" in data
