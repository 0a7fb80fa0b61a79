"""Real speeds of gangs in a simulation: by workload, GPU type, ranks and placement level, as measured somewhere.

A file is a table with a header: workload, gpu_type, ranks, level (node, rack, spine or cluster: the narrowest domain
that holds the gang) and rate (work per second, in any unit of the workload). The run times of the trace are those with
the requested ranks, in the narrowest level that holds them, on the GPU type of the workload's first line.

Between two numbers of ranks, the logarithm of the rate is linear in that of the ranks; beyond the last, the rate stays,
or is that of a wider level if it was measured there and is higher. A level without lines has the rates of the next
narrower one. A workload without lines is proportional to its ranks.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.events import Event, SpeedMeasured
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.policies.speeds.learnt_speeds import LEVELS
from scheduler_feedback.sim.table import CellError, rows

NOISE = 0.03
"""Standard deviation of the logarithm of a measured speed, around the real one."""

STEP_NOISE = 0.005
"""The same for the step times of one attempt: means of at least 16 steps, each of which varies by 2 %."""

MEASURED_SECONDS = 120.0
"""Time over which the speed of an attempt is measured, after its restart."""

MOST_RATE = 1e15
"""Largest rate in a file."""

Curve = tuple[tuple[float, ...], tuple[float, ...]]
"""(Logarithms of the numbers of ranks, ascending; logarithms of the rates.)"""


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds:
    """Real speeds of the workloads of a simulation."""

    curves: dict[tuple[str, str, int], Curve] = field(default_factory=dict)
    """By workload, GPU type and placement level."""
    usual: dict[str, str] = field(default_factory=dict)
    """GPU type of the trace's run times, by workload."""

    def rate(self, workload: str, gpu_type: str, ranks: int, level: int) -> float | None:
        """Return the work per second; None if the workload has no lines for the GPU type."""
        x = math.log(ranks)
        for narrower in range(level, -1, -1):
            if (curve := self.curves.get((workload, gpu_type, narrower))) is not None:
                rate = _between(*curve, x)
                if x > curve[0][-1]:  # more ranks than a node has, for example: as fast as on several nodes, or faster
                    wider = (self.curves.get((workload, gpu_type, one)) for one in range(level + 1, len(LEVELS)))
                    rate = max([rate, *(_between(*one, x) for one in wider if one is not None)])
                return math.exp(rate)
        return None

    def speed(self, spec: JobSpec, gpu_type: str, ranks: int, level: int, narrowest: int) -> float | None:
        """Return the speed relative to the run time of the trace; None if the file does not give it.

        narrowest: the narrowest level that holds the requested ranks.
        """
        usual = self.usual.get(spec.workload)
        if usual is None:
            return None
        rate, alone = (
            self.rate(spec.workload, gpu_type, ranks, level),
            self.rate(spec.workload, usual, spec.ranks, narrowest),
        )
        return None if rate is None or alone is None else rate / alone

    def unit(self, spec: JobSpec, narrowest: int) -> float:
        """Return the work per second of the job at speed 1; its ranks if the file does not have its workload."""
        rate = self.rate(spec.workload, self.usual.get(spec.workload, ""), spec.ranks, narrowest)
        return float(spec.ranks) if rate is None else rate


def _between(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    at = bisect_left(xs, x)
    if at == len(xs):
        return ys[-1]
    if at == 0:
        return ys[0] + min(x - xs[0], 0.0)  # fewer ranks than measured: in proportion
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


def measured_speeds(lines: Iterable[tuple[str, str, int, int, float]]) -> MeasuredSpeeds:
    """Return the speeds of these (workload, GPU type, ranks, level, rate)."""
    points: dict[tuple[str, str, int], dict[float, float]] = {}
    usual: dict[str, str] = {}
    for workload, gpu_type, ranks, level, rate in lines:
        usual.setdefault(workload, gpu_type)
        points.setdefault((workload, gpu_type, level), {})[math.log(ranks)] = math.log(rate)
    return MeasuredSpeeds(
        {key: (tuple(xs := sorted(one)), tuple(one[x] for x in xs)) for key, one in points.items()}, usual
    )


def read_speeds(path: Path) -> MeasuredSpeeds:
    """Read a file of speeds. Raises TraceError with line and column if a line is invalid."""
    found: dict[tuple[str, str, int, int], float] = {}
    for row in rows(path, ("workload", "gpu_type", "ranks", "level", "rate")):
        try:
            if isinstance(row, CellError):
                raise row
            if (level := row.text("level")) not in LEVELS:
                raise row.wrong("level", f"{level[:40]!r} is unknown; use {', '.join(LEVELS)}")
            rate = row.number("rate", 0.0, MOST_RATE)
            if rate < 1 / MOST_RATE:
                raise row.wrong("rate", "must be more than 0")
            ranks = row.count("ranks", 1)
            if ranks > 1 << 20:
                raise row.wrong("ranks", f"{ranks} is more than {1 << 20}")
            key = row.text("workload"), row.text("gpu_type"), ranks, LEVELS.index(level)
            if key in found:
                raise row.wrong("ranks", "is listed twice for this workload, GPU type and level")
        except CellError as error:
            raise TraceError(f"{path}: {error}") from error
        found[key] = rate
    if not found:
        raise TraceError(f"{path}: contains no speed")
    return measured_speeds((*key, rate) for key, rate in found.items())


def reported(
    job_id: str, attempt: int, rate: float, seed: int, wait_share: float | None = None,
    step_times: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Event:  # fmt: skip
    """Return the report of an attempt's speed, with a small error.

    rate: its real work per second. wait_share: real share of its time in collectives; None if it does not report that.
    step_times: real mean interval of its steps, least time of communication, and mean delay, in seconds; 0 if it does
    not report them.
    """
    chance = random.Random(f"{seed}/speed/{job_id}/{attempt}")
    error = chance.gauss(0.0, NOISE)
    interval, network, delay = step_times
    noise = STEP_NOISE if interval else NOISE
    if wait_share is not None:
        wait_share = min(wait_share * math.exp(chance.gauss(0.0, noise)), 1.0)
    if interval:
        interval, network = interval * math.exp(chance.gauss(0.0, noise)), network * math.exp(chance.gauss(0.0, noise))
    least = network if interval else None
    speed = rate * math.exp(error)
    return SpeedMeasured(job_id, attempt, speed, MEASURED_SECONDS, "", wait_share, interval, least, delay)
