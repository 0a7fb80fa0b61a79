"""GPU metrics from NVML."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric, bytes_counter, seconds_counter

_GPU = ("gpu",)
_FIELDS = "nvmlDeviceGetFieldValues"
_GPM = "GPM (nvmlGpmMetricsGet)"
_MIG = ("gpu", "mig")
_PROCESS = ("gpu", "mig", "pid")


def _gauge(
    name: str, help: str, unit: str, source: str, labels: tuple[str, ...] = _GPU, compatibility: str = ""
) -> Metric:
    return Metric(f"gangwatch_gpu_{name}", "gauge", help, unit, labels, source, compatibility=compatibility)


def _counter(name: str, help: str, source: str, labels: tuple[str, ...] = _GPU, compatibility: str = "") -> Metric:
    return Metric(f"gangwatch_gpu_{name}", "counter", help, "", labels, source, compatibility=compatibility)


_IDENTITY: tuple[Metric, ...] = (
    Metric("gangwatch_gpu_info", "info", "Model, driver and identifiers of the GPU.", "",
           ("driver", "gpu", "index", "mig_mode", "minor", "model", "pci_address", "serial", "vbios"), "NVML"),
    _gauge("up", "1 if the GPU responds to the driver; 0 once it has fallen off the bus.", "", "NVML"),
    Metric("gangwatch_gpu_mig_info", "info", "A MIG instance of the GPU: its ids and its profile.", "",
           ("compute_instance", "gpu", "gpu_instance", "mig", "profile"), "nvmlDeviceGetMigDeviceHandleByIndex"),
    _gauge("numa_node", "NUMA node of the GPU.", "", "nvmlDeviceGetNumaNodeId"),
    Metric("gangwatch_gpu_peer_info", "info",
           "Another GPU of the node: their nearest common ancestor, and whether NVLink connects them.", "",
           ("ancestor", "gpu", "nvlink", "peer"), "nvmlDeviceGetTopologyCommonAncestor, nvmlDeviceGetP2PStatus"),
)  # fmt: skip

_ACTIVITY: tuple[Metric, ...] = (
    _gauge("utilization_ratio", "Share of time with a kernel running.", "ratio", "nvmlDeviceGetUtilizationRates",
           compatibility="DCGM_FI_DEV_GPU_UTIL"),
    _gauge("utilization_window_ratio",
           "Utilisation over the last four collector runs, from the samples kept by the driver.",
           "ratio", "nvmlDeviceGetSamples", ("gpu", "statistic")),
    _gauge("memory_utilization_ratio", "Share of time with device memory in use.", "ratio",
           "nvmlDeviceGetUtilizationRates", compatibility="DCGM_FI_DEV_MEM_COPY_UTIL"),
    _gauge("encoder_utilization_ratio", "Share of time with the video encoder in use.", "ratio",
           "nvmlDeviceGetEncoderUtilization", compatibility="DCGM_FI_DEV_ENC_UTIL"),
    _gauge("decoder_utilization_ratio", "Share of time with the video decoder in use.", "ratio",
           "nvmlDeviceGetDecoderUtilization", compatibility="DCGM_FI_DEV_DEC_UTIL"),
    _gauge("graphics_engine_active_ratio", "Share of time with any compute or graphics work.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    _gauge("sm_active_ratio", "Share of the streaming multiprocessors that were busy.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_SM_ACTIVE"),
    _gauge("sm_occupancy_ratio", "Resident warps divided by the maximum.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_SM_OCCUPANCY"),
    _gauge("tensor_active_ratio", "Share of time with any tensor pipe in use.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    _gauge("dram_active_ratio", "Device memory bandwidth in use divided by the maximum.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_DRAM_ACTIVE"),
    _gauge("pipe_active_ratio", "Share of time with this arithmetic pipe in use.", "ratio", _GPM, ("gpu", "pipe")),
    _gauge("pcie_transmit_bytes_per_second", "PCIe traffic from the GPU, over the last interval.",
           "bytes_per_second", _GPM,
           compatibility="DCGM_FI_PROF_PCIE_TX_BYTES"),
    _gauge("pcie_receive_bytes_per_second", "PCIe traffic to the GPU, over the last interval.",
           "bytes_per_second", _GPM,
           compatibility="DCGM_FI_PROF_PCIE_RX_BYTES"),
    _gauge("nvlink_transmit_bytes_per_second", "NVLink traffic of all links, over the last interval.",
           "bytes_per_second", _GPM, compatibility="DCGM_FI_PROF_NVLINK_TX_BYTES"),
    _gauge("nvlink_receive_bytes_per_second", "NVLink traffic of all links, over the last interval.",
           "bytes_per_second", _GPM, compatibility="DCGM_FI_PROF_NVLINK_RX_BYTES"),
)  # fmt: skip

_MEMORY: tuple[Metric, ...] = (
    _gauge("memory_total_bytes", "Total device memory.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           compatibility="DCGM_FI_DEV_FB_TOTAL"),
    _gauge("memory_used_bytes", "Device memory in use by programs.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           compatibility="DCGM_FI_DEV_FB_USED"),
    _gauge("memory_free_bytes", "Device memory that is free.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           compatibility="DCGM_FI_DEV_FB_FREE"),
    _gauge("memory_reserved_bytes", "Device memory reserved by driver and firmware.", "bytes",
           "nvmlDeviceGetMemoryInfo_v2", compatibility="DCGM_FI_DEV_FB_RESERVED"),
    _gauge("bar1_memory_total_bytes", "Size of the BAR1 window, through which the host accesses device memory.",
           "bytes",
           "nvmlDeviceGetBAR1MemoryInfo"),
    _gauge("bar1_memory_used_bytes", "Part of the BAR1 window in use.", "bytes", "nvmlDeviceGetBAR1MemoryInfo"),
)  # fmt: skip

_POWER_AND_HEAT: tuple[Metric, ...] = (
    _gauge("power_watts", "Power drawn, averaged by the driver.", "watts", f"{_FIELDS} 185, or 186",
           compatibility="DCGM_FI_DEV_POWER_USAGE"),
    _gauge("power_instant_watts", "Power drawn at this moment.", "watts", f"{_FIELDS} 186",
           compatibility="DCGM_FI_DEV_POWER_USAGE_INSTANT"),
    _gauge("module_power_watts", "Power drawn by the module, including its CPU.", "watts",
           f"{_FIELDS} 186, scope 1"),
    _gauge("power_limit_watts", "Power limit: minimum, maximum, default, enforced, requested.",
           "watts", f"{_FIELDS} 187-190, 192", ("gpu", "limit")),
    _gauge("settable_power_limit_watts", "Power limits that the scheduler may set (least, most), the one in force "
           "(current), and the one that is restored afterwards (own). Only with agent.power_limits.", "watts",
           "nvmlDeviceGetPowerManagementLimitConstraints, nvmlDeviceGetPowerManagementLimit", ("gpu", "limit")),
    _gauge("power_limit_lease_active", "1 while a power limit of the scheduler is in force; it ends 60 s after the "
           "newest order.", "", "agent"),
    Metric("gangwatch_gpu_energy_joules_total", "counter", "Energy since the driver was loaded.", "joules", _GPU,
           f"{_FIELDS} 83, or 191", 1e-3, "mJ", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    _gauge("temperature_celsius", "Temperature of the die.", "celsius", f"{_FIELDS} 308, or nvmlDeviceGetTemperatureV",
           compatibility="DCGM_FI_DEV_GPU_TEMP"),
    _gauge("memory_temperature_celsius", "Temperature of the device memory.", "celsius", f"{_FIELDS} 82",
           compatibility="DCGM_FI_DEV_MEMORY_TEMP"),
    _gauge("temperature_margin_celsius", "Degrees left until the GPU lowers its clock.", "celsius",
           "nvmlDeviceGetMarginTemperature", compatibility="DCGM_FI_DEV_GPU_TEMP_LIMIT"),
    _gauge("temperature_margin_limit_celsius", "Temperature margin at which this limit takes effect (Ada and newer).",
           "celsius",
           f"{_FIELDS} 193-196", ("gpu", "limit")),
    _gauge("temperature_threshold_celsius", "Temperature at which this limit takes effect (before Ada).", "celsius",
           "nvmlDeviceGetTemperatureThreshold", ("gpu", "threshold")),
    _gauge("fan_speed_ratio", "Fan speed divided by its maximum.", "ratio", "nvmlDeviceGetFanSpeed",
           compatibility="DCGM_FI_DEV_FAN_SPEED"),
    _gauge("graphics_clock_hertz", "Clock of the graphics engine.", "hertz", "nvmlDeviceGetClockInfo"),
    _gauge("sm_clock_hertz", "Clock of the streaming multiprocessors.", "hertz", "nvmlDeviceGetClockInfo",
           compatibility="DCGM_FI_DEV_SM_CLOCK"),
    _gauge("memory_clock_hertz", "Clock of the device memory.", "hertz", "nvmlDeviceGetClockInfo",
           compatibility="DCGM_FI_DEV_MEM_CLOCK"),
    _gauge("video_clock_hertz", "Clock of the video engines.", "hertz", "nvmlDeviceGetClockInfo",
           compatibility="DCGM_FI_DEV_VIDEO_CLOCK"),
    _gauge("max_clock_hertz", "Maximum clock of this engine.", "hertz", "nvmlDeviceGetMaxClockInfo", ("clock", "gpu")),
    _gauge("performance_state", "Performance state: 0 is the highest, 15 the lowest.", "",
           "nvmlDeviceGetPerformanceState", compatibility="DCGM_FI_DEV_PSTATE"),
    _gauge("throttle_state", "1 if the clock is throttled for this reason.", "",
           "nvmlDeviceGetCurrentClocksEventReasons", ("gpu", "reason")),
    seconds_counter("gangwatch_gpu_throttle_seconds_total", "Time with the clock throttled for this reason.",
                    ("gpu", "reason"), f"{_FIELDS} 74-79, 269-271"),
)  # fmt: skip

_BURSTS: tuple[Metric, ...] = tuple(
    metric
    for name, what, unit in (
        ("power", "power", "watts"),
        ("utilization", "utilisation", "ratio"),
        ("nvlink_transmit", "NVLink traffic sent", "bytes_per_second"),
        ("nvlink_receive", "NVLink traffic received", "bytes_per_second"),
    )
    for metric in (
        _gauge(f"burst_{name}_window_{unit}",
               f"Minimum, maximum and mean of {what} over the last interval, sampled at 10 Hz.",
               unit, f"{_FIELDS}, nvmlDeviceGetSamples", ("gpu", "statistic")),
        seconds_counter(f"gangwatch_gpu_burst_{name}_high_seconds_total",
                        f"Time with {what} above 90 % of the maximum, sampled at 10 Hz.",
                        _GPU, f"{_FIELDS}, nvmlDeviceGetSamples"),
    )
)  # fmt: skip

_ERRORS: tuple[Metric, ...] = (
    _gauge("ecc_enabled", "Whether ECC is on.", "", f"{_FIELDS} 1"),
    _gauge("ecc_pending", "Whether ECC will be on after the next reset.", "", f"{_FIELDS} 2"),
    _counter("ecc_errors_total", "Memory errors since the driver was loaded.", f"{_FIELDS} 3, 4", ("gpu", "severity")),
    _counter("ecc_lifetime_errors_total", "Memory errors since the board was made.", f"{_FIELDS} 5, 6",
             ("gpu", "severity")),
    _counter("ecc_location_errors_total", "Memory errors since the driver was loaded, by location.", f"{_FIELDS} 7-17",
             ("gpu", "location", "severity")),
    _counter("ecc_location_lifetime_errors_total", "Memory errors since the board was made, by location.",
             f"{_FIELDS} 18-28", ("gpu", "location", "severity")),
    _counter("ecc_sram_errors_total", "SRAM errors since the driver was loaded.", "nvmlDeviceGetSramEccErrorStatus",
             ("gpu", "severity")),
    _counter("ecc_sram_lifetime_errors_total", "SRAM errors since the board was made.",
             "nvmlDeviceGetSramEccErrorStatus", ("gpu", "severity")),
    _counter("ecc_sram_bucket_errors_total", "Uncorrected SRAM errors since the board was made, by unit.",
             "nvmlDeviceGetSramEccErrorStatus", ("bucket", "gpu")),
    _gauge("ecc_sram_threshold_exceeded",
           "1 if SRAM errors exceed the threshold for running NVIDIA's field diagnostic.", "",
           "nvmlDeviceGetSramEccErrorStatus"),
    _counter("retired_pages_total", "Retired pages of device memory, by cause (before Ampere).",
             f"{_FIELDS} 29, 30", ("cause", "gpu")),
    _gauge("retired_pages_pending", "1 if pages will be retired at the next reset.", "", f"{_FIELDS} 31",
           compatibility="DCGM_FI_DEV_RETIRED_PENDING"),
    _counter("remapped_rows_total", "Remapped rows of device memory, by cause.", f"{_FIELDS} 142, 143",
             ("cause", "gpu")),
    _gauge("row_remap_pending", "1 if rows will be remapped at the next reset.", "", f"{_FIELDS} 144",
           compatibility="DCGM_FI_DEV_ROW_REMAP_PENDING"),
    _gauge("row_remap_banks", "Banks of device memory by remaining spare rows.", "",
           "nvmlDeviceGetRowRemapperHistogram", ("gpu", "spare_rows")),
    _gauge("row_remap_failed", "1 if a row could not be remapped.", "", f"{_FIELDS} 145",
           compatibility="DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    _gauge("recovery_action", "1 for the action that the GPU needs to recover.", "", f"{_FIELDS} 230",
           ("action", "gpu")),
)  # fmt: skip

_PCIE: tuple[Metric, ...] = (
    _gauge("pcie_link_generation", "Current PCIe generation of the link.", "", "nvmlDeviceGetCurrPcieLinkGeneration",
           compatibility="DCGM_FI_DEV_PCIE_LINK_GEN"),
    _gauge("pcie_link_width", "Current number of PCIe lanes.", "", "nvmlDeviceGetCurrPcieLinkWidth",
           compatibility="DCGM_FI_DEV_PCIE_LINK_WIDTH"),
    _gauge("pcie_link_max_generation", "Highest PCIe generation that both GPU and slot support.", "",
           "nvmlDeviceGetMaxPcieLinkGeneration", compatibility="DCGM_FI_DEV_PCIE_MAX_LINK_GEN"),
    _gauge("pcie_link_max_width", "Highest number of PCIe lanes that both GPU and slot support.", "",
           "nvmlDeviceGetMaxPcieLinkWidth",
           compatibility="DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"),
    _gauge("pcie_link_ratio", "Current link rate divided by the maximum of GPU and slot.", "ratio",
           "nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkWidth"),
    bytes_counter("gangwatch_gpu_pcie_transmit_bytes_total", "Bytes sent by the GPU over PCIe.", _GPU,
                  f"{_GPM}, integrated; or {_FIELDS} 197"),
    bytes_counter("gangwatch_gpu_pcie_receive_bytes_total", "Bytes received by the GPU over PCIe.", _GPU,
                  f"{_GPM}, integrated; or {_FIELDS} 198"),
    _counter("pcie_replays_total", "PCIe packets retransmitted.", f"{_FIELDS} 94",
             compatibility="DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    _counter("pcie_replay_rollovers_total", "Times the PCIe replay counter overflowed and the link was retrained.",
             f"{_FIELDS} 95"),
    _counter("pcie_errors_total", "PCIe errors of this kind.", f"{_FIELDS} 169, 173-183", ("gpu", "kind")),
)  # fmt: skip

_PROCESSES: tuple[Metric, ...] = (
    _gauge("processes", "Number of processes on the GPU.", "", "nvmlDeviceGetComputeRunningProcesses_v3"),
    _gauge("processes_not_shown",
           "Processes on the GPU without series of their own. Those with the least memory are omitted first.", "",
           "nvmlDeviceGetComputeRunningProcesses_v3"),
    _gauge("process_memory_used_bytes", "Device memory of this process.", "bytes",
           "nvmlDeviceGetComputeRunningProcesses_v3", _PROCESS),
    _gauge("process_sm_utilization_ratio", "Share of the streaming multiprocessors' time used by this process.",
           "ratio", "nvmlDeviceGetProcessUtilization", _PROCESS),
    _gauge("process_memory_utilization_ratio", "Share of time in which this process accessed device memory.", "ratio",
           "nvmlDeviceGetProcessUtilization", _PROCESS),
    _gauge("process_encoder_utilization_ratio", "Share of the video encoder's time used by this process.", "ratio",
           "nvmlDeviceGetProcessUtilization", _PROCESS),
    _gauge("process_decoder_utilization_ratio", "Share of the video decoder's time used by this process.", "ratio",
           "nvmlDeviceGetProcessUtilization", _PROCESS),
)  # fmt: skip

_INSTANCES: tuple[Metric, ...] = (
    _gauge("mig_memory_total_bytes", "Total device memory of the instance.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           _MIG),
    _gauge("mig_memory_used_bytes", "Device memory in use in the instance.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           _MIG),
    _gauge("mig_memory_free_bytes", "Free device memory of the instance.", "bytes",
           "nvmlDeviceGetMemoryInfo_v2", _MIG),
    _gauge("mig_graphics_engine_active_ratio", "Share of time with any work in the instance.", "ratio", _GPM, _MIG),
    _gauge("mig_sm_active_ratio", "Share of the instance's multiprocessors that were busy.", "ratio", _GPM, _MIG),
    _gauge("mig_sm_occupancy_ratio", "Resident warps divided by the instance's maximum.", "ratio", _GPM,
           _MIG),
    _gauge("mig_tensor_active_ratio", "Share of time with any tensor pipe of the instance in use.", "ratio", _GPM,
           _MIG),
    _gauge("mig_dram_active_ratio", "Memory bandwidth in use divided by the instance's maximum.", "ratio",
           _GPM, _MIG),
    _gauge("mig_pipe_active_ratio", "Share of time with this arithmetic pipe of the instance in use.", "ratio", _GPM,
           ("gpu", "mig", "pipe")),
)  # fmt: skip

GPU: tuple[Metric, ...] = (
    *_IDENTITY,
    *_ACTIVITY,
    *_MEMORY,
    *_POWER_AND_HEAT,
    *_BURSTS,
    *_ERRORS,
    *_PCIE,
    *_PROCESSES,
    *_INSTANCES,
)
