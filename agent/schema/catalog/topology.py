"""Metrics of the distance between GPUs and NICs."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

TOPOLOGY: tuple[Metric, ...] = (
    Metric("gangwatch_topology_gpu_nic_distance", "gauge",
           "Distance between GPU and NIC: 1 at most one PCIe switch (PIX), 2 several (PXB), 3 the host bridge (PHB), "
           "4 the NUMA node (NODE), 5 the link between processors, or unknown (SYS).", "",
           ("nic", "pci_address"), "/sys/devices paths, numa_node"),
    Metric("gangwatch_topology_rail_info", "info",
           "NIC nearest to a GPU, and the number of its rail in the order of NIC addresses. pci_address is that of the "
           "GPU; switch is the upstream port of its PCIe switch.", "",
           ("distance", "nic", "nic_pci_address", "numa_node", "pci_address", "rail", "switch"),
           "/sys/devices paths, numa_node"),
)  # fmt: skip
