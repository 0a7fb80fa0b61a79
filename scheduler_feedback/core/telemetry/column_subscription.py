"""Subscription: which columns a controller asks of agents. What detectors look at (FEATURES), and no more.

A node of eight GPUs has 5,000 columns; of these the features take 1,300, most of them links and kinds of errors that a
feature sums up anyway. Agents sum them before they send: 380 columns are left, and a frame fits in 4 kB.
"""

from __future__ import annotations

from agent.schema.catalog import BY_NAME
from scheduler_feedback.core.telemetry.counter_features import PLACE
from scheduler_feedback.core.telemetry.gang_attempts import CONSUMED
from scheduler_feedback.core.telemetry.occurrences import ANSWERS, LINK_DOWNED, PORT_STATE
from scheduler_feedback.core.telemetry.process_states import METRIC as PROCESS_STATE
from scheduler_feedback.core.telemetry.telemetry import FEATURES

RELATIONS = ("gangwatch_gpu_owner_info", "gangwatch_gpu_info", "gangwatch_topology_rail_info", PLACE)
"""Whose a GPU is, at which PCI address it stands, which NIC stands beside it, and where a rank stands in its job: what
counting.py goes by."""

OCCURRENCES = (ANSWERS, PORT_STATE, LINK_DOWNED)
"""Whether a GPU answers and a port is up, and how often it went down: what occurrences.py tells where a record was
lost. Carriers of interfaces are not asked for, nor recovery actions, of which there is a series for each GPU and
action: a frame would no longer fit."""

PRESSURE = "gangwatch_host_pressure_waiting_seconds_total"
"""What the fleet keeps of every node: time in which tasks waited for processor, memory, disks."""

_KEPT = {"gpu": ("gpu",), "nic": ("device",), "host": (), "rank": ("attempt", "gang", "rank")}
"""Labels that single out whose a feature is, by ``Feature.of``."""


def _wanted() -> tuple[str, ...]:
    kept: dict[str, set[str]] = {}
    for feature in FEATURES:
        for name in feature.metrics:
            kept.setdefault(name, set()).update(_KEPT[feature.of], (label for label, _ in feature.labels))
    patterns = {name: _pattern(name, labels) for name, labels in kept.items()}
    for name in (*CONSUMED, PROCESS_STATE, PRESSURE, *RELATIONS, *OCCURRENCES):
        patterns[name] = name
    return tuple(sorted(patterns.values()))


def _pattern(name: str, kept: set[str]) -> str:
    """How the metric is asked for: a counter with labels that no feature tells apart is summed over these."""
    metric = BY_NAME[name]
    if metric.kind != "counter" or set(metric.labels) <= kept:
        return name
    return f"{name}({';'.join(sorted(kept))})"


WANTED = _wanted()
"""Of a frame's columns, those that the controller asks for: names, and sums by labels. Records always come."""
