"""Mostly valid objects of an API server for the fuzz targets: nodes, pods, groups, queues, claims and volumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import LEAST_MEMBERS, MEMBERS, MOST_MEMBERS
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ARRAY,
    ARRAY_PARALLEL,
    ATTEMPT,
    BEYOND,
    CHECKPOINT_INTERVAL,
    GROUP_LABEL,
    PLACEMENT,
    PREEMPTIBLE,
    PREFERRED_TOPOLOGY,
    RANK,
    REQUIRED_TOPOLOGY,
    RESTARTABLE,
    SLOTS,
    TIME_LIMIT,
)

NUMBERS = (
    "0",
    "1",
    "3",
    "-1",
    "x",
    "",
    "1e3",
    "9" * 30,
    "9" * 5000,
    "٣",
    "nan",
    "inf",
    "0,1,2",
    "7,x",
    "600",
    "true",
    "false",
)
QUANTITIES = (
    "1",
    "8",
    "500m",
    "2Gi",
    "1e3",
    "1E3",
    "1e-9",
    "0",
    "-1",
    "",
    "x",
    "1k",
    "1Ei",
    ".5",
    "5.",
    "1e999",
    "1e99999999999",
    "9" * 5000,
    "1e+10",
    "1" + "0" * 400,
    "1n",
)
_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "cpu", "memory", "pods", "example.com/x")
_PLACEMENTS = (
    '{"attempt": 1, "pods": {"p0": {"node": "n0", "rank": 0, "slots": [0, 1]}}}',
    "{}",
    "[]",
    "x",
    '{"attempt": 9, "pods": {}}',
    '{"attempt": 1, "pods": {"p1": ["n1", 0, [3]]}}',
    '{"attempt": 1, "pods": ' + "[" * 2000,
    '{"y": ' + "[" * 20000 + "]" * 20000 + "}",
)
_STAMPS = (
    "2026-11-22T10:00:00Z",
    "",
    "x",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-11-22T10:00:00.000001Z",
)


def _one(chance: random.Random, values: Sequence[str], usual: str) -> str:
    return usual if chance.random() < 0.6 else chance.choice(values)


def _annotations(chance: random.Random) -> dict[str, str]:
    usual = {
        RESTARTABLE: "true",
        PREEMPTIBLE: "true",
        TIME_LIMIT: "600",
        CHECKPOINT_INTERVAL: "60",
        ARRAY_PARALLEL: "2",
        ARRAY: "a",
        SLOTS: "0,1",
        ATTEMPT: "1",
        RANK: "0",
        REQUIRED_TOPOLOGY: "rack",
        PREFERRED_TOPOLOGY: "node",
        BEYOND: "true",
        PLACEMENT: _PLACEMENTS[0],
        LEAST_MEMBERS: "1",
        MOST_MEMBERS: "4",
        MEMBERS: "2",
    }
    found = {}
    for key, value in usual.items():
        if chance.random() < 0.2:
            found[key] = _one(chance, _PLACEMENTS if key == PLACEMENT else (*NUMBERS, "rack", "node", "a"), value)
    return found


def _metadata(chance: random.Random, name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "default",
        "uid": f"{name}-0000-{chance.randrange(4)}",
        "resourceVersion": str(chance.randrange(99)),
        "creationTimestamp": _one(chance, _STAMPS, _STAMPS[0]),
        **more,
    }


def _quantities(chance: random.Random) -> dict[str, str]:
    if chance.random() < 0.75:
        return {"nvidia.com/gpu": "1", "cpu": _one(chance, ("500m", "999", "2"), "1"), "memory": "1Gi"}
    return {name: _one(chance, QUANTITIES, "1") for name in _RESOURCES if chance.random() < 0.5}


def _requirements(chance: random.Random) -> list[Any]:
    operators = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like")
    return [
        {
            "key": chance.choice(("zone", "metadata.name", "n")),
            "operator": chance.choice(operators),
            "values": chance.choice((["a"], ["5"], [], ["x", "n0"])),
        }
        for _ in range(chance.randrange(1, 3))
    ]


def _terms(chance: random.Random) -> dict[str, Any]:
    return {
        "nodeSelectorTerms": [
            {chance.choice(("matchExpressions", "matchFields")): _requirements(chance)}
            for _ in range(chance.randrange(3))
        ]
    }


def _optional(chance: random.Random, container: dict[str, Any]) -> dict[str, Any]:
    """Return a random selection of the optional fields of a pod's spec."""
    fields: dict[str, Callable[[], Any]] = {
        "initContainers": lambda: [container],
        "nodeSelector": lambda: {"zone": "a"},
        "tolerations": lambda: [
            {
                "key": chance.choice(("k", "", "other")),
                "operator": chance.choice(("Exists", "Equal")),
                "effect": chance.choice(("", "NoSchedule")),
            }
        ],
        "overhead": lambda: _quantities(chance),
        "schedulingGates": lambda: [{"name": "x"}],
        "resourceClaims": lambda: [{}],
        "topologySpreadConstraints": lambda: [
            {"whenUnsatisfiable": chance.choice(("DoNotSchedule", "ScheduleAnyway"))}
        ],
        "volumes": lambda: [
            {"name": "v", "persistentVolumeClaim": {"claimName": chance.choice(("c0", "c1", "c9"))}},
            *([{"name": "e", "ephemeral": {}}] if chance.random() < 0.2 else []),
        ],
        "activeDeadlineSeconds": lambda: chance.choice((600, 0, -1)),
        "schedulingGroup": lambda: {"podGroupName": "g1"},
        "affinity": lambda: chance.choice(
            (
                {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _terms(chance)}},
                {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
                {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
                {},
            )
        ),
    }
    return {key: make() for key, make in fields.items() if chance.random() < 0.15}


def pod_of(chance: random.Random, at: int) -> dict[str, Any]:
    labels = {"zone": "a"}
    if chance.random() < 0.6:
        labels[GROUP_LABEL] = chance.choice(("g0", "g1", ""))
    if chance.random() < 0.3:
        labels["batch.kubernetes.io/job-completion-index"] = _one(chance, NUMBERS, "2")
    owner = {"kind": chance.choice(("Job", "ReplicaSet")), "name": "j", "uid": "u", "controller": chance.random() < 0.8}
    container = {
        "name": "main",
        "resources": {"requests": _quantities(chance), "limits": _quantities(chance)},
        "ports": [{"hostPort": chance.choice((0, 0, 80))}],
        "restartPolicy": chance.choice(("", "Always")),
    }
    spec: dict[str, Any] = {
        "schedulerName": "gangwatch" if chance.random() < 0.9 else "other",
        "containers": [container] * chance.choice((0, 1, 1, 2)),
        "priority": chance.choice((0, 5, -1, 2**31)),
        "nodeName": chance.choice(("", "", "n0", "n9")),
    }
    spec |= _optional(chance, container)
    more: dict[str, Any] = {"labels": labels, "annotations": _annotations(chance)}
    if chance.random() < 0.5:
        more["ownerReferences"] = [owner]
    if chance.random() < 0.05:
        more["deletionTimestamp"] = _STAMPS[0]
    status = {
        "phase": chance.choice(("Pending", "Running", "Succeeded", "Failed", "x")),
        "startTime": _one(chance, _STAMPS, _STAMPS[0]),
    }
    return {"metadata": _metadata(chance, f"p{at}", **more), "spec": spec, "status": status}


def _node(chance: random.Random, at: int) -> dict[str, Any]:
    annotations = (
        {"gangwatch.io/memory": chance.choice(('{"state": "suspect"}', "x", "{}", "[" * 3000, '{"state": "new"}'))}
        if chance.random() < 0.4
        else {}
    )
    labels = {"zone": chance.choice(("a", "5")), "gangwatch.io/state": chance.choice(("suspect", "odd", ""))}
    return {
        "metadata": _metadata(chance, f"n{at}", namespace="", labels=labels, annotations=annotations),
        "spec": {
            "taints": [
                {
                    "key": chance.choice(("k", "gangwatch.io/x")),
                    "effect": chance.choice(("NoSchedule", "NoExecute", "PreferNoSchedule")),
                }
            ]
            * chance.randrange(2),
            "unschedulable": chance.random() < 0.1,
        },
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
            if chance.random() < 0.7
            else _quantities(chance),
            "conditions": [{"type": "Ready", "status": chance.choice(("True", "True", "False"))}],
        },
    }


