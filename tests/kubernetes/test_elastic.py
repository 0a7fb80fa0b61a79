"""Elastic gangs on Kubernetes: declared bounds, resizing of their Job or PyTorchJob, and a real Job controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.attempts.gang_resize import resize
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import requests_by_node
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import LEAST_MEMBERS, MEMBERS, MOST_MEMBERS
from scheduler_feedback.backends.kubernetes.objects.objects import Pod, PodGroup
from scheduler_feedback.backends.kubernetes.objects.translate import RESTARTABLE, TIME_LIMIT, WORLD_SIZE, gang_of
from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import Policy
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Cluster, needs_manager, running, wait_for
from tests.kubernetes.little_api import LittleApi, refused
from tests.kubernetes.makers import group, pod
from tests.kubernetes.test_owners import JOB_SET, MPI, PYTORCH, RAY, Owner, owned, path, reference

BOUNDS = {LEAST_MEMBERS: "2", MOST_MEMBERS: "6", RESTARTABLE: "true"}
JOB: Owner = ("batch/v1", "Job", "train")
GROUP = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/train"


def pods_of(count: int, gpus: int = 1, owner: Owner = JOB) -> list[Pod]:
    return [
        owned(f"train-{n}", owner, gpus, **{"batch.kubernetes.io/job-completion-index": str(n)}) for n in range(count)
    ]


# --- what a group declares -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1, 8])
def test_an_elastic_gang_has_the_bounds_that_its_group_declares(gpus: int) -> None:
    spec = gang_of(group("train", 4, BOUNDS), pods_of(4, gpus)).spec
    assert spec is not None
    assert (spec.ranks, spec.min_ranks, spec.max_ranks) == (4 * gpus, 2 * gpus, 6 * gpus)
    assert [(one.ranks, one.same_node) for one in spec.groups] == ([] if gpus == 1 else [(8, True)] * 4)


def test_a_resized_gang_has_fewer_or_more_pods_and_requests_the_same() -> None:
    for members in (2, 6):
        gang = gang_of(group("train", 4, BOUNDS | {MEMBERS: str(members)}), pods_of(6, 8))
        assert gang.spec is not None and len(gang.pods) == members
        assert (gang.spec.ranks, gang.spec.min_ranks, gang.spec.max_ranks) == (32, 16, 48)
        assert gang.beyond == (), "no pod beyond its size is a gang of its own"
    assert gang_of(group("train", 4, BOUNDS | {MEMBERS: "6"}), pods_of(5)).spec is None, "a pod is missing"


@pytest.mark.parametrize(
    ("changed", "pods", "why"),
    [
        ({RESTARTABLE: "false"}, pods_of(4), "needs the annotation gangwatch.io/restartable"),
        ({LEAST_MEMBERS: "few"}, pods_of(4), "'few' is not a number of pods"),
        ({LEAST_MEMBERS: "5"}, pods_of(4), "fewer than its minimum of 5"),
        ({}, [pod(f"train-{n}") for n in range(4)], "must all belong to one Job, PyTorchJob or RayCluster"),
        ({}, [*pods_of(3), owned("x", ("batch/v1", "Job", "y"))], "belong to one Job, PyTorchJob or RayCluster"),
        ({}, pods_of(4, 1, ("apps/v1", "StatefulSet", "s")), "no StatefulSet: each group of a LeaderWorkerSet is a"),
        (
            {},
            pods_of(4, 1, ("apps/v1", "ReplicaSet", "s")),
            "resize Job, PyTorchJob, RayCluster and JobSet, but no",
        ),
        ({}, [*pods_of(3), owned("x", MPI)], "no MPIJob: its launcher starts a fixed number of ranks"),
        ({}, pods_of(4, 1, ("kubeflow.org/v1", "TFJob", "s")), "no TFJob: the training operator writes the number of"),
        ({}, [*pods_of(3), owned("x", JOB, 0)], "same number of GPUs"),
    ],
)
def test_a_gang_that_cannot_be_resized_is_refused_with_the_reason(
    changed: dict[str, str], pods: list[Pod], why: str
) -> None:
    gang = gang_of(group("train", 4, BOUNDS | changed), pods)
    assert gang.spec is None and why in gang.refused


@pytest.mark.parametrize(("minimum", "most"), [(2**31 - 1, "6"), (4, "2147483647"), (2**31 - 1, "2147483647")])
def test_a_number_of_pods_that_no_cluster_has_is_refused_at_once(minimum: int, most: str) -> None:
    """Every user may write the annotations. An object for each of these pods would exhaust the memory."""
    declared = group("train", minimum, BOUNDS | {MOST_MEMBERS: most, MEMBERS: "2"})
    gang = gang_of(declared, pods_of(2, 8))
    assert gang.spec is None and "at most 16384 pods" in gang.refused


def test_pods_that_a_growing_gang_does_not_have_yet_count_on_their_nodes() -> None:
    placement = [Slot("n1", 0), Slot("n1", 1), Slot("n2", 0)]
    found = requests_by_node(pods_of(1), placement)
    assert {node: amounts["pods"] for node, amounts in found.items()} == {"n1": 2, "n2": 1}
    assert {node: amounts["pods"] for node, amounts in requests_by_node(pods_of(4), placement[:2]).items()} == {"n1": 2}


# --- the owner -------------------------------------------------------------------------------------------------------


def api_of(owner: Owner, declared: PodGroup, **spec: Any) -> LittleApi:
    body = {"metadata": {"name": "train", "namespace": "default", "uid": reference(owner)["uid"]}, "spec": spec}
    return LittleApi({path(owner): body, GROUP: msgspec.to_builtins(declared)})


def indexed(pods: int, **changed: Any) -> dict[str, Any]:
    return {"completionMode": "Indexed", "completions": pods, "parallelism": pods, **changed}


@pytest.mark.parametrize(("members", "order"), [(2, [GROUP, path(JOB)]), (6, [path(JOB), GROUP])])
def test_a_job_is_resized_so_that_the_group_never_lacks_pods(members: int, order: list[str]) -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(JOB, declared, **indexed(4))
    asyncio.run(resize(api, declared, pods_of(4), members))
    assert api.done == [("PATCH", one) for one in order]
    assert api.objects[path(JOB)]["spec"] == indexed(members)
    assert api.objects[GROUP]["metadata"]["annotations"][MEMBERS] == str(members)


def test_a_job_with_the_name_of_the_owner_is_not_resized() -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(JOB, declared, **indexed(4))
    api.objects[path(JOB)]["metadata"]["uid"] = "another"
    with pytest.raises(BackendError, match="it cannot be resized: Job train has uid another"):
        asyncio.run(resize(api, declared, pods_of(4), 2))
    assert api.done == []


def test_a_gang_of_the_right_size_is_not_written() -> None:
    for written, members in (({}, 4), ({MEMBERS: "3"}, 3)):
        declared = group("train", 4, BOUNDS | written)
        api = api_of(JOB, declared, **indexed(members))
        asyncio.run(resize(api, declared, pods_of(members), members))
        assert api.done == []


def test_a_resizing_that_an_earlier_leader_began_is_completed() -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(JOB, declared, **indexed(6))  # it wrote the Job, and not yet the group
    asyncio.run(resize(api, declared, pods_of(6), 6))
    assert api.done == [("PATCH", GROUP)]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (indexed(4, completionMode="NonIndexed"), "it needs completionMode Indexed"),
        (indexed(4, parallelism=2), "completions equal to parallelism"),
    ],
)
def test_a_job_that_kubernetes_cannot_resize_is_named(spec: dict[str, Any], why: str) -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(JOB, declared, **spec)
    with pytest.raises(BackendError, match=why):
        asyncio.run(resize(api, declared, pods_of(4), 2))
    assert api.done == []


def test_a_pytorchjob_keeps_its_master_and_changes_its_workers() -> None:
    declared = group("train", 4, BOUNDS)
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3, "restartPolicy": "OnFailure"}}
    api = api_of(PYTORCH, declared, pytorchReplicaSpecs=replicas, elasticPolicy={"minReplicas": 2, "maxReplicas": 5})
    asyncio.run(resize(api, declared, pods_of(4, 1, PYTORCH), 6))
    found = api.objects[path(PYTORCH)]["spec"]["pytorchReplicaSpecs"]
    assert found == {"Master": {"replicas": 1}, "Worker": {"replicas": 5, "restartPolicy": "OnFailure"}}
    api.objects[path(PYTORCH)]["spec"]["pytorchReplicaSpecs"] = {"Master": {"replicas": 1}}
    with pytest.raises(BackendError, match="has no workers"):
        asyncio.run(resize(api, declared, pods_of(1, 1, PYTORCH), 2))


@pytest.mark.parametrize(
    ("members", "spec", "why"),
    [
        (6, {}, "without elasticPolicy"),
        (6, {"elasticPolicy": {"metrics": [{"type": "Resource"}]}}, "an autoscaler resizes it"),
        (7, {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 5}}, "have 6 workers: .* at least 2 and at most 5"),
        (2, {"elasticPolicy": {"minReplicas": 2}}, "cannot have 1 workers: its elasticPolicy allows at least 2$"),
        (1, {"elasticPolicy": {}}, "cannot have 0 workers"),
    ],
)
def test_a_pytorchjob_is_resized_only_as_its_policy_permits(members: int, spec: dict[str, Any], why: str) -> None:
    declared = group("train", 4, BOUNDS)
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
    api = api_of(PYTORCH, declared, pytorchReplicaSpecs=replicas, **spec)
    with pytest.raises(BackendError, match=why):
        asyncio.run(resize(api, declared, pods_of(4, 1, PYTORCH), members))
    assert api.done == []


def ray_pods() -> list[Pod]:
    """Return a head and three workers, in the order of their ranks. KubeRay names workers at random."""
    head = owned("train-head-x", RAY, 1, **{"ray.io/node-type": "head", "ray.io/group": "headgroup"})
    workers = [
        owned(f"train-w-{name}", RAY, 1, **{"ray.io/node-type": "worker", "ray.io/group": "gpus"}) for name in "akz"
    ]
    return [head, *workers]


def ray_group(replicas: int = 3, **changed: Any) -> dict[str, Any]:
    return {"groupName": "gpus", "replicas": replicas, "minReplicas": 1, "maxReplicas": 5, "numOfHosts": 1, **changed}


@pytest.mark.parametrize(("members", "leaving"), [(2, ["train-w-k", "train-w-z"]), (6, [])])
def test_a_raycluster_keeps_its_head_and_the_first_workers(members: int, leaving: list[str]) -> None:
    declared = group("train", 4, BOUNDS)
    other = {"groupName": "cpus", "replicas": 2}
    api = api_of(RAY, declared, workerGroupSpecs=[other, ray_group(template={"spec": {}})])
    pods = ray_pods()
    asyncio.run(resize(api, declared, pods, members))
    changed = ray_group(members - 1, template={"spec": {}}, scaleStrategy={"workersToDelete": leaving})
    assert api.objects[path(RAY)]["spec"]["workerGroupSpecs"] == [other, changed]
    smaller = gang_of(group("train", 4, BOUNDS | {MEMBERS: "2"}), pods[::-1])
    assert smaller.pods == tuple(pods[:2]), "the pods that stay are those of the smaller gang"


@pytest.mark.parametrize(
    ("members", "spec", "why"),
    [
        (3, {"enableInTreeAutoscaling": True}, "Ray's autoscaler resizes it"),
        (3, {"workerGroupSpecs": [ray_group(numOfHosts=2)]}, "one worker group, with numOfHosts 1"),
        (3, {"workerGroupSpecs": []}, "one worker group"),
        (7, {}, "cannot have 6 workers: worker group gpus allows at least 1 and at most 5"),
        (1, {}, "cannot have 0 workers"),
    ],
)
def test_a_raycluster_that_cannot_be_resized_is_named(members: int, spec: dict[str, Any], why: str) -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(RAY, declared, **{"workerGroupSpecs": [ray_group()], **spec})
    with pytest.raises(BackendError, match=why):
        asyncio.run(resize(api, declared, ray_pods(), members))
    assert api.done == []


def in_job_set(declared: PodGroup, *jobs: dict[str, Any]) -> tuple[LittleApi, list[Pod]]:
    """Return an API server with a JobSet whose replicated job 'workers' is the gang, and the gang's pods."""
    owner: Owner = ("batch/v1", "Job", "train-workers-0")
    api = api_of(owner, declared, **indexed(4))
    api.objects[path(owner)]["metadata"]["ownerReferences"] = [reference(JOB_SET)]
    workers = {"name": "workers", "replicas": 1, "template": {"spec": indexed(4)}}
    api.objects[path(JOB_SET)] = {
        "metadata": {"name": "train", "namespace": "default", "uid": reference(JOB_SET)["uid"]},
        "spec": {"replicatedJobs": list(jobs or ({"name": "driver", "replicas": 1}, workers))},
    }
    label = {"jobset.sigs.k8s.io/replicatedjob-name": "workers"}
    return api, [
        owned(f"train-{n}", owner, 1, **label, **{"batch.kubernetes.io/job-completion-index": str(n)}) for n in range(4)
    ]


