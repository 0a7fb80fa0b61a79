"""Metrics of network interfaces: state, speed, packets and carrier changes."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_DEVICE = ("device",)
_SYSFS = "/sys/class/net/*"


def _counter(name: str, help: str, file: str, compatibility: str = "") -> Metric:
    return Metric(f"gangwatch_network_{name}_total", "counter", help, "", _DEVICE, f"{_SYSFS}/{file}",
                  compatibility=compatibility)  # fmt: skip


NETWORK: tuple[Metric, ...] = (
    Metric("gangwatch_network_info", "info", "Hardware address, driver and PCI address of the interface.", "",
           ("address", "device", "driver", "pci_address"), _SYSFS),
    Metric("gangwatch_network_up", "gauge", "1 if the interface's operational state is up.", "", _DEVICE,
           f"{_SYSFS}/operstate", compatibility="node_network_up"),
    Metric("gangwatch_network_carrier", "gauge", "1 if the interface has a carrier.", "", _DEVICE,
           f"{_SYSFS}/carrier", compatibility="node_network_carrier"),
    Metric("gangwatch_network_speed_bytes_per_second", "gauge", "Negotiated speed of the link.",
           "bytes_per_second", _DEVICE, f"{_SYSFS}/speed", compatibility="node_network_speed_bytes"),
    Metric("gangwatch_network_mtu_bytes", "gauge", "Maximum transmission unit of the interface.", "bytes", _DEVICE,
           f"{_SYSFS}/mtu", compatibility="node_network_mtu_bytes"),
    _counter("carrier_changes", "Times the carrier was gained or lost.", "carrier_changes",
             "node_network_carrier_changes_total"),
    _counter("carrier_down", "Times the carrier was lost.", "carrier_down_count",
             "node_network_carrier_down_changes_total"),
    _counter("receive_packets", "Packets received.", "statistics/rx_packets", "node_network_receive_packets_total"),
    _counter("transmit_packets", "Packets sent.", "statistics/tx_packets", "node_network_transmit_packets_total"),
    _counter("receive_drops", "Packets dropped on receipt.", "statistics/rx_dropped",
             "node_network_receive_drop_total"),
    _counter("transmit_drops", "Packets dropped before they were sent.", "statistics/tx_dropped",
             "node_network_transmit_drop_total"),
)  # fmt: skip
