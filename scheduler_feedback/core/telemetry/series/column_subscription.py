"""Columns (series in a frame) that a controller requests from agents: only those that detectors use (FEATURES).

A node of eight GPUs has 5,000 columns, and the features use 1,300 of them. Most of these 1,300 are links and types of
errors that a feature adds up. Agents add them up before they send, so 380 columns are left and a frame fits in 4 kB.
"""

from __future__ import annotations

from agent.schema.catalog import BY_NAME
from scheduler_feedback.core.telemetry.device_memory import MEMORY, OWNER
from scheduler_feedback.core.telemetry.process_states import METRIC as PROCESS_STATE
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED
from scheduler_feedback.core.telemetry.series.counter_features import PLACE
from scheduler_feedback.core.telemetry.series.occurrences import ANSWERS, LINK_DOWNED, PORT_STATE
from scheduler_feedback.core.telemetry.telemetry import FEATURES

RELATIONS = ("gangwatch_gpu_owner_info", "gangwatch_gpu_info", "gangwatch_topology_rail_info", PLACE)
"""Metrics that contain the owner and PCI address of each GPU, the NIC next to it, and the coordinates of each rank.
They are input of counter_features.py."""

OCCURRENCES = (ANSWERS, PORT_STATE, LINK_DOWNED)
"""Metrics that show whether a GPU responds, whether a port is up, and how often the port's link went down.
occurrences.py uses these series when a record was lost. The controller does not request carriers of interfaces or
recovery actions (one series per GPU and action), because a frame would then no longer fit in 4 kB."""

PRESSURE = "gangwatch_host_pressure_waiting_seconds_total"
"""Metric of the time for which tasks of a node waited for processor, memory or disks."""

DEVICE_MEMORY = (MEMORY, OWNER)
"""Metrics of the device memory of each process on a GPU, and of its rank."""

_KEPT = {"gpu": ("gpu",), "nic": ("device",), "host": (), "rank": ("attempt", "gang", "rank")}
"""Labels that identify the owner of a feature, for each type of owner (``Feature.of``)."""


def _wanted() -> tuple[str, ...]:
    kept: dict[str, set[str]] = {}
    for feature in FEATURES:
        for name in feature.metrics:
            kept.setdefault(name, set()).update(_KEPT[feature.of], (label for label, _ in feature.labels))
    patterns = {name: _pattern(name, labels) for name, labels in kept.items()}
    for name in (*CONSUMED, PROCESS_STATE, PRESSURE, *RELATIONS, *OCCURRENCES, *DEVICE_MEMORY):
        patterns[name] = name
    return tuple(sorted(patterns.values()))


def _pattern(name: str, kept: set[str]) -> str:
    """Return the pattern that requests the metric's columns with the labels in `kept`. Agents add up a counter over all
    other labels."""
    metric = BY_NAME[name]
    if metric.kind != "counter" or set(metric.labels) <= kept:
        return name
    return f"{name}({';'.join(sorted(kept))})"


WANTED = _wanted()
"""Patterns of the columns that the controller requests: names of metrics, and sums of counters by labels. Agents always
send records, without a request."""
