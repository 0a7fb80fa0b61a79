"""Scale of each counter feature, and the direction in which a change indicates a fault."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURES, Float32Array


@dataclass(frozen=True, slots=True)
class _Scale:
    """Scale on which a feature's values are compared, direction of a fault, and smallest relevant deviation."""

    kind: str
    """'log' for rates of work, 'share' for values used unchanged, 'count' for errors."""
    bad: int
    """+1 if high values indicate a fault, -1 if low values do, 0 if the feature is only recorded."""
    floor: float
    """Minimum standard deviation, on the feature's scale: deviations below it are irrelevant."""


_SCALES: dict[str, _Scale] = {
    "sm_active": _Scale("share", 0, 0.02),
    "tensor_active": _Scale("log", 0, 0.03),
    "dram_active": _Scale("log", 0, 0.03),
    "sm_clock": _Scale("log", -1, 0.01),
    "power": _Scale("log", 0, 0.03),
    "temperature": _Scale("share", 1, 3.0),
    "thermal_throttle": _Scale("share", 1, 0.02),
    "power_throttle": _Scale("share", 1, 0.02),
    "memory_errors": _Scale("count", 1, 0.2),
    "nvlink_bytes": _Scale("log", -1, 0.05),
    "nvlink_errors": _Scale("count", 1, 0.2),
    "pcie_link": _Scale("share", -1, 0.05),
    "pcie_errors": _Scale("count", 1, 0.2),
    "nic_transmit_bytes": _Scale("log", -1, 0.05),
    "nic_receive_bytes": _Scale("log", -1, 0.05),
    "nic_congestion": _Scale("count", 1, 0.5),
    "nic_pause_received": _Scale("count", 1, 0.5),
    "nic_pause_sent": _Scale("count", 1, 0.5),
    "nic_physical_errors": _Scale("count", 1, 0.2),
    "nic_sequence_errors": _Scale("count", 1, 0.2),
    "cpu_waiting": _Scale("share", 1, 0.03),
    "io_waiting": _Scale("share", 1, 0.03),
    "runqueue_wait": _Scale("share", 1, 0.03),
    "processor": _Scale("log", 0, 0.05),
    "tcp_bytes": _Scale("log", 0, 0.05),
    "tcp_busy": _Scale("share", 0, 0.03),
    "transmit_queue": _Scale("share", 0, 0.03),
}
"""Scale of each feature, by name. The last number is the smallest relevant deviation: for example, clocks change in
steps of 15 MHz of 2 GHz."""

COUNT = len(FEATURES)
BAD = np.array([_SCALES[feature.name].bad for feature in FEATURES], np.float32)
FLOOR = np.array([_SCALES[feature.name].floor for feature in FEATURES], np.float32)
LOGS = np.array([_SCALES[feature.name].kind == "log" for feature in FEATURES])
COUNTS = np.array([_SCALES[feature.name].kind == "count" for feature in FEATURES])
LEAST = np.float32(1e-6)

_HUGE = np.float32(np.inf)


def on_scale(feature: int, values: Float32Array, out: Float32Array) -> None:
    """Convert one feature's values [N] to its scale, and write them into `out`. NaN remains NaN.

    The result is log(x) for rates of work, log(1 + x) for error counts, and x for shares.
    """
    if LOGS[feature]:
        np.log(np.clip(values, LEAST, _HUGE, out=out), out=out)
    elif COUNTS[feature]:
        np.clip(values, np.float32(0.0), _HUGE, out=out)
        some = np.flatnonzero(out > 0)
        if 2 * len(some) > len(out):
            np.log1p(out, out=out)
        else:
            out[some] = np.log1p(out[some])
    else:
        out[:] = values
