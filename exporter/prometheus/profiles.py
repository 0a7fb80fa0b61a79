"""Selection of published families: a profile, and lists of names that override it.

``full`` publishes all families. ``default`` omits families that are only used to investigate a problem: counts per
link, lane, priority or location, if there is also a sum per device.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

FULL_ONLY: tuple[str, ...] = (
    # By link, lane, location, priority: for the investigation of a known problem.
    "gangwatch_nvlink_*",
    "gangwatch_c2c_*",
    "gangwatch_gpu_row_remap_banks",
    "gangwatch_fabric_*",
    "gangwatch_gpu_ecc_location_*",
    "gangwatch_gpu_ecc_sram_*",
    "gangwatch_gpu_ecc_lifetime_errors_total",
    "gangwatch_gpu_pcie_errors_total",
    "gangwatch_pcie_*",
    "gangwatch_rdma_priority_*",
    "gangwatch_rdma_module_events_total",
    "gangwatch_rdma_physical_lane_errors_total",
    "gangwatch_rdma_physical_buffer_threshold_events_total",
    "gangwatch_rdma_physical_packets_total",
    "gangwatch_rdma_physical_*_bit_*total",
    "gangwatch_rdma_vport_*",
    "gangwatch_rdma_pcie_*",
    "gangwatch_rdma_hw_counters_total",
    "gangwatch_rdma_operation_bytes_total",
    "gangwatch_rdma_resources",
    # Of a port: always zero on Ethernet, or redundant.
    "gangwatch_rdma_port_*cast_*",
    "gangwatch_rdma_port_vl15_*",
    "gangwatch_rdma_port_*_constraint_errors_total",
    "gangwatch_rdma_port_receive_switch_relay_errors_total",
    "gangwatch_rdma_port_receive_remote_physical_errors_total",
    "gangwatch_rdma_port_buffer_overrun_errors_total",
    "gangwatch_rdma_port_link_integrity_errors_total",
    "gangwatch_rdma_port_lanes",
    "gangwatch_rdma_*_flush_errors_total",
    "gangwatch_rdma_*_requests_received_total",
    "gangwatch_rdma_*_requests_sent_total",
    "gangwatch_rdma_statistics_lifespan_seconds",
    "gangwatch_rdma_dct_connects_total",
    "gangwatch_rdma_slow_restart_*",
    "gangwatch_rdma_statistics_source_info",
    "gangwatch_rdma_requester_access_errors_total",
    "gangwatch_rdma_responder_access_errors_total",
    "gangwatch_rdma_remote_invalid_requests_total",
    "gangwatch_rdma_local_length_errors_total",
    "gangwatch_rdma_pause_storm_events_total",
    "gangwatch_rdma_implied_naks_total",
    "gangwatch_rdma_duplicate_requests_total",
    "gangwatch_rdma_port_*_packets_total",
    # Of a GPU: limits and maxima that hardly change, extremes within a second, single arithmetic pipes.
    "gangwatch_gpu_burst_*",
    "gangwatch_gpu_*_window_ratio",
    "gangwatch_gpu_pipe_active_ratio",
    "gangwatch_gpu_mig_pipe_active_ratio",
    "gangwatch_gpu_peer_info",
    "gangwatch_gpu_max_clock_hertz",
    "gangwatch_gpu_graphics_clock_hertz",
    "gangwatch_gpu_video_clock_hertz",
    "gangwatch_gpu_temperature_margin_limit_celsius",
    "gangwatch_gpu_temperature_threshold_celsius",
    "gangwatch_gpu_bar1_*",
    "gangwatch_gpu_power_limit_watts",
    "gangwatch_gpu_pcie_link_*",
    "gangwatch_gpu_pcie_replay_rollovers_total",
    "gangwatch_gpu_pcie_*_bytes_total",
    "gangwatch_gpu_ecc_pending",
    "gangwatch_gpu_ecc_enabled",
    "gangwatch_gpu_*coder_utilization_ratio",
    "gangwatch_gpu_power_instant_watts",
    "gangwatch_gpu_performance_state",
    "gangwatch_gpu_numa_node",
    "gangwatch_gpu_throttle_seconds_total",
    "gangwatch_gpu_process*",
    # Of the host and the agent.
    "gangwatch_topology_gpu_nic_distance",
    "gangwatch_network_mtu_bytes",
    "gangwatch_network_up",
    "gangwatch_network_speed_bytes_per_second",
    "gangwatch_network_*_packets_total",
    "gangwatch_network_carrier_*",
    "gangwatch_host_nfs_*",
    "gangwatch_collector_stuck",
    "gangwatch_collector_interval_seconds",
    "gangwatch_collector_duration_seconds",
    "gangwatch_collector_cpu_seconds_total",
    "gangwatch_collector_sample_age_seconds",
    "gangwatch_collector_failures_total",
)
"""Names or globs of families that ``default`` omits."""

Reason = Literal["profile", "deny"]


def left_out_by(name: str, profile: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> Reason | None:
    """Return why the family is omitted; None if it is published. `deny` overrides `allow`, and `allow` overrides the
    profile."""
    if matches(name, deny):
        return "deny"
    if profile == "full" or matches(name, allow):
        return None
    return "profile" if matches(name, FULL_ONLY) else None


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether one of the globs matches the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
