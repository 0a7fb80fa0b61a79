"""Short spells: tests whether the same rank is slow again and again, and no other rank ever is.

The spells of an intermittent fault may be too short to be certain, each on its own. Work of healthy ranks is short,
too. But it is periodic, or it slows all ranks of a node, or the first rank, or one rank after the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Case
from scheduler_feedback.detectors.straggler.alarm_checks import OWN_PERIOD_HITS
from scheduler_feedback.detectors.straggler.cusum import LEAST_HITS
from scheduler_feedback.detectors.straggler.gang_state import GangState
from scheduler_feedback.detectors.straggler.rotating_slowness import LEAST_WINDOWS

LEAST_SLOW = LEAST_WINDOWS
"""The runs of a rank must have at least this many slow windows together: as many as one spell needs to be certain."""

SHORT_GAP = 1
"""A run of slow windows continues over this many windows that are not slow."""

PERIOD_SLACK = 2
"""Runs are periodic if their distances differ by at most this many windows from multiples of the shortest one."""


def is_slow_again(watched: GangState, case: Case) -> bool:
    """Return whether the rank had several runs of slow windows at irregular times, and no other rank had one.

    A run has at least LEAST_HITS slow windows, and ends before the next one. Runs of the first rank do not count: it
    logs and saves for all. Neither do runs of other ranks far below those of the suspect.
    """
    history = np.array([judged.sigmas for judged in watched.history])
    if case.rank == 0 or len(history) < LEAST_SLOW:
        return False
    own = history[:, case.rank]
    found = runs(own >= HIT_SIGMAS)
    if len(found) < OWN_PERIOD_HITS or sum(length for _, length in found) < LEAST_SLOW:
        return False
    usual = float(np.median(own[own >= HIT_SIGMAS]))
    return not is_periodic([begin for begin, _ in found]) and not _others_have_runs(history, case.rank, usual)


def _others_have_runs(history: FloatArray, rank: int, sigmas: float) -> bool:
    """Return whether another rank except the first one had a run, at half the excess of the suspect or more.

    history: float64 [windows, ranks], excesses in standard deviations. sigmas: the suspect's median in slow windows.
    """
    slow = history >= max(HIT_SIGMAS, sigmas / 2)
    slow[:, [0, rank]] = False
    often = np.flatnonzero(slow.sum(axis=0) >= LEAST_HITS)
    return any(runs(slow[:, other]) for other in often.tolist())


def runs(slow: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the index of the first window and the number of slow windows of each run. slow: bool [windows]."""
    found: list[tuple[int, int]] = []
    last = -1
    for index in np.flatnonzero(slow).tolist():
        if found and index - last <= 1 + SHORT_GAP:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((index, 1))
        last = index
    return [run for run in found if run[1] >= LEAST_HITS]


def is_periodic(begins: list[int]) -> bool:
    """Return whether runs begin at a fixed distance from each other. A run may be missing."""
    apart = np.diff(begins)
    period = int(apart.min())
    off = np.minimum(apart % period, -apart % period)
    return period > 2 * PERIOD_SLACK and bool((off <= PERIOD_SLACK).all())
