"""Uplinks that simulated gangs share: how fast each gang is while others communicate, too.

A gang repeats steps: it computes, then it communicates. Within a rack it has the network of its nodes for itself. Over
several racks it also uses the uplink of each. It loads each of them with the traffic of one node at full rate, because
the ring of an all-reduce crosses the border of a rack once in each direction if its ranks follow the order of the
network. While the gangs that communicate load an uplink more than it carries, they share it: equally, or strictly by
their network class.

Speeds come from simulating the phases of all gangs that affect each other, over some minutes from random phases: with
equal sharing, two gangs in step stay so, while priorities move them apart. There is no formula for that.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

STEPS = 40
"""Number of steps of the slowest gang that are simulated; the first quarter does not count."""

JITTER = 0.02
"""Standard deviation of the time to compute, relative to its mean. Real steps vary by some per cent."""

LATE = 0.1
"""A gang that is late for its window by up to this part of the period communicates at once."""

TINY = 1e-9
"""Least remaining work of a phase, in seconds."""


class Profile(NamedTuple):
    """One step of a gang that is alone on its links."""

    compute_seconds: float
    """Time of the step without communication, in seconds."""
    network_seconds: float
    """Time of the step that the gang communicates, in seconds."""

    @property
    def share(self) -> float:
        """Share of the time for which the gang communicates."""
        return self.network_seconds / (self.compute_seconds + self.network_seconds)


class Flow(NamedTuple):
    """A gang that uses uplinks."""

    profile: Profile
    """One step of the gang."""
    loads: tuple[tuple[str, float], ...]
    """Traffic on each uplink while it communicates, in nodes' traffic at full rate, by the name of the uplink."""
    network_class: int = 0
    """Priority of its traffic; the highest goes first."""


class Window(NamedTuple):
    """Times at which a gang may begin to communicate."""

    offset_seconds: float
    """First time, in seconds."""
    period_seconds: float
    """Time between two of them, in seconds."""

    def begins(self, at: float) -> float:
        """Return when the gang begins to communicate if it is ready at this time: at once if it is a little late."""
        late = (at - self.offset_seconds) % self.period_seconds
        return at if late <= LATE * self.period_seconds else at + self.period_seconds - late


@dataclass(frozen=True, slots=True)
class SharedLinks:
    """Uplinks of the simulated cluster."""

    profiles: Mapping[tuple[str, int], Profile] = field(default_factory=dict)
    """Steps by workload and number of ranks. Other gangs do not communicate."""
    uplink_nodes: float = 2.0
    """Nodes' traffic at full rate that the uplink of a rack carries."""
    seed: int = 0
    """Seed of the phases."""

    def profile(self, workload: str, ranks: int) -> Profile | None:
        """Return one step of such a gang; None if it does not communicate."""
        found = self.profiles.get((workload, ranks))
        return found if found is not None and found.network_seconds > 0 else None

    def speeds(self, flows: Sequence[Flow]) -> tuple[float, ...]:
        """Return the speed of each gang, relative to being alone on links without a limit."""
        return link_speeds(tuple(flows), self.uplink_nodes, self.seed)


def loads(nodes: Iterable[str], rack_of: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    """Return the traffic of a gang on the uplink of each rack; none if all of its nodes are in one rack."""
    racks = sorted({rack_of[name] for name in nodes})
    return tuple((rack, 1.0) for rack in racks) if len(racks) > 1 else ()


def rates(flows: Sequence[Flow], active: Sequence[int], capacity: float) -> dict[int, float]:
    """Return the rate of each communicating gang: 1 is its full rate.

    Higher classes take what they can use. Within a class, gangs on a full uplink get equal rates, and what one of them
    cannot use on another uplink is for the others (max-min fairness, by progressive filling).
    """
    left: dict[str, float] = {}
    for number in active:
        for link, _ in flows[number].loads:
            left[link] = capacity
    found: dict[int, float] = {}
    for network_class in sorted({flows[number].network_class for number in active}, reverse=True):
        rising = {number: 0.0 for number in active if flows[number].network_class == network_class}
        while rising:
            demand: dict[str, float] = {}
            for number in rising:
                for link, load in flows[number].loads:
                    demand[link] = demand.get(link, 0.0) + load
            step = min(
                min((left[link] / load for link, load in demand.items()), default=1.0),
                min(1.0 - rate for rate in rising.values()),
            )
            for number in rising:
                rising[number] += step
            for link, load in demand.items():
                left[link] = max(left[link] - step * load, 0.0)
            full = {link for link in demand if left[link] <= TINY}
            for number in list(rising):
                if rising[number] >= 1 - TINY or any(link in full for link, _ in flows[number].loads):
                    found[number] = rising.pop(number)
    return found


@lru_cache(maxsize=1 << 14)
def link_speeds(
    flows: tuple[Flow, ...], capacity: float, seed: int, windows: tuple[Window | None, ...] = ()
) -> tuple[float, ...]:
    """Return the speed of each gang beside the others, relative to its step alone on links without a limit.

    windows: times at which each gang may begin to communicate; a gang without one, or all if empty: at any time.
    """
    chance = random.Random(f"links {seed} {flows}")
    longest = max(sum(flow.profile) for flow in flows)
    end, counts_from = STEPS * longest, STEPS * longest / 4
    computes = [True] * len(flows)
    remaining = []
    for number, flow in enumerate(flows):
        at = chance.uniform(0, sum(flow.profile))
        computes[number] = at < flow.profile.compute_seconds
        remaining.append(flow.profile.compute_seconds - at if computes[number] else sum(flow.profile) - at)
    done = [0.0] * len(flows)  # seconds of undisturbed steps
    computing = [1.0] * len(flows)  # part of the time until the gang communicates for which it computes
    now, rate = 0.0, {}
    changed = True
    while now < end:
        if changed:
            active = [number for number in range(len(flows)) if not computes[number]]
            rate = rates(flows, active, capacity)
        pace = [computing[number] if computes[number] else rate[number] for number in range(len(flows))]
        step = min([left / speed for left, speed in zip(remaining, pace, strict=True) if speed > TINY] + [end - now])
        counted = max(min(now + step, end) - max(now, counts_from), 0.0)
        now += step
        changed = False
        for number, flow in enumerate(flows):
            remaining[number] -= step * pace[number]
            done[number] += counted * pace[number]
            if remaining[number] <= TINY:
                computes[number] = not computes[number]
                part = flow.profile.compute_seconds if computes[number] else flow.profile.network_seconds
                remaining[number] = part * max(chance.gauss(1.0, JITTER), 0.1) if computes[number] else part
                window = windows[number] if windows else None
                if computes[number] and window is not None and remaining[number] > TINY:
                    computing[number] = remaining[number] / (window.begins(now + remaining[number]) - now)
                changed = True
    return tuple(min(one / (end - counts_from), 1.0) for one in done)
