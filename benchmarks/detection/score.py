"""Scoring of claims: whether each is right, wrong or neither.

A verdict is right if it is reported between the fault's begin and shortly after its end, has a kind that fits the
fault, and names the culprit: the rank of the GPU or NIC, the node, or the aggressor. Any other accusation of hardware
or of a job is a false alarm. A verdict about the workload is a false alarm if the workload does not have this
behaviour. "Unknown" is neither right nor a false alarm.

Published rules report no kinds: a claim is right if it names the culprit. For a rule that only distinguishes
machines (Minder's), the machine suffices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from agent.schema.verdicts.kinds import ACCUSING, BLAMING, OF_OWN_JOB
from benchmarks.detection.cells import TAIL_SECONDS, TAIL_STEPS, Staged
from benchmarks.detection.claims import Claim
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.fault import DISORDERS, Fault

HEADLINE_SEVERITY = 0.10

RECENT_SECONDS, RECENT_STEPS = 120.0, 6
"""Time after a checkpoint or an evaluation in which a verdict about it is right: in seconds and in steps."""


@dataclass(slots=True)
class Truth:
    """True faults and steps of a job, recorded during the simulation.

    onset: when the fault's effect on the step first reached 10 %, or its severity if that is less; None if it never
    did. slowdown: mean of the affected steps over their healthy length. ends: ends of all steps. saved: times of
    checkpoints and evaluations. inferred: duration of an iteration that our detectors inferred before the fault, in
    seconds.
    """

    staged: Staged
    onset: float | None = None
    slowed: list[float] = field(default_factory=list)
    ends: list[FloatArray] = field(default_factory=list)
    saved: list[float] = field(default_factory=list)
    seen: float = -np.inf
    inferred: float | None = None

    def follow(self) -> None:
        """Record the steps that were simulated since the last call."""
        fault = self.staged.fault
        bar = min(HEADLINE_SEVERITY, fault.severity) * 0.9
        for block in self.staged.victim.blocks:
            if block.begin[0] < self.seen:  # numbers of steps repeat after a restart
                continue
            self.seen = float(block.end[-1])
            ratio = (block.end - block.begin) / block.without - 1.0
            during = (block.end > fault.begin) & (block.begin < fault.end)
            self.slowed += ratio[during].tolist()
            crossed = np.flatnonzero(during & (ratio >= bar))
            if self.onset is None and len(crossed):
                self.onset = max(fault.begin, float(block.begin[crossed[0]]))
            self.ends.append(block.end)
            self.saved += block.end[block.pause > 0].tolist()
            # An evaluation is recognised by steps of a third of the usual length; the world doesn't mark them.
            self.saved += block.end[block.without < 0.6 * self.staged.victim.usual].tolist()

    def healthy(self) -> float:
        """Return the mean seconds of a step before the fault, without checkpoints and evaluations."""
        ends = np.concatenate(self.ends) if self.ends else np.zeros(0)
        lengths = np.diff(ends[ends < self.staged.fault.begin])
        if not len(lengths):
            return self.staged.victim.usual
        middle = float(np.median(lengths))
        return float(lengths[np.abs(lengths - middle) < 0.3 * middle].mean())

    def steps_between(self, begin: float, end: float) -> int:
        """Return the number of steps that ended between these two times."""
        ends = np.concatenate(self.ends) if self.ends else np.zeros(0)
        return int(((ends > begin) & (ends <= end)).sum())


@dataclass(slots=True)
class Outcome:
    """Score of one method in one run.

    first: kind of the method's first claim about the fault; 'none' if it made no claim. sure: number of wrong
    accusations whose confidence was .9 or more at any time.
    """

    tp: int = 0
    fp: int = 0
    fn: int = 0
    seconds: float | None = None
    steps: int | None = None
    first: str = "none"
    cause: str = "none"
    top1: bool | None = None
    top3: bool | None = None
    confidences: list[tuple[float, bool]] = field(default_factory=list)
    false_kinds: list[str] = field(default_factory=list)
    sure: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as a dictionary for the report."""
        return {name: getattr(self, name) for name in self.__slots__}


def names_member(claim: Claim, fault: Fault, staged: Staged, coarse: bool = False) -> bool:
    """Return whether the claim names the faulty rank or node.

    coarse: whether naming the right machine is enough.
    """
    disorder, place = DISORDERS[fault.disorder], staged.victim.place
    if disorder.family == "interference":
        return claim.aggressor == fault.aggressor
    if disorder.family in ("workload", "telemetry"):
        return True
    if len(fault.ranks) > 1 and disorder.level != "node":
        return _names_some(claim, fault, staged)
    if disorder.level == "node":
        return claim.node == place.nodes[fault.ranks[0]] or claim.rank in fault.ranks
    rank = fault.ranks[0]
    if coarse and claim.rank < 0:
        return claim.node == place.nodes[rank]
    named = claim.device and claim.device.startswith((place.gpus[rank], place.nics[rank]))
    return claim.rank == rank or bool(named)


