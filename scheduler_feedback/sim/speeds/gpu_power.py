"""True power and speeds of simulated GPUs at their power limits.

A gang is as fast as its GPU with the lowest limit. Limits and power between two measured ones are interpolated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.events import NodeSeen, PowerSeen
from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.policies.power.power_speeds import DEFAULT_CURVE, default_speed
from scheduler_feedback.sim.studies.power_caps import PowerPoint

COLUMNS = ("workload", "limit_watts", "speed", "watts")
"""Columns of a file of curves, as benchmarks/survey/data/zeus-power.csv has them."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Limits and curves of all GPUs."""

    idle_watts: float
    """Power of a GPU without a job."""
    least_watts: float
    """Lowest limit that an agent may set."""
    most_watts: float
    """Highest limit that an agent may set."""
    curves: Mapping[str, Sequence[PowerPoint]] = field(default_factory=dict)
    """What a job does at each measured limit, by workload, ascending by limit. Other workloads have the default curve,
    and draw as much as their limit."""

    def at(self, workload: str, limit_watts: float) -> PowerPoint:
        """Return the speed, relative to the highest limit of the curve, and the power of a job at a limit."""
        points = self.curves.get(workload)
        if not points:
            share = max(limit_watts / self.most_watts, DEFAULT_CURVE[0][0] / 4)
            return PowerPoint(limit_watts, default_speed(share), limit_watts)
        if limit_watts <= points[0].limit_watts:
            return points[0]
        for low, high in pairwise(points):
            if limit_watts <= high.limit_watts:
                part = (limit_watts - low.limit_watts) / (high.limit_watts - low.limit_watts)
                speed = low.speed + part * (high.speed - low.speed)
                return PowerPoint(limit_watts, speed, low.watts + part * (high.watts - low.watts))
        return points[-1]


def read_curves(path: Path) -> dict[str, tuple[PowerPoint, ...]]:
    """Return the curves in a CSV file with the columns COLUMNS, by workload. Raises TraceError."""
    found: dict[str, list[PowerPoint]] = {}
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise TraceError(f"{path}: no column {missing[0]}; it needs {', '.join(COLUMNS)}")
            for row in rows:
                try:
                    point = PowerPoint(*(float(row[name]) for name in COLUMNS[1:]))
                except (TypeError, ValueError):
                    raise TraceError(f"{path}, line {rows.line_num}: a limit, speed or power is no number") from None
                if not all(0 < value < 1e9 for value in point):
                    raise TraceError(f"{path}, line {rows.line_num}: expected numbers above 0")
                found.setdefault(row["workload"], []).append(point)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from None
    return {name: tuple(sorted(points)) for name, points in found.items()}


@dataclass(slots=True)
class PowerMeter:
    """GPUs of the simulated cluster: their limits, what they draw, and the energy so far."""

    model: GpuModel
    nodes: Sequence[NodeSeen]
    parked: bool
    """Whether agents have set the lowest limits at first, because a power budget is in force."""
    watts: float = field(init=False)
    """What all GPUs draw now."""
    joules: float = 0.0
    """Energy of all GPUs so far."""
    most_watts: float = 0.0
    """Highest power of all GPUs together."""
    _limits: dict[str, list[float]] = field(init=False)
    _drawn: dict[Slot, dict[str, float]] = field(default_factory=dict)
    _since_ns: int | None = None

    def __post_init__(self) -> None:
        first = self.model.least_watts if self.parked else self.model.most_watts
        self._limits = {node.node: [first] * node.slots for node in self.nodes}
        self.watts = self.model.idle_watts * sum(node.slots for node in self.nodes)

    def pass_time(self, now_ns: int) -> None:
        """Add the energy since the last change."""
        if self._since_ns is not None:
            self.joules += self.watts * (now_ns - self._since_ns) / 1e9
            self.most_watts = max(self.most_watts, self.watts)
        self._since_ns = now_ns

    def draw(self, job_id: str, workload: str, placement: Iterable[Slot], now_ns: int) -> float:
        """Count what a gang draws from now on, and return its speed relative to the highest limit."""
        self.pass_time(now_ns)
        speed = 1.0
        for slot in placement:
            point = self.model.at(workload, self._limits[slot.node][slot.slot])
            speed = min(speed, point.speed)
            jobs = self._drawn.setdefault(slot, {})
            before = max(jobs.values(), default=self.model.idle_watts)
            jobs[job_id] = point.watts
            self.watts += max(jobs.values()) - before
        return speed

    def leave(self, job_id: str, placement: Iterable[Slot], now_ns: int) -> None:
        """Count a gang no longer."""
        self.pass_time(now_ns)
        for slot in placement:
            jobs = self._drawn.get(slot, {})
            if job_id in jobs:
                before = max(jobs.values())
                del jobs[job_id]
                self.watts += max(jobs.values(), default=self.model.idle_watts) - before

    def set(self, node: str, limits: Sequence[float]) -> bool:
        """Set the limits of a node's GPUs; return whether one has changed."""
        if self._limits[node] == list(limits):
            return False
        self._limits[node] = list(limits)
        return True

    def report(self, node: str) -> PowerSeen:
        """Return what the agent of a node reports."""
        one = self.model
        slots = (SlotPower(one.least_watts, one.most_watts, limit, one.idle_watts) for limit in self._limits[node])
        return PowerSeen(node, tuple(slots))
