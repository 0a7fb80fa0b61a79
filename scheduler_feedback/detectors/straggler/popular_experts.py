"""Popular experts: tests whether a slow rank computes an expert to which the router sends more tokens.

Only for jobs that report no tokens: with them, compute times are normalised by the work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.stats.group_intersection import SLOW_SHARE
from scheduler_feedback.detectors.steps.places import LEAST_PEERS
from scheduler_feedback.detectors.straggler.alarm_case import Case, times_its_usual
from scheduler_feedback.detectors.straggler.alarm_checks import OWN_PERIOD_HITS
from scheduler_feedback.detectors.straggler.gang_state import GangState
from scheduler_feedback.detectors.straggler.rotating_slowness import NODE_WINDOWS
from scheduler_feedback.detectors.workload.attempt_history import OFFSET_STEPS

POPULAR_WINDOWS = OFFSET_STEPS + NODE_WINDOWS
"""In a job with experts that does not report tokens, a rank is accused only after at least this many windows: an expert
may be popular for a hundred windows, and two dozen more show that this has not ended. With a hundred, 3 of 26 healthy
jobs were accused (``python -m benchmarks.traces --classes hot-expert``, seeds 37000 to 37025)."""

SAME_EXPERT = 0.5
"""A popular expert explains the slowness of a rank if the other ranks that compute this expert slowed down by at least
this share of it: they route other tokens by the same rule."""

MOST_POPULAR = 5 / 3
"""Largest ratio by which a popular expert slows its rank down. Frameworks that limit the tokens of an expert allow up
to twice the mean (GShard and Switch Transformer: capacity factors of 1 to 2), and expert layers take at most about two
thirds of a rank's compute time."""

LEAST_GROUPS = 16
"""A popular expert is excluded if at least this many ranks with the same expert in other groups are not slower. All
groups use one router, and read samples of one data set."""


def may_be_popular(watched: GangState, case: Case, shape: Shape) -> bool:
    """Return whether the rank may compute a popular expert, whose tokens are not reported.

    Popularity ends, is bounded, moves from expert to expert, and is the same in all groups. So it does not explain
    these ranks: one that has been slow for POPULAR_WINDOWS windows (twice as many if other ranks were slow before), one
    that is slower by more than MOST_POPULAR for NODE_WINDOWS windows, one that is slow again and again while no other
    rank ever was, and one whose expert is not slow in many other groups.
    """
    spells = watched.spells[case.rank]
    windows = spells[-1].windows
    if case.for_work or not has_experts(shape) or is_whole_node(case) or routes_alike(case, shape):
        return False
    if windows >= NODE_WINDOWS and times_its_usual(case) >= MOST_POPULAR:
        return False
    if longest_of_others(watched, case):
        return windows < 2 * POPULAR_WINDOWS
    return windows < POPULAR_WINDOWS and len(spells) < OWN_PERIOD_HITS


def same_expert_is_slow(case: Case, shape: Shape) -> bool:
    """Return whether the ranks with the same expert and pipeline stage on other nodes slowed down like the suspect."""
    if not has_experts(shape):
        return False
    same, others = _elsewhere(case, shape)
    if not same.any() or not others.any():
        return False
    longer = np.log(np.maximum(case.mean("compute"), 1e-9) / np.maximum(case.baseline.reference, 1e-9))
    usual = float(np.median(longer[others]))
    own = float(longer[case.rank]) - usual
    return own > 0 and float(np.median(longer[same])) - usual >= SAME_EXPERT * own


def routes_alike(case: Case, shape: Shape) -> bool:
    """Return whether many ranks with the same expert in other groups exclude that it is popular."""
    same, others = _elsewhere(case, shape)
    return int(same.sum()) >= LEAST_GROUPS and bool(others.any()) and not same_expert_is_slow(case, shape)


def _elsewhere(case: Case, shape: Shape) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which ranks of the suspect's stage on other nodes have its expert, and which have others: two bool [n]."""
    experts, rank = shape.coordinate("expert"), case.rank
    there = (case.where.role == case.where.role[rank]) & (case.where.index != case.where.index[rank])
    return there & (experts == experts[rank]), there & (experts != experts[rank])


def longest_of_others(watched: GangState, case: Case) -> int:
    """Return the windows of the longest spell of a rank that is not slow now. The first rank does not count: what it
    logs and saves for all slows no other rank."""
    over = (spells for rank, spells in watched.spells.items() if rank and rank not in case.alarmed | {case.rank})
    return max((spell.windows for spells in over for spell in spells), default=0)


def is_whole_node(case: Case) -> bool:
    """Return whether all ranks of the node are alarmed, and only these. They compute several experts, of which not all
    are popular."""
    node = case.where.index == case.where.index[case.rank]
    return int(node.sum()) >= LEAST_PEERS and set(np.flatnonzero(node).tolist()) == set(case.alarmed)


def has_slow_node(case: Case) -> bool:
    """Return whether nearly all ranks of the node are alarmed, whatever ranks of other nodes do. Then what the ranks of
    a node share may be slow, such as its data loader."""
    node = case.where.index == case.where.index[case.rank]
    slow = sum(bool(node[rank]) for rank in case.alarmed)
    return int(node.sum()) >= LEAST_PEERS and slow >= SLOW_SHARE * int(node.sum())


def has_experts(shape: Shape) -> bool:
    """Return whether the ranks compute different experts."""
    experts = shape.coordinate("expert")
    return bool(len(experts)) and int(experts.max()) > int(experts.min())
