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

MOST_GIVEN = 0.25
"""A popular expert is excluded if the other experts of its group lost at most this share of the time that its rank
gained: a router sends each token to a fixed number of experts, so that they would lose all of it."""

MOST_GAINED = 0.5
"""The same test is not used if the other experts gained more than this share: the job has other work."""

CLEAR_LOSS = 2.0
"""The same test is used only if each of the other experts would lose at least this many times its usual spread."""


def may_be_popular(watched: GangState, case: Case, shape: Shape) -> bool:
    """Return whether the rank may compute a popular expert, whose tokens are not reported.

    Popularity ends, is bounded, moves from expert to expert, and is the same in all groups. So it does not explain
    these ranks: one that has been slow for POPULAR_WINDOWS windows (twice as many if other ranks were slow before), one
    that is slower by more than MOST_POPULAR for NODE_WINDOWS windows, one that is slow again and again while no other
    rank ever was, one whose expert is not slow in many other groups, and one that takes no tokens from other experts.
    """
    spells = watched.spells[case.rank]
    windows = spells[-1].windows
    if case.for_work or not has_experts(shape) or is_whole_node(case) or is_no_expert(case, shape):
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


def is_no_expert(case: Case, shape: Shape) -> bool:
    """Return whether the other groups, or the other experts of the suspect's group, exclude a popular expert."""
    return routes_alike(case, shape) or (_takes_no_tokens(case, shape) and not same_expert_is_slow(case, shape))


def _takes_no_tokens(case: Case, shape: Shape) -> bool:
    """Return whether the other experts of the group compute as long as before: a popular expert takes their tokens."""
    group, baseline = group_of(case, shape), case.baseline
    slow = group & np.isin(np.arange(len(group)), [case.rank, *case.alarmed])
    others = group & ~slow
    if not others.any() or baseline.from_start[slow].any():
        return False
    longer = case.mean("compute") - baseline.compute
    gained, lost = float(longer[slow].sum()), -float(longer[others].sum())
    spread = float(np.median(baseline.own_spread[others] * baseline.compute[others]))
    if gained < CLEAR_LOSS * spread * int(others.sum()):
        return False
    return -MOST_GAINED * gained <= lost <= MOST_GIVEN * gained


def group_of(case: Case, shape: Shape) -> npt.NDArray[np.bool_]:
    """Return the ranks that exchange tokens with the suspect, and the suspect: bool [n]; only the suspect if unknown.

    A group has one rank for each expert. The n-th ranks of all experts, in the order of the data coordinate, are a
    group, whether an expert's ranks are neighbours or not.
    """
    experts, tensor, data = (shape.coordinate(name) for name in ("expert", "tensor", "data"))
    rank = case.rank
    found = np.zeros(len(experts), np.bool_)
    found[rank] = True
    there = np.flatnonzero((case.where.role == case.where.role[rank]) & (tensor == tensor[rank]))
    of_expert = [there[experts[there] == expert] for expert in np.unique(experts).tolist()]
    if len({len(ranks) for ranks in of_expert}) > 1 or (data[there] < 0).any():
        return found
    columns = [ranks[np.argsort(data[ranks], kind="stable")] for ranks in of_expert]
    place = int(np.flatnonzero(columns[int(np.searchsorted(np.unique(experts), experts[rank]))] == rank)[0])
    found[[ranks[place] for ranks in columns]] = True
    return found


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