def test_a_job_of_a_jobset_is_resized_by_its_jobset() -> None:
    declared = group("train", 4, BOUNDS)
    api, pods = in_job_set(declared)
    asyncio.run(resize(api, declared, pods, 6))
    assert api.done == [("PATCH", path(JOB_SET)), ("PATCH", GROUP)]
    assert api.objects[path(JOB_SET)]["spec"]["replicatedJobs"][1]["template"]["spec"] == indexed(6)


def test_a_jobset_that_cannot_be_resized_is_named() -> None:
    declared = group("train", 4, BOUNDS)
    for job, why in (
        ({"name": "workers", "replicas": 2, "template": {"spec": indexed(2)}}, "one replicated job with one replica"),
        ({"name": "workers", "replicas": 1, "template": {"spec": {}}}, "job workers, cannot be resized: it needs"),
        ({"name": "others", "replicas": 1, "template": {"spec": indexed(4)}}, "one replicated job with one replica"),
    ):
        api, pods = in_job_set(declared, job)
        with pytest.raises(BackendError, match=why):
            asyncio.run(resize(api, declared, pods, 2))
        assert api.done == []
    api, pods = in_job_set(declared)
    asyncio.run(resize(api, declared, pods, 4))
    assert api.done == [("PATCH", f"{path(JOB_SET)}?dryRun=All")]
    assert api.objects[path(JOB_SET)]["spec"]["replicatedJobs"][1]["template"]["spec"] == indexed(4)
    immutable = refused(422, "Invalid", "spec.replicatedJobs: field is immutable")  # without the gate ElasticJobSet
    api.fails = {("PATCH", path(JOB_SET)): [immutable], ("PATCH", f"{path(JOB_SET)}?dryRun=All"): [immutable]}
    for members in (4, 6):  # a gang that could be started, but never resized, is refused at once
        with pytest.raises(BackendError, match="field is immutable"):
            asyncio.run(resize(api, declared, pods, members))
    train_job: Owner = ("trainer.kubeflow.org/v1alpha1", "TrainJob", "train")
    api.objects[path(JOB_SET)]["metadata"]["ownerReferences"] = [reference(train_job)]
    with pytest.raises(BackendError, match="JobSet train cannot be resized: it belongs to TrainJob train"):
        asyncio.run(resize(api, declared, pods, 6))


