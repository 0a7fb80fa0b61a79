"""Samples: ranks of one model replica are given the same sequences, and are slow together where those are long.

A member's own fault does not make others compute longer: they wait. Ranks of one replica (one data rank; all its stages
and tensor ranks) that come to compute longer all at once, on several nodes, were given more to do. Where the replica
stands on one node the node may be at fault as well: there the job's own history and the counters decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import IndexArray, JobTelemetry, Shape
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.stats.medians import median
from scheduler_feedback.detectors.straggler.alarm_checks import Case, Judgement

ALIKE_SHARE = 0.5
"""Where the median of those given the same samples has half of the suspect's excess, more than half of it is theirs."""

HEARD_SHARE = 0.9
"""Who is not heard is counted as its peers are: that says nothing of what it was given. Of so many of the windows in
which the suspect was heard it must have been, too."""

UNEVEN = 0.03
"""Ranks that vary by so much about their peers in health are not given the same every step: public balanced traces
vary by 0.4 to 1 % (ByteDance AR), long-context jobs by eleven (notes of the same traces)."""

LASTING_EPISODES = 3.0
LEAST_EPISODE = 8
"""Sequences are drawn anew each step: what lasts three times as long as any episode of the job before, of eight windows
at least, is no draw."""

UNTOLD = frozenset({Cause.UNKNOWN, Cause.COMPUTE})
"""Longer sequences need more computing: a cause that says no more says nothing against them."""


@dataclass(frozen=True, slots=True)
class Alike:
    """How the ranks given the suspect's samples stand: whom, by how much longer they compute than before (as the rest
    of the job does, in log seconds), and the suspect itself. nodes: how many they and the suspect stand on. beside: the
    same of the node's ranks that are given other samples, -inf without any."""

    ranks: tuple[int, ...]
    theirs: float
    own: float
    nodes: int
    beside: float

    @property
    def node_wide(self) -> bool:
        """Whether those on its node that are given other samples are slow as well."""
        return self.beside >= ALIKE_SHARE * self.own

    @property
    def slow(self) -> bool:
        """Whether they are slow as the suspect is."""
        return self.own > 0 and self.theirs >= ALIKE_SHARE * self.own

    def evidence(self) -> Evidence:
        """As a person can check it."""
        against = f"the suspect; median of the {len(self.ranks)} that are given the same samples, each over its past"
        return Evidence("compute_to_past_of_its_replica", math.exp(self.theirs), math.exp(self.own), "ratio", against)


def mates(shape: Shape, rank: int) -> IndexArray:
    """Indices of the other ranks of the suspect's replica; none where the layout is not known or there is but one."""
    replica = shape.groups.get("pipeline")
    if replica is None or not (replica != replica[rank]).any():
        return np.zeros(0, np.intp)
    alike = replica == replica[rank]
    alike[rank] = False
    return np.flatnonzero(alike)


def alike(case: Case, shape: Shape) -> Alike | None:
    """Compare a suspect with those of its mates that are heard, over the alarm's interval; None without any."""
    its_mates = mates(shape, case.rank)
    heard = case.mean("present")
    its_mates = its_mates[heard[its_mates] >= HEARD_SHARE * heard[case.rank]]
    if not len(its_mates):
        return None
    longer = np.log(np.maximum(case.mean("compute"), 1e-9) / np.maximum(case.baseline.reference, 1e-9))
    own = [case.rank, *its_mates.tolist()]
    others = np.ones(len(longer), np.bool_)
    others[own] = False
    rest = median(longer[others])
    theirs, its_own = median(longer[its_mates]) - rest, float(longer[case.rank]) - rest
    of_node = others & (case.where.index == case.where.index[case.rank])
    beside = median(longer[of_node]) - rest if of_node.any() else -math.inf
    return Alike(tuple(its_mates.tolist()), theirs, its_own, len(np.unique(case.where.index[own])), beside)


def judged_by_samples(judgement: Judgement, case: Case, job: JobTelemetry, windows: int, longest: int) -> Judgement:
    """The judgement, refused where what was given to the suspect explains it as well as its own fault would.

    windows: how long the alarm's episode has lasted; longest: the longest of the job's episodes before.
    """
    # What was seen stopped was not given more.
    if judgement.refusal or judgement.cause is Cause.SUSPENDED or not case.switches.same_samples:
        return judgement
    found = alike(case, job.shape)
    if found is None or not found.slow:
        return judgement
    many = f"all {len(found.ranks) + 1} ranks that are given the same samples are slow alike"
    if found.nodes > 1:
        refusal = f"{many}, on {found.nodes} nodes: no member's fault makes others compute longer"
    elif (
        case.for_work  # what they were given is told, and taken into account
        or judgement.cause not in UNTOLD
        or found.node_wide
        or case.baseline.own_spread[case.rank] < UNEVEN
        or windows >= LASTING_EPISODES * max(longest, LEAST_EPISODE)
    ):
        return judgement
    else:
        refusal = f"{many}, their lengths are not told, and no counter says that it is the node"
    return replace(judgement, refusal=refusal, about=found.ranks, evidence=(*judgement.evidence, found.evidence()))
