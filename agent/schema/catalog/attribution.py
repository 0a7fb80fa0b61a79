"""Who owns which device. Joined on, so that the devices' own series need no label that changes with every job."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

ATTRIBUTION: tuple[Metric, ...] = (
    Metric(
        "gangwatch_gpu_owner_info",
        "info",
        "Who uses the GPU or MIG instance: container, gang, rank, Slurm job; what is not known is empty.",
        "",
        ("attempt", "container", "gang", "gpu", "mig", "namespace", "pod", "rank", "slurm_job"),
        "pod-resources, NVML, /proc/PID/cgroup, rank files, job files",
    ),
    Metric(
        "gangwatch_gpu_process_owner_info",
        "info",
        "Whose the process on the GPU is: with it, what several share on one GPU is each one's own.",
        "",
        ("attempt", "container", "gang", "gpu", "mig", "namespace", "pid", "pod", "rank", "slurm_job"),
        "NVML, pod-resources, /proc/PID/cgroup, rank files",
    ),
    Metric(
        "gangwatch_rdma_owner_info",
        "info",
        "Which container holds the RDMA device; device is empty where a shared pool does not tell which.",
        "",
        ("container", "device", "namespace", "pci_address", "pod", "resource"),
        "pod-resources",
    ),
    Metric(
        "gangwatch_owner_devices_unresolved",
        "gauge",
        "Devices that the kubelet or a job file names and that none of the node's GPUs answers to.",
        "",
        (),
        "itself",
    ),
    Metric(
        "gangwatch_owners_left_out",
        "gauge",
        "Owners that are not published because there are too many.",
        "",
        (),
        "itself",
    ),
    Metric(
        "gangwatch_kubelet_pods",
        "gauge",
        "Pods that the kubelet lists with their devices.",
        "",
        (),
        "pod-resources List",
    ),
    Metric(
        "gangwatch_kubelet_devices_allocatable",
        "gauge",
        "Devices that the node has to give, by resource.",
        "",
        ("resource",),
        "pod-resources GetAllocatableResources",
    ),
    Metric(
        "gangwatch_kubelet_devices_allocated",
        "gauge",
        "Devices that containers hold, by resource.",
        "",
        ("resource",),
        "pod-resources List",
    ),
)
