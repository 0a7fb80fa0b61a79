"""Shown from the start: ranks that were slower than their role in the warm-up, and whose counters show a fault.

Without a healthy past, a rank that is slower by a few per cent may have more work. Counters decide: a GPU with errors,
a degraded link, a throttled clock or a busy host is at fault, whether or not it ever was faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.steps.baseline import NODE_SHARE, Baseline, log_compute
from scheduler_feedback.detectors.steps.places import middle_of_equals
from scheduler_feedback.detectors.straggler.gang_state import GangState

LEAST_SLOWER = math.log(1.05)
"""A rank is slower than its role by at least this ratio: five per cent, as in EROICA and Guard."""

ALIKE = 0.8
"""A node is about as slow as another one if it is slower than its peers by at least this share of the other's excess
(logarithms). DEVELOPMENT VALUE: the GPUs of one model differ by less (SC 2022, section IV)."""

EVERY_WINDOWS = 10
"""Number of windows between two evaluations."""

MOST_WINDOWS = 200
"""Number of windows for which ranks are evaluated. Counters may arrive every 30 s."""

LIMITS: tuple[tuple[Cause, str, float], ...] = (
    (Cause.THERMAL, "thermal_throttle", 0.1),
    (Cause.POWER, "power_throttle", 0.1),
    (Cause.PCIE, "pcie_link", -0.2),
    (Cause.MEMORY, "memory_errors", math.log1p(5.0)),
    (Cause.NVLINK, "nvlink_errors", math.log1p(0.2)),
    (Cause.PCIE, "pcie_errors", math.log1p(0.2)),
    (Cause.CPU_CONTENTION, "cpu_waiting", 0.05),
    (Cause.STORAGE, "io_waiting", 0.05),
)
"""Least difference of a counter from the median of its peers, on the counter's scale. These are the limits of jobs
without waits (health/apart_ranks.py)."""


def cause_shown(counters: CounterStatistics, column: int) -> Cause:
    """Return the cause that the counters of a rank without a healthy past show, compared with its peers.

    UNKNOWN if they show none.
    """
    for cause, name, least in LIMITS:
        away = float(counters.peers[FEATURE[name], column])
        if (away >= least) if least > 0 else (away <= least):
            return cause
    return Cause.UNKNOWN


def learn_shown(watched: GangState, baseline: Baseline, shown: Callable[[int], Cause]) -> None:
    """Compare ranks with their role, not with their past, if they were slow in the warm-up and counters show a fault.

    All slower ranks of such a node are included: a slow NVLink or host slows several of them. A node is left out if
    many others are about as slow: their GPUs are of another model, or have more work, and their counters differ from
    those of their peers for the same reason. Ranks that stalled in a few windows are left out, too.
    shown: returns the cause that the counters of a rank (index) show.
    """
    if not baseline.final or not baseline.known or baseline.role_known or watched.counted > MOST_WINDOWS:
        return
    if watched.counted % EVERY_WINDOWS:
        return
    where = watched.where
    logs = log_compute(baseline.compute, baseline.step_seconds)
    usual = middle_of_equals(logs, where)
    excess = np.nan_to_num(logs - usual)
    slower = (excess >= LEAST_SLOWER) & (excess + baseline.in_most >= LEAST_SLOWER)
    of_node = np.zeros(len(where.names))
    np.maximum.at(of_node, where.index, excess)
    most = max(1, len(where.names) // NODE_SHARE)
    new = np.zeros(len(logs), np.bool_)
    for node in np.unique(where.index[slower]).tolist():
        if np.count_nonzero(of_node >= ALIKE * of_node[node]) > most:
            continue
        members = slower & (where.index == node)
        if any(shown(rank) is not Cause.UNKNOWN for rank in np.flatnonzero(members).tolist()):
            new |= members
    if len(np.unique(where.index[new])) > most:
        return  # the nodes differ in what their hosts do
    new &= ~baseline.from_start
    if not new.any():
        return
    reference = np.where(new, np.exp(usual), baseline.reference)
    watched.baseline = replace(baseline, from_start=baseline.from_start | new, reference=reference)
