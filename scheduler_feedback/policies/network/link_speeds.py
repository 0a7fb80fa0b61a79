"""Speeds of gangs that share uplinks, from simulating the phases of their steps. Pure.

A gang repeats steps: it computes, then it communicates. While the gangs that communicate load an uplink more than it
carries, they share it: equally, or strictly by their network class. The phases of all gangs that affect each other are
simulated over some minutes from random phases: with equal sharing, two gangs in step stay so, while priorities move
them apart. There is no formula for that. Simulations use these speeds as the truth, and the policy of time shifts
compares shifts with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

STEPS = 40
"""Number of steps of the slowest gang that are simulated; the first quarter does not count."""

JITTER = 0.02
"""Standard deviation of the time to compute, relative to its mean. Real steps vary by some per cent."""

LATE = 0.1
"""A gang that is late for its window by up to this part of the period begins its step at once."""

WAIT_SHARE = 0.25
"""Longest wait of a gang, as a share of its steps: each step adds that to what it may wait, up to a whole step. As in
reporters (``gangwatch/reporting/time_shift.py``)."""

RUNS = 3
"""Number of simulations, from different first phases, of an expected speed."""

TINY = 1e-9
"""Least remaining work of a phase, in seconds."""


class Chance(Protocol):
    """Source of random numbers, such as ``random.Random``."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between a and b."""
        ...

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a number of the normal distribution."""
        ...


class Sequential:
    """Always the same sequence of numbers: policies must decide the same in a replay, in every version of Python.

    The linear congruential generator of Knuth, "The Art of Computer Programming", 3.3.4 (MMIX).
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed * 0x9E3779B97F4A7C15 + 1  # neighbouring seeds begin far apart

    def uniform(self, a: float, b: float) -> float:
        """Return a number between a and b."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return a + (b - a) * (self._state >> 11) / 2**53

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a number whose distribution is nearly normal: the sum of four even ones."""
        return mu + sigma * (sum(self.uniform(-1.0, 1.0) for _ in range(4)) * math.sqrt(3 / 4))


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
    """Grid of times at which the steps of a gang begin."""

    offset_seconds: float
    """First time, in seconds."""
    period_seconds: float
    """Time between two of them, in seconds."""

    def wait(self, at: float) -> float:
        """Return how long a gang should wait that could begin a step at this time: not at all if it is a little
        late.
        """
        late = (at - self.offset_seconds) % self.period_seconds
        return 0.0 if late <= LATE * self.period_seconds else self.period_seconds - late


def distinct_links(flows: Sequence[Flow]) -> list[Flow]:
    """Return the flows without uplinks that carry the same gangs with the same loads as another one.

    Such uplinks are full at the same time, so the speeds do not depend on them: for example, gangs that use whole nodes
    meet on all rails alike.
    """
    users: dict[str, list[tuple[int, float]]] = {}
    for number, flow in enumerate(flows):
        for link, load in flow.loads:
            users.setdefault(link, []).append((number, load))
    first: dict[tuple[tuple[int, float], ...], str] = {}
    for link in sorted(users):
        first.setdefault(tuple(users[link]), link)
    kept = set(first.values())
    return [flow._replace(loads=tuple(one for one in flow.loads if one[0] in kept)) for flow in flows]


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


@lru_cache(maxsize=1 << 10)
def expected_speeds(flows: tuple[Flow, ...], capacity: float, windows: tuple[Window | None, ...] = ()) -> list[float]:
    """Return the mean speed of each gang over several first phases, always the same: see ``link_speeds``."""
    runs = [link_speeds(flows, capacity, Sequential(seed), windows) for seed in range(RUNS)]
    return [sum(speeds) / RUNS for speeds in zip(*runs, strict=True)]


def link_speeds(
    flows: tuple[Flow, ...], capacity: float, chance: Chance, windows: tuple[Window | None, ...] = (),
    took: Sequence[list[float]] = (),
) -> tuple[float, ...]:  # fmt: skip
    """Return the speed (0 to 1) of each gang beside the others, relative to its step alone on links without a limit.

    capacity: nodes' traffic at full rate that an uplink carries. chance: of the first phases and of the jitter.
    windows: times at which each gang begins its steps; a gang without one, or all if empty: at any time. took: lists to
    which the time of each communication of each gang is added, in seconds.
    """
    longest = max(sum(flow.profile) for flow in flows)
    end, counts_from = STEPS * longest, STEPS * longest / 4
    computes = [True] * len(flows)
    remaining = []
    for number, flow in enumerate(flows):
        at = chance.uniform(0, sum(flow.profile))
        computes[number] = at < flow.profile.compute_seconds
        remaining.append(flow.profile.compute_seconds - at if computes[number] else sum(flow.profile) - at)
    done = [0.0] * len(flows)  # seconds of undisturbed steps
    credit = [sum(flow.profile) for flow in flows]  # seconds that the gang may wait
    computing = [1.0] * len(flows)  # part of the time until the gang communicates for which it computes
    began = [0.0] * len(flows)  # time at which the gang began to communicate
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
                if not computes[number]:
                    began[number] = now
                elif took and began[number] > counts_from:
                    took[number].append(now - began[number])
                window = windows[number] if windows else None
                if computes[number] and window is not None and remaining[number] > TINY:
                    whole = sum(flow.profile)
                    credit[number] = min(credit[number] + WAIT_SHARE * whole, whole)
                    wait = min(window.wait(now), credit[number])
                    credit[number] -= wait
                    computing[number] = remaining[number] / (remaining[number] + wait)
                changed = True
    return tuple(min(one / (end - counts_from), 1.0) for one in done)
