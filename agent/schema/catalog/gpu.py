"""GPUs, as NVML tells of them."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_GPU = ("gpu",)

GPU: tuple[Metric, ...] = (
    Metric(
        "gangwatch_gpu_info",
        "info",
        "Model, address and driver of the GPU.",
        "",
        ("driver", "gpu", "model", "pci_address"),
        "NVML",
    ),
    Metric("gangwatch_gpu_utilization_ratio", "gauge", "Share of time with a kernel running.", "ratio", _GPU,
           "nvmlDeviceGetUtilizationRates", compatibility="DCGM_FI_DEV_GPU_UTIL"),
    Metric("gangwatch_gpu_memory_utilization_ratio", "gauge", "Share of time with device memory in use.", "ratio", _GPU,
           "nvmlDeviceGetUtilizationRates", compatibility="DCGM_FI_DEV_MEM_COPY_UTIL"),
    Metric("gangwatch_gpu_memory_total_bytes", "gauge", "Device memory.", "bytes", _GPU, "nvmlDeviceGetMemoryInfo"),
    Metric("gangwatch_gpu_memory_used_bytes", "gauge", "Device memory in use.", "bytes", _GPU,
           "nvmlDeviceGetMemoryInfo", compatibility="DCGM_FI_DEV_FB_USED"),
    Metric("gangwatch_gpu_power_watts", "gauge", "Power drawn, as the driver averages it.", "watts", _GPU,
           "nvmlDeviceGetPowerUsage", compatibility="DCGM_FI_DEV_POWER_USAGE"),
    Metric("gangwatch_gpu_energy_joules_total", "counter", "Energy since the driver was loaded.", "joules", _GPU,
           "nvmlDeviceGetTotalEnergyConsumption", 1e-3, "mJ", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    Metric("gangwatch_gpu_temperature_celsius", "gauge", "Temperature of the die.", "celsius", _GPU,
           "nvmlDeviceGetTemperature", compatibility="DCGM_FI_DEV_GPU_TEMP"),
    Metric("gangwatch_gpu_sm_clock_hertz", "gauge", "Clock of the streaming multiprocessors.", "hertz", _GPU,
           "nvmlDeviceGetClockInfo", compatibility="DCGM_FI_DEV_SM_CLOCK"),
    Metric("gangwatch_gpu_memory_clock_hertz", "gauge", "Clock of the device memory.", "hertz", _GPU,
           "nvmlDeviceGetClockInfo", compatibility="DCGM_FI_DEV_MEM_CLOCK"),
    Metric("gangwatch_gpu_throttle_state", "gauge", "Whether the clock is held down for this reason.", "",
           ("gpu", "reason"), "nvmlDeviceGetCurrentClocksEventReasons"),
)  # fmt: skip
