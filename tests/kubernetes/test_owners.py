"""Stop of gangs of JobSet, Kubeflow, Ray and LeaderWorkerSet, with the objects that their controllers make.

The owners and labels are those in the public source of kubernetes-sigs/jobset, kubernetes-sigs/lws, kubeflow/trainer,
kubeflow/training-operator, kubeflow/mpi-operator and ray-project/kuberay (all Apache-2.0).
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.attempts import gang_stop
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.other_schedulers import gang_of as gang_name
from scheduler_feedback.backends.kubernetes.objects.owner_kinds import KINDS, kind_at
from scheduler_feedback.backends.kubernetes.objects.rank_order import rank_key
from scheduler_feedback.backends.kubernetes.objects.translate import RESTARTABLE, TIME_LIMIT, gang_of
from scheduler_feedback.core.job import JobState
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, Cluster, needs_manager, running, wait_for
from tests.kubernetes.little_api import LittleApi, refused
from tests.kubernetes.makers import group, pod
from tests.kubernetes.test_feedback import POLICY, accuse
from tests.kubernetes.test_writing import BUDGETS, IGNORES, PODS, evictions, member_of

Owner = tuple[str, str, str]
"""API version, kind and name of an object."""

TRAIN_JOB: Owner = ("trainer.kubeflow.org/v1alpha1", "TrainJob", "train")
JOB_SET: Owner = ("jobset.x-k8s.io/v1alpha2", "JobSet", "train")
RAY_JOB: Owner = ("ray.io/v1", "RayJob", "train")
RAY: Owner = ("ray.io/v1", "RayCluster", "train-abcde")
PYTORCH: Owner = ("kubeflow.org/v1", "PyTorchJob", "train")
MPI: Owner = ("kubeflow.org/v2beta1", "MPIJob", "train")
WORKERS: Owner = ("apps/v1", "StatefulSet", "train-0")


def job(name: str) -> Owner:
    return ("batch/v1", "Job", name)


def reference(owner: Owner) -> dict[str, Any]:
    version, kind, name = owner
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"{kind}-{name}", "controller": True}


def path(owner: Owner) -> str:
    version, kind, name = owner
    return f"/apis/{version}/namespaces/default/{KINDS[version.partition('/')[0], kind].plural}/{name}"


def owned(name: str, owner: Owner, gpus: int = 1, **labels: str) -> Pod:
    made = msgspec.to_builtins(pod(name, gpus, "g", labels=labels))
    made["metadata"]["ownerReferences"] = [reference(owner)]
    return msgspec.convert(made, Pod)


def api_of(*pods: Pod, **more: Any) -> LittleApi:
    """Return an API server with these pods. It fills in nothing."""
    objects = {f"{PODS}/{one.metadata.name}": msgspec.to_builtins(one) for one in pods}
    return LittleApi(objects | more, (BUDGETS, PODS))


def add(api: LittleApi, owner: Owner, parent: Owner | None = None, **spec: Any) -> None:
    name = owner[2]
    owners = [reference(parent)] if parent is not None else []
    metadata = {"name": name, "namespace": "default", "uid": reference(owner)["uid"], "ownerReferences": owners}
    api.objects[path(owner)] = {"metadata": metadata, "spec": spec}


def stopped(api: LittleApi, *pods: Pod) -> list[str]:
    return asyncio.run(gang_stop.stop(api, [member_of(one) for one in pods], pods))


JOB_SET_LABEL = {"jobset.sigs.k8s.io/jobset-name": "train"}


def job_set() -> tuple[LittleApi, list[Pod]]:
    """Return a JobSet of two Jobs with a pod each."""
    pods = [owned(f"train-w-{n}-0", job(f"train-w-{n}"), **JOB_SET_LABEL) for n in range(2)]
    api = api_of(*pods)
    for number in range(2):
        add(api, job(f"train-w-{number}"), JOB_SET)
    add(api, JOB_SET)
    return api, pods


def test_a_gang_of_a_jobset_is_stopped_by_suspending_the_jobset() -> None:
    """Its Jobs count evictions as failures, and its controller resumes a Job that somebody else suspends."""
    api, pods = job_set()
    assert stopped(api, *pods) == [path(JOB_SET)]
    assert api.done == [("PATCH", path(JOB_SET))], "neither a Job is suspended nor a pod evicted"
    assert api.objects[path(JOB_SET)]["spec"] == {"suspend": True}
    asyncio.run(gang_stop.resume(api, path(JOB_SET)))
    assert api.objects[path(JOB_SET)]["spec"] == {"suspend": False}
    assert gang_stop.SUSPENDED not in api.objects[path(JOB_SET)]["metadata"]["labels"]


def test_the_jobset_of_a_trainjob_is_suspended_by_the_trainjob() -> None:
    api, pods = job_set()
    add(api, JOB_SET, TRAIN_JOB)
    add(api, TRAIN_JOB)
    assert stopped(api, *pods) == [path(TRAIN_JOB)]
    assert api.objects[path(TRAIN_JOB)]["spec"] == {"suspend": True}
    assert api.objects[path(JOB_SET)]["spec"] == {}


@pytest.mark.parametrize("ignores", [False, True])
def test_a_jobset_with_pods_of_another_gang_is_not_suspended(ignores: bool) -> None:
    api, pods = job_set()
    other = msgspec.to_builtins(owned("evaluation", job("train-e-0"), **JOB_SET_LABEL))
    other["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "other"
    api.objects[f"{PODS}/evaluation"] = other
    if ignores:
        for number in range(2):
            add(api, job(f"train-w-{number}"), JOB_SET, **IGNORES)
        assert stopped(api, *pods) == []
        assert api.done == evictions("train-w-0-0", "train-w-1-0")
        return
    with pytest.raises(BackendError, match="JobSet train also has pod evaluation, which is not of the gang"):
        stopped(api, *pods)
    assert api.done == []


@pytest.mark.parametrize("of", ["pod", "job"])
def test_an_object_with_the_name_of_the_owner_is_not_suspended(of: str) -> None:
    """It was created after the owner was deleted, or a user named it to have it suspended: gangwatch may do more."""
    api, pods = job_set()
    named = job("train-w-1") if of == "pod" else JOB_SET
    api.objects[path(named)]["metadata"]["uid"] = "another"
    with pytest.raises(BackendError, match=f"{named[1]} {named[2]} has uid another, and what it should own names uid"):
        stopped(api, *pods)
    assert api.done == []


def test_a_jobset_that_gangwatch_may_not_read_is_named() -> None:
    api, pods = job_set()
    api.fails[("GET", path(JOB_SET))] = [refused(403, "Forbidden")]
    with pytest.raises(BackendError, match=r"JobSet train cannot be read: .*; give the Job a podFailurePolicy"):
        stopped(api, *pods)
    assert api.done == []


def test_a_pytorchjob_is_suspended_in_its_run_policy() -> None:
    label = {"training.kubeflow.org/job-name": "train"}
    pods = [owned("train-master-0", PYTORCH, **label), owned("train-worker-0", PYTORCH, **label)]
    api = api_of(*pods)
    add(api, PYTORCH, runPolicy={"cleanPodPolicy": "None"})
    assert stopped(api, *pods) == [path(PYTORCH)]
    assert api.objects[path(PYTORCH)]["spec"] == {"runPolicy": {"cleanPodPolicy": "None", "suspend": True}}


def test_the_launcher_and_the_workers_of_an_mpijob_are_stopped_by_one_suspension() -> None:
    label = {"training.kubeflow.org/job-name": "train"}
    launcher = owned("train-launcher-x", job("train-launcher"), 0, **label)
    pods = [launcher, *(owned(f"train-worker-{n}", MPI, **label) for n in range(2))]
    api = api_of(*pods)
    add(api, job("train-launcher"), MPI)
    add(api, MPI)
    assert stopped(api, *pods) == [path(MPI)]
    assert api.done == [("PATCH", path(MPI))]
    assert asyncio.run(gang_stop.suspend_owners(api, pods)) == {
        "Job-train-launcher": path(MPI),
        "MPIJob-train": path(MPI),
    }


class OldOperator(LittleApi):
    """API server whose definition of MPIJob has no flag `suspend`, so that the field is dropped."""

    def _store(self, path: str, body: Any) -> Any:
        if "/mpijobs/" in path:
            body.get("spec", {}).get("runPolicy", {}).pop("suspend", None)
        return super()._store(path, body)


def test_an_owner_whose_operator_is_too_old_is_named_and_what_was_suspended_is_resumed() -> None:
    """Otherwise the gang would be stopped for ever: its pods would never go."""
    label = {"training.kubeflow.org/job-name": "train"}
    pods = [owned("other", job("other")), owned("train-worker-0", MPI, **label)]
    api = OldOperator({f"{PODS}/{one.metadata.name}": msgspec.to_builtins(one) for one in pods}, (BUDGETS, PODS))
    add(api, job("other"))
    add(api, MPI)
    with pytest.raises(BackendError, match="mpijobs/train cannot be suspended: the installed version"):
        stopped(api, *pods)
    assert api.objects[path(job("other"))]["spec"] == {"suspend": False}
    for owner in (job("other"), MPI):
        assert gang_stop.SUSPENDED not in (api.objects[path(owner)]["metadata"].get("labels") or {})
    assert asyncio.run(gang_stop.suspend_owners(api, pods[1:])) == {}


@pytest.mark.parametrize("shuts_down", [True, False])
def test_a_rayjob_is_suspended_if_kuberay_allows_it(shuts_down: bool) -> None:
    label = {"ray.io/cluster": "train-abcde"}
    pods = [owned("head", RAY, **label), owned("worker", RAY, **label)]
    api = api_of(*pods)
    add(api, RAY, RAY_JOB)
    add(api, RAY_JOB, shutdownAfterJobFinishes=shuts_down)
    if shuts_down:
        assert stopped(api, *pods) == [path(RAY_JOB)]
        return
    with pytest.raises(BackendError, match="RayJob train can be suspended only with shutdownAfterJobFinishes"):
        stopped(api, *pods)
    assert api.done == []


def test_a_raycluster_of_its_own_is_suspended() -> None:
    pods = [owned("head", RAY, **{"ray.io/cluster": "train-abcde"})]
    api = api_of(*pods)
    add(api, RAY)
    assert stopped(api, *pods) == [path(RAY)]


def test_pods_of_a_leaderworkerset_are_evicted_as_a_whole() -> None:
    """Its controller creates the whole group again after one pod has gone (RecreateGroupOnPodRestart)."""
    pods = [owned("train-0", ("apps/v1", "StatefulSet", "train")), owned("train-0-1", WORKERS)]
    api = api_of(*pods)
    assert stopped(api, *pods) == []
    assert sorted(api.done) == sorted(evictions("train-0", "train-0-1"))


def test_objects_of_every_kind_that_an_earlier_leader_suspended_are_found() -> None:
    lists = tuple(f"/apis/{version}/{kind.plural}" for kind in KINDS.values() for version in kind.versions)
    api = LittleApi(lists=lists)
    marked = {"name": "train", "namespace": "default", "labels": {gang_stop.SUSPENDED: "true"}}
    for one in lists:
        api.objects[f"{one}/train"] = {"metadata": marked}
    found = asyncio.run(gang_stop.left_suspended(api))
    assert len(found) == len(KINDS), "an object that two versions list counts once"
    assert [kind_at(one) for one in found] == list(KINDS.values())
    for version in ("ray.io/v1/rayclusters", "kubeflow.org/v1/mpijobs"):
        api.fails[("GET", f"/apis/{version}")] = [refused(404)]
    assert "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/train" in asyncio.run(gang_stop.left_suspended(api))
    api.fails[("GET", "/apis/batch/v1/jobs")] = [refused(403)]
    with pytest.raises(BackendError):
        asyncio.run(gang_stop.left_suspended(api))


@pytest.mark.parametrize("owner", [JOB_SET, PYTORCH, MPI, RAY, WORKERS, job("train")])
def test_gangs_whose_owner_recreates_pods_may_be_restartable(owner: Owner) -> None:
    spec = gang_of(group("g", 1, {RESTARTABLE: "true"}), [owned("a", owner)]).spec
    assert spec is not None and spec.restartable


def test_ranks_of_lws_ray_and_mpi_follow_their_labels() -> None:
    def ordered(*pods: Pod) -> list[str]:
        return [one.metadata.name for one in sorted(pods, key=rank_key)]

    lws = "leaderworkerset.sigs.k8s.io/"
    index = {f"{lws}group-index": "0", "apps.kubernetes.io/pod-index": "0"}
    leader = pod("s-0", labels={**index, f"{lws}worker-index": "0"})
    workers = [pod(f"s-0-{n}", labels={f"{lws}group-index": "0", f"{lws}worker-index": str(n)}) for n in (10, 2)]
    assert ordered(*workers, leader) == ["s-0", "s-0-2", "s-0-10"]
    node_type = "ray.io/node-type"
    assert ordered(pod("a", labels={node_type: "worker"}), pod("b", labels={node_type: "head"})) == ["b", "a"]
    role = "training.kubeflow.org/job-role"
    assert ordered(pod("a", labels={role: "worker"}), pod("b", labels={role: "launcher"})) == ["b", "a"]


def made_by_jobset(role: str, job: int, job_of_all: int, index: int) -> tuple[str, Owner, dict[str, str]]:
    """A pod of the JobSet controller's Job (pkg/controllers, labelAndAnnotateObject) and of the Job controller."""
    name, own = f"train-{role}-{job}", "jobset.sigs.k8s.io/"
    labels = {
        f"{own}jobset-name": "train", f"{own}replicatedjob-name": role, f"{own}replicatedjob-replicas": "2",
        f"{own}restart-attempt": "0", f"{own}global-replicas": "3", f"{own}job-index": str(job),
        f"{own}job-key": "0" * 40, f"{own}job-global-index": str(job_of_all),
        "batch.kubernetes.io/job-name": name, "batch.kubernetes.io/job-completion-index": str(index),
    }  # fmt: skip
    return f"{name}-{index}-x{9 - index}", ("batch/v1", "Job", name), labels


