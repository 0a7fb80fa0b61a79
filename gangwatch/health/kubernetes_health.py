"""Checks of a Kubernetes cluster for `gangwatch check --kubernetes`."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError
from gangwatch.certificates.signer import PATH as REQUESTS
from gangwatch.certificates.signer import Request
from gangwatch.health.certificate_health import SOON_SECONDS
from gangwatch.health.gpu_health import SlicedGpus, gpu_finding, names_of, sliced_gpus
from gangwatch.health.machine import Finding
from scheduler_feedback.backends.kubernetes.agents import is_agent
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.lease import LEASE_SECONDS
from scheduler_feedback.backends.kubernetes.api_server.rights import RIGHTS, missing_rights
from scheduler_feedback.backends.kubernetes.devices.device_objects import API as DEVICES
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceSlice
from scheduler_feedback.backends.kubernetes.objects.objects import Lease, Node, Part, Pod
from scheduler_feedback.backends.kubernetes.objects.translate import (
    SCHEDULER,
    TopologyLabels,
    resource_of,
    slots_of,
    wall_ns,
)
from scheduler_feedback.backends.kubernetes.published.advice import RULES

OLDEST = (1, 30)
"""Oldest supported Kubernetes version, as (major, minor). It equals kubeVersion in the Helm chart."""

_T = TypeVar("_T")
WAITING_SECONDS = 300.0
"""Age in seconds at which an undecided certificate request is reported. A controller decides within seconds."""


class Survey(msgspec.Struct, frozen=True):
    """Result of all checks of a cluster."""

    server: str
    version: str
    nodes: int
    pods: int
    findings: tuple[Finding, ...]


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""
    major: str = ""
    minor: str = ""


class _Nodes(Part):
    items: list[Node]


class _Pods(Part):
    items: list[Pod]


class _Slices(Part):
    items: list[ResourceSlice]


class _Classes(Part):
    items: list[DeviceClass]


class _Secret(Part):
    data: dict[str, str] | None = None


class _Requests(Part):
    items: list[Request]


class _Schema(Part):
    spec: dict[str, Any]


def survey(access: Access, namespace: str, release: str) -> Survey:
    """Run all checks of the cluster and return the results.

    Raises BackendError if the API server can't be reached or does not return its version.
    """
    return asyncio.run(_survey(access, namespace, release))


async def _survey(access: Access, namespace: str, release: str) -> Survey:
    async with Client(access, agent="gangwatch-check") as client:
        version = await client.get("/version", msgspec.json.Decoder(_Version))
        findings = [_version(version)]
        nodes = pods = None
        try:
            nodes = (await client.get("/api/v1/nodes", msgspec.json.Decoder(_Nodes))).items
            pods = (await client.get("/api/v1/pods", msgspec.json.Decoder(_Pods))).items
        except RefusedError as error:
            findings.append(Finding("view", "missing", str(error), "use a kubeconfig that may list nodes and pods"))
        if nodes is not None and pods is not None:
            findings += cluster_findings(nodes, pods, sliced=await _sliced(client, nodes))
        findings.append(await _controller(client, namespace, release))
        findings += await _rights(client, namespace, release)
        findings.append(await _certificates(client, namespace, release))
        findings += await _kinds(client)
        return Survey(access.url, version.git_version, len(nodes or ()), len(pods or ()), tuple(findings))


def _version(version: _Version) -> Finding:
    numbers = [int(match[0]) if (match := re.match(r"\d+", text)) else 0 for text in (version.major, version.minor)]
    if tuple(numbers) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Finding("server", "limited", f"{version.git_version} is older than {oldest}", f"Kubernetes {oldest}")
    return Finding("server", "found", version.git_version)


# --- nodes and pods --------------------------------------------------------------------------------------------------


async def _sliced(client: Client, nodes: list[Node]) -> SlicedGpus:
    """Return the GPUs in ResourceSlices; none if the API server does not serve them (before Kubernetes 1.34)."""
    slices = await _find(client, f"/apis/{DEVICES}/resourceslices", msgspec.json.Decoder(_Slices))
    classes = await _find(client, f"/apis/{DEVICES}/deviceclasses", msgspec.json.Decoder(_Classes))
    if isinstance(slices, str) or isinstance(classes, str):
        refused = [one for one in (slices, classes) if isinstance(one, str) and one]
        return SlicedGpus(unreadable={"of the cluster": refused[0]} if refused else {})
    return sliced_gpus(nodes, slices.items, classes.items)


def cluster_findings(
    nodes: Iterable[Node], pods: Iterable[Pod], labels: TopologyLabels | None = None, sliced: SlicedGpus | None = None
) -> list[Finding]:
    """Return the check results that depend only on the lists of nodes and pods, and on the GPUs in ResourceSlices."""
    pods, sliced = list(pods), sliced or SlicedGpus()
    with_gpus = [node for node in nodes if resource_of(node) or node.metadata.name in sliced.by_node]
    found = [gpu_finding(with_gpus, sliced)]
    if with_gpus:
        found += [_topology(with_gpus, labels or TopologyLabels()), _agents(with_gpus, pods)]
    return [*found, _schedulers(pods)]


def _topology(nodes: list[Node], labels: TopologyLabels) -> Finding:
    levels = {"spine": labels.spine, "rack": labels.rack, "rail": labels.rail, "island": labels.island}
    said = {level: sum(bool(node.metadata.label(key)) for node in nodes) for level, key in levels.items() if key}
    known = [f"{level} of {count}" for level, count in said.items() if count]
    if not known:
        keys = ", ".join(key for key in levels.values() if key)
        return Finding(
            "topology",
            "missing",
            "no GPU node has a topology label, so placement ignores the network topology",
            f"label the nodes ({keys}), or set your own label keys in controller.topology",
        )
    partly = [level for level, count in said.items() if 0 < count < len(nodes)]
    detail = f"{', '.join(known)} of {len(nodes)} nodes is known"
    if partly:
        return Finding("topology", "limited", detail, f"label the rest: {', '.join(levels[level] for level in partly)}")
    return Finding("topology", "found", detail)


def _agents(nodes: list[Node], pods: list[Pod]) -> Finding:
    there = {pod.spec.node_name for pod in pods if is_agent(pod) and pod.status.phase == "Running"}
    without = [node.metadata.name for node in nodes if node.metadata.name not in there]
    if len(without) == len(nodes):
        remedy = "helm install gangwatch deploy/helm/gangwatch (docs/how-to/kubernetes.md)"
        return Finding("agents", "missing", "no GPU node runs an agent, so nothing is measured", remedy)
    detail = f"an agent runs on {len(nodes) - len(without)} of {len(nodes)} GPU nodes"
    if without:
        remedy = (
            "kubectl describe its DaemonSet: agent.nodeSelector, agent.tolerations and image pulls are the usual causes"
        )
        return Finding("agents", "limited", f"{detail}; none on {names_of(without)}", remedy)
    return Finding("agents", "found", detail)


def _schedulers(pods: list[Pod]) -> Finding:
    """Return a check result that names the schedulers of pods with GPUs."""
    by = Counter(pod.spec.scheduler_name for pod in pods if not pod.over and slots_of(pod))
    others = {name: count for name, count in by.items() if name != SCHEDULER}
    said = ", ".join(f"{name} {count}" for name, count in sorted(by.items())) or "none"
    if others and SCHEDULER in by:
        remedy = "two schedulers on the same nodes compete for the same slots: give each scheduler its own nodes"
        return Finding("schedulers", "limited", f"pods with GPUs by scheduler: {said}", remedy)
    if others:
        remedy = (
            "controller.mode=advise marks nodes for the other scheduler; pods with schedulerName: gangwatch are "
            "placed by gangwatch"
        )
        return Finding("schedulers", "limited", f"pods with GPUs by scheduler: {said}", remedy)
    return Finding("schedulers", "found", f"pods with GPUs by scheduler: {said}")


# --- controller, rights, kinds ---------------------------------------------------------------------------------------


async def _controller(client: Client, namespace: str, release: str) -> Finding:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{release}"
    lease = await _find(client, path, msgspec.json.Decoder(Lease))
    remedy = (
        f"see kubectl --namespace {namespace} get deployment {release}-controller; "
        "--namespace and --release select another release"
    )
    if isinstance(lease, str):
        return Finding("controller", "missing", lease or f"lease {namespace}/{release} does not exist", remedy)
    holder = lease.spec.holder_identity
    age_seconds = (datetime.now(UTC).timestamp() * 1e9 - wall_ns(lease.spec.renew_time or "")) / 1e9
    if not holder or age_seconds > LEASE_SECONDS:
        return Finding("controller", "missing", f"no controller has led for {age_seconds:.0f} s", remedy)
    return Finding("controller", "found", f"{holder} leads")


async def _rights(client: Client, namespace: str, release: str) -> list[Finding]:
    """Check whether the chart's service account has all permissions that scheduling needs."""
    user = f"system:serviceaccount:{namespace}:{release}-controller"
    try:
        lacking = [f"{verb} {resource}" for _, resource, verb in await missing_rights(client, RIGHTS, user)]
    except RefusedError as error:
        return [Finding("rights", "limited", f"unknown: {error}", "run the check as an administrator")]
    if not lacking:
        return [Finding("rights", "found", f"{user} has all permissions for scheduling")]
    if len(lacking) == len(RIGHTS):
        return [Finding("rights", "missing", f"{user} has no permissions", "install the chart")]
    if {"create pods/binding", "create pods/eviction"} <= set(lacking) and "patch nodes" not in lacking:
        return [
            Finding(
                "rights", "limited", f"{user} may advise but not schedule", "to schedule, set controller.mode=schedule"
            )
        ]
    remedy = "the ClusterRole differs from the chart's: upgrade the release (with Helm 4: --force-conflicts)"
    return [Finding("rights", "limited", f"{user} may not {names_of(lacking)}", remedy)]


