"""Mapping of network driver statistics to metrics: pause frames, discarded packets, and errors of the wire and of PCIe.

Names are those of mlx5 (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; en_stats.c), of
bnxt_en (bnxt_ethtool.c) and of ice (ice_ethtool.c). Drivers have hundreds of other statistics, most of them per queue.
They do not describe the health of a NIC and are not published; see ``ethtool -S``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent.collectors.rdma.rdma_counters import Labels, Meaning

_DIRECTIONS = {"rx": "receive", "tx": "transmit"}


def _metric(name: str, *labels: tuple[str, str], width: int = 64) -> Meaning:
    return Meaning(f"gangwatch_rdma_{name}_total", labels, width=width)


def _both(name: str, receive: str, transmit: str, width: int = 64) -> dict[str, Meaning]:
    return {
        receive: _metric(name, ("direction", "receive"), width=width),
        transmit: _metric(name, ("direction", "transmit"), width=width),
    }


_NAMED: dict[str, Meaning] = {
    # The wire.
    **_both("physical_bytes", "rx_bytes_phy", "tx_bytes_phy"),
    **_both("physical_packets", "rx_packets_phy", "tx_packets_phy"),
    **_both("physical_discards", "rx_discards_phy", "tx_discards_phy"),
    **_both("vport_bytes", "rx_vport_rdma_unicast_bytes", "tx_vport_rdma_unicast_bytes"),
    **_both("vport_packets", "rx_vport_rdma_unicast_packets", "tx_vport_rdma_unicast_packets"),
    "tx_errors_phy": _metric("physical_transmit_errors"),
    "rx_symbol_err_phy": _metric("physical_symbol_errors"),
    "rx_pcs_symbol_err_phy": _metric("physical_uncorrected_symbols"),
    "rx_corrected_bits_phy": _metric("physical_corrected_bit_errors"),
    "rx_bits_phy": _metric("physical_received_bit"),
    "rx_crc_errors_phy": _metric("physical_crc_errors"),
    "rx_crc_errors.nic": _metric("physical_crc_errors"),
    "link_down_events_phy": _metric("physical_link_down_events"),
    "link_down_events": _metric("physical_link_down_events"),
    "rx_buffer_passed_thres_phy": _metric("physical_buffer_threshold_events"),
    "rx_out_of_buffer": _metric("netdev_out_of_buffer"),
    **{
        f"module_{event}": _metric("module_events", ("event", event))
        for event in ("unplug", "bus_stuck", "high_temp", "bad_shorted")
    },
    **{
        f"tx_pause_storm_{severity}_events": _metric("pause_storm_events", ("severity", severity))
        for severity in ("warning", "error")
    },
    # Pause of the whole link (ice).
    "rx_xoff.nic": _metric("pause_frames", ("direction", "receive"), ("priority", "global")),
    "tx_xoff.nic": _metric("pause_frames", ("direction", "transmit"), ("priority", "global")),
    # PCIe. mlx5 reads these as 32 bits, but the overflow as 64 (pcie_perf_stats_desc, pcie_perf_stats_desc64).
    **_both("pcie_signal_integrity_errors", "rx_pci_signal_integrity", "tx_pci_signal_integrity", 32),
    "outbound_pci_buffer_overflow": _metric("pcie_buffer_overflow"),
    **{
        f"outbound_pci_stalled_{short}": Meaning(
            "gangwatch_rdma_pcie_stalled_ratio", (("operation", operation),), gauge=True, scale=0.01
        )
        for short, operation in (("rd", "read"), ("wr", "write"))
    },
    **{
        f"outbound_pci_stalled_{short}_events": _metric("pcie_stall_events", ("operation", operation), width=32)
        for short, operation in (("rd", "read"), ("wr", "write"))
    },
}


def _labels(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


def _pause(kind: str) -> Callable[[re.Match[str]], Meaning]:
    def meaning(match: re.Match[str]) -> Meaning:
        return _metric(f"pause_{kind}", *_labels(direction=_DIRECTIONS[match["direction"]], priority=match["priority"]))

    return meaning


def _volume(match: re.Match[str]) -> Meaning:
    return _metric(
        f"priority_{match['kind']}",
        *_labels(direction=_DIRECTIONS[match["direction"]], priority=match["priority"]),
    )


_REASONS = {"buf_discard": "buffer", "cong_discard": "congestion", "discards": "other"}


def _discards(match: re.Match[str]) -> Meaning:
    return _metric("priority_discards", *_labels(priority=match["priority"], reason=_REASONS[match["reason"]]))


def _marked(match: re.Match[str]) -> Meaning:
    return _metric("priority_marked_packets", ("priority", match["priority"]))


def _lane(match: re.Match[str]) -> Meaning:
    return _metric("physical_lane_errors", ("lane", match["lane"]))


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Meaning]], ...] = tuple(
    (re.compile(pattern, re.ASCII), meaning)
    for pattern, meaning in (
        # mlx5
        (r"(?P<direction>rx|tx)_(?:prio)?(?P<priority>[0-7]|global)_pause", _pause("frames")),
        (r"(?P<direction>rx|tx)_(?:prio)?(?P<priority>[0-7]|global)_pause_duration", _pause("seconds")),
        (r"(?P<direction>rx|tx)_(?:prio)?(?P<priority>[0-7]|global)_pause_transition", _pause("transitions")),
        (r"rx_prio(?P<priority>[0-7])_(?P<reason>buf_discard|cong_discard|discards)", _discards),
        (r"rx_prio(?P<priority>[0-7])_marked", _marked),
        (r"(?P<direction>rx|tx)_prio(?P<priority>[0-7])_(?P<kind>bytes|packets)", _volume),
        (r"rx_err_lane_(?P<lane>\d{1,2})_phy", _lane),
        # bnxt_en
        (r"(?P<direction>rx|tx)_pfc_ena_frames_pri(?P<priority>[0-7])", _pause("frames")),
        (r"pfc_pri(?P<priority>[0-7])_(?P<direction>rx|tx)_duration_us", _pause("seconds")),
        (r"pfc_pri(?P<priority>[0-7])_(?P<direction>rx|tx)_transitions", _pause("transitions")),
        (r"(?P<direction>rx|tx)_(?P<kind>bytes|packets)_pri(?P<priority>[0-7])", _volume),
        # ice
        (r"(?P<direction>rx|tx)_priority_(?P<priority>[0-7])_xoff\.nic", _pause("frames")),
    )
)


def ethtool_counter(name: str) -> Meaning | None:
    """Return the metric and labels of a driver's statistic; None if it is not published."""
    if (meaning := _NAMED.get(name)) is not None:
        return meaning
    for pattern, of_match in _PATTERNS:
        if (match := pattern.fullmatch(name)) is not None:
            return of_match(match)
    return None