def made_by_lws(index: int) -> tuple[str, Owner, dict[str, str]]:
    """A pod of group 1 of a LeaderWorkerSet (pkg/webhooks/pod_webhook.go) and of the StatefulSet controller."""
    own = "leaderworkerset.sigs.k8s.io/"
    name = f"train-1-{index}" if index else "train-1"
    labels = {
        f"{own}name": "train", f"{own}group-index": "1", f"{own}worker-index": str(index), f"{own}group-key": "0" * 40,
        f"{own}template-revision-hash": "1", "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(index or 1),
    }  # fmt: skip
    return name, ("apps/v1", "StatefulSet", "train-1" if index else "train"), labels


def made_by_kuberay(group: str, replica: int, host: int, name: str) -> tuple[str, Owner, dict[str, str]]:
    """A pod of a RayCluster (ray-operator/controllers/ray/common/pod.go); workers of KubeRay 1.5 have indices."""
    labels = {
        "ray.io/cluster": "train-abcde", "ray.io/is-ray-node": "yes", "ray.io/group": group,
        "ray.io/node-type": "head" if group == "headgroup" else "worker",
        "ray.io/identifier": "train-abcde-worker", "app.kubernetes.io/created-by": "kuberay-operator",
    }  # fmt: skip
    if group != "headgroup":
        labels |= {"ray.io/worker-group-replica-name": f"{group}-{replica}x"}
        labels |= {"ray.io/worker-group-replica-index": str(replica), "ray.io/replica-host-index": str(host)}
    return f"train-abcde-{group}-{name}", RAY, labels


