"""Shared sequences: all ranks of one model replica process the same sequences, and are slow together if these are long.

A fault of one rank does not make other ranks compute longer: they wait. If the ranks of one replica (one data rank,
with all its stages and tensor ranks) compute longer at the same time, on several nodes, they have more work. If the
replica is on one node, the node may be faulty instead; then the job's history and the counters decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import IndexArray, JobTelemetry, Shape
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.stats.medians import median
from scheduler_feedback.detectors.straggler.alarm_case import Case
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement

ALIKE_SHARE = 0.5
"""The suspect and the other ranks of its replica have one cause if the replica's median rank slowed down by at least
this share of the suspect's slowdown."""

PRESENT_SHARE = 0.9
"""Another rank of the replica is compared only if it reported in at least this share of the suspect's windows. Values
of a rank that does not report are filled in from its peers, and show nothing about its work."""

UNEVEN = 0.03
"""Work is unequal in each step if a healthy rank varies by at least this much relative to its peers. Balanced public
traces vary by 0.4 to 1 %, long-context jobs by 11 % (ByteDance)."""

LASTING_EPISODES = 3.0
"""An episode of slowness this many times as long as the longest earlier episode is not caused by sequences, which
change in each step."""

LEAST_EPISODE = 8
"""Number of windows used for the longest earlier episode, if that was shorter."""

EXPLAINED_BY_WORK = frozenset({Cause.UNKNOWN, Cause.COMPUTE})
"""Causes, as shown by counters, that longer sequences can explain: longer sequences need more computing."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Comparison of a suspect with the other ranks of its replica."""

    ranks: tuple[int, ...]
    """Indices of the other ranks of the replica."""
    theirs: float
    """Increase of the other ranks' compute time, relative to the rest of the job, in log seconds."""
    own: float
    """Increase of the suspect's compute time, relative to the rest of the job, in log seconds."""
    nodes: int
    """Number of nodes of the replica."""
    others_of_node: float
    """Increase of compute time of ranks on the suspect's node that process other samples, in log seconds; -inf without
    such ranks."""

    @property
    def node_wide(self) -> bool:
        """Whether ranks on the suspect's node that process other samples are also slow."""
        return self.others_of_node >= ALIKE_SHARE * self.own

    @property
    def slow(self) -> bool:
        """Whether the other ranks of the replica are slow like the suspect."""
        return self.own > 0 and self.theirs >= ALIKE_SHARE * self.own

    def evidence(self) -> Evidence:
        """Return the comparison of the suspect with its replica as evidence."""
        against = f"the suspect over its baseline; value: median of {len(self.ranks)} ranks with the same samples"
        return Evidence("compute_to_past_of_its_replica", math.exp(self.theirs), math.exp(self.own), "ratio", against)


def mates(shape: Shape, rank: int) -> IndexArray:
    """Return the indices of the other ranks of the suspect's replica; None if the layout is unknown or has one
    replica."""
    replica = shape.groups.get("pipeline")
    if replica is None or not (replica != replica[rank]).any():
        return np.zeros(0, np.intp)
    alike = replica == replica[rank]
    alike[rank] = False
    return np.flatnonzero(alike)


def alike(case: Case, shape: Shape) -> Alike | None:
    """Compare a suspect with the reporting ranks of its replica, since the alarm began; None if there are no such
    ranks."""
    its_mates = mates(shape, case.rank)
    present = case.mean("present")
    its_mates = its_mates[present[its_mates] >= PRESENT_SHARE * present[case.rank]]
    if not len(its_mates):
        return None
    longer = np.log(np.maximum(case.mean("compute"), 1e-9) / np.maximum(case.baseline.reference, 1e-9))
    own = [case.rank, *its_mates.tolist()]
    others = np.ones(len(longer), np.bool_)
    others[own] = False
    rest = median(longer[others])
    theirs, its_own = median(longer[its_mates]) - rest, float(longer[case.rank]) - rest
    of_node = others & (case.where.index == case.where.index[case.rank])
    others_of_node = median(longer[of_node]) - rest if of_node.any() else -math.inf
    return Alike(tuple(its_mates.tolist()), theirs, its_own, len(np.unique(case.where.index[own])), others_of_node)


def judged_by_sequences(judgement: Judgement, case: Case, job: JobTelemetry, windows: int, longest: int) -> Judgement:
    """Refuse the judgement if the suspect's sequences explain its slowness as well as a fault does.

    windows: number of windows since the slowness began. longest: the same for the longest earlier slowness of the job.
    """
    # A stopped process is not explained by more work.
    if judgement.refusal or judgement.cause is Cause.SUSPENDED or not case.switches.same_samples:
        return judgement
    found = alike(case, job.shape)
    if found is None or not found.slow:
        return judgement
    many = f"all {len(found.ranks) + 1} ranks that process the same samples are equally slow"
    if found.nodes > 1:
        refusal = f"{many}, on {found.nodes} nodes: a fault of one member does not make others compute longer"
    elif (
        case.for_work  # compute times are already normalised by work
        or judgement.cause not in EXPLAINED_BY_WORK
        or found.node_wide
        or case.baseline.own_spread[case.rank] < UNEVEN
        or windows >= LASTING_EPISODES * max(longest, LEAST_EPISODE)
    ):
        return judgement
    else:
        refusal = f"{many}, sequence lengths are not reported, and no counter shows a fault of the node"
    return replace(judgement, refusal=refusal, about=found.ranks, evidence=(*judgement.evidence, found.evidence()))
