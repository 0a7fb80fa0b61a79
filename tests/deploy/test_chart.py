"""Helm chart: it passes lint, its objects are valid for several sets of values, and its defaults are safe."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from agent.collectors import ALL_COLLECTORS, COLLECTORS
from agent.schema.errors import ConfigError
from exporter.prometheus.metrics_file import read_metrics_file
from exporter.security.security import PLAIN, Security
from exporter.serving.listening import listen
from gangwatch.cli import COMMANDS
from tests import needs

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "gangwatch"
MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
RELEASES = ("1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""Supported releases of Kubernetes, as docs/how-to/kubernetes.md states them."""

VALUES: dict[str, list[str]] = {
    "defaults": [],
    "all features": [
        "agent.features.kernelLog=true",
        "agent.features.hostProcesses=true",
        "agent.features.hostNetwork=true",
        "agent.features.podNetworks=true",
        "agent.features.steps=true",
        "agent.features.stepsInVolumes=true",
        "steps.namespaces={team-a,team-b}",
        "agent.runtimeClassName=nvidia",
        "podMonitor.enabled=true",
        "podMonitor.labels.release=prometheus",
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=prometheus",
        "dashboards.enabled=true",
        "dashboards.annotations.grafana_folder=GPU",
        "controller.evict=true",
        "imagePullSecrets[0].name=registry",
    ],
    "extras": [
        *(
            f"{part}.{value}"
            for part in ("agent", "controller")
            for value in (
                "podAnnotations.team=gpu",
                "serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn=arn:aws:iam::1:role/gangwatch",
                "extraEnv[0].name=HTTPS_PROXY",
                "extraEnv[0].value=http://proxy:3128",
                "extraEnv[1].name=HOST_IP",
                "extraEnv[1].valueFrom.fieldRef.fieldPath=status.hostIP",
                "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
                ".matchExpressions[0].key=gpu",
                "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
                ".matchExpressions[0].operator=Exists",
            )
        ),
        "agent.extraArgs={--profile=full}",
        "controller.extraArgs={--island-label=example.com/island}",
        "agent.collectors.nfs=false",
        "agent.collectors.network=true",
        "agent.metricsFile=DCGM_FI_DEV_GPU_TEMP\\, gauge\\, Temperature: C",
        "serviceMonitor.enabled=true",
        "serviceMonitor.labels.release=prometheus",
    ],
    "advise, plain": ["controller.mode=advise", "tls.mode=plain", "networkPolicy.enabled=false"],
    "own certificates": [
        "tls.mode=secret",
        "tls.secretName=mine",
        "tls.signer=clusterissuers.cert-manager.io/ours",
        "auth.password=known",
    ],
    "logins": [
        "controller.access.tokensSecret=tokens",
        "controller.access.tokenReview.enabled=true",
        "controller.access.oidc.issuer=https://idp.example",
        "controller.access.oidc.clientId=gangwatch",
        "controller.access.oidc.clientSecretName=client",
    ],
    "agents alone": ["controller.enabled=false"],
    "controller alone": ["agent.enabled=false", "controller.replicas=1", "agent.features.kubelet=false"],
}