def made_by_mpi_operator(index: int) -> tuple[str, Owner, dict[str, str]]:
    """The launcher (index -1), which belongs to a Job, or a worker (mpi-operator, newLauncherJob and newWorker)."""
    own = "training.kubeflow.org/"
    labels = {f"{own}operator-name": "mpi-operator", f"{own}job-name": "train"}
    if index < 0:
        labels |= {f"{own}job-role": "launcher", "batch.kubernetes.io/job-name": "train-launcher"}
        return "train-launcher-abcde", job("train-launcher"), labels
    labels |= {f"{own}job-role": "worker", f"{own}replica-index": str(index)}
    return f"train-worker-{index}", MPI, labels


RECORDED: dict[str, tuple[str, list[tuple[str, Owner, dict[str, str]]]]] = {
    "JobSet, roles in the order of its specification": (
        "default.train.jobset",
        [made_by_jobset("trainer", 0, 0, n) for n in range(2)]
        + [made_by_jobset("trainer", 1, 1, n) for n in range(2)]
        + [made_by_jobset("evaluator", 0, 2, n) for n in range(11)],
    ),
    "JobSet, a leader listed last": (
        "default.train.jobset",
        [made_by_jobset("leader", 0, 1, 0), *(made_by_jobset("worker", 0, 0, n) for n in range(2))],
    ),
    "LeaderWorkerSet": ("default.train-1.lws", [made_by_lws(n) for n in range(12)]),
    "RayCluster": (
        "default.train-abcde.raycluster",
        [made_by_kuberay("headgroup", 0, 0, "zzzzz")]
        + [made_by_kuberay("big", replica, host, f"w{9 - replica}{9 - host}") for replica in (0, 1) for host in (0, 1)]
        + [made_by_kuberay("small", 0, 0, "aaaaa")],
    ),
    "MPIJob": ("default.train.kubeflow", [made_by_mpi_operator(n) for n in range(-1, 12)]),
}


