"""C2C links between a GPU and the CPU on the same module (Grace Hopper and its successors).

State, speed and errors of each link are read every ten seconds. The traffic of all links together comes from GPM, the
driver's profiling counters.
"""

from __future__ import annotations

from collections.abc import Iterator

import pynvml

from agent.collectors.gpu.device import series
from agent.sources.nvml.nvml import Device
from agent.sources.nvml.nvml_fields import Source, Wanted, counter, field_number, gauge
from agent.sources.nvml.nvml_gpm import MEBIBYTE, GpmColumn

LINK_COUNT: int = pynvml.NVML_FI_DEV_C2C_LINK_COUNT

MOST_LINKS = 64
"""Maximum number of C2C links that are read. A GPU that reports more links is read as if it had this number. Grace
Hopper has 10."""

_ERRORS = (
    ("interrupt", pynvml.NVML_FI_DEV_C2C_LINK_ERROR_INTR),
    ("replay", pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY),
    ("replay_back_to_back", pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B),
)
"""Kinds of link errors, each with its NVML field."""

_TRAFFIC = (
    ("transmit_raw", pynvml.NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC),
    ("receive_raw", pynvml.NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC),
    ("transmit", pynvml.NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC),
    ("receive", pynvml.NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC),
)
"""Directions of link traffic, each with its GPM metric. Raw traffic includes the overhead of the link's protocol."""


def link_count(device: Device) -> int:
    """Return the number of the GPU's C2C links. Raise GpuLostError or LibraryDeadError."""
    return min(field_number(device, LINK_COUNT) or 0, MOST_LINKS)


def slow_fields(device: Device) -> Iterator[Wanted]:
    """Yield the NVML fields for state, speed and errors of every link. Raise GpuLostError or LibraryDeadError."""
    count = link_count(device)
    if count:
        yield gauge(series("gangwatch_c2c_links", device), Source(LINK_COUNT))
    for link in range(count):
        label = str(link)
        status, speed = pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS, pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW
        low_power = pynvml.NVML_FI_DEV_C2C_LINK_POWER_STATE
        yield gauge(series("gangwatch_c2c_link_state", device, link=label), Source(status, 1, link))
        yield gauge(series("gangwatch_c2c_link_speed_bytes_per_second", device, link=label), Source(speed, 1e6, link))
        yield gauge(series("gangwatch_c2c_link_low_power", device, link=label), Source(low_power, 1, link))
        for kind, field in _ERRORS:
            yield counter(series("gangwatch_c2c_errors_total", device, kind=kind, link=label), Source(field, 1, link))


def gpm_columns(device: Device) -> Iterator[GpmColumn]:
    """Yield the GPM metrics for the traffic of all links; nothing if there are no links.

    Raise GpuLostError or LibraryDeadError.
    """
    if not link_count(device):
        return
    for direction, metric in _TRAFFIC:
        yield GpmColumn(metric, series(f"gangwatch_c2c_{direction}_bytes_per_second", device), MEBIBYTE)