def cache_folder() -> Path:
    """Return the folder in which packaging/kubernetes keeps its downloads and builds."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gangwatch" / "kubernetes" / "bin"
    return Path(os.environ.get("KUBEBUILDER_ASSETS", default))


def helm() -> str:
    program = cache_folder() / "helm"
    found = str(program) if program.exists() else shutil.which("helm")
    if found is None:
        needs.absent("helm is absent: python packaging/kubernetes/helm.py fetches it")
    assert found is not None
    return found


@cache
def template(*values: str, release: str = "gangwatch") -> str:
    options = [part for value in values for part in ("--set", value)]
    command = [helm(), "template", release, str(CHART), "--namespace", "gangwatch", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def render(*values: str, release: str = "gangwatch") -> list[dict[str, Any]]:
    return [body for body in yaml.load_all(template(*values, release=release), Loader=yaml.CSafeLoader) if body]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (body for body in objects if body["kind"] == kind and body["metadata"]["name"] == name)
    return found


def test_helm_lint_passes() -> None:
    done = subprocess.run([helm(), "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_image_digest_overrides_its_tag() -> None:
    digest = "sha256:" + "ab" * 32
    pinned = ("image.repository=registry.example/gw", "image.tag=1.2", f"image.digest={digest}")
    with pytest.raises(subprocess.CalledProcessError):
        template(*pinned)  # the agents' image would not be pinned
    rendered = template(*pinned, f"agent.image.digest={digest.replace('ab', 'cd')}")
    assert f"image: registry.example/gw-agent@{digest.replace('ab', 'cd')}\n" in rendered
    assert f"image: registry.example/gw@{digest}\n" in rendered and "gw:1.2" not in rendered
    rendered = template("image.repository=registry.example/gw", "image.tag=1.2")
    assert "image: registry.example/gw:1.2\n" in rendered and "image: registry.example/gw-agent:1.2\n" in rendered
    with pytest.raises(subprocess.CalledProcessError):
        template("image.digest=latest")
    given = template("agent.image.repository=other/agent", "agent.image.tag=v7", "image.tag=v8")
    assert "image: other/agent:v7\n" in given and "image: ghcr.io/gangwatch/gangwatch:v8\n" in given


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_every_object_matches_its_schema(values: list[str], tmp_path: Path) -> None:
    """The defaults on all supported releases, other values on the oldest and the newest."""
    kubernetes_validate = needs.package("kubernetes_validate")
    objects = render(*values)
    assert objects
    for body in objects:
        if body["kind"] not in (
            "PodMonitor",
            "ServiceMonitor",
            "PrometheusRule",
        ):  # tested in tests/kubernetes/test_chart_monitoring.py
            for release in {RELEASES[0], RELEASES[-1]} if values else RELEASES:
                kubernetes_validate.validate(body, release, strict=True)


def test_the_chart_installs_on_supported_releases_only() -> None:
    command = [helm(), "template", "gangwatch", str(CHART), "--kube-version"]
    oldest, minor = RELEASES[0], int(RELEASES[0].partition(".")[2])
    assert subprocess.run([*command, f"v{oldest}.0"], capture_output=True).returncode == 0
    older = subprocess.run([*command, f"v1.{minor - 1}.9"], capture_output=True, text=True)
    assert older.returncode != 0 and "kubeVersion" in older.stderr
    stated = (Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes.md").read_text()
    assert f"Kubernetes {oldest} to {RELEASES[-1]}" in stated


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("agent.port=80", "agent"),
        ("tls.mode=none", "tls"),
        ("tls.mode=secret", "secretName"),
        ("tls.mode=secret,tls.secretName=mine", "tls.signer"),
        ("tls.signer=unknown", "signer"),
        ("controller.mode=both", "controller"),
        ("agent.features.everything=true", "everything"),
        ("nonsense=1", "nonsense"),
        ("controller.access.oidc.issuer=http://idp.example", "issuer"),
        ("controller.access.oidc.roles.admins=root", "roles"),
        ("agent.collectors.zfs=true", "zfs"),
        ("agent.collectors.nfs=yes please", "nfs"),
        ("agent.extraEnv[0].value=x", "extraEnv"),
        ("agent.extraEnv[0].name=A,agent.extraEnv[0].values=x", "values"),
        ("controller.extraArgs=--evict", "extraArgs"),
        ("controller.extraArgs={evict}", "/controller/extraArgs/0"),
        ("controller.extraArgs={--no-such-option}", "/controller/extraArgs/0"),
        ("controller.extraArgs={--evict=yes}", "/controller/extraArgs/0"),
        ("controller.extraArgs={--island-label}", "/controller/extraArgs/0"),
        ("controller.extraArgs={--listen=0.0.0.0:1}", "/controller/extraArgs/0"),
        ("controller.extraArgs={}", "/controller/extraArgs/0"),
        ("agent.extraArgs={--profile}", "/agent/extraArgs/0"),
        ("agent.extraArgs={--profile=full,full}", "/agent/extraArgs/1"),
        ("agent.podLabelNames={two words}", "/agent/podLabelNames/0"),
        ("agent.podLabelNames={-team}", "/agent/podLabelNames/0"),
        ("agent.podLabelNames={a.b,a-b}", "a.b and a-b would both become label_a_b"),
        ("agent.podLabelNames=team", "/agent/podLabelNames"),
        ("controller.probeImage=two words", "/controller/probeImage"),
        ("controller.probeImage=--privileged", "/controller/probeImage"),
        ("image.repository=registry.example/gw:1.2", "/image/repository"),
        ("image.tag=two words", "/image/tag"),
        ("imagePullSecrets[0].secret=x", "/imagePullSecrets/0"),
        ("agent.resources.limits.cpu=much", "/agent/resources/limits/cpu"),
        ("agent.tolerations[0].key=gpu,agent.tolerations[0].operator=In", "/agent/tolerations/0/operator"),
        ("agent.tolerations[0].effect=NoSchedule", "/agent/tolerations/0"),
        ("agent.affinity.nodes=gpu", "/agent/affinity"),
        ("controller.schedulerName=My Scheduler", "/controller/schedulerName"),
        ("controller.topology.rack=two words", "/controller/topology/rack"),
        ("controller.access.oidc.issuer=https://idp.example", "/controller/access/oidc/clientId"),
        ("networkPolicy.apiServerPorts=null", "missing property 'apiServerPorts'"),
        ("networkPolicy.scrapers[0].pods=x", "/networkPolicy/scrapers/0"),
        ("tls.authorityDays=1000000", "/tls/authorityDays"),
        ("controller.probeImage=null", "missing property 'probeImage'"),
        ("controller=null", "missing property 'controller'"),
        ("tls.mode=null", "missing property 'mode'"),
        ("agent.podAnnotations.a=1", "podAnnotations"),
        ("podMonitor.enabled=true,serviceMonitor.enabled=true", "store every sample twice"),
    ],
)
def test_an_invalid_value_is_refused_by_name(value: str, words: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        template(value)
    assert words in caught.value.stderr


def test_no_value_with_a_default_may_be_removed() -> None:
    """Helm removes a value that is null; a template would then fail with a pointer, or write an empty option."""
    removable = {  # maps of the user: their keys are no options of the chart
        "agent.resources.requests", "agent.resources.limits", "controller.resources.requests",
        "controller.resources.limits", "dashboards.labels",
    }  # fmt: skip
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(values: dict[str, Any], part: dict[str, Any], path: str) -> None:
        assert part.get("required") == list(values), path
        for key, value in values.items():
            below = part["properties"][key]
            if isinstance(value, dict) and value and f"{path}{key}" not in removable and "$ref" not in below:
                check(value, below, f"{path}{key}.")

    check(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")


def test_common_amounts_are_accepted() -> None:
    values = ("agent.resources.limits.cpu=null", "controller.resources.requests.cpu=2", "agent.maxUnavailable=100%")
    objects = render(*values)
    agent = one(objects, "DaemonSet", "gangwatch-agent")["spec"]
    assert "cpu" not in agent["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert agent["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "100%"


@pytest.mark.parametrize(
    ("part", "set_by_the_chart"),
    [
        ("agent", {"state", "config", "node", "listen", "web-config", "allow-power-limits"}),  # the last needs root
        ("controller", {"state", "config", "kubeconfig", "lease", "port", "listen", "web-config"}),
    ],
)
def test_extra_arguments_are_the_options_of_the_command(part: str, set_by_the_chart: set[str]) -> None:
    """Options on which the pod's volumes, probes and rights depend are refused."""
    from gangwatch.commands.kubernetes import controller
    from gangwatch.commands.lifecycle import agent

    schema = json.loads((CHART / "values.schema.json").read_text())["properties"][part]["properties"]
    allowed = re.compile(schema["extraArgs"]["items"]["pattern"])
    for option in (agent if part == "agent" else controller).params:
        assert isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts):
            good, bad = (name, f"{name}=1") if option.is_flag else (f"{name}=1", name)
            if name.removeprefix("--") in set_by_the_chart:
                assert not allowed.search(good), good
            else:
                assert allowed.search(good), good
                assert not allowed.search(bad), bad
    assert not allowed.search("--help")


