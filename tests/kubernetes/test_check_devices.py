"""`gangwatch check --kubernetes` in a cluster whose GPUs are in ResourceSlices. No API server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gangwatch.health.gpu_health import SlicedGpus, sliced_gpus
from gangwatch.health.kubernetes_health import cluster_findings
from gangwatch.health.machine import Finding
from scheduler_feedback.backends.kubernetes.devices.device_objects import DeviceClass, ResourceSlice
from scheduler_feedback.backends.kubernetes.objects.objects import Node
from tests.kubernetes.device_driver import GPU_CLASS, class_body, gpu, slice_body
from tests.kubernetes.makers import node

NIC = "nic.example.com"


def slices(*bodies: dict[str, Any]) -> list[ResourceSlice]:
    return [msgspec.convert(body, ResourceSlice) for body in bodies]


def classes(*bodies: dict[str, Any]) -> list[DeviceClass]:
    return [msgspec.convert(body, DeviceClass) for body in bodies]


def counted(nodes: list[Node], *bodies: dict[str, Any]) -> SlicedGpus:
    return sliced_gpus(nodes, slices(*bodies), classes(class_body(), class_body(NIC)))


def findings(nodes: list[Node], sliced: SlicedGpus | None = None) -> dict[str, Finding]:
    return {one.name: one for one in cluster_findings(nodes, [], sliced=sliced)}


def test_gpus_in_slices_count_and_their_nodes_need_agents_and_labels() -> None:
    nodes = [node("n1", 0), node("n2", 0), node("n3", 8), node("n4", 0)]
    nic = slice_body("n4", [{"name": "vf-0"}], NIC)
    tainted = {**gpu(2), "taints": [{"key": "broken", "effect": "NoSchedule"}]}
    sliced = counted(
        nodes, slice_body("n1", [gpu(0), gpu(1)]), slice_body("n2", [gpu(0), tainted]), slice_body("n3", [gpu(0)]), nic
    )
    assert sliced == SlicedGpus({"n1": {GPU_CLASS: 2}, "n2": {GPU_CLASS: 1}}), "n3's GPUs are its resource"
    found = findings(nodes, sliced)
    assert found["gpus"] == Finding("gpus", "found", "3 gpu.nvidia.com in ResourceSlices, 8 nvidia.com/gpu on 3 nodes")
    assert found["agents"].detail == "no GPU node runs an agent, so nothing is measured"
    assert found["topology"].state == "missing"


def test_devices_of_an_incomplete_pool_and_of_classes_without_slots_do_not_count() -> None:
    nodes = [node("n1", 0)]
    assert counted(nodes, slice_body("n1", [gpu(0)], count=2)) == SlicedGpus()
    assert counted(nodes, slice_body("n1", [{"name": "vf-0"}], NIC)) == SlicedGpus()
    labelled = classes(class_body(NIC, labels={"gangwatch.io/slots": "true"}))
    assert sliced_gpus(nodes, slices(slice_body("n1", [{"name": "vf-0"}], NIC)), labelled).by_node == {"n1": {NIC: 1}}


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_class_whose_selector_cannot_be_evaluated_is_named(gpus: int) -> None:
    nodes = [node("n1", 0), node("n2", gpus)]
    odd = classes(class_body(GPU_CLASS, "isURL(device.driver)"), class_body("mig.nvidia.com", "true"))
    sliced = sliced_gpus(nodes, slices(slice_body("n1", [gpu(0)])), odd[:1])
    assert sliced.by_node == {} and "undeclared reference to 'isURL'" in sliced.unreadable[GPU_CLASS]
    found = findings(nodes, sliced)["gpus"]
    assert found.state == ("limited" if gpus else "missing")
    assert f"; not counted: {GPU_CLASS}: undeclared reference to 'isURL'" in found.detail
    both = sliced_gpus(nodes, slices(slice_body("n1", [gpu(0)])), odd)
    assert both.by_node == {"n1": {"mig.nvidia.com": 1}}, "another class has the device"
