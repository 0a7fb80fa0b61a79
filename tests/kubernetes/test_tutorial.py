"""The tutorial of docs/how-to/kubernetes.md: its commands work as written, in its order, on a cluster of real kubelets.

The plug-in `kubectl gangwatch` is then used with wrong names, without permissions, and without a controller.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from tests.deploy.test_chart import helm
from tests.kubernetes.harness import Api, wait_for
from tests.kubernetes.real_kubelets import NAMESPACE, RealCluster
from tests.kubernetes.real_site import NODES, Site
from tests.needs import component

pytestmark = [pytest.mark.xdist_group("real-kubelets"), pytest.mark.timeout(900), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"


def blocks() -> list[str]:
    """Return the text of each block of the tutorial, in order."""
    section = PAGE.read_text().partition("\n## From an empty cluster to a moved gang\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\w*\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """Return the commands of a block. A line that ends with a backslash continues."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


class Reader:
    """A reader of the tutorial with a shell, in a folder with the repository's `deploy`."""

    def __init__(self, folder: Path, cluster: RealCluster) -> None:
        self.folder, programs = folder, folder / "programs"
        programs.mkdir()
        (folder / "deploy").symlink_to(ROOT / "deploy")
        (programs / "helm").symlink_to(helm())
        (programs / "kubectl").symlink_to(component("kubectl", "kubernetes-client"))
        shutil.copy(ROOT / "deploy" / "kubectl" / "kubectl-gangwatch", programs)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.folder / "kubeconfig")}
        self._assigned: list[str] = []
        self.node = "NODE"

    def ends(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the shell, after the assignments so far, and return how it ended."""
        script = "\n".join(["set -eu", *self._assigned, re.sub(r"\bNODE\b", self.node, command)])
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def type(self, command: str) -> str:
        """Run a command of the tutorial, and return its output. Fail if it fails."""
        done = self.ends(command)
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        if re.match(r"\w+=", command):
            self._assigned.append(command)
        return done.stdout


def installed(bare: Site, reader: Reader) -> None:
    """Install the chart as in the tutorial, unless an earlier test has done that."""
    if bare.api.find(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gangwatch-agent") is None:
        for command in commands(blocks()[0]):
            reader.type(command)


def rows(output: str) -> list[dict[str, str]]:
    """Return the rows of a table of kubectl, by the headings of its columns."""
    heading, *lines = output.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+( \S+)*", heading)]
    ends = [*starts[1:], None]
    names = [heading[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [
        {name: line[start:end].strip() for name, start, end in zip(names, starts, ends, strict=True)} for line in lines
    ]


@pytest.fixture(scope="session")
def reader(bare: Site, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("reader"), bare.real)


def test_its_commands_move_a_gang(bare: Site, reader: Reader) -> None:
    """The release is left for later tests, which need the same one; the last test executes the tutorial's end."""
    install, yaml, start, drain, moved, why, end = blocks()
    for command in commands(install):
        output = reader.type(command)
    pods = rows(output)
    assert sorted(pod["STATUS"] for pod in pods) == ["Running"] * (len(NODES) + 2), output

    (reader.folder / "train.yaml").write_text(yaml)
    apply, groups, wide, story = commands(start)
    reader.type(apply)
    wait_for("all pods have a node", lambda: rows(reader.type(groups))[0]["SCHEDULED"] == "True")
    wait_for("they run", lambda: {pod["STATUS"] for pod in rows(reader.type(wide))} == {"Running"})
    assert "started" in reader.type(story)

    before = {pod["NODE"] for pod in rows(reader.type(wide))}
    reader.node = min(before)
    for command in commands(drain):
        reader.type(command)

    def has_moved() -> bool:
        found = rows(reader.type(wide))
        running = [pod["NODE"] for pod in found if pod["STATUS"] == "Running"]
        return len(found) == len(running) == 4 and reader.node not in running

    wait_for("the gang runs on other nodes", has_moved)
    _, story, of_node = commands(moved)
    told = reader.type(story)
    assert told.count("started") >= 2, told
    assert "maintenance" in reader.type(of_node)
    (explain,) = commands(why)
    assert reader.type(explain)

    job = bare.api.get("/apis/batch/v1/namespaces/default/jobs/train")
    assert not job["status"].get("failed"), "no pod of the stopped gang counts as a failure"
    release, delete, _ = commands(end)
    reader.type(release)
    reader.type(delete)


def test_uninstalling_leaves_nothing(bare: Site, reader: Reader) -> None:
    api = bare.api
    installed(bare, reader)
    *_, end = blocks()
    *_, uninstall = commands(end)
    assert uninstall.startswith("helm uninstall")
    reader.type(uninstall)
    (namespace,) = (one for one in api.get("/api/v1/namespaces")["items"] if one["metadata"]["name"] == NAMESPACE)
    assert namespace["status"]["phase"] == "Active"
    wait_for("no pod of gangwatch remains", lambda: not api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"])
    for node in api.get("/api/v1/nodes")["items"]:
        marks = {**node["metadata"].get("labels", {}), **node["metadata"].get("annotations", {})}
        assert not [name for name in marks if name.startswith(OURS)]
        assert not [one for one in node["spec"].get("taints", []) if one["key"].startswith(OURS)]


# --- the plug-in -----------------------------------------------------------------------------------------------------


def account(api: Api, real: RealCluster, folder: Path, name: str, *rules: dict[str, Any]) -> str:
    """Create a service account with these rights in all namespaces, and return its kubeconfig."""
    api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
    group = "rbac.authorization.k8s.io"
    api.create(f"/apis/{group}/v1/clusterroles", {"metadata": {"name": name}, "rules": list(rules)})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    api.create(f"/apis/{group}/v1/clusterrolebindings", binding)
    token = api.create(f"/api/v1/namespaces/default/serviceaccounts/{name}/token", {"spec": {}})["status"]["token"]
    authority = real.folder / "control" / "ca.crt"
    file = folder / f"{name}.kubeconfig"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\n"
        "contexts: [{name: it, context: {cluster: it, user: it}}]\n"
        f"clusters: [{{name: it, cluster: {{server: 'https://10.213.0.1:443', certificate-authority: {authority}}}}}]\n"
        f"users: [{{name: it, user: {{token: {token}}}}}]\n"
    )
    return str(file)


LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
GROUPS = {"apiGroups": ["scheduling.x-k8s.io"], "resources": ["podgroups"], "verbs": ["get"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
EXEC = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}


def test_the_plug_in_names_what_is_wrong(bare: Site, reader: Reader, tmp_path: Path) -> None:
    real, api = bare.real, bare.api
    installed(bare, reader)
    _, yaml, *_ = blocks()
    large = yaml.replace("minMember: 4", "minMember: 40").replace("completions: 4", "completions: 40")
    (reader.folder / "train.yaml").write_text(large.replace("parallelism: 4", "parallelism: 40"))
    reader.type("kubectl apply --filename train.yaml")
    wait_for("it waits", lambda: rows(reader.type("kubectl get podgroups"))[0]["REASON"])

    logs = reader.type("kubectl --namespace gangwatch logs --selector app.kubernetes.io/component=controller --tail 99")
    assert " leads " in logs, logs

    def says(command: str, words: str, code: int, kubeconfig: str = "") -> None:
        done = reader.ends(f"kubectl gangwatch {command}", **({"KUBECONFIG": kubeconfig} if kubeconfig else {}))
        assert (done.returncode == 0) == (code == 0), f"{command}: {done.returncode} {done.stdout}{done.stderr}"
        assert words in done.stdout + done.stderr, f"{command}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr

    says("explain train", "40", 0)
    says("story train", "train", 0)
    says("top --once", "train", 0)
    says("explain absent", "no PodGroup and no pod absent", 1)
    says("story node:absent", "absent", 1)
    says("explain default.train.00000000", "default.train.00000000", 1)
    says("frobnicate", "no such command: frobnicate", 2)
    says("top --release absent", "the lease absent cannot be read", 1)
    says("top --release-namespace default", "the lease gangwatch cannot be read in namespace default", 1)
    says("node maintenance node-1 now", "", 2)

    nothing = account(api, real, tmp_path, "nothing")
    says("top --once", "Forbidden", 1, nothing)
    leases = account(api, real, tmp_path, "leases", LEASES)
    says("explain train", "Forbidden", 1, leases)
    no_exec = account(api, real, tmp_path, "no-exec", LEASES, GROUPS, PODS)
    says("explain train", "Forbidden", 1, no_exec)
    enough = account(api, real, tmp_path, "enough", LEASES, GROUPS, PODS, EXEC)
    says("explain train", "40", 0, enough)

    reader.type("kubectl --namespace gangwatch scale deployment gangwatch-controller --replicas 0")
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component%3Dcontroller"
    wait_for("no controller runs", lambda: not api.get(pods)["items"])
    done = reader.ends("kubectl gangwatch top --once")
    assert done.returncode == 1
    assert "no controller leads" in done.stderr or "the last controller that led, does not run" in done.stderr, done
    reader.type("kubectl delete --filename train.yaml")
    for command in (
        "scale deployment gangwatch-controller --replicas 2",
        "rollout status deployment/gangwatch-controller",
    ):
        reader.type(f"kubectl --namespace gangwatch {command}")  # later tests use the release
