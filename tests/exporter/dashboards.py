"""Queries of published dashboards and alert rules, with their variables filled in.

Grafana 12239 is NVIDIA's dashboard for dcgm-exporter; 1860 and dashboards like 12740 query node_exporter; the other
queries are from the documentation and alert rules of each exporter.
"""

from __future__ import annotations

DCGM_12239 = (
    'max(DCGM_FI_DEV_GPU_TEMP{Hostname=~"n0", gpu=~"0|1|2|3|4|5|6|7"}) by (Hostname, gpu, uuid)',
    'avg(DCGM_FI_DEV_GPU_TEMP{Hostname=~"n0", gpu=~".*"})',
    'max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"n0", gpu=~".*"}) by (Hostname, gpu, uuid)',
    'sum(max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"n0", gpu=~".*"}) by (gpu))',
    'max(DCGM_FI_DEV_SM_CLOCK{Hostname=~"n0", gpu=~".*"} * 1000000) by (Hostname, UUID, gpu)',
    'max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=~"n0", gpu=~".*"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)',
    'max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=~"n0", gpu=~".*"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)',
    'max(DCGM_FI_DEV_FB_USED{Hostname=~"n0", gpu=~".*"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)',
    "count(DCGM_FI_DEV_FB_FREE) by (Hostname)",
    'count(DCGM_FI_DEV_FB_FREE{Hostname=~"n0"}) by (gpu)',
)
"""NVIDIA DCGM Exporter Dashboard: panels and its two variables."""

DCGM_ELSEWHERE = (
    'DCGM_FI_DEV_GPU_UTIL{device="nvidia0", modelName=~"NVIDIA H100.*"}',
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED) * 100",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[10s]) / 1000",
    "DCGM_FI_DEV_XID_ERRORS == 0",
    "sum by (clock_event) (DCGM_EXP_CLOCK_EVENTS_COUNT)",
    "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10s])",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE == 0",
    "increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[10s])",
    "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10s])",
    "rate(DCGM_FI_DEV_POWER_VIOLATION[10s])",
    "DCGM_FI_PROF_PCIE_TX_BYTES + DCGM_FI_PROF_PCIE_RX_BYTES",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_SM_OCCUPANCY",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "topk(3, DCGM_FI_DEV_MEM_COPY_UTIL)",
)

DCGM_EXPORTERS_LISTS = (
    "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_P2P_STATUS", "DCGM_EXP_XID_ERRORS_COUNT",
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_INFOROM_VER", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_INFOROM_IMAGE_VER", "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_OEM_INFOROM_VER", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_POWER_INFOROM_VER",
    "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_RETIRED_PENDING", "DCGM_FI_DEV_RETIRED_SBE",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_VBIOS_VERSION", "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY",
)  # fmt: skip
"""Names in dcgm-exporter's lists, those that are commented out included: etc/*.csv of commit d5e5f51."""

NODE_EXPORTER = (
    "rate(node_infiniband_port_data_received_bytes_total[10s])",
    "rate(node_infiniband_port_data_transmitted_bytes_total[10s]) / node_infiniband_rate_bytes_per_second",
    "node_infiniband_state_id != 4 or node_infiniband_physical_state_id == 5",
    "increase(node_infiniband_link_downed_total[10s])",
    "increase(node_infiniband_symbol_error_total[10s])",
    "rate(node_infiniband_port_transmit_wait_total[10s])",
    "rate(node_infiniband_np_cnp_packets_sent_total[10s])",
    "rate(node_infiniband_rp_cnp_packets_handled_total[10s])",
    "rate(node_infiniband_np_ecn_marked_roce_packets_received_total[10s])",
    "rate(node_infiniband_out_of_sequence_packets_received_total[10s])",
    "rate(node_infiniband_out_of_buffer_drops_total[10s])",
    "rate(node_infiniband_local_ack_timeout_errors_total[10s])",
    "rate(node_infiniband_packet_sequence_errors_total[10s])",
    "rate(node_infiniband_roce_adp_retransmits_total[10s])",
    "rate(node_infiniband_rnr_nak_retry_packets_received_total[10s])",
    'node_infiniband_info{device="mlx5_0"}',
    "rate(node_pressure_cpu_waiting_seconds_total[10s])",
    "rate(node_pressure_memory_waiting_seconds_total[10s])",
    "rate(node_pressure_memory_stalled_seconds_total[10s])",
    "rate(node_pressure_io_waiting_seconds_total[10s])",
    "rate(node_pressure_io_stalled_seconds_total[10s])",
    'sum by (mode) (rate(node_cpu_seconds_total{mode!="idle"}[10s]))',
    "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes * 100",
    "node_load1",
    "rate(node_network_receive_bytes_total[10s])",
    "rate(node_disk_io_time_seconds_total[10s])",
)

RDMA_EXPORTER = (
    'rate(rdma_roce_pfc_pause_duration_total{direction="rx"}[10s]) / 1e6',
    "sum by (device, priority, netdev) (rate(rdma_roce_pfc_pause_frames_total[10s]))",
    "rate(rdma_roce_pfc_pause_transitions_total[10s])",
)

OURS = (
    "gangwatch_gpu_power_watts * on (node, gpu) group_left (model, index) gangwatch_gpu_info",
    "sum by (gpu) (gangwatch_gpu_nvlink_transmit_bytes_per_second)",
    "rate(gangwatch_rdma_port_receive_bytes_total[10s]) "
    "* on (node, device) group_left (hca_type) gangwatch_rdma_device_info",
    "gangwatch_topology_rail_info",
    "gangwatch_collector_success == 0 or count(gangwatch_collector_success) > 10",
)

QUERIES = (*DCGM_12239, *DCGM_ELSEWHERE, *NODE_EXPORTER, *RDMA_EXPORTER, *OURS)
