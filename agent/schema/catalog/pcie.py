"""PCI Express links of GPUs and NICs, and the errors on them, as the kernel knows them without a driver's help."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_DEVICE = ("pci_address",)
_SYSFS = "/sys/bus/pci/devices/*"

PCIE: tuple[Metric, ...] = (
    Metric("gangwatch_pcie_device_info", "info", "A GPU or NIC on the PCI bus; kind is gpu or nic.", "",
           ("driver", "kind", "numa_node", "pci_address"), _SYSFS),
    Metric("gangwatch_pcie_link_generation", "gauge",
           "PCI Express generation at which the link runs now. An idle GPU lowers it to save power.", "", _DEVICE,
           f"{_SYSFS}/current_link_speed"),
    Metric("gangwatch_pcie_link_generation_maximum", "gauge", "Highest generation that the device can do.", "", _DEVICE,
           f"{_SYSFS}/max_link_speed"),
    Metric("gangwatch_pcie_link_lanes", "gauge", "Lanes of the link as it runs now.", "", _DEVICE,
           f"{_SYSFS}/current_link_width"),
    Metric("gangwatch_pcie_link_lanes_maximum", "gauge", "Most lanes that the device can use.", "", _DEVICE,
           f"{_SYSFS}/max_link_width"),
    Metric("gangwatch_pcie_errors_total", "counter",
           "Errors reported by the device (AER), by the kernel's name; correctable ones were mended by the link.", "",
           ("error", "pci_address", "severity"), f"{_SYSFS}/aer_dev_*"),
)  # fmt: skip