def _names_some(claim: Claim, fault: Fault, staged: Staged) -> bool:
    """Return whether the claim names only faulty ranks, of a fault of several ranks, or a node with such ranks."""
    place = staged.victim.place
    if claim.level == "node" or (claim.rank < 0 and not claim.ranks and not claim.device):
        return claim.node in {place.nodes[rank] for rank in fault.ranks}
    devices = tuple(name for rank in fault.ranks for name in (place.gpus[rank], place.nics[rank]))
    if claim.rank < 0 and not claim.ranks:
        return claim.device.startswith(devices)
    return {claim.rank, *claim.ranks} - {-1} <= set(fault.ranks)


def true_of_workload(claim: Claim, truth: Truth) -> bool:
    """Return whether a claim about the workload is true: the job's workload has the behaviour that the claim names."""
    staged, workload = truth.staged, truth.staged.cell.workload
    fault, usual = staged.fault, staged.victim.usual
    during = fault.begin <= claim.at <= _closing(staged)
    if staged.disorder.family == "workload" and during and claim.kind in staged.disorder.kinds:
        return True
    if claim.kind == "stage_imbalance":
        return workload == "unequal-stages"
    if claim.kind == "sequence_imbalance":
        return workload.startswith(("long-context", "moe"))
    if claim.cause in ("checkpoint", "evaluation"):
        reach = max(RECENT_SECONDS, RECENT_STEPS * usual)
        return any(0.0 <= claim.at - at <= reach for at in truth.saved)
    if claim.cause == "pauses":
        return any(crash.at <= claim.at for crash in staged.victim.traits.restarts)
    if claim.cause in ("sequence-length", "data-loading"):
        return claim.cause == "sequence-length" and workload.startswith(("long-context", "moe"))
    return claim.cause in ("standing-offset", "stage-partition")


def _closing(staged: Staged) -> float:
    return staged.fault.end + max(TAIL_SECONDS, TAIL_STEPS * staged.victim.usual)


def _names_second_fault(claim: Claim, staged: Staged, closing: float, coarse: bool) -> bool:
    """Return whether the claim names the job's second faulty device, at the right time. closing: end of that time."""
    second = staged.second
    return (
        second is not None
        and second.begin <= claim.at <= closing
        and claim.kind in ACCUSING
        and names_member(claim, second, staged, coarse)
    )


def is_right(claim: Claim, truth: Truth) -> bool:
    """Return whether one of our verdicts about the faulty job is right."""
    staged, closing = truth.staged, _closing(truth.staged)
    within = staged.fault.begin <= claim.at <= closing
    if within and claim.kind in staged.disorder.kinds and names_member(claim, staged.fault, staged):
        return True
    if claim.kind in OF_OWN_JOB and true_of_workload(claim, truth):
        return True
    return _names_second_fault(claim, staged, closing, coarse=False)


def judge(
    truth: Truth, claims: list[Claim], names_kinds: bool, highest: Mapping[str, float] = MappingProxyType({})
) -> Outcome:
    """Score the claims of one method about the faulty job.

    names_kinds: whether the method reports kinds. highest: highest confidence of each claim, by key; by default that
    of its first report.
    """
    staged, fault, disorder = truth.staged, truth.staged.fault, truth.staged.disorder
    found = Outcome()
    closing = _closing(staged)
    silent = disorder.family == "telemetry" or (not names_kinds and disorder.family in ("workload", "interference"))
    right: Claim | None = None
    inside: list[Claim] = []
    for claim in claims:
        if claim.kind == "unknown":
            continue
        within = fault.begin <= claim.at <= closing
        kind_right = claim.kind in disorder.kinds or (not names_kinds and disorder.family in ("hardware", "hang"))
        if within and kind_right and names_member(claim, fault, staged, not names_kinds):
            right = claim if right is None else right
            inside.append(claim)
            found.confidences.append((claim.confidence, True))
            continue
        if claim.kind in OF_OWN_JOB and true_of_workload(claim, truth):
            continue
        if _names_second_fault(claim, staged, closing, not names_kinds):
            found.confidences.append((claim.confidence, True))
            continue
        if within and claim.kind in {*BLAMING, *disorder.kinds}:
            inside.append(claim)
        found.fp += 1
        found.false_kinds.append(claim.kind)
        if claim.kind not in OF_OWN_JOB:
            found.confidences.append((claim.confidence, False))
            found.sure += highest.get(claim.key, claim.confidence) >= ACTING_CONFIDENCE
    if inside:
        found.first, found.cause = inside[0].kind, inside[0].cause
    if disorder.family == "telemetry" or not disorder.expected:
        expected = bool(disorder.kinds) and disorder.expected
        found.tp, found.fn = int(right is not None), int(expected and right is None)
        return found
    if silent:
        found.fn = 1
        return found
    found.tp, found.fn = int(right is not None), int(right is None)
    if right is not None:
        onset = fault.begin if truth.onset is None else truth.onset
        found.seconds = max(0.0, right.at - onset)
        found.steps = truth.steps_between(onset, right.at)
    if disorder.level in ("gpu", "node", "nic", "link") and inside:
        found.top1 = names_member(inside[0], fault, staged)
        place, rank = staged.victim.place, fault.ranks[0]
        near = " ".join(inside[0].suspects[:2])
        among = place.gpus[rank] in near or place.nics[rank] in near
        if disorder.level == "node":
            among = among or place.nodes[rank] in near
        found.top3 = found.top1 or among or any(names_member(claim, fault, staged) for claim in inside[1:3])
    return found