def cluster_of(chance: random.Random) -> dict[str, Any]:
    items: dict[str, list[Any]] = {
        "nodes": [_node(chance, at) for at in range(chance.randrange(1, 3))],
        "pods": [pod_of(chance, at) for at in range(chance.randrange(1, 4))],
        "podgroups": [
            {
                "metadata": _metadata(chance, f"g{at}", annotations=_annotations(chance)),
                "spec": {"minMember": chance.choice((1, 1, 2, 0, -1, None))},
            }
            for at in range(chance.randrange(2))
        ],
        "upstream": [
            {
                "metadata": _metadata(chance, "g1"),
                "spec": {
                    "schedulingPolicy": chance.choice(({"gang": {"minCount": 2}}, {}, {"basic": {}})),
                    "schedulingConstraints": chance.choice(
                        (
                            None,
                            {"topology": [{"key": "kubernetes.io/hostname"}]},
                            {"topology": [{"key": "a"}, {"key": "b"}]},
                        )
                    ),
                },
            }
        ]
        * chance.randrange(2),
        "queues": [
            {
                "metadata": _metadata(chance, "q"),
                "spec": {"weight": chance.choice((1, 0.5, -1, 1e300)), "quota": chance.choice((None, 4, -1))},
            }
        ]
        * chance.randrange(2),
        "claims": [
            {
                "metadata": _metadata(chance, f"c{at}"),
                "spec": {
                    "volumeName": chance.choice(("v0", "v9", "")),
                    "accessModes": [chance.choice(("ReadWriteOnce", "ReadWriteOncePod"))],
                },
                "status": {"phase": chance.choice(("Bound", "Bound", "Pending"))},
            }
            for at in range(chance.randrange(3))
        ],
        "volumes": [
            {
                "metadata": _metadata(chance, "v0", namespace=""),
                "spec": chance.choice(({}, {"nodeAffinity": {"required": _terms(chance)}}, {"nodeAffinity": {}})),
            }
        ],
    }
    return {
        name: {"metadata": {"resourceVersion": "9", "continue": ""}, "items": listed} for name, listed in items.items()
    }