def test_the_plain_manifests_are_the_charts_defaults() -> None:
    """``deploy/manifests/build.py`` generates the manifests, without the secrets."""
    import runpy

    build = runpy.run_path(str(MANIFESTS / "build.py"))
    assert (MANIFESTS / "gangwatch.yaml").read_text() == build["manifests"](helm())


def test_by_default_the_agent_may_only_read() -> None:
    agent = one(render(), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
    (container,) = agent["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert "privileged" not in security
    assert not agent["hostPID"] and "hostNetwork" not in agent and not agent["automountServiceAccountToken"]
    of_host = {volume["name"] for volume in agent["volumes"] if "hostPath" in volume}
    assert of_host == {"sys", "proc", "pod-resources"}
    written = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"state", "tls"}, "neither is a folder of the host"
    (tls,) = (volume for volume in agent["volumes"] if volume["name"] == "tls")
    assert tls["emptyDir"]["medium"] == "Memory", "the key is never written to disk"
    role = one(render(), "ClusterRole", "gangwatch-agent")
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["certificatesigningrequests"], ["create", "get"])
    ]


def test_the_controller_s_state_is_below_the_top_of_its_volume() -> None:
    """A kubelet creates the top of an emptyDir as root, but the controller needs a folder that its own user owns."""
    (container,) = one(render(), "Deployment", "gangwatch-controller")["spec"]["template"]["spec"]["containers"]
    (mount,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "state")
    (state,) = (option.removeprefix("--state=") for option in container["args"] if option.startswith("--state="))
    assert Path(mount) in Path(state).parents


