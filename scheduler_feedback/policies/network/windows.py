"""Windows of gangs on shared uplinks: when their steps begin, so that their communication phases interleave (CASSINI).

Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI'24. Each gang gets a
window of time for its communication, which repeats: a gang that is early waits. The windows repeat with a common
period, or a whole fraction of it, so that they never drift onto each other. A gang is stretched to that, which costs
speed. So windows are used only for groups of gangs whose sum of speeds is larger with them. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler_feedback.policies.network.link_speeds import JITTER, Flow, Window, expected_speeds

GRID = 48
"""Number of positions in the common period that are tried for the start of a window."""

GUARDS = (8, 6, 4, 3, 2, 1, 0)
"""Possible lengths of the pauses between windows, in parts of the grid."""

SLACK = 2 * JITTER
"""Part of a step by which the common period is longer than the longest step, so that few steps are late, and a gang
that is late can catch up."""

LEAST_SHARE = 0.02
"""A gang that communicates for a smaller share of its steps gets no window."""

MOST_STRETCH = 1.2
"""A gang whose step would be stretched more than this gets no window: a reporter waits for a quarter of a step at most,
and each wait also has to make up for jitter."""

MOST_REPEATS = 12
"""Maximum number of steps of a gang in the common period."""

MOST_PERIODS = 6
"""Maximum number of common periods that are tried for a group."""

LEAST_GAIN = 0.02
"""Least gain in the sum of the speeds for which windows are used: 2 % of one gang's speed."""


def better_windows(flows: tuple[Flow, ...], capacity: float) -> tuple[Window | None, ...]:
    """Return the window of each gang; () if the sum of the gangs' speeds is not larger with windows.

    capacity: nodes' traffic at full rate that an uplink carries.
    """
    plain = expected_speeds(flows, capacity)
    if min(plain, default=1.0) > 1 - SLACK:  # nothing to gain
        return ()
    best: tuple[Window | None, ...] = ()
    most = sum(plain) + LEAST_GAIN
    for seconds in common_periods(flows):
        found = windows(flows, capacity, seconds)
        speeds = sum(expected_speeds(flows, capacity, found))
        if speeds > most:
            best, most = found, speeds
    return best


def common_periods(flows: Sequence[Flow]) -> list[float]:
    """Return possible common periods in seconds, the best first: that of each gang which at least one other gang of its
    uplinks fits. At most MOST_PERIODS, with the most traffic of the gangs that fit.
    """
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    for flow in flows:
        common = (1 + SLACK) * sum(flow.profile)
        fitting = [number for number, other in enumerate(flows) if _repeats(other, common)]
        links = [link for number in fitting for link, _ in flows[number].loads]
        if len(set(links)) < len(links):
            traffic = sum(_traffic(flows[number]) for number in fitting)
            key = tuple(fitting)
            found[key] = max(found.get(key, (0.0, 0.0)), (traffic, common))
    best = sorted(found.values(), reverse=True)[:MOST_PERIODS]
    return list(dict.fromkeys(common for _, common in best))


def _repeats(flow: Flow, common: float) -> int:
    """Return how often a gang communicates in the common period; 0 if it hardly communicates or does not fit."""
    step = sum(flow.profile)
    if flow.profile.share < LEAST_SHARE:
        return 0
    repeats = min(math.floor(common / ((1 + SLACK) * step) + 1e-9), MOST_REPEATS)
    return repeats if repeats and common / repeats <= MOST_STRETCH * step else 0


def windows(flows: Sequence[Flow], capacity: float, common: float) -> tuple[Window | None, ...]:
    """Return the window of each gang. The communication of different gangs overlaps as little as possible.

    common: the common period in seconds. None: the gang hardly communicates, or its step fits no fraction of the common
    period, and it is not delayed. Of the placements with the least traffic above the capacity, the one with the longest
    pauses between windows is chosen: times to compute vary, and a gang that is late would otherwise make the next one
    late.
    """
    heavy = [number for number, flow in enumerate(flows) if _repeats(flow, common)]
    if not heavy:
        return (None,) * len(flows)
    placed = [_placed(flows, heavy, common, capacity, guard) for guard in GUARDS]
    least = min(above for above, _ in placed)
    return next(found for above, found in placed if above <= least + 1e-9)


def _placed(
    flows: Sequence[Flow], heavy: Sequence[int], common: float, capacity: float, guard: int
) -> tuple[float, tuple[Window | None, ...]]:
    """Return the traffic above the capacity, and the window of each gang.

    common: the common period in seconds. guard: parts of the grid that each window is longer than its communication,
    half of them before it. The gang with most traffic chooses first; each takes the first position with the least
    traffic above the capacity of its uplinks.
    """
    found: list[Window | None] = [None] * len(flows)
    used: dict[str, list[float]] = {}
    total = 0.0
    for number in sorted(heavy, key=lambda one: (-_traffic(flows[one]), one)):
        flow = flows[number]
        repeats = _repeats(flow, common)
        length = math.ceil(flow.profile.network_seconds / common * GRID) + guard
        best: tuple[float, int] | None = None
        for start in range(max(GRID // repeats, 1)):
            cells = _cells(start, length, repeats)
            above = 0.0
            for link, load in flow.loads:
                busy = used.setdefault(link, [0.0] * GRID)
                above += sum(max(busy[cell] + load - capacity, 0.0) for cell in cells)
            if best is None or above < best[0]:
                best = (above, start)
        assert best is not None, "there is at least one position"
        for link, load in flow.loads:
            for cell in _cells(best[1], length, repeats):
                used[link][cell] += load
        total += best[0]
        period = common / repeats
        begins = (best[1] + guard / 2) / GRID * common - flow.profile.compute_seconds
        found[number] = Window(begins % period, period)
    return total, tuple(found)


def _traffic(flow: Flow) -> float:
    return flow.profile.share * sum(load for _, load in flow.loads)


def _cells(start: int, length: int, repeats: int) -> list[int]:
    """Return the parts of the common period in which the gang communicates."""
    return [(start + turn * GRID // repeats + one) % GRID for turn in range(repeats) for one in range(length)]
