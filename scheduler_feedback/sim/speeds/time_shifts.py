"""Time shifts of simulated gangs on shared uplinks: their communication phases interleave (CASSINI).

Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI'24. Each gang gets a
window of time for its communication, which repeats: a gang that is early waits for its window. The windows repeat with
a common period, or a whole fraction of it, so that they never drift onto each other. A gang is stretched to that, which
costs speed. So shifts are used only for groups of gangs whose sum of speeds is larger with them.

This is a study of what shifts are worth: no backend can delay the steps of a running gang.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler_feedback.sim.speeds.shared_links import JITTER, Flow, SharedLinks, Window, link_speeds

GRID = 48
"""Number of positions in the common period that are tried for the start of a window."""

SLACK = JITTER
"""Part of a step by which the common period is longer than the longest step, so that a late gang can catch up."""

LEAST_SHARE = 0.02
"""A gang that communicates for a smaller share of its steps gets no window."""


class ShiftedLinks(SharedLinks):
    """Uplinks on which the phases of gangs are shifted."""

    __slots__ = ()

    def speeds(self, flows: Sequence[Flow]) -> tuple[float, ...]:
        """Return the speed of each gang, relative to being alone on links without a limit."""
        return shifted_speeds(tuple(flows), self.uplink_nodes, self.seed)


def shifted_speeds(flows: tuple[Flow, ...], capacity: float, seed: int) -> tuple[float, ...]:
    """Return the speed of each gang with time shifts if their sum is larger than without, else without."""
    plain = link_speeds(flows, capacity, seed)
    if min(plain, default=1.0) > 1 - SLACK:  # nothing to gain
        return plain
    return max(plain, link_speeds(flows, capacity, seed, windows(flows, capacity)), key=sum)


def windows(flows: Sequence[Flow], capacity: float) -> tuple[Window | None, ...]:
    """Return the window of each gang's communication: those of different gangs overlap as little as possible.

    None: the gang hardly communicates, and is not delayed. The gang with most traffic chooses first; each takes the
    position with the least traffic above the capacity of its uplinks.
    """
    found: list[Window | None] = [None] * len(flows)
    heavy = [number for number, flow in enumerate(flows) if flow.profile.share >= LEAST_SHARE]
    if not heavy:
        return tuple(found)
    common = (1 + SLACK) * max(sum(flows[number].profile) for number in heavy)
    used: dict[str, list[float]] = {}
    for number in sorted(heavy, key=lambda one: (-_traffic(flows[one]), one)):
        flow = flows[number]
        repeats = max(math.floor(common / ((1 + SLACK) * sum(flow.profile)) + 1e-9), 1)
        length = math.ceil(flow.profile.network_seconds / common * GRID)
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
        found[number] = Window(best[1] / GRID * common, common / repeats)
    return tuple(found)


def _traffic(flow: Flow) -> float:
    return flow.profile.share * sum(load for _, load in flow.loads)


def _cells(start: int, length: int, repeats: int) -> list[int]:
    """Return the parts of the common period in which the gang communicates."""
    return [(start + turn * GRID // repeats + one) % GRID for turn in range(repeats) for one in range(length)]