def test_an_owner_that_kueue_admits_is_resized_only_if_kueue_follows() -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(JOB, declared, **indexed(4))
    api.objects[path(JOB)]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    with pytest.raises(BackendError, match="Kueue admits it with its present number of pods"):
        asyncio.run(resize(api, declared, pods_of(4), 6))
    assert api.done == []
    api.objects[path(JOB)]["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    asyncio.run(resize(api, declared, pods_of(4), 6))
    assert api.objects[path(JOB)]["spec"] == indexed(6)


def test_a_refused_change_is_an_error() -> None:
    declared = group("train", 4, BOUNDS)
    api = api_of(JOB, declared, **indexed(4))
    api.fails[("PATCH", path(JOB))] = [refused(403, "Forbidden", "no")]
    with pytest.raises(BackendError):
        asyncio.run(resize(api, declared, pods_of(4), 6))
    assert MEMBERS not in (api.objects[GROUP]["metadata"]["annotations"])


# --- the story -------------------------------------------------------------------------------------------------------

_real = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(300)]


class TestOnAnApiServer:
    pytestmark = _real

    @pytest.mark.parametrize("gpus", [1, 4])
    def test_a_gang_starts_small_and_grows_into_slots_that_become_free(
        self, plane: ControlPlane, cluster: Cluster, access: Access, folder: Path, gpus: int
    ) -> None:
        """Half of the slots are in use at first. Each of the pods has the size of the gang as annotation."""
        needs_manager(plane)
        cluster.add_nodes("n1", "n2", gpus=4 * gpus)
        cluster.add_gang("other", 2, 2 * gpus, {TIME_LIMIT: "600"})
        policy = Policy(
            retry_backoff_seconds=0.5, probe_command=(), min_run_seconds=0.0, migration_cooldown_seconds=0.0,
            migration_margin=0.0,
        )  # fmt: skip
        with running(access, folder, policy) as it:
            wait_for("the other gang is bound", lambda: cluster.bound("other") == 2)
            annotations = {
                LEAST_MEMBERS: "2", MOST_MEMBERS: "8", RESTARTABLE: "true", TIME_LIMIT: "86400",
                "gangwatch.io/restart-cost-seconds": "0.1",
            }  # fmt: skip
            spec = {"terminationGracePeriodSeconds": 0}
            cluster.add_job("train", 8, gpus, annotations, spec)
            wait_for("it starts with four of its eight pods", lambda: len(cluster.nodes_of("train")) == 4, 60)
            wait_for("the Job has four", lambda: size_of(cluster) == (4, 4))
            wait_for("it runs", lambda: it.jobs()["train"].state.value == "running")
            assert len(it.jobs()["train"].ranks) == 4 * gpus
            cluster.finish("other")
            wait_for("it has grown", lambda: len(cluster.nodes_of("train")) == 8, 120)
            assert size_of(cluster) == (8, 8)
            wait_for("it runs again", lambda: it.jobs()["train"].state.value == "running")
            assert len(it.jobs()["train"].ranks) == 8 * gpus
            sizes = {one["metadata"]["annotations"][WORLD_SIZE] for one in cluster.pods("train")}
            assert sizes == {str(8 * gpus)}


def size_of(cluster: Cluster) -> tuple[int, int]:
    spec = cluster.api.get("/apis/batch/v1/namespaces/default/jobs/train")["spec"]
    return spec["completions"], spec["parallelism"]
