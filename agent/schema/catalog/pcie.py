"""Metrics of the PCI Express links of GPUs and NICs, and their errors, read from the kernel without a driver."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_DEVICE = ("pci_address",)
_SYSFS = "/sys/bus/pci/devices/*"

PCIE: tuple[Metric, ...] = (
    Metric("gangwatch_pcie_device_info", "info", "GPU or NIC on the PCI bus; kind is gpu or nic.", "",
           ("driver", "kind", "numa_node", "pci_address"), _SYSFS),
    Metric("gangwatch_pcie_link_generation", "gauge",
           "Current PCI Express generation of the link. An idle GPU lowers it to save power.", "", _DEVICE,
           f"{_SYSFS}/current_link_speed"),
    Metric("gangwatch_pcie_link_generation_maximum", "gauge",
           "Highest PCI Express generation that the device supports.", "", _DEVICE,
           f"{_SYSFS}/max_link_speed"),
    Metric("gangwatch_pcie_link_lanes", "gauge", "Current number of lanes of the link.", "", _DEVICE,
           f"{_SYSFS}/current_link_width"),
    Metric("gangwatch_pcie_link_lanes_maximum", "gauge", "Highest number of lanes that the device supports.", "",
           _DEVICE,
           f"{_SYSFS}/max_link_width"),
    Metric("gangwatch_pcie_errors_total", "counter",
           "PCI Express errors reported by the device (AER), by the kernel's name. The link corrected those with "
           "severity correctable.", "",
           ("error", "pci_address", "severity"), f"{_SYSFS}/aer_dev_*"),
)  # fmt: skip
