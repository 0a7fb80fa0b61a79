"""Which NIC is beside which GPU."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

TOPOLOGY: tuple[Metric, ...] = (
    Metric("gangwatch_topology_gpu_nic_distance", "gauge",
           "How far apart a GPU and a NIC are: 1 at most one PCIe switch (PIX), 2 several (PXB), 3 the host bridge "
           "(PHB), 4 the NUMA node (NODE), 5 the link between processors, or unknown (SYS).", "",
           ("nic", "pci_address"), "/sys/devices paths, numa_node"),
    Metric("gangwatch_topology_rail_info", "info",
           "The NIC beside a GPU, and the number of their rail, counted by the NICs' addresses. pci_address is the "
           "GPU's; switch the PCIe switch that it hangs below, by its upstream port.", "",
           ("distance", "nic", "nic_pci_address", "numa_node", "pci_address", "rail", "switch"),
           "/sys/devices paths, numa_node"),
)  # fmt: skip