def test_each_privilege_is_granted_only_with_its_feature() -> None:
    def capabilities(*values: str) -> list[str]:
        agent = one(render(*values), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
        return list(agent["containers"][0]["securityContext"]["capabilities"].get("add", []))

    assert capabilities("agent.features.kernelLog=true") == ["SYSLOG"]
    assert capabilities("agent.features.hostProcesses=true") == ["SYS_PTRACE"]
    assert capabilities("agent.features.podNetworks=true") == ["SYS_PTRACE", "SYS_ADMIN"]
    assert capabilities("agent.features.hostNetwork=true") == []


def test_the_agent_gets_host_processes_and_network_only_for_features_that_need_them() -> None:
    def pod(*values: str) -> tuple[bool, bool, bool]:
        """Return whether the agent's pod has the host's processes, the host's network, and the host's /proc mounted."""
        agent = one(render(*values), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
        (container,) = agent["containers"]
        mounted = "--proc-root=/host/proc" in container["args"]
        assert mounted is any(volume["name"] == "proc" for volume in agent["volumes"])
        return agent["hostPID"], agent.get("hostNetwork", False), mounted

    assert pod() == (False, False, True)
    assert pod("agent.features.podNetworks=true") == (True, False, False)
    assert pod("agent.features.hostNetwork=true") == (False, True, True)
    assert pod("agent.features.steps=true") == (True, False, False)
    agent = one(render("agent.features.steps=true"), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
    (mount,) = (one for one in agent["containers"][0]["volumeMounts"] if one["name"] == "steps")
    assert f"--step-folder={mount['mountPath']}" in agent["containers"][0]["args"]
    assert agent["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_ranks_can_report_without_access_of_the_agent_to_pods_files() -> None:
    """The kubelet's folder contains all secrets and tokens of the node, so only a separate value mounts it."""

    def folders(*values: str) -> dict[str, bool]:
        """Return the mounted folders of the host, and whether each is writable."""
        agent = one(render(*values), "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
        read_only = {mount["name"]: mount.get("readOnly", False) for mount in agent["containers"][0]["volumeMounts"]}
        return {
            volume["hostPath"]["path"]: not read_only[volume["name"]]
            for volume in agent["volumes"]
            if "hostPath" in volume
        }

    before = folders()
    opened = folders("agent.features.steps=true").items() - before.items()
    assert opened == {("/run/gangwatch-steps", True)}
    opened = folders("agent.features.stepsInVolumes=true").items() - before.items()
    assert opened == {("/var/lib/kubelet/pods", True)}
    objects = render("agent.features.steps=true", "steps.namespaces={team-a,team-b}")
    claims = [body for body in objects if body["kind"] == "PersistentVolumeClaim"]
    assert [claim["metadata"]["namespace"] for claim in claims] == ["team-a", "team-b"]
    for claim in claims:
        volume = one(objects, "PersistentVolume", claim["spec"]["volumeName"])["spec"]
        assert volume["local"]["path"] == "/run/gangwatch-steps"
        assert volume["mountOptions"] == ["ro"], "pods cannot change what other pods read there"
        assert volume["claimRef"]["namespace"] == claim["metadata"]["namespace"]
    assert not [body for body in render("steps.namespaces={team-a}") if body["kind"] == "PersistentVolume"]


@pytest.mark.parametrize("mode", ["generated", "plain"])
def test_an_agent_has_the_quotas_of_the_values(tmp_path: Path, mode: str) -> None:
    from gangwatch.configuration.config_file import load

    values = (f"tls.mode={mode}", "steps.quotas.ring_slots=65536", "steps.quotas.registrations_per_second=2")
    objects = render(*values)
    template = one(objects, "DaemonSet", "gangwatch-agent")["spec"]["template"]
    assert "--config=/etc/gangwatch/config/gangwatch.toml" in template["spec"]["containers"][0]["args"]
    file = tmp_path / "gangwatch.toml"
    file.write_text(one(objects, "ConfigMap", "gangwatch-agent")["data"]["gangwatch.toml"])
    quotas = load(file).step_quotas
    assert (quotas.ring_slots, quotas.registrations_per_second, quotas.reporters) == (65536, 2.0, 1024)
    other = one(render(*values, "steps.quotas.reporters=9"), "DaemonSet", "gangwatch-agent")["spec"]["template"]
    assert other["metadata"]["annotations"] != template["metadata"]["annotations"], "a change restarts the agents"


def test_invalid_quotas_are_refused() -> None:
    from gangwatch.configuration.sections import StepQuotasSection

    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["steps"]["properties"]["quotas"]
    assert set(schema["properties"]) == set(StepQuotasSection.__struct_fields__)
    for value in ("steps.quotas.reporters=0", "steps.quotas.reporter=4", "steps.quotas.name_length=many"):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            render(value)
        assert "/steps/quotas" in refused.value.stderr


def test_frames_require_a_certificate_and_each_agent_has_its_own(tmp_path: Path) -> None:
    from gangwatch.configuration.config_file import load

    objects = render()
    web = yaml.safe_load(one(objects, "Secret", "gangwatch-agent")["stringData"]["web.yml"])["tls_server_config"]
    assert web["client_auth_type"] == "VerifyClientCertIfGiven"
    agent = one(objects, "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
    (shown,) = (mount for mount in agent["containers"][0]["volumeMounts"] if mount["name"] == "tls")
    assert web["cert_file"].startswith(shown["mountPath"])
    secrets = [volume["secret"] for volume in agent["volumes"] if "secret" in volume]
    assert not [item for secret in secrets for item in secret["items"] if item["key"].endswith(".key")]
    (tmp_path / "agent.toml").write_text(one(objects, "ConfigMap", "gangwatch-agent")["data"]["gangwatch.toml"])
    section = load(tmp_path / "agent.toml").agent
    assert section.frame_readers == ("controller.gangwatch.internal",)
    assert section.certificate_command[:3] == ("gangwatch", "kubernetes", "certificate")
    (tmp_path / "controller.toml").write_text(
        one(objects, "ConfigMap", "gangwatch-controller")["data"]["gangwatch.toml"]
    )
    feed = load(tmp_path / "controller.toml").feed
    assert (feed.verify, feed.password_file, feed.username) == ("node", None, "")
    assert feed.cert_file and feed.revoked_file
    role = one(objects, "ClusterRole", "gangwatch-controller")
    (signers,) = (rule for rule in role["rules"] if "signers" in rule["resources"])
    assert signers["resourceNames"] == ["gangwatch.io/agent"] and set(signers["verbs"]) == {"approve", "sign"}
    others = render("tls.signer=clusterissuers.cert-manager.io/ours")
    role = one(others, "ClusterRole", "gangwatch-controller")
    (signers,) = (rule for rule in role["rules"] if "signers" in rule["resources"])
    assert signers["verbs"] == ["approve"] and "certificatesigningrequests/status" not in str(role["rules"])
    assert "authority" not in str(one(others, "Deployment", "gangwatch-controller")["spec"]["template"]["spec"])


def test_unprotected_listeners_require_an_explicit_value() -> None:
    web = one(render(), "Secret", "gangwatch-agent")["stringData"]["web.yml"]
    settings = yaml.safe_load(web)
    assert settings["tls_server_config"]["cert_file"]
    assert settings["basic_auth_users"]["gangwatch"].startswith("$2")  # bcrypt
    plain = render("tls.mode=plain")
    assert yaml.safe_load(one(plain, "Secret", "gangwatch-agent")["stringData"]["web.yml"]) == {"basic_auth_users": {}}
    for objects, wanted in ((render(), []), (plain, ["yes"])):
        for kind, name in (("DaemonSet", "gangwatch-agent"), ("Deployment", "gangwatch-controller")):
            (container,) = one(objects, kind, name)["spec"]["template"]["spec"]["containers"]
            found = [one["value"] for one in container.get("env", []) if one["name"] == PLAIN]
            assert found == wanted


def test_a_reachable_server_without_tls_requires_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart sets this variable with `tls.mode: plain`."""
    file = tmp_path / "web.yml"
    file.write_text("basic_auth_users: {}\n")
    with pytest.raises(ConfigError, match="not a loopback address"):
        listen("0.0.0.0", 0, Security(file))
    monkeypatch.setenv(PLAIN, "yes")
    listen("0.0.0.0", 0, Security(file)).close()


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment", "Job", "CronJob"])
@pytest.mark.parametrize(
    "values", [(), ("controller.mode=advise", "controller.deviceTaints=true"), tuple(VALUES["extras"])]
)
def test_the_commands_of_the_chart_parse(kind: str, values: tuple[str, ...]) -> None:
    import importlib

    (found,) = (body for body in render(*values) if body["kind"] == kind)
    spec = found["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else found["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    first, *words = container["args"]
    module, _, attribute = COMMANDS[first][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    words = [word.replace("/etc/gangwatch/gangwatch.toml", "/dev/null") for word in words]
    command.make_context(kind, words)


def test_an_advisor_cannot_bind_or_evict() -> None:
    role = one(render("controller.mode=advise"), "ClusterRole", "gangwatch-controller")
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert ("nodes", "patch") in granted
    assert not {resource for resource, _ in granted} & {"pods/binding", "pods/eviction", "jobs"}
    assert ("pods", "delete") not in granted


def test_the_values_configure_logins(tmp_path: Path) -> None:
    """gangwatch reads the file itself. Only token review adds an RBAC role."""
    from gangwatch.configuration.config_file import load

    def configuration(*values: str) -> tuple[Any, list[dict[str, Any]]]:
        objects = render(*values)
        file = tmp_path / "gangwatch.toml"
        file.write_text(one(objects, "ConfigMap", "gangwatch-controller")["data"]["gangwatch.toml"])
        return load(file), objects

    def reviews(objects: list[dict[str, Any]]) -> bool:
        return "tokenreviews" in str(one(objects, "ClusterRole", "gangwatch-controller")["rules"])

    plain, objects = configuration()
    assert (plain.access.token_files, plain.token_review.enabled, plain.oidc.issuer) == ((), False, "")
    assert plain.access.audit_target == "stdout" and not reviews(objects)
    own, _ = configuration("controller.config=[access]\\naudit_files = 3".replace("\\n", "\n"))
    assert (own.access.audit_files, own.access.audit_target) == (3, "file")
    made, objects = configuration(
        *VALUES["logins"],
        "controller.access.oidc.roles.gpu\\.admins=operator",
        "controller.access.tokenReview.roles.system:masters=operator",
    )
    assert made.access.token_files == ("/etc/gangwatch-tokens/tokens.toml",)
    assert (made.token_review.audiences, made.token_review.roles) == (("gangwatch",), {"system:masters": "operator"})
    assert (made.oidc.client_id, made.oidc.roles) == ("gangwatch", {"gpu.admins": "operator"})
    assert made.oidc.client_secret_file == "/etc/gangwatch-oidc/client-secret" and reviews(objects)
    spec = one(objects, "Deployment", "gangwatch-controller")["spec"]["template"]["spec"]
    mounts = {
        mount["mountPath"]: mount["readOnly"] for mount in spec["containers"][0]["volumeMounts"] if "readOnly" in mount
    }
    assert mounts["/etc/gangwatch-tokens"] and mounts["/etc/gangwatch-oidc"]


# --- monitoring -------------------------------------------------------------------------------------------------------


def test_the_chart_contains_the_current_dashboards_and_rules() -> None:
    """``python deploy/helm/build.py`` copies them. Each dashboard is a separate object, far below a mebibyte."""
    needs.package("grafana_foundation_sdk")
    import runpy

    build = runpy.run_path(str(CHART.parent / "build.py"))
    wanted: dict[str, str] = build["files"]()
    files = CHART / "files"
    found = {str(file.relative_to(files)): file.read_text() for file in files.rglob("*") if file.is_file()}
    assert found == wanted, "run python deploy/helm/build.py"
    objects = render("dashboards.enabled=true", "prometheusRule.enabled=true")
    maps = {name: text for body in objects if body["kind"] == "ConfigMap" for name, text in body["data"].items()}
    shown = {Path(path).name: text for path, text in wanted.items() if path.startswith("dashboards/")}
    assert shown.items() <= maps.items()
    assert all(len(text) < 512 * 1024 for text in maps.values())
    rule = one(objects, "PrometheusRule", "gangwatch")
    assert rule["spec"] == yaml.safe_load(wanted["rules.yaml"])
    assert any("{{ $labels" in str(alert) for group in rule["spec"]["groups"] for alert in group["rules"])


def test_metrics_are_scraped_with_the_certificates_name_and_password() -> None:
    objects = render("podMonitor.enabled=true")
    for name in ("agent", "controller"):
        (endpoint,) = one(objects, "PodMonitor", f"gangwatch-{name}")["spec"]["podMetricsEndpoints"]
        assert endpoint["scheme"] == "https" and endpoint["honorLabels"]
        assert endpoint["tlsConfig"]["serverName"] == "gangwatch-agents.gangwatch.svc"
        assert endpoint["basicAuth"]["password"] == {"name": "gangwatch-agent", "key": "password"}
    plain = render("podMonitor.enabled=true", "tls.mode=plain")
    (endpoint,) = one(plain, "PodMonitor", "gangwatch-agent")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "http" and "basicAuth" not in endpoint


def test_service_monitors_select_the_services_and_scrape_them_as_pod_monitors_do() -> None:
    objects, pods = render("serviceMonitor.enabled=true"), render("podMonitor.enabled=true")
    for component, service in (("agent", "gangwatch-agents"), ("controller", "gangwatch-controller")):
        monitor = one(objects, "ServiceMonitor", f"gangwatch-{component}")["spec"]
        wanted = monitor["selector"]["matchLabels"].items()
        selected = [
            body["metadata"]["name"]
            for body in objects
            if body["kind"] == "Service" and wanted <= body["metadata"]["labels"].items()
        ]
        assert selected == [service]
        found = one(objects, "Service", service)["spec"]
        kind = "DaemonSet" if component == "agent" else "Deployment"
        pod = one(objects, kind, f"gangwatch-{component}")["spec"]["template"]
        assert found["selector"].items() <= pod["metadata"]["labels"].items()
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in found["ports"]} <= ports
        assert monitor["endpoints"] == one(pods, "PodMonitor", f"gangwatch-{component}")["spec"]["podMetricsEndpoints"]
    assert not [body for body in render() if body["kind"] == "Service" and "controller" in body["metadata"]["name"]]


# --- values for all that the chart does not foresee ------------------------------------------------------------------


@pytest.mark.parametrize("component", ["agent", "controller"])
def test_extra_values_reach_the_pods(component: str) -> None:
    objects = render(*VALUES["extras"])
    kind = "DaemonSet" if component == "agent" else "Deployment"
    template_, before = (
        one(rendered, kind, f"gangwatch-{component}")["spec"]["template"] for rendered in (objects, render())
    )
    assert template_["metadata"]["annotations"]["team"] == "gpu"
    account = one(objects, "ServiceAccount", f"gangwatch-{component}")
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/gangwatch"}
    terms = template_["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
    (container,), (plain,) = template_["spec"]["containers"], before["spec"]["containers"]
    assert container["env"][: len(plain.get("env", []))] == plain.get("env", [])
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
    assert {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}} in container["env"]
    assert container["args"][: len(plain["args"])] == plain["args"]
    added = container["args"][len(plain["args"]) :]
    if component == "agent":
        assert added == [
            *("--metrics-file=/etc/gangwatch/config/metrics.csv", "--collector.network", "--no-collector.nfs"),
            "--profile=full",
        ]
    else:
        assert added == ["--island-label=example.com/island"]


@pytest.mark.parametrize("mode", ["generated", "plain"])
def test_an_agent_gets_the_metrics_file_and_a_changed_one_replaces_its_pods(tmp_path: Path, mode: str) -> None:
    value = "agent.metricsFile=# a: b\nDCGM_FI_DEV_GPU_TEMP\\, gauge\\, Temperature.\n"
    objects = render(f"tls.mode={mode}", value)
    spec = one(objects, "DaemonSet", "gangwatch-agent")["spec"]["template"]
    (mounted,) = (
        mount["mountPath"] for mount in spec["spec"]["containers"][0]["volumeMounts"] if mount["name"] == "config"
    )
    assert mounted == "/etc/gangwatch/config"
    (tmp_path / "metrics.csv").write_text(one(objects, "ConfigMap", "gangwatch-agent")["data"]["metrics.csv"])
    assert read_metrics_file(tmp_path / "metrics.csv") == {"DCGM_FI_DEV_GPU_TEMP": "Temperature."}
    changed = one(render(f"tls.mode={mode}", value + "#"), "DaemonSet", "gangwatch-agent")["spec"]["template"]
    assert changed["metadata"]["annotations"] != spec["metadata"]["annotations"]


@pytest.mark.parametrize("mode", ["generated", "plain"])
def test_an_agent_may_list_pods_only_with_pod_labels(mode: str) -> None:
    asks = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}

    def rules(objects: list[Any]) -> list[Any]:
        roles = [
            found
            for found in objects
            if (found["kind"], found["metadata"]["name"]) == ("ClusterRole", "gangwatch-agent")
        ]
        return [rule for role in roles for rule in role["rules"]]

    without = render(f"tls.mode={mode}")
    assert asks not in rules(without)
    objects = render(f"tls.mode={mode}", "agent.podLabelNames={team,example.com/cost-center}")
    assert asks in rules(objects)
    pod = one(objects, "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in [
        mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]
    ]
    assert one(objects, "NetworkPolicy", "gangwatch-agent")["spec"]["egress"]
    configuration = tomllib.loads(one(objects, "ConfigMap", "gangwatch-agent")["data"]["gangwatch.toml"])
    assert configuration["agent"]["pod_label_names"] == ["team", "example.com/cost-center"]
    assert ("certificate_command" in configuration["agent"]) is (mode == "generated")


def test_the_chart_knows_the_agents_collectors() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = schema["properties"]["agent"]["properties"]["collectors"]["propertyNames"]["enum"]
    assert set(names) == {*COLLECTORS, ALL_COLLECTORS}
    only = render("agent.collectors.*=false", "agent.collectors.nvml=true")
    arguments = one(only, "DaemonSet", "gangwatch-agent")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-2:] == ["--collector.disable-defaults", "--collector.nvml"]


def test_the_readme_describes_every_value(tmp_path: Path) -> None:
    """``python deploy/helm/readme.py`` writes it."""
    import runpy

    readme = runpy.run_path(str(CHART.parent / "readme.py"))
    assert (CHART / "README.md").read_text() == readme["readme"](), "run python deploy/helm/readme.py"
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (CHART / "README.md").read_text()
    for section, body in schema["properties"].items():
        for name in body.get("properties", {}):
            assert f"| `{section}.{name}" in text, f"values.yaml lacks {section}.{name}"


def test_only_controller_and_renewal_can_read_the_signing_key() -> None:
    objects = render()
    one(objects, "Secret", "gangwatch-authority")
    mounting = {
        (body["kind"], body["metadata"]["name"])
        for body in objects
        if body["kind"] in ("DaemonSet", "Deployment", "Job", "CronJob") and "gangwatch-authority" in str(body["spec"])
    }
    # The renewal names the secret and reads it with its own permission.
    assert mounting == {("Deployment", "gangwatch-controller"), ("CronJob", "gangwatch-renewal")}
    roles = {
        body["metadata"]["name"] for body in objects if "Role" in body["kind"] and "gangwatch-authority" in str(body)
    }
    assert roles == {"gangwatch-renewal"}
    own = render("tls.mode=secret", "tls.secretName=mine", "tls.signer=clusterissuers.cert-manager.io/ours")
    assert not [body for body in own if body["kind"] == "CronJob" or "gangwatch-authority" in str(body)]