async def _certificates(client: Client, namespace: str, release: str) -> Finding:
    """Check the agents' certificate requests and the expiry of the controller's certificate."""
    remedy = "see docs/how-to/certificates.md, When something is wrong"
    secret = await _find(client, f"/api/v1/namespaces/{namespace}/secrets/{release}-tls", msgspec.json.Decoder(_Secret))
    words = "the controller's expiry is unknown: its secret can't be read or has another name"
    if not isinstance(secret, str):
        try:
            _, ends = validity(base64.b64decode((secret.data or {}).get("tls.crt", "")))
        except (ConfigError, ValueError) as error:
            return Finding("certificates", "missing", f"secret {release}-tls: {error}", remedy)
        words = f"the controller's expires on {datetime.fromtimestamp(ends, UTC):%Y-%m-%d}"
        if ends - time.time() < SOON_SECONDS:
            return Finding("certificates", "limited", words, f"check the CronJob {release}-renewal or your issuer")
    try:
        requests = (await client.get(REQUESTS, msgspec.json.Decoder(_Requests))).items
    except RefusedError as error:
        return Finding(
            "certificates", "limited", f"{words}; requests of agents: {error}", "use a kubeconfig that may list them"
        )
    account = f"system:serviceaccount:{namespace}:{release}-agent"
    asked = [one for one in requests if one.spec.username == account]
    if not asked and secret == "":
        detail = f"no secret {release}-tls and no agent requests: the chart is not installed, or tls.mode is plain"
        return Finding("certificates", "missing", detail, "install the chart with tls.mode generated")
    denied = [one for one in asked if one.has("Denied") or one.has("Failed")]
    now_ns = datetime.now(UTC).timestamp() * 1e9
    waiting = [
        one
        for one in asked
        if not one.status.certificate
        and one not in denied
        and now_ns - wall_ns(one.metadata.creation_timestamp) > WAITING_SECONDS * 1e9
    ]
    if waiting:
        named = names_of([one.metadata.name for one in waiting])
        detail = f"{words}; {len(waiting)} agent requests are pending: {named}"
        return Finding("certificates", "missing", detail, f"the controller must approve them; {remedy}")
    if denied:
        said = next((one.message for one in denied[-1].status.conditions or () if one.message), "")
        detail = f"{words}; {len(denied)} agent requests were denied, the last: {said}"
        return Finding("certificates", "limited", detail, remedy)
    return Finding("certificates", "found", f"{words}; no agent request is pending")


