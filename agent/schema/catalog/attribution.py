"""Metrics of the owners of devices.

Series of devices have no job label: queries find the job by a join with these metrics.
"""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

ATTRIBUTION: tuple[Metric, ...] = (
    Metric(
        "gangwatch_gpu_owner_info",
        "info",
        "Owner of the GPU or MIG instance: container, gang, rank, Slurm job. Unknown labels are empty.",
        "",
        ("attempt", "container", "gang", "gpu", "mig", "namespace", "pod", "rank", "slurm_job"),
        "pod-resources, NVML, /proc/PID/cgroup, rank files, job files",
    ),
    Metric(
        "gangwatch_gpu_process_owner_info",
        "info",
        "Owner of a process on the GPU. Join on it to split the use of a shared GPU by owner.",
        "",
        ("attempt", "container", "gang", "gpu", "mig", "namespace", "pid", "pod", "rank", "slurm_job"),
        "NVML, pod-resources, /proc/PID/cgroup, rank files",
    ),
    Metric(
        "gangwatch_rdma_owner_info",
        "info",
        "Container that uses the RDMA device. device is empty if a shared device pool does not report which one.",
        "",
        ("container", "device", "namespace", "pci_address", "pod", "resource"),
        "pod-resources",
    ),
    Metric(
        "gangwatch_pod_label_info",
        "info",
        "Label of a pod that uses a device, if agent.pod_label_names has the label's key.",
        "",
        ("label", "namespace", "pod", "value"),
        "API server",
    ),
    Metric(
        "gangwatch_owner_devices_unresolved",
        "gauge",
        "Devices named by the kubelet or a job file that match no GPU of the node.",
        "",
        (),
        "the agent",
    ),
    Metric(
        "gangwatch_owners_left_out",
        "gauge",
        "Owners not published because there are too many.",
        "",
        (),
        "the agent",
    ),
    Metric(
        "gangwatch_kubelet_pods",
        "gauge",
        "Pods with devices listed by the kubelet.",
        "",
        (),
        "pod-resources List",
    ),
    Metric(
        "gangwatch_kubelet_devices_allocatable",
        "gauge",
        "Devices that the node can allocate, by resource.",
        "",
        ("resource",),
        "pod-resources GetAllocatableResources",
    ),
    Metric(
        "gangwatch_kubelet_devices_allocated",
        "gauge",
        "Devices allocated to containers, by resource.",
        "",
        ("resource",),
        "pod-resources List",
    ),
)
