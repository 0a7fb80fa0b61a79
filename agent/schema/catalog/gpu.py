"""GPUs, as NVML tells of them."""

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
    Metric("gangwatch_gpu_info", "info", "What the GPU is, and what it is called where.", "",
           ("driver", "gpu", "index", "mig_mode", "minor", "model", "pci_address", "serial", "vbios"), "NVML"),
    _gauge("up", "Whether the driver gives the GPU and it answers; 0 once it has fallen off the bus.", "", "NVML"),
    Metric("gangwatch_gpu_mig_info", "info", "A MIG instance of the GPU: its ids and its profile.", "",
           ("compute_instance", "gpu", "gpu_instance", "mig", "profile"), "nvmlDeviceGetMigDeviceHandleByIndex"),
    _gauge("numa_node", "NUMA node that the GPU hangs on.", "", "nvmlDeviceGetNumaNodeId"),
    Metric("gangwatch_gpu_peer_info", "info",
           "Another GPU of the node: the nearest thing that both hang on, and whether NVLink joins them.", "",
           ("ancestor", "gpu", "nvlink", "peer"), "nvmlDeviceGetTopologyCommonAncestor, nvmlDeviceGetP2PStatus"),
)  # fmt: skip

_ACTIVITY: tuple[Metric, ...] = (
    _gauge("utilization_ratio", "Share of time with a kernel running.", "ratio", "nvmlDeviceGetUtilizationRates",
           compatibility="DCGM_FI_DEV_GPU_UTIL"),
    _gauge("utilization_window_ratio", "Utilisation over the last four runs, from the samples that the driver keeps.",
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
    _gauge("sm_occupancy_ratio", "Resident warps over the most there can be.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_SM_OCCUPANCY"),
    _gauge("tensor_active_ratio", "Share of time with any tensor pipe in use.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    _gauge("dram_active_ratio", "Device memory's bandwidth in use over the most there can be.", "ratio", _GPM,
           compatibility="DCGM_FI_PROF_DRAM_ACTIVE"),
    _gauge("pipe_active_ratio", "Share of time with this arithmetic pipe in use.", "ratio", _GPM, ("gpu", "pipe")),
    _gauge("pcie_transmit_bytes_per_second", "PCIe traffic from the GPU, over the newest interval.", "bytes", _GPM,
           compatibility="DCGM_FI_PROF_PCIE_TX_BYTES"),
    _gauge("pcie_receive_bytes_per_second", "PCIe traffic to the GPU, over the newest interval.", "bytes", _GPM,
           compatibility="DCGM_FI_PROF_PCIE_RX_BYTES"),
    _gauge("nvlink_transmit_bytes_per_second", "NVLink traffic of all links, over the newest interval.", "bytes",
           _GPM, compatibility="DCGM_FI_PROF_NVLINK_TX_BYTES"),
    _gauge("nvlink_receive_bytes_per_second", "NVLink traffic of all links, over the newest interval.", "bytes",
           _GPM, compatibility="DCGM_FI_PROF_NVLINK_RX_BYTES"),
)  # fmt: skip

_MEMORY: tuple[Metric, ...] = (
    _gauge("memory_total_bytes", "Device memory.", "bytes", "nvmlDeviceGetMemoryInfo_v2"),
    _gauge("memory_used_bytes", "Device memory in use by programs.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           compatibility="DCGM_FI_DEV_FB_USED"),
    _gauge("memory_free_bytes", "Device memory that is free.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           compatibility="DCGM_FI_DEV_FB_FREE"),
    _gauge("memory_reserved_bytes", "Device memory that driver and firmware keep.", "bytes",
           "nvmlDeviceGetMemoryInfo_v2", compatibility="DCGM_FI_DEV_FB_RESERVED"),
    _gauge("bar1_memory_total_bytes", "Window through which the host reaches device memory.", "bytes",
           "nvmlDeviceGetBAR1MemoryInfo"),
    _gauge("bar1_memory_used_bytes", "The window's part that is in use.", "bytes", "nvmlDeviceGetBAR1MemoryInfo"),
)  # fmt: skip

_POWER_AND_HEAT: tuple[Metric, ...] = (
    _gauge("power_watts", "Power drawn, as the driver averages it.", "watts", f"{_FIELDS} 185, or 186",
           compatibility="DCGM_FI_DEV_POWER_USAGE"),
    _gauge("power_instant_watts", "Power drawn at this moment.", "watts", f"{_FIELDS} 186",
           compatibility="DCGM_FI_DEV_POWER_USAGE_INSTANT"),
    _gauge("module_power_watts", "Power drawn by the module, its processor included.", "watts",
           f"{_FIELDS} 186, scope 1"),
    _gauge("power_limit_watts", "Limit of power: least and most that can be set, as delivered, in force, asked for.",
           "watts", f"{_FIELDS} 187-190, 192", ("gpu", "limit")),
    Metric("gangwatch_gpu_energy_joules_total", "counter", "Energy since the driver was loaded.", "joules", _GPU,
           f"{_FIELDS} 83, or 191", 1e-3, "mJ", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    _gauge("temperature_celsius", "Temperature of the die.", "celsius", f"{_FIELDS} 308, or nvmlDeviceGetTemperatureV",
           compatibility="DCGM_FI_DEV_GPU_TEMP"),
    _gauge("memory_temperature_celsius", "Temperature of the device memory.", "celsius", f"{_FIELDS} 82",
           compatibility="DCGM_FI_DEV_MEMORY_TEMP"),
    _gauge("temperature_margin_celsius", "Degrees left until the clock is held down.", "celsius",
           "nvmlDeviceGetMarginTemperature", compatibility="DCGM_FI_DEV_GPU_TEMP_LIMIT"),
    _gauge("temperature_margin_limit_celsius", "Margin at which this limit comes (Ada and newer).", "celsius",
           f"{_FIELDS} 193-196", ("gpu", "limit")),
    _gauge("temperature_threshold_celsius", "Temperature at which this limit comes (before Ada).", "celsius",
           "nvmlDeviceGetTemperatureThreshold", ("gpu", "threshold")),
    _gauge("fan_speed_ratio", "Speed of the fan over its most.", "ratio", "nvmlDeviceGetFanSpeed",
           compatibility="DCGM_FI_DEV_FAN_SPEED"),
    _gauge("graphics_clock_hertz", "Clock of the graphics engine.", "hertz", "nvmlDeviceGetClockInfo"),
    _gauge("sm_clock_hertz", "Clock of the streaming multiprocessors.", "hertz", "nvmlDeviceGetClockInfo",
           compatibility="DCGM_FI_DEV_SM_CLOCK"),
    _gauge("memory_clock_hertz", "Clock of the device memory.", "hertz", "nvmlDeviceGetClockInfo",
           compatibility="DCGM_FI_DEV_MEM_CLOCK"),
    _gauge("video_clock_hertz", "Clock of the video engines.", "hertz", "nvmlDeviceGetClockInfo",
           compatibility="DCGM_FI_DEV_VIDEO_CLOCK"),
    _gauge("max_clock_hertz", "Highest clock of this engine.", "hertz", "nvmlDeviceGetMaxClockInfo", ("clock", "gpu")),
    _gauge("performance_state", "Performance state: 0 is the highest, 15 the lowest.", "",
           "nvmlDeviceGetPerformanceState", compatibility="DCGM_FI_DEV_PSTATE"),
    _gauge("throttle_state", "Whether the clock is held down for this reason.", "",
           "nvmlDeviceGetCurrentClocksEventReasons", ("gpu", "reason")),
    seconds_counter("gangwatch_gpu_throttle_seconds_total", "Time with the clock held down for this reason.",
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
        _gauge(f"burst_{name}_window_{unit}", f"Extremes and mean of {what} at 10 Hz over the newest interval.",
               unit.removesuffix("_per_second"), f"{_FIELDS}, nvmlDeviceGetSamples", ("gpu", "statistic")),
        seconds_counter(f"gangwatch_gpu_burst_{name}_high_seconds_total",
                        f"Time with {what} above nine tenths of the most there can be, sampled at 10 Hz.",
                        _GPU, f"{_FIELDS}, nvmlDeviceGetSamples"),
    )
)  # fmt: skip

_ERRORS: tuple[Metric, ...] = (
    _gauge("ecc_enabled", "Whether ECC is on.", "", f"{_FIELDS} 1"),
    _gauge("ecc_pending", "Whether ECC will be on after the next reset.", "", f"{_FIELDS} 2"),
    _counter("ecc_errors_total", "Memory errors since the driver was loaded.", f"{_FIELDS} 3, 4", ("gpu", "severity")),
    _counter("ecc_lifetime_errors_total", "Memory errors since the board was made.", f"{_FIELDS} 5, 6",
             ("gpu", "severity")),
    _counter("ecc_location_errors_total", "Memory errors since the driver was loaded, by where.", f"{_FIELDS} 7-17",
             ("gpu", "location", "severity")),
    _counter("ecc_location_lifetime_errors_total", "Memory errors since the board was made, by where.",
             f"{_FIELDS} 18-28", ("gpu", "location", "severity")),
    _counter("ecc_sram_errors_total", "SRAM errors since the driver was loaded.", "nvmlDeviceGetSramEccErrorStatus",
             ("gpu", "severity")),
    _counter("ecc_sram_lifetime_errors_total", "SRAM errors since the board was made.",
             "nvmlDeviceGetSramEccErrorStatus", ("gpu", "severity")),
    _counter("ecc_sram_bucket_errors_total", "Uncorrected SRAM errors since the board was made, by unit.",
             "nvmlDeviceGetSramEccErrorStatus", ("bucket", "gpu")),
    _gauge("ecc_sram_threshold_exceeded", "Whether SRAM errors call for NVIDIA's field diagnostic.", "",
           "nvmlDeviceGetSramEccErrorStatus"),
    _counter("retired_pages_total", "Pages of device memory that were retired, by cause (before Ampere).",
             f"{_FIELDS} 29, 30", ("cause", "gpu")),
    _gauge("retired_pages_pending", "Whether pages wait for a reset to be retired.", "", f"{_FIELDS} 31"),
    _counter("remapped_rows_total", "Rows of device memory that were remapped, by cause.", f"{_FIELDS} 142, 143",
             ("cause", "gpu")),
    _gauge("row_remap_pending", "Whether rows wait for a reset to be remapped.", "", f"{_FIELDS} 144"),
    _gauge("row_remap_banks", "Banks of device memory by how many of their spare rows are left.", "",
           "nvmlDeviceGetRowRemapperHistogram", ("gpu", "spare_rows")),
    _gauge("row_remap_failed", "Whether a row could not be remapped.", "", f"{_FIELDS} 145",
           compatibility="DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    _gauge("recovery_action", "1 for what the GPU needs in order to recover.", "", f"{_FIELDS} 230",
           ("action", "gpu")),
)  # fmt: skip

_PCIE: tuple[Metric, ...] = (
    _gauge("pcie_link_generation", "PCIe generation that the link runs at.", "", "nvmlDeviceGetCurrPcieLinkGeneration",
           compatibility="DCGM_FI_DEV_PCIE_LINK_GEN"),
    _gauge("pcie_link_width", "PCIe lanes in use.", "", "nvmlDeviceGetCurrPcieLinkWidth",
           compatibility="DCGM_FI_DEV_PCIE_LINK_WIDTH"),
    _gauge("pcie_link_max_generation", "PCIe generation that GPU and slot can.", "",
           "nvmlDeviceGetMaxPcieLinkGeneration", compatibility="DCGM_FI_DEV_PCIE_MAX_LINK_GEN"),
    _gauge("pcie_link_max_width", "PCIe lanes that GPU and slot have.", "", "nvmlDeviceGetMaxPcieLinkWidth",
           compatibility="DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"),
    _gauge("pcie_link_ratio", "The link's rate over the most that GPU and slot can.", "ratio",
           "nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkWidth"),
    bytes_counter("gangwatch_gpu_pcie_transmit_bytes_total", "Bytes sent by the GPU over PCIe.", _GPU,
                  f"{_GPM}, integrated; or {_FIELDS} 197"),
    bytes_counter("gangwatch_gpu_pcie_receive_bytes_total", "Bytes received by the GPU over PCIe.", _GPU,
                  f"{_GPM}, integrated; or {_FIELDS} 198"),
    _counter("pcie_replays_total", "PCIe packets sent again.", f"{_FIELDS} 94",
             compatibility="DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    _counter("pcie_replay_rollovers_total", "Times that PCIe gave up repeating and trained the link anew.",
             f"{_FIELDS} 95"),
    _counter("pcie_errors_total", "PCIe errors of this kind.", f"{_FIELDS} 169, 173-183", ("gpu", "kind")),
)  # fmt: skip

_PROCESSES: tuple[Metric, ...] = (
    _gauge("processes", "Processes on the GPU.", "", "nvmlDeviceGetComputeRunningProcesses_v3"),
    _gauge("processes_not_shown", "Processes on the GPU that have no series, those of least memory.", "",
           "nvmlDeviceGetComputeRunningProcesses_v3"),
    _gauge("process_memory_used_bytes", "Device memory of this process.", "bytes",
           "nvmlDeviceGetComputeRunningProcesses_v3", _PROCESS),
    _gauge("process_sm_utilization_ratio", "This process's own share of the streaming multiprocessors' time.",
           "ratio", "nvmlDeviceGetProcessUtilization", _PROCESS),
    _gauge("process_memory_utilization_ratio", "This process's own share of device memory's time.", "ratio",
           "nvmlDeviceGetProcessUtilization", _PROCESS),
    _gauge("process_encoder_utilization_ratio", "This process's own share of the video encoder's time.", "ratio",
           "nvmlDeviceGetProcessUtilization", _PROCESS),
    _gauge("process_decoder_utilization_ratio", "This process's own share of the video decoder's time.", "ratio",
           "nvmlDeviceGetProcessUtilization", _PROCESS),
)  # fmt: skip

_INSTANCES: tuple[Metric, ...] = (
    _gauge("mig_memory_total_bytes", "Device memory of the instance.", "bytes", "nvmlDeviceGetMemoryInfo_v2", _MIG),
    _gauge("mig_memory_used_bytes", "Device memory in use in the instance.", "bytes", "nvmlDeviceGetMemoryInfo_v2",
           _MIG),
    _gauge("mig_memory_free_bytes", "Device memory that is free in the instance.", "bytes",
           "nvmlDeviceGetMemoryInfo_v2", _MIG),
    _gauge("mig_graphics_engine_active_ratio", "Share of time with any work in the instance.", "ratio", _GPM, _MIG),
    _gauge("mig_sm_active_ratio", "Share of the instance's multiprocessors that were busy.", "ratio", _GPM, _MIG),
    _gauge("mig_sm_occupancy_ratio", "Resident warps over the most there can be in the instance.", "ratio", _GPM,
           _MIG),
    _gauge("mig_tensor_active_ratio", "Share of time with any tensor pipe of the instance in use.", "ratio", _GPM,
           _MIG),
    _gauge("mig_dram_active_ratio", "Memory bandwidth in use over the most there can be in the instance.", "ratio",
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