@pytest.mark.parametrize(("name", "made"), RECORDED.values(), ids=RECORDED.keys())
def test_pods_with_the_labels_of_their_controllers_are_one_gang_in_the_order_of_ranks(
    name: str, made: list[tuple[str, Owner, dict[str, str]]]
) -> None:
    """Beside another scheduler the labels name the gang; with a PodGroup it is the group's, restartable on request."""
    pods = [owned(pod_name, owner, 1, **labels) for pod_name, owner, labels in made]
    expected = [one.metadata.name for one in pods]
    for seed in range(3):
        shuffled = random.Random(seed).sample(pods, len(pods))
        assert [one.metadata.name for one in sorted(shuffled, key=rank_key)] == expected
        gang = gang_of(group("g", len(pods), {RESTARTABLE: "true"}), shuffled)
        assert gang.spec is not None and gang.spec.restartable and gang.spec.ranks == len(pods)
        assert [one.metadata.name for one in gang.pods] == expected
    for one in pods:
        (one.metadata.labels or {}).pop("scheduling.x-k8s.io/pod-group")
    assert {gang_name(one) for one in pods} == {name}


def test_each_group_of_a_leaderworkerset_and_each_raycluster_is_an_observed_gang() -> None:
    lws = "leaderworkerset.sigs.k8s.io/"
    groups = [{f"{lws}name": "serve", f"{lws}group-index": str(n)} for n in range(2)]
    names = {gang_name(pod(f"p{n}", labels=groups[n % 2])) for n in range(4)}
    assert names == {"default.serve-0.lws", "default.serve-1.lws"}
    assert gang_name(pod("head", labels={"ray.io/cluster": "r"})) == "default.r.raycluster"


