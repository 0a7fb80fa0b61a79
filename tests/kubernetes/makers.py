"""Pods, nodes and PodGroups in the form in which the API server returns them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.objects.objects import Node, Pod, PodGroup

_uids = itertools.count(1)
GPU = "nvidia.com/gpu"


def uid() -> str:
    return f"{next(_uids):08x}-0000"


def pod_body(name: str, gpus: int = 1, group: str = "", **spec: Any) -> dict[str, Any]:
    """Return the body of a pod that gangwatch schedules. spec: fields that replace the default ones."""
    resources = {"cpu": "1", "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    labels = {"scheduling.x-k8s.io/pod-group": group} if group else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "schedulerName": "gangwatch",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}
            ],
            **spec,
        },
    }


def pod(name: str, gpus: int = 1, group: str = "", *, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    body = pod_body(name, gpus, group, **spec)
    body["metadata"]["uid"] = uid()
    body["metadata"]["labels"].update(labels or {})
    return msgspec.convert(body, Pod)


def node_body(name: str, gpus: int = 8, resource: str = GPU, **labels: str) -> dict[str, Any]:
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", **({resource: str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def node(name: str, gpus: int = 8, resource: str = GPU, **labels: str) -> Node:
    return msgspec.convert(node_body(name, gpus, resource, **labels), Node)


def group_body(name: str, members: int, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"minMember": members},
    }


def group(name: str, members: int, annotations: dict[str, str] | None = None) -> PodGroup:
    body = group_body(name, members, **(annotations or {}))
    body["metadata"]["uid"] = uid()
    return msgspec.convert(body, PodGroup)
