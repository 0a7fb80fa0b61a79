"""Fuzz target: slices, device classes, claims and pods with claims and networks, which users and drivers write."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from agent.schema.errors import BackendError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceClaim, ResourceSlice
from scheduler_feedback.backends.kubernetes.objects.networks import NETWORKS, RESOURCE, NetworkAttachment
from scheduler_feedback.backends.kubernetes.objects.objects import Node, Pod
from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels, slots_of

_KUBERNETES = "scheduler_feedback.backends.kubernetes"
_GPU = "gpu.nvidia.com"
_KINDS: dict[str, Any] = {
    "nodes": Node,
    "slices": ResourceSlice,
    "classes": DeviceClass,
    "networks": NetworkAttachment,
    "claims": ResourceClaim,
    "pods": Pod,
}
_LISTS: dict[str, msgspec.json.Decoder[list[Any]]] = {
    name: msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    for name, kind in _KINDS.items()
}

EXPRESSIONS = (
    'device.driver == "gpu.nvidia.com"',
    'device.attributes["gpu.nvidia.com"].type == "gpu"',
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0',
    'device.attributes["gpu.nvidia.com"].version.isLessThan(semver("2.0.0"))',
    'device.attributes["gpu.nvidia.com"].exists(k, k.matches("a+"))',
    "isURL(device.driver)",
    "[1, 2].all(a, [1, 2].all(b, a + b > 0))",
    "",
    "((((((((",
)
_QUANTITIES = ("1", "80Gi", "x", "-1", "1e40", "1e99999")
_UNUSABLE: tuple[dict[str, Any], ...] = (
    *({} for _ in range(12)),
    *({"consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": one}}}]} for one in ("1", "1", "2", "x")),
    {"consumesCounters": [{"counterSet": "absent", "counters": {"m": {"value": "1"}}}]},
    {"consumesCounters": [{"counterSet": "s", "counters": {}}]},
    {"allowMultipleAllocations": True},
    {"bindingConditions": ["ready"]},
    {"nodeAllocatableResources": {"cpu": {}}},
)
_COUNTS = (1, 1, 1, 1, 1, 2, 2, 0, -1, 10**12)


def _expressions(chance: random.Random) -> list[Any]:
    if chance.random() < 0.6:
        return []
    found = chance.choices(EXPRESSIONS, k=chance.randrange(1, 3))
    return [{"cel": {"expression": mutate.text(chance, one) if chance.random() < 0.2 else one}} for one in found]


def _device(chance: random.Random, number: int) -> dict[str, Any]:
    values: Sequence[dict[str, Any]] = (
        {"string": "gpu"},
        {"int": 3},
        {"bool": True},
        {"version": "1.2.3"},
        {"version": "x"},
        {},
    )
    names = ("type", "version", "resource.kubernetes.io/pcieRoot", "a/b/c", "/")
    return {
        "name": f"d{number}",
        "attributes": {name: chance.choice(values) for name in chance.sample(names, k=3)},
        "capacity": {"memory": {"value": chance.choice(_QUANTITIES)}},
        "taints": chance.choice(([], [], [], [{"key": "a", "effect": "NoSchedule"}], [{}])),
        **chance.choice(_UNUSABLE),
    }


def _asked(chance: random.Random) -> dict[str, Any]:
    return {
        "deviceClassName": chance.choice((_GPU,) * 8 + ("nic", "absent", "")),
        "allocationMode": chance.choice(("ExactCount",) * 8 + ("All", "x")),
        "count": chance.choice(_COUNTS),
        "selectors": _expressions(chance),
        "tolerations": chance.choice(([], [{"operator": "Exists"}], [{"key": "a"}])),
        "capacity": chance.choice((None,) * 6 + ({}, {"requests": {"memory": chance.choice(_QUANTITIES)}})),
        "derivedAttributes": [{}] if chance.random() < 0.03 else [],
    }


def _request(chance: random.Random, number: int) -> dict[str, Any]:
    kind = chance.random()
    if kind < 0.6:
        return {"name": f"r{number}", "exactly": {**_asked(chance), "adminAccess": chance.random() < 0.2}}
    if kind < 0.65:
        return {"name": f"r{number}"}
    alternatives = [{**_asked(chance), "name": f"a{one}"} for one in range(chance.randrange(3))]
    return {"name": f"r{number}", "firstAvailable": alternatives}


def _claim(chance: random.Random, number: int) -> dict[str, Any]:
    result = {"request": "r0", "driver": _GPU, "pool": "n1", "device": f"d{chance.randrange(3)}"}
    field = {"key": "metadata.name", "operator": "In", "values": chance.choice((["n1"], [], ["n9"]))}
    selector: Any = chance.choice((None, {"nodeSelectorTerms": [{"matchFields": [field]}]}, {"nodeSelectorTerms": []}))
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    users = [{"resource": chance.choice(("pods", "x")), "name": "p0", "uid": f"u{chance.randrange(3)}"}]
    match = [{"matchAttribute": chance.choice(("resource.kubernetes.io/pcieRoot", "x", ""))}]
    return {
        "metadata": {"name": f"c{number}", "namespace": "default", "uid": f"c{number}", "resourceVersion": "1"},
        "spec": {
            "devices": {
                "requests": [_request(chance, n) for n in range(chance.randrange(1, 3))],
                "constraints": chance.choice(([], [], match)),
                "config": chance.choice(([], [], [{"requests": ["r0"]}, {"requests": ["r1/a0"]}, {}])),
            }
        },
        "status": chance.choice(
            ({}, {}, {}, {"allocation": allocation, "reservedFor": users}, {"allocation": allocation})
        ),
    }


def _pod(chance: random.Random, number: int) -> dict[str, Any]:
    networks = ("net", "default/net@a,net", '[{"name": "net"}]', "[" * 5000, ",,//@", '[{"name": 1}]')
    source = chance.choice(
        ({"resourceClaimName": f"c{chance.randrange(3)}"},) * 3 + ({"resourceClaimTemplateName": "t"},)
    )
    made = chance.choice(([], [{"name": "d", "resourceClaimName": "c0"}], [{"name": "d"}], []))
    return {
        "metadata": {
            "name": f"p{number}",
            "namespace": "default",
            "uid": f"u{number}",
            "annotations": chance.choice(({}, {NETWORKS: chance.choice(networks)})),
        },
        "spec": {
            "schedulerName": "gangwatch",
            "nodeName": chance.choice(("", "", "n1")),
            "resourceClaims": [{"name": "d", **source}],
            "containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": made},
    }


def _make(chance: random.Random) -> bytes:
    node: dict[str, Any] = {"nodeName": "n1"}
    where: dict[str, Any] = chance.choice(
        (
            node,
            node,
            node,
            node,
            {"allNodes": True},
            {"nodeSelector": {"nodeSelectorTerms": []}},
            {},
            {"perDeviceNodeSelection": True},
        )
    )
    slices = chance.randrange(1, 3)
    pool = {
        "name": "n1",
        "generation": chance.choice((0, 1)),
        "resourceSliceCount": slices if chance.random() < 0.8 else 1,
    }
    made: dict[str, Any] = {
        "nodes": [{"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "example.com/vf": "4"}}}],
        "slices": [
            {
                "metadata": {"name": f"s{number}"},
                "spec": {
                    "driver": _GPU,
                    "pool": pool,
                    "devices": [_device(chance, n) for n in range(3)],
                    "sharedCounters": [
                        {"name": "s", "counters": {"m": {"value": chance.choice(("2", "3", "3", "0", "y"))}}}
                    ],
                    **where,
                },
            }
            for number in range(slices)
        ],
        "classes": [
            {"metadata": {"name": _GPU}, "spec": {"selectors": _expressions(chance), "config": [{"opaque": {}}]}},
            {"metadata": {"name": "nic"}},
        ],
        "networks": [
            {"metadata": {"name": "net", "namespace": "default", "annotations": {RESOURCE: "example.com/vf"}}}
        ],
        "claims": [_claim(chance, number) for number in range(3)],
        "pods": [_pod(chance, number) for number in range(3)],
    }
    if chance.random() < 0.3:
        name = chance.choice(list(made))
        made[name] = mutate.tree(chance, made[name])
    data = json.dumps(made).encode("utf-8", "replace")
    return mutate.octets(chance, data) if chance.random() < 0.05 else data


def _parse(data: bytes) -> str:
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return REFUSED_FIRST
    cache = InformerCache("gangwatch", TopologyLabels())
    handlers = {
        "nodes": cache.node_changed,
        "slices": cache.slice_changed,
        "classes": cache.class_changed,
        "networks": cache.network_changed,
        "claims": cache.device_claim_changed,
        "pods": cache.pod_changed,
    }
    placed, taken = 0, []
    for name, raw in parts.items():
        if name not in _LISTS:
            continue
        try:
            listed = _LISTS[name].decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        for item in listed:
            try:
                cast(Any, handlers[name])(item.metadata.key, None, item)
            except BackendError:  # `Watch._change` leaves such an object unchanged
                continue
            else:
                taken.append((name, item))
    cache.take_dirty()
    for key, pod in list(cache.pods.items()):
        gang = cache.gang(key)
        if gang is not None and gang.constraint is not None:
            cache.want(gang.constraint, slots_of(pod))
            placed += not cache.assume(pod, "n1")
    cache.seen()
    cache.abandoned_claims()
    for name, item in taken:
        cast(Any, handlers[name])(item.metadata.key, item, None)
    return ACCEPTED if placed else REFUSED


_METHODS = ("claim_changed", "resolve", "_pod_claim", "_why_unsupported", "amounts", "_is_of_others", "assume")
_CLAIMS = ("claims_of_pod", "requests_in", "_request", "_exactly", "amounts_of", "allocation_body", "_configuration")

TARGETS = (
    Target(
        "kubernetes-claims",
        _make,
        _parse,
        (
            *(f"{_KUBERNETES}.devices.device_cache:DeviceCache.{name}" for name in _METHODS),
            *(f"{_KUBERNETES}.devices.pod_claims:{name}" for name in _CLAIMS),
            *(f"{_KUBERNETES}.devices.selectors:{name}" for name in ("matches", "_read", "_data", "_value")),
            f"{_KUBERNETES}.devices.selectors:has_capacity",
            *(
                f"{_KUBERNETES}.devices.counters:{name}"
                for name in ("totals_of", "uses_of", "Left.has", "Left.together")
            ),
            f"{_KUBERNETES}.devices.device_cache:DeviceCache._count",
            f"{_KUBERNETES}.devices.inventory:why_unusable",
            f"{_KUBERNETES}.devices.inventory:Inventory.change",
            f"{_KUBERNETES}.devices.inventory:Inventory._add",
            f"{_KUBERNETES}.devices.allocation:allocate",
            f"{_KUBERNETES}.devices.allocation:_allocate_exactly",
            f"{_KUBERNETES}.objects.networks:networks_of",
        ),
    ),
)
