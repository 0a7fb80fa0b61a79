"""Objects of the demo: namespace, volume, training program, groups and Jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "demo"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
JOB_LABEL = "gangwatch.io/demo-job"
GPU = "nvidia.com/gpu"
PORT = 29500
BATCH = 128
"""Least samples of a rank and step: few, so that a slow machine that also runs a cluster makes several steps a
second."""
_FOLDER = "/data"
"""Folder of the shared volume in each container."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training job: a Job with one pod a rank, and the group of its pods."""

    name: str
    ranks: int
    steps: int
    pace_seconds: float
    seed: int
    time_limit_seconds: float
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the group, in addition to the time limit."""
    batch: int = BATCH
    """Samples of a rank and step."""


def namespace() -> dict[str, Any]:
    """Return the namespace. Its pods must meet the restricted Pod Security Standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def program(text: str) -> dict[str, Any]:
    """Return the ConfigMap with the training program."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}, "data": {"train_dp.py": text}}


def volume(folder: str) -> dict[str, Any]:
    """Return the volume for checkpoints: a folder of this machine, which every node has at the same path."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "demo-checkpoints"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": NAMESPACE, "name": "checkpoints"},
            "hostPath": {"path": folder, "type": "Directory"},
        },
    }


def claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "checkpoints"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": "demo-checkpoints",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def service(job: Training) -> dict[str, Any]:
    """Return the headless service that gives the job's ranks their names."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_LABEL: job.name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": job.name}, "spec": spec}


def group(job: Training) -> dict[str, Any]:
    annotations = {"gangwatch.io/time-limit-seconds": f"{job.time_limit_seconds:.0f}", **job.annotations}
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": job.name, "annotations": annotations},
        "spec": {"minMember": job.ranks},
    }


def training(job: Training, image: str) -> dict[str, Any]:
    """Return the Job. It has no podFailurePolicy, so that gangwatch suspends and resumes it to move the gang.

    After an eviction, the Job controller may wait for minutes before it creates new pods.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": {
            "completions": job.ranks,
            "parallelism": job.ranks,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {GROUP_LABEL: job.name, JOB_LABEL: job.name}},
                "spec": _pod(job, image),
            },
        },
    }


def _pod(job: Training, image: str) -> dict[str, Any]:
    return {
        "schedulerName": "gangwatch",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "subdomain": job.name,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(job, image)],
        "volumes": [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
            {"name": "gangwatch", "persistentVolumeClaim": {"claimName": "gangwatch-steps", "readOnly": True}},
            {"name": "program", "configMap": {"name": "program"}},
        ],
    }


def _container(job: Training, image: str) -> dict[str, Any]:
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    own = f"{_FOLDER}/{job.name}"
    command = ["python", "-P", "/program/train_dp.py", f"--steps={job.steps}", f"--seed={job.seed}"]
    command += [
        f"--pace-seconds={job.pace_seconds:.4f}",
        f"--checkpoint={own}/checkpoint",
        "--checkpoint-every=50",
        f"--batch={job.batch}",
    ]
    return {
        "name": "rank",
        "image": image,
        "command": [*command, f"--result={own}/result.json"],
        "env": [
            {"name": "RANK", "valueFrom": index},
            {"name": "WORLD_SIZE", "value": str(job.ranks)},
            # With its whole name, rank 0 finds its own address in /etc/hosts before the cluster's DNS has it.
            {"name": "MASTER_ADDR", "value": f"{job.name}-0.{job.name}.{NAMESPACE}.svc.cluster.local"},
            {"name": "MASTER_PORT", "value": str(PORT)},
            {"name": "GANGWATCH_SOCKET", "value": "/run/gangwatch/agent.sock"},
            *({"name": f"{library}_NUM_THREADS", "value": "1"} for library in ("OMP", "OPENBLAS", "MKL")),
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {GPU: "1"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "checkpoints", "mountPath": _FOLDER},
            {"name": "gangwatch", "mountPath": "/run/gangwatch", "readOnly": True},
            {"name": "program", "mountPath": "/program", "readOnly": True},
        ],
    }
