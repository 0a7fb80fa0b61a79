"""C2C links between a GPU and the CPU on the same module (Grace Hopper and its successors).

State, speed and errors of each link are read in the slow tier; the traffic of all links together comes from GPM.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.collectors.gpu.device import series
from agent.sources.nvml.nvml import Device
from agent.sources.nvml.nvml_fields import Source, Wanted, counter, field_number, gauge
from agent.sources.nvml.nvml_gpm import MEBIBYTE, GpmColumn

LINK_COUNT = 170
"""NVML field with the number of C2C links of a GPU (NVML_FI_DEV_C2C_LINK_COUNT)."""

MOST_LINKS = 64
"""Maximum number of C2C links of a GPU that is plausible; Grace Hopper has 10."""

_ERRORS = (("interrupt", 231), ("replay", 232), ("replay_back_to_back", 233))
"""Kinds of errors and their NVML fields (NVML_FI_DEV_C2C_LINK_ERROR_*)."""

_TRAFFIC = (("transmit_raw", 100), ("receive_raw", 101), ("transmit", 102), ("receive", 103))
"""Traffic and its GPM metric (NVML_GPM_METRIC_C2C_*). The raw traffic includes protocol overhead."""


def link_count(device: Device) -> int:
    """Return the number of the GPU's C2C links. Raise GpuLostError or LibraryDeadError."""
    return min(field_number(device, LINK_COUNT) or 0, MOST_LINKS)


def slow_fields(device: Device) -> Iterator[Wanted]:
    """Yield state, speed and errors of every link. Raise GpuLostError or LibraryDeadError."""
    count = link_count(device)
    if count:
        yield gauge(series("gangwatch_c2c_links", device), Source(LINK_COUNT))
    for link in range(count):
        label = str(link)
        yield gauge(series("gangwatch_c2c_link_state", device, link=label), Source(171, 1, link))
        yield gauge(series("gangwatch_c2c_link_speed_bytes_per_second", device, link=label), Source(172, 1e6, link))
        yield gauge(series("gangwatch_c2c_link_low_power", device, link=label), Source(234, 1, link))
        for kind, field in _ERRORS:
            yield counter(series("gangwatch_c2c_errors_total", device, kind=kind, link=label), Source(field, 1, link))


def gpm_columns(device: Device) -> Iterator[GpmColumn]:
    """Yield the traffic of the links, if there are any. Raise GpuLostError or LibraryDeadError."""
    if not link_count(device):
        return
    for direction, metric in _TRAFFIC:
        yield GpmColumn(metric, series(f"gangwatch_c2c_{direction}_bytes_per_second", device), MEBIBYTE)
