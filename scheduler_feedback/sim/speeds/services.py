"""Services of a simulation: jobs with a latency objective, whose load changes, and which report their latency.

A service answers random requests, as an M/M/1 queue (Kleinrock, "Queueing Systems", 1975): with the load r, as a part
of what it can answer alone, and the speed s beside its guests, 95 % of the requests are answered within
ln(20) S / (s - r), where S is the mean time to answer one request alone. The controller measures the same
(``controller/reports/latencies.py``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from scheduler_feedback.core.events import Event
from scheduler_feedback.core.telemetry.steps.latency_reports import WINDOW_NS, LatencyReports
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.occurrence import Occurrence

QUANTILE = 0.95
"""Share of the requests that must be answered in time."""

LEAST_SPARE = 0.01
"""Lower bound of s - r: an overloaded service answers slowly, and its queue does not grow without end."""

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a service over time, as a part of what it can answer alone: a daily course, noise and surges."""

    low: float
    """Least load of the daily course."""
    high: float
    """Largest load of the daily course."""
    peak_seconds: float
    """Time of the day at which the load is largest."""
    noise: float
    """Standard deviation around the course."""
    surges: tuple[tuple[float, float, float], ...] = ()
    """(begin in seconds, duration in seconds, additional load) of each surge."""

    def at(self, seconds: float, noise: random.Random) -> float:
        """Return the load at this time after the begin of the simulation."""
        course = (1 + math.cos(2 * math.pi * (seconds - self.peak_seconds) / DAY_SECONDS)) / 2
        surge = sum(more for begin, lasts, more in self.surges if begin <= seconds < begin + lasts)
        return max(self.low + (self.high - self.low) * course + noise.gauss(0, self.noise) + surge, 0.0)


def latency_seconds(request_seconds: float, load: float, speed: float) -> float:
    """Return the time in which 95 % of the requests are answered, in seconds. request_seconds: mean time of one."""
    return -math.log(1 - QUANTILE) * request_seconds / max(speed - load, LEAST_SPARE)


@dataclass(slots=True)
class Services:
    """Loads and latencies of all services of one simulation. Call `begin` once, before the simulation runs."""

    loads: Mapping[str, Load]
    """Load of each service, by job id."""
    request_seconds: float
    """Mean time to answer one request alone, in seconds."""
    until_seconds: float
    """Time after which nothing is measured, in seconds from the first submission."""
    seed: int = 0
    """Seed of the noise."""
    reports: bool = True
    """Whether the measured latency is reported. If not, the latency without any load is reported, once."""
    windows: int = 0
    """Number of measured windows of all services."""
    minutes: int = 0
    """Number of minutes in which a service ran."""
    broken: int = 0
    """Number of these in which the latency exceeded its objective in a window of ten seconds."""
    guest_seconds: float = 0.0
    """Work of guests on the slots of services, in seconds of running alone at full speed."""
    _noise: dict[str, random.Random] = field(default_factory=dict)
    _latest: LatencyReports = field(default_factory=LatencyReports)
    _worst: dict[str, float] = field(default_factory=dict)

    def begin(self, engine: Engine) -> None:
        """Schedule the first window."""
        self._noise = {name: random.Random(f"{self.seed} {name}") for name in self.loads}
        engine.later(Occurrence(engine.first_ns + WINDOW_NS, self._window))

    def _window(self, engine: Engine, now_ns: int) -> Iterator[Event]:
        seconds = (now_ns - engine.first_ns) / 1e9
        for name, load in self.loads.items():
            level = load.at(seconds, self._noise[name])
            gang = engine.gangs.get(name)
            if gang is None or gang.stopping:
                self._worst.pop(name, None)
                continue
            job = engine.state.jobs[name]
            partners = engine.machines.partners(gang)
            self.guest_seconds += sum(one.speed for one in partners.values() if not one.warm_ns) * WINDOW_NS / 1e9
            latency = latency_seconds(self.request_seconds, level, gang.beside)
            self._count(name, latency, job.spec.latency_objective_seconds, seconds)
            if self._latest.due(job, tuple(sorted(partners)), now_ns):
                shown = latency if self.reports else latency_seconds(self.request_seconds, 0.0, 1.0)
                busy = min(level / gang.beside, 1.0) if self.reports else 0.0
                if (report := self._latest.report(job, shown, busy, now_ns)) is not None:
                    yield report
        if seconds < self.until_seconds:
            engine.later(Occurrence(now_ns + WINDOW_NS, self._window))

    def _count(self, name: str, latency: float, objective: float, seconds: float) -> None:
        """Count the window, and the minute if it is the minute's last one."""
        self.windows += 1
        self._worst[name] = max(self._worst.get(name, 0.0), latency)
        if round(seconds) % 60 == 0:
            self.minutes += 1
            self.broken += self._worst.pop(name) > objective

    @property
    def kept(self) -> float:
        """Share of the minutes in which the objective was kept in every window; 1 without any minute."""
        return 1 - self.broken / self.minutes if self.minutes else 1.0
