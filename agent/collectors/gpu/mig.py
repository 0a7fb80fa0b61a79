"""Collector of the MIG instances of one GPU: memory and profiling counters.

The driver reports no utilisation for a GPU with MIG on, nor for its instances. GPM reports the activity of each
instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref

import pynvml

from agent.collectors.gpu.device import DeviceCollector, Part, SingleCall, series
from agent.collectors.gpu.gpu import PERCENT, PIPES
from agent.sources.nvml.nvml import Device, Instance, Query
from agent.sources.nvml.nvml_gpm import Gpm, GpmColumn


def _memory(device: Device, instance: Instance) -> SingleCall:
    memory = pynvml.c_nvmlMemory_v2_t(version=pynvml.nvmlMemory_v2)
    return SingleCall(
        Query(device, "nvmlDeviceGetMemoryInfo_v2", byref(memory), handle=instance.handle),
        lambda: (memory.total, memory.used, memory.free),
        [
            series(f"gangwatch_gpu_mig_memory_{what}_bytes", device, mig=instance.uuid)
            for what in ("total", "used", "free")
        ],
    )


def _profiling(device: Device, instance: Instance) -> list[GpmColumn]:
    mig = instance.uuid
    return [
        GpmColumn(
            pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
            series("gangwatch_gpu_mig_graphics_engine_active_ratio", device, mig=mig),
            PERCENT,
        ),
        GpmColumn(
            pynvml.NVML_GPM_METRIC_SM_UTIL, series("gangwatch_gpu_mig_sm_active_ratio", device, mig=mig), PERCENT
        ),
        GpmColumn(
            pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
            series("gangwatch_gpu_mig_sm_occupancy_ratio", device, mig=mig),
            PERCENT,
        ),
        GpmColumn(
            pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            series("gangwatch_gpu_mig_tensor_active_ratio", device, mig=mig),
            PERCENT,
        ),
        GpmColumn(
            pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, series("gangwatch_gpu_mig_dram_active_ratio", device, mig=mig), PERCENT
        ),
        *(
            GpmColumn(metric, series("gangwatch_gpu_mig_pipe_active_ratio", device, mig=mig, pipe=pipe), PERCENT)
            for pipe, metric in PIPES
        ),
    ]


def mig_parts(device: Device) -> Iterator[Part]:
    """Yield the parts (driver calls with their series) of all MIG instances. Raise GpuLostError or LibraryDeadError."""
    for instance in device.instances:
        yield _memory(device, instance)
        yield Gpm(device, _profiling(device, instance), instance.gpu_instance)


def mig_collector(device: Device, interval_seconds: float, phase: float) -> DeviceCollector:
    return DeviceCollector(f"gpu-mig/{device.pci_address}", device, mig_parts, interval_seconds, phase)
