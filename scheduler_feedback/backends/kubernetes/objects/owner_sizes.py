"""Number of pods of the objects that own elastic gangs, and the patch that changes it. No I/O.

- Job: `completions` and `parallelism` change together. Its controller deletes the pods with the highest indices
  (https://kubernetes.io/docs/concepts/workloads/controllers/job/#elastic-indexed-jobs).
- JobSet: the same two fields of a replicated job, with JobSet's feature gate ElasticJobSet. Without it, its webhook
  refuses the change (kubernetes-sigs/jobset, keps/463-ElasticJobsets; pkg/webhooks/jobset_webhook.go).
- PyTorchJob: replicas of the workers. The training operator deletes workers whose index is too high
  (kubeflow/training-operator, pkg/controller.v1/common/pod.go). Without elasticPolicy, it writes the number of pods
  into the environment of each pod that it creates, which would be wrong after a change
  (pkg/controller.v1/pytorch/envvar.go).
- RayCluster: replicas of the worker group, within its minReplicas and maxReplicas, to which KubeRay limits them. It
  deletes the pods in scaleStrategy.workersToDelete first (ray-project/kuberay,
  ray-operator/controllers/ray/raycluster_controller.go).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Part, Pod

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"

_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_WORKER_GROUP = "ray.io/group"
_HEAD = "headgroup"
"""Value of the label ray.io/group on the head's pod (ray-operator/controllers/ray/utils/constant.go)."""

_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"
"""Annotation of objects whose number of pods may change while Kueue admits them
(https://kueue.sigs.k8s.io/docs/concepts/elastic_workload/)."""


class _Replicas(Part):
    replicas: int = 1


class _ElasticPolicy(Part):
    min_replicas: int | None = None
    max_replicas: int | None = None
    metrics: list[Any] | None = None


class _JobSpec(Part):
    completion_mode: str = "NonIndexed"
    completions: int | None = None
    parallelism: int | None = None


class _Template(Part):
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)


class _ReplicatedJob(Part):
    name: str = ""
    replicas: int = 1
    template: _Template = msgspec.field(default_factory=_Template)


class _WorkerGroup(Part):
    group_name: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    num_of_hosts: int = 1


class _Spec(_JobSpec):
    pytorch_replica_specs: dict[str, _Replicas] | None = None
    elastic_policy: _ElasticPolicy | None = None
    replicated_jobs: list[_ReplicatedJob] | None = None
    worker_group_specs: list[_WorkerGroup] | None = None
    enable_in_tree_autoscaling: bool = False