async def _kinds(client: Client) -> list[Finding]:
    """Check whether the cluster has the resource kinds that optional parts of gangwatch need."""
    found = [await _pod_groups(client)]
    for name, path, means, remedy in (
        (
            "queues",
            "/apis/gangwatch.io/v1alpha1/queues",
            "only queues of the configuration file exist",
            "kubectl apply --filename deploy/helm/gangwatch/crds/queues.yaml",
        ),
        (
            "prometheus-operator",
            "/apis/monitoring.coreos.com/v1/podmonitors",
            "the chart's podMonitor and prometheusRule can't be enabled",
            "install the Prometheus operator, or scrape the agents' service yourself",
        ),
        (
            "device-taints",
            RULES,
            "an advisor can taint nodes but not single GPUs",
            "start the API server with --feature-gates=DRADeviceTaintRules=true "
            "--runtime-config=resource.k8s.io/v1beta2=true",
        ),
    ):
        answer = await _find(client, f"{path}?limit=1", msgspec.json.Decoder())
        there = not isinstance(answer, str)
        detail = "served" if there else f"{answer or 'not served'}: {means}"
        found.append(Finding(name, "found" if there else "missing", detail, "" if there else remedy))
    return found


async def _pod_groups(client: Client) -> Finding:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.x-k8s.io"
    schema = await _find(client, path, msgspec.json.Decoder(_Schema))
    if isinstance(schema, str):
        remedy = "kubectl apply --filename deploy/helm/gangwatch/crds/podgroups.yaml"
        return Finding("pod-groups", "missing", schema or "not served: every pod is a gang of one", remedy)
    if '"conditions"' not in msgspec.json.encode(schema.spec).decode():
        return Finding(
            "pod-groups",
            "limited",
            "the definition is that of coscheduling, without conditions: only events say why a gang is pending",
            "kubectl apply --filename deploy/helm/gangwatch/crds/podgroups.yaml adds conditions",
        )
    return Finding("pod-groups", "found", "served, with conditions")


async def _find(client: Client, path: str, decoder: msgspec.json.Decoder[_T]) -> _T | str:
    """Return the object at `path`; '' if it does not exist, or the API server's message if the request is refused."""
    try:
        return await client.get(path, decoder)
    except RefusedError as error:
        return "" if error.code == 404 else str(error)


def in_words(found: Survey, echo: Callable[[str], None]) -> None:
    """Print one line per check result, followed by its remedy. echo: prints a line."""
    echo(f"{found.server}: Kubernetes {found.version}, {found.nodes} nodes, {found.pods} pods")
    for finding in found.findings:
        echo(f"  {finding.name:<20} {finding.state:<8} {finding.detail}")
        if finding.remedy:
            echo(f"  {'':<20} {'':<8} -> {finding.remedy}")
