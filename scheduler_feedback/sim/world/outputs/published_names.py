"""Names of the metrics in which simulated agents publish the counters of the simulated world."""

from __future__ import annotations

from dataclasses import dataclass

TIERS = ("gpu", "nvlink", "pcie", "rdma", "host", "process", "steps")

NVLINKS = 4
"""Number of NVLinks per GPU in the frames. An H100 has 18, but detectors only use their sum."""

LANES, GENERATION = 16.0, 5.0
"""Number of lanes and PCIe generation of a healthy link. A faulty link has fewer lanes."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One series that publishes a feature of the simulated world."""

    feature: str
    metric: str
    tier: str
    labels: Labels = ()
    """Labels of the series in addition to the labels of the device."""
    share: float = 1.0
    """Factor by which the feature is multiplied to get the value of the series."""


PUBLISHED: tuple[Series, ...] = (
    Series("sm_active", "gangwatch_gpu_sm_active_ratio", "gpu"),
    Series("tensor_active", "gangwatch_gpu_tensor_active_ratio", "gpu"),
    Series("dram_active", "gangwatch_gpu_dram_active_ratio", "gpu"),
    Series("sm_clock", "gangwatch_gpu_sm_clock_hertz", "gpu"),
    Series("power", "gangwatch_gpu_power_watts", "gpu"),
    Series("temperature", "gangwatch_gpu_temperature_celsius", "gpu"),
    Series("thermal_throttle", "gangwatch_gpu_throttle_seconds_total", "gpu", (("reason", "hw_thermal"),)),
    Series("power_throttle", "gangwatch_gpu_throttle_seconds_total", "gpu", (("reason", "hw_power_brake"),)),
    Series("memory_errors", "gangwatch_gpu_ecc_errors_total", "gpu", (("severity", "corrected"),)),
    *(
        Series(feature, metric, "nvlink", (*extra, ("link", str(link))), share)
        for link in range(NVLINKS)
        for feature, metric, extra, share in (
            ("nvlink_bytes", "gangwatch_nvlink_transmit_bytes_total", (), 1.0 / NVLINKS),
            ("nvlink_errors", "gangwatch_nvlink_errors_total", (("kind", "replay"),), 1.0 if link == 0 else 0.0),
        )
    ),
    Series("pcie_link", "gangwatch_pcie_link_lanes", "pcie", share=LANES),
    Series("pcie_errors", "gangwatch_gpu_pcie_replays_total", "pcie"),
    Series("nic_transmit_bytes", "gangwatch_rdma_port_transmit_bytes_total", "rdma"),
    Series("nic_receive_bytes", "gangwatch_rdma_port_receive_bytes_total", "rdma"),
    Series("nic_congestion", "gangwatch_rdma_cnp_handled_total", "rdma"),
    Series(
        "nic_pause_received",
        "gangwatch_rdma_pause_frames_total",
        "rdma",
        (("direction", "receive"), ("priority", "3")),
    ),
    Series(
        "nic_pause_sent", "gangwatch_rdma_pause_frames_total", "rdma", (("direction", "transmit"), ("priority", "3"))
    ),
    Series("nic_physical_errors", "gangwatch_rdma_physical_symbol_errors_total", "rdma"),
    Series("nic_sequence_errors", "gangwatch_rdma_out_of_sequence_total", "rdma"),
    Series("cpu_waiting", "gangwatch_host_pressure_waiting_seconds_total", "host", (("resource", "cpu"),)),
    Series("io_waiting", "gangwatch_host_pressure_waiting_seconds_total", "host", (("resource", "io"),)),
    Series("runqueue_wait", "gangwatch_rank_runqueue_wait_seconds_total", "process"),
    Series("processor", "gangwatch_rank_cpu_seconds_total", "process"),
)
"""All series that the world's agents publish."""

WIDTHS = {"gangwatch_rdma_out_of_sequence_total": 32}
"""Width in bits of counters narrower than 64 bits: mlx5's hardware counters (mlx5_ifc.h, query_q_counter_out)."""