class SizedOwner(Part):
    """An object that owns the pods of an elastic gang, as far as its number of pods goes."""

    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A change of the number of pods of an object."""

    now: int
    """Present number of pods."""
    patch: Any
    kind: str = MERGE_PATCH
    """Media type of the patch."""


def size_change(kind: str, owner: SizedOwner, pods: Sequence[Pod], members: int) -> SizeChange:
    """Return the change that gives the object this number of pods. pods: its present pods in the order of their ranks.

    Raises BackendError with the reason if the object cannot be resized.
    """
    what = f"{kind} {owner.metadata.name}"
    if owner.metadata.label(_KUEUE_QUEUE) and owner.metadata.annotation(_KUEUE_ELASTIC) != "true":
        raise BackendError(
            f"{what} cannot be resized: Kueue admits it with its present number of pods, unless it has the "
            f'annotation {_KUEUE_ELASTIC}: "true"'
        )
    match kind:
        case "Job":
            return _of_job(what, owner.spec, members)
        case "JobSet":
            return _of_job_set(what, owner.spec.replicated_jobs or [], pods, members)
        case "PyTorchJob":
            return _of_pytorch(what, owner.spec, members)
        case "RayCluster":
            return _of_ray(what, owner.spec, pods, members)
    raise BackendError(f"{what} cannot be resized")


def _of_job(what: str, spec: _JobSpec, members: int) -> SizeChange:
    return SizeChange(_completions(what, spec), {"spec": {"completions": members, "parallelism": members}})


def _completions(what: str, spec: _JobSpec) -> int:
    if spec.completion_mode != "Indexed" or spec.completions is None or spec.completions != spec.parallelism:
        raise BackendError(
            f"{what} cannot be resized: it needs completionMode Indexed, and completions equal to parallelism"
        )
    return spec.completions


def _of_job_set(what: str, jobs: Sequence[_ReplicatedJob], pods: Sequence[Pod], members: int) -> SizeChange:
    names = {pod.metadata.label(_REPLICATED_JOB) for pod in pods}
    found = [(at, job) for at, job in enumerate(jobs) if job.name in names]
    if len(found) != 1 or found[0][1].replicas != 1:
        raise BackendError(f"{what} cannot be resized: its gang must be one replicated job with one replica")
    at, job = found[0]
    now = _completions(f"{what}, replicated job {job.name},", job.template.spec)
    path = f"/spec/replicatedJobs/{at}"
    changes = [("test", f"{path}/name", job.name)]
    sizes = [("replace", f"{path}/template/spec/{name}", members) for name in ("completions", "parallelism")]
    return SizeChange(now, _operations([*changes, *sizes]), JSON_PATCH)


def _of_pytorch(what: str, spec: _Spec, members: int) -> SizeChange:
    """Return the change of a PyTorchJob. It keeps its master."""
    replicas = spec.pytorch_replica_specs or {}
    if "Worker" not in replicas:
        raise BackendError(f"{what} cannot be resized: it has no workers")
    policy = spec.elastic_policy
    if policy is None:
        raise BackendError(f"{what} cannot be resized: without elasticPolicy, its pods would keep the old size")
    if policy.metrics:
        raise BackendError(f"{what} cannot be resized: its elasticPolicy has metrics, so an autoscaler resizes it")
    others = sum(one.replicas for role, one in replicas.items() if role != "Worker")
    workers = _within(what, members - others, policy.min_replicas, policy.max_replicas, "its elasticPolicy")
    return SizeChange(
        others + replicas["Worker"].replicas, {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}}
    )


def _of_ray(what: str, spec: _Spec, pods: Sequence[Pod], members: int) -> SizeChange:
    """Return the change of a RayCluster. It keeps its head."""
    if spec.enable_in_tree_autoscaling:
        raise BackendError(f"{what} cannot be resized: Ray's autoscaler resizes it (enableInTreeAutoscaling)")
    names = {pod.metadata.label(_WORKER_GROUP) for pod in pods} - {_HEAD}
    found = [(at, group) for at, group in enumerate(spec.worker_group_specs or []) if group.group_name in names]
    if len(found) != 1 or len(names) != 1 or found[0][1].num_of_hosts != 1:
        raise BackendError(f"{what} cannot be resized: its gang must have one worker group, with numOfHosts 1")
    at, group = found[0]
    others = sum(pod.metadata.label(_WORKER_GROUP) == _HEAD for pod in pods)
    least, most = group.min_replicas, group.max_replicas
    workers = _within(what, members - others, least, most, f"worker group {group.group_name}")
    path = f"/spec/workerGroupSpecs/{at}"
    leaving = [pod.metadata.name for pod in pods[members:]]  # `gang_of` keeps the first pods
    changes = [
        ("test", f"{path}/groupName", group.group_name),
        ("add", f"{path}/replicas", workers),
        ("add", f"{path}/scaleStrategy", {"workersToDelete": leaving}),
    ]
    return SizeChange(others + (group.replicas or 0), _operations(changes), JSON_PATCH)


def _within(what: str, workers: int, least: int | None, most: int | None, where: str) -> int:
    """Return the number of workers. Raises BackendError if it is below 1 or outside of the bounds of the object."""
    least = max(1, least or 0)
    if workers < least or (most is not None and workers > most):
        upper = "" if most is None else f" and at most {most}"
        raise BackendError(f"{what} cannot have {workers} workers: {where} allows at least {least}{upper}")
    return workers


def _operations(changes: Sequence[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    return [{"op": operation, "path": path, "value": value} for operation, path, value in changes]
