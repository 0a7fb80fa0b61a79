"""Kinds of objects that own the pods of gangs, and how each stops and recreates all of its pods. No I/O.

All of these kinds have a flag `suspend`: if it is set, their controller deletes all pods of the object and counts none
of them as a failure; if it is cleared, the controller creates the pods again. Sources, by API group:

- batch: https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job
- jobset.x-k8s.io: JobSet.spec.suspend (kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go)
- trainer.kubeflow.org: TrainJob.spec.suspend, which its controller copies to the JobSet (kubeflow/trainer)
- kubeflow.org: runPolicy.suspend (kubeflow/training-operator, pkg/apis/kubeflow.org/v1; kubeflow/mpi-operator, v2beta1)
- ray.io: RayCluster.spec.suspend and RayJob.spec.suspend (ray-project/kuberay, ray-operator/apis/ray/v1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_feedback.backends.kubernetes.objects.objects import OwnerReference

_JOBSET_PODS = "jobset.sigs.k8s.io/jobset-name"
_KUBEFLOW_PODS = "training.kubeflow.org/job-name"


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind whose objects can be suspended."""

    plural: str
    """Name of the kind in paths."""

    versions: tuple[str, ...]
    """API versions, group included, in which the kind is listed."""

    pods: str = ""
    """Label that has the object's name as value on all of its pods; '' if there is none."""

    in_run_policy: bool = False
    """Whether the flag is in spec.runPolicy, not in spec."""

    def suspend(self, value: bool) -> dict[str, Any]:
        """Return the patch of the spec that sets the flag."""
        flag = {"suspend": value}
        return {"runPolicy": flag} if self.in_run_policy else flag

    def is_suspended(self, spec: Mapping[str, Any]) -> bool:
        """Return whether the flag is set in the object's spec."""
        return bool((spec.get("runPolicy") or {} if self.in_run_policy else spec).get("suspend"))


def _kubeflow(plural: str, *versions: str) -> OwnerKind:
    return OwnerKind(plural, versions or ("kubeflow.org/v1",), _KUBEFLOW_PODS, in_run_policy=True)


KINDS: dict[tuple[str, str], OwnerKind] = {
    ("batch", "Job"): OwnerKind("jobs", ("batch/v1",)),
    ("jobset.x-k8s.io", "JobSet"): OwnerKind("jobsets", ("jobset.x-k8s.io/v1alpha2",), _JOBSET_PODS),
    ("trainer.kubeflow.org", "TrainJob"): OwnerKind("trainjobs", ("trainer.kubeflow.org/v1alpha1",), _JOBSET_PODS),
    ("kubeflow.org", "PyTorchJob"): _kubeflow("pytorchjobs"),
    ("kubeflow.org", "TFJob"): _kubeflow("tfjobs"),
    ("kubeflow.org", "XGBoostJob"): _kubeflow("xgboostjobs"),
    ("kubeflow.org", "PaddleJob"): _kubeflow("paddlejobs"),
    ("kubeflow.org", "JAXJob"): _kubeflow("jaxjobs"),
    ("kubeflow.org", "MPIJob"): _kubeflow("mpijobs", "kubeflow.org/v1", "kubeflow.org/v2beta1"),
    ("ray.io", "RayCluster"): OwnerKind("rayclusters", ("ray.io/v1",), "ray.io/cluster"),
    ("ray.io", "RayJob"): OwnerKind("rayjobs", ("ray.io/v1",)),
}
"""Kinds that can be suspended, by (API group, kind)."""

RECREATING = frozenset({*(kind for _, kind in KINDS), "StatefulSet"})
"""Kinds of pods' owners that create a pod again after its end or eviction. A LeaderWorkerSet's pods belong to
StatefulSets."""


RESIZABLE = frozenset({"Job", "PyTorchJob", "RayCluster"})
"""Kinds of pods' owners whose number of pods gangwatch can change (``objects.owner_sizes``). A Job may belong to a
JobSet."""

_FIXED_BY_OPERATOR = "the training operator writes the number of pods into each pod that it creates"
FIXED_SIZE = {
    "MPIJob": "its launcher starts a fixed number of ranks",
    "StatefulSet": "each group of a LeaderWorkerSet is a gang of its own, so change the number of its replicas",
    **dict.fromkeys(("TFJob", "XGBoostJob", "PaddleJob", "JAXJob"), _FIXED_BY_OPERATOR),
}
"""Why gangwatch does not resize gangs of other kinds of owners."""


def kind_of(owner: OwnerReference) -> OwnerKind | None:
    """Return how the owner is suspended; None if it cannot be. Job is known without its API group, too."""
    group = owner.api_version.partition("/")[0] if owner.api_version else "batch"
    return KINDS.get((group, owner.kind))


def kind_at(path: str) -> OwnerKind:
    """Return the kind of the object at this path. Raises ValueError if no kind has such a path."""
    parts = path.split("/")  # '', 'apis', GROUP, VERSION, 'namespaces', NAMESPACE, PLURAL, NAME
    for (group, _), kind in KINDS.items():
        if parts[2] == group and parts[-2] == kind.plural:
            return kind
    raise ValueError(f"{path} is not of a kind that can be suspended")


def path_of(owner: OwnerReference, namespace: str, kind: OwnerKind) -> str:
    """Return the path of the owner, in the API version of the reference."""
    version = owner.api_version or kind.versions[0]
    return f"/apis/{version}/namespaces/{namespace}/{kind.plural}/{owner.name}"