# --- a JobSet on a real API server, with the real Job controller -----------------------------------------------------

JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobsets.jobset.x-k8s.io"},
    "spec": {
        "group": "jobset.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "JobSet", "plural": "jobsets", "singular": "jobset", "listKind": "JobSetList"},
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@contextmanager
def job_set_controller(cluster: Cluster, done: list[bool]) -> Iterator[None]:
    """Copy the JobSet's `suspend` to its Job, as the JobSet controller does. done: each value that it copied."""
    over = threading.Event()
    job_path = "/apis/batch/v1/namespaces/default/jobs/train"

    def work(api: Api) -> None:
        while not over.wait(0.1):
            wanted = bool(api.get(f"{JOB_SETS}/set")["spec"].get("suspend"))
            if bool(api.get(job_path)["spec"].get("suspend")) is not wanted:
                api.patch(job_path, {"spec": {"suspend": wanted}})
                done.append(wanted)

    thread = threading.Thread(target=work, args=(cluster.api,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.xdist_group("kubernetes")
@pytest.mark.timeout(300)
def test_the_gang_of_a_jobset_moves_although_its_job_tolerates_no_failure(
    plane: ControlPlane, cluster: Cluster, access: Access, folder: Path
) -> None:
    needs_manager(plane)
    cluster.api.create(DEFINITIONS, DEFINITION)
    wait_for("JobSets are served", lambda: cluster.api.find(JOB_SETS))
    body = {"apiVersion": JOB_SET[0], "kind": "JobSet", "metadata": {"name": "set", "namespace": "default"}, "spec": {}}
    made = cluster.api.create(JOB_SETS, body)
    copied: list[bool] = []
    try:
        cluster.add_nodes("n1", "n2", "n3")
        cluster.add_job("train", 2, annotations={RESTARTABLE: "true", TIME_LIMIT: "36000"}, backoffLimit=0)
        owner = reference((JOB_SET[0], "JobSet", "set")) | {"uid": made["metadata"]["uid"]}
        path_of_job = "/apis/batch/v1/namespaces/default/jobs/train"
        cluster.api.patch(path_of_job, {"metadata": {"ownerReferences": [owner]}})
        with job_set_controller(cluster, copied), running(access, folder, POLICY) as it:
            wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
            slow = sorted(cluster.nodes_of("train").values())[1]
            accuse(it, "train", slow)
            wait_for("it runs again", lambda: it.jobs()["train"].attempt == 2, 90)
            wait_for("elsewhere", lambda: it.jobs()["train"].state is JobState.RUNNING)
            assert slow not in cluster.nodes_of("train").values()
            assert cluster.api.get(path_of_job)["status"].get("failed", 0) == 0
        assert copied == [True, False], "the JobSet was suspended and resumed, and the Job by its controller alone"
        assert gang_stop.SUSPENDED not in cluster.api.get(f"{JOB_SETS}/set")["metadata"].get("labels", {})
    finally:
        cluster.api.delete(f"{DEFINITIONS}/jobsets.jobset.x-k8s.io")
