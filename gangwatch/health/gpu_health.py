"""GPUs of a Kubernetes cluster for `gangwatch check --kubernetes`: of device plug-ins, and in ResourceSlices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gangwatch.health.machine import Finding
from scheduler_feedback.backends.kubernetes.devices.allocation import Classes, Request, fulfils
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceSlice
from scheduler_feedback.backends.kubernetes.devices.inventory import Inventory, Published
from scheduler_feedback.backends.kubernetes.devices.pod_claims import is_slot_class
from scheduler_feedback.backends.kubernetes.devices.selectors import SelectorError
from scheduler_feedback.backends.kubernetes.objects.objects import Node
from scheduler_feedback.backends.kubernetes.objects.translate import allocatable_of, is_ready, resource_of

_NAMED = 3
"""Maximum number of names that a finding lists."""


@dataclass(frozen=True)
class SlicedGpus:
    """GPUs that drivers of dynamic resource allocation publish on nodes without a GPU resource of a device plug-in."""

    by_node: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of GPUs by node and device class. A device of several classes counts for the first one by name."""

    unreadable: dict[str, str] = field(default_factory=dict)
    """Device classes whose devices cannot be counted, and why: a selector that cannot be evaluated here."""


def sliced_gpus(nodes: Iterable[Node], slices: Iterable[ResourceSlice], classes: Iterable[DeviceClass]) -> SlicedGpus:
    """Count the devices that are slots, as the controller does: on nodes whose status has no GPUs, and without taints.

    Devices count whether or not a claim has them.
    """
    inventory, found = Inventory(), SlicedGpus()
    for one in slices:
        inventory.change(one.metadata.name, None, one)
    declared = {one.metadata.name: one for one in classes if is_slot_class(one)}
    for node in nodes if inventory and declared else ():
        if resource_of(node):
            continue
        counts = Counter(
            name for device in inventory.devices_on(node) if (name := _class_of(device, declared, found.unreadable))
        )
        if counts:
            found.by_node[node.metadata.name] = counts
    return found


def _class_of(device: Published, classes: Classes, unreadable: dict[str, str]) -> str:
    """Return the first class that the device is in; '' if it is in none. Add a class that fails to `unreadable`."""
    for name in sorted(classes.keys() - unreadable.keys()):
        try:
            if fulfils(Request("", name, ()), device, classes):
                return name
        except SelectorError as error:
            unreadable[name] = str(error)
    return ""


def gpu_finding(nodes: Iterable[Node], sliced: SlicedGpus) -> Finding:
    """Return the check result on the cluster's GPUs. nodes: those with GPUs, of either kind."""
    nodes = list(nodes)
    unreadable = "; ".join(f"{name}: {why}" for name, why in sorted(sliced.unreadable.items()))
    more = f"; not counted: {unreadable}" if unreadable else ""
    if not nodes:
        remedy = (
            "install NVIDIA's GPU operator or device plugin: it adds nvidia.com/gpu to the nodes' resources; or its "
            "DRA driver, which publishes ResourceSlices"
        )
        return Finding("gpus", "missing", f"no node has a GPU, so gangs can't be placed{more}", remedy)
    kinds: Counter[str] = Counter()
    for node in nodes:
        if resource := resource_of(node):
            kinds[resource] += allocatable_of(node)[resource]
        for name, count in sliced.by_node.get(node.metadata.name, {}).items():
            kinds[f"{name} in ResourceSlices"] += count
    unready = [node.metadata.name for node in nodes if not is_ready(node)]
    detail = f"{', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))} on {len(nodes)} nodes{more}"
    if unready:
        remedy = "see `kubectl describe node` and the kubelets' logs"
        return Finding("gpus", "limited", f"{detail}; not ready: {names_of(unready)}", remedy)
    if more:
        return Finding("gpus", "limited", detail, "see docs/how-to/kubernetes.md, Claims for devices")
    return Finding("gpus", "found", detail)


def names_of(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
