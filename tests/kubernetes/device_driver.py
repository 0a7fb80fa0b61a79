"""Objects that a DRA driver and its users create: slices, classes, claims and templates (resource.k8s.io/v1)."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.harness import Api
from tests.kubernetes.makers import pod_body

API = "/apis/resource.k8s.io/v1"
GPU_CLASS = "gpu.nvidia.com"


def gpu(number: int, **attributes: Any) -> dict[str, Any]:
    """Return a GPU as NVIDIA's driver publishes it. attributes: further ones, {name: {"string": "..."}}."""
    values = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{number}"},
        "productName": {"string": "NVIDIA H200"},
        "driverVersion": {"version": "570.1.0"},
        **attributes,
    }
    return {"name": f"gpu-{number}", "attributes": values, "capacity": {"memory": {"value": "141Gi"}}}


MIG_CLASS = "mig.nvidia.com"
MIG = {"1g": (1, 1, 7), "3g": (3, 4, 2)}
"""Compute slices, memory slices and number of instances of the profiles of one GPU, which has seven and eight."""


def partitionable(gpus: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (devices, sets of counters) of GPUs that a driver divides on demand, as NVIDIA's does with dynamic MIG."""

    def uses(number: int, compute: int, memory: int) -> list[dict[str, Any]]:
        counters = {"compute": {"value": str(compute)}, "memory": {"value": str(memory)}}
        return [{"counterSet": f"gpu-{number}", "counters": counters}]

    devices, sets = [], []
    for number in range(gpus):
        devices.append({**gpu(number), "consumesCounters": uses(number, 7, 8)})
        sets.append({"name": f"gpu-{number}", "counters": uses(number, 7, 8)[0]["counters"]})
        for profile, (compute, memory, most) in MIG.items():
            for instance in range(most):
                attributes = {"type": {"string": "mig"}, "profile": {"string": profile}}
                name = f"gpu-{number}-mig-{profile}-{instance}"
                used = uses(number, compute, memory)
                devices.append({"name": name, "attributes": attributes, "consumesCounters": used})
    return devices, sets


def profile(name: str) -> str:
    """Return the expression that selects the instances of a MIG profile."""
    return f'device.attributes["{GPU_CLASS}"].profile == "{name}"'


def slice_body(
    node: str,
    devices: list[dict[str, Any]],
    driver: str = GPU_CLASS,
    *,
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> dict[str, Any]:
    """Return a slice of the node's pool. spec: fields in place of nodeName."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    where = spec or {"nodeName": node}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}"},
        "spec": {"driver": driver, "pool": pool, "devices": devices, **where},
    }


def class_body(name: str = GPU_CLASS, *expressions: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a device class; by default it selects the devices of the driver with the class's name."""
    chosen = expressions or (f'device.driver == "{name}"',)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"selectors": [{"cel": {"expression": one}} for one in chosen]},
    }


def request(name: str = "gpu", device_class: str = GPU_CLASS, *expressions: str, **exactly: Any) -> dict[str, Any]:
    selectors = {"selectors": [{"cel": {"expression": one}} for one in expressions]} if expressions else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **selectors, **exactly}}


def first_available(name: str, *alternatives: dict[str, Any]) -> dict[str, Any]:
    """Return a request for the first alternative that is available. alternatives: see ``request``."""
    return {"name": name, "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in alternatives]}


def claim_body(name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    """Return a claim. devices: further fields, such as constraints."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def template_body(name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    claim = claim_body(name, *requests, **devices)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": claim["metadata"],
        "spec": {"spec": claim["spec"]},
    }


def claiming(template: str = "", claim: str = "", cpu: int = 1) -> dict[str, Any]:
    """Return the fields of a pod's spec for one claim: made from a template, or one that exists."""
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    resources = {"requests": {"cpu": str(cpu)}, "limits": {"cpu": str(cpu)}, "claims": [{"name": "devices"}]}
    return {
        "resourceClaims": [{"name": "devices", **source}],
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }


def publish(api: Api, node: str, devices: list[dict[str, Any]], driver: str = GPU_CLASS, **spec: Any) -> None:
    """Publish devices of a node as its driver's kubelet plug-in does."""
    api.create(f"{API}/resourceslices", slice_body(node, devices, driver, **spec))


def claims(api: Api) -> list[Any]:
    """Return all claims."""
    return list(api.get(f"{API}/namespaces/default/resourceclaims")["items"])


def allocated(api: Api) -> dict[tuple[str, str], str]:
    """Return the claim of each allocated device, by (pool, device). Fails if two claims have one device."""
    found: dict[tuple[str, str], str] = {}
    for one in claims(api):
        for result in (one.get("status", {}).get("allocation") or {"devices": {"results": []}})["devices"]["results"]:
            key = (result["pool"], result["device"])
            assert key not in found, f"{key} is allocated to {found[key]} and {one['metadata']['name']}"
            found[key] = one["metadata"]["name"]
    return found


def pod_with_claim(name: str, group: str = "", **options: Any) -> dict[str, Any]:
    """Return the body of a pod with a claim and without extended resources. options: see ``claiming``."""
    return pod_body(name, 0, group, **claiming(**options))
