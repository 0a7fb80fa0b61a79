"""The chart: linted, rendered for several wishes, every object valid by Kubernetes' own schema, and safe by default."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gangwatch.cli import COMMANDS
from tests import needs

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "gangwatch"
MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
RELEASE = "1.37"

WISHES: dict[str, list[str]] = {
    "defaults": [],
    "all features": [
        "agent.features.kernelLog=true",
        "agent.features.hostProcesses=true",
        "agent.runtimeClassName=nvidia",
        "podMonitor.enabled=true",
        "podMonitor.labels.release=prometheus",
        "imagePullSecrets[0].name=registry",
    ],
    "advise, plain": ["controller.mode=advise", "tls.mode=plain", "networkPolicy.enabled=false"],
    "own certificates": ["tls.mode=secret", "tls.secretName=mine", "auth.password=known"],
    "agents alone": ["controller.enabled=false"],
    "controller alone": ["agent.enabled=false", "controller.replicas=1", "agent.features.kubelet=false"],
}


def helm() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gangwatch" / "kubernetes" / "bin"
    program = Path(os.environ.get("KUBEBUILDER_ASSETS", cache)) / "helm"
    found = str(program) if program.exists() else shutil.which("helm")
    if found is None:
        needs.absent("helm is absent: python packaging/kubernetes/helm.py fetches it")
    assert found is not None
    return found


@cache
def template(*wishes: str, release: str = "gangwatch") -> str:
    options = [part for wish in wishes for part in ("--set", wish)]
    command = [helm(), "template", release, str(CHART), "--namespace", "gangwatch", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def render(*wishes: str, release: str = "gangwatch") -> list[dict[str, Any]]:
    return [body for body in yaml.safe_load_all(template(*wishes, release=release)) if body]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (body for body in objects if body["kind"] == kind and body["metadata"]["name"] == name)
    return found


def test_helm_finds_nothing_wrong() -> None:
    done = subprocess.run([helm(), "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES.keys())
def test_every_object_is_valid_by_its_schema(wishes: list[str], tmp_path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    objects = render(*wishes)
    assert objects
    for body in objects:
        if body["kind"] != "PodMonitor":  # the Prometheus operator's, not Kubernetes'
            kubernetes_validate.validate(body, RELEASE, strict=True)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("agent.port=80", "agent"),
        ("tls.mode=none", "tls"),
        ("tls.mode=secret", "secretName"),
        ("controller.mode=both", "controller"),
        ("agent.features.everything=true", "everything"),
        ("nonsense=1", "nonsense"),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_named(wish: str, words: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        template(wish)
    assert words in caught.value.stderr


def test_the_plain_manifests_are_the_chart_s_defaults() -> None:
    """They are made by ``deploy/manifests/build.py``; secrets are not among them."""
    import runpy

    build = runpy.run_path(str(MANIFESTS / "build.py"))
    assert (MANIFESTS / "gangwatch.yaml").read_text() == build["manifests"](helm())


def test_by_default_the_agent_may_read_and_nothing_else() -> None:
    agent = one(render(), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
    (container,) = agent["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert "privileged" not in security
    assert not agent["hostPID"] and "hostNetwork" not in agent and not agent["automountServiceAccountToken"]
    of_host = {volume["name"] for volume in agent["volumes"] if "hostPath" in volume}
    assert of_host == {"sys", "proc", "pod-resources"}
    assert all(mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] != "state")


def test_each_privilege_comes_with_its_feature_alone() -> None:
    def capabilities(*wishes: str) -> list[str]:
        agent = one(render(*wishes), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
        return list(agent["containers"][0]["securityContext"]["capabilities"].get("add", []))

    assert capabilities("agent.features.kernelLog=true") == ["SYSLOG"]
    assert capabilities("agent.features.hostProcesses=true") == ["SYS_PTRACE"]


def test_nothing_leaves_a_node_unprotected_unless_that_is_asked_for() -> None:
    web = one(render(), "Secret", "gangwatch-agent")["stringData"]["web.yml"]
    settings = yaml.safe_load(web)
    assert settings["tls_server_config"]["cert_file"]
    assert settings["basic_auth_users"]["gangwatch"].startswith("$2")  # bcrypt
    plain = one(render("tls.mode=plain"), "Secret", "gangwatch-agent")["stringData"]["web.yml"]
    assert "tls_server_config" not in yaml.safe_load(plain)


@pytest.mark.parametrize("name", ["agent", "kubernetes controller", "kubernetes uninstall"])
def test_the_commands_of_the_chart_are_ones_that_parse(name: str) -> None:
    import importlib

    kinds = {"agent": "DaemonSet", "kubernetes controller": "Deployment", "kubernetes uninstall": "Job"}
    objects = render("controller.mode=advise", "tls.mode=plain")
    (found,) = (body for body in objects if body["kind"] == kinds[name])
    (container,) = found["spec"]["template"]["spec"]["containers"]
    first, *words = container["args"]
    module, _, attribute = COMMANDS[first][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    words = [word.replace("/etc/gangwatch/gangwatch.toml", "/dev/null") for word in words]
    command.make_context(name, words)


def test_an_advisor_may_neither_bind_nor_evict() -> None:
    role = one(render("controller.mode=advise"), "ClusterRole", "gangwatch-controller")
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert ("nodes", "patch") in granted
    assert not {resource for resource, _ in granted} & {"pods/binding", "pods/eviction", "jobs"}
    assert ("pods", "delete") not in granted
