"""Results of the straggler detector: verdicts, abstentions, cleared verdicts, and reports on gangs that are slow as a
whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import Cover, PartFault, Proposal
from scheduler_feedback.detectors.counters.cause_signatures import OF_HOST, OF_NIC
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE, LEAST_CONFIDENCE
from scheduler_feedback.detectors.steps.baseline import Baseline
from scheduler_feedback.detectors.steps.windows import Window, join
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Judged
from scheduler_feedback.detectors.straggler.alarm_checks import LEAST_SLOWDOWN, Judgement
from scheduler_feedback.detectors.straggler.cusum import ALARM, ALLOWANCE_SIGMAS, CLIP_SIGMAS, LEAST_HITS, mates_of
from scheduler_feedback.detectors.straggler.gang_state import HISTORY_WINDOWS, RECENT_WINDOWS, ActiveVerdict, GangState
from scheduler_feedback.detectors.straggler.persistence import LEAST_FAULT_WINDOWS
from scheduler_feedback.detectors.straggler.rotating_slowness import LEAST_WINDOWS
from scheduler_feedback.detectors.straggler.straggler_causes import OF_PARTS

DETECTOR = "straggler"

CAUSE_NS = 6_000_000_000
"""An alarm without a clear cause is held back for at most this many ns. Then it is reported without a cause."""

CAUSE_WINDOWS = 10
"""Interval, in windows, at which a verdict without a known cause is evaluated again."""

CLEAR_WINDOWS = 10
"""Number of windows after which a verdict is cleared, if its rank was slow in none of them. It is longer than the
pauses of an intermittent fault."""

UNEASY_SCORE = ALARM / 3
"""A period of slowness continues while the CUSUM of a rank (running sum of its excess) is at least this value: a third
of the alarm threshold."""

UNSURE_CONFIDENCE = 0.8
"""Upper limit of the confidence of a verdict without a known cause while its rank may still be healthy
(persistence.py). It is too low to move a running job. It is the share of faults among the first reports on such ranks:
``python -m benchmarks.traces.fit --seed 35000 --runs 300``, 96 of 118, rounded down. Such ranks are now reported later
(LEAST_FAULT_WINDOWS), and more of them are at fault: 58 of 58 on seeds 290000 to 290799. So it is a lower limit."""

OWN_WORK_CONFIDENCE = 0.2
"""Used instead of UNSURE_CONFIDENCE if the job's own work is more likely than a fault (persistence.py), or if known
counters show no cause. It is below LEAST_CONFIDENCE: the rank is reported as unknown."""

GANG_SLOWDOWN = 1.10
"""If no single rank is slow, an abstention about the whole gang is reported only if the gang is at least this many
times slower than in its warm-up."""

GANG_WINDOWS = 8
"""An abstention about the whole gang is reported only if the gang was slow in this many consecutive windows."""

GANG_STEPS = 25
"""Used instead of GANG_WINDOWS if each step is one window: such windows are far noisier."""

CALM_WINDOWS = 10
"""A period of slowness ends after this many windows in which no rank is slow. The reason for an abstention is reported
once in each period."""


def verdict(name: str, watched: GangState, judgement: Judgement, job: JobTelemetry) -> list[Proposal]:
    """Return the verdict if it is new, or if it adds to the one that was reported; else nothing.

    A verdict on a whole node is not repeated for each of its ranks, so that an operator is paged once.
    """
    rank = judgement.rank
    active = watched.active_on(rank)
    interval = watched.interval(rank)
    if active is not None and not says_more(active, judgement, rank in watched.active):
        return cover(watched, active, (rank,))
    active = watched.active.get(rank)
    if active is None:
        seen_ns = interval[-1].window.first_ns - interval[0].window.first_ns
        if judgement.counters and judgement.cause is Cause.UNKNOWN and seen_ns < CAUSE_NS:
            return []
        first_ns = interval[0].window.first_ns
        verdict_id = f"{name}.{watched.attempt}.{watched.ranks[rank]}.{first_ns}"
        active = watched.active[rank] = ActiveVerdict(verdict_id, first_ns, judgement.confidence)
    mates = mates_of(watched, rank)
    place = _place(job.shape, rank, judgement.cause, mates)
    if mates:
        active.node, active.cause = job.shape.nodes[rank], judgement.cause
    faults: list[Proposal] = []
    if judgement.cause in OF_PARTS and not active.reported_cause:
        gpu, node = job.shape.gpus[rank] if job.shape.gpus else "", job.shape.nodes[rank]
        faults.append(PartFault(active.verdict_id, gpu, node, judgement.cause, active.first_ns))
    active.reported_confidence = max(active.reported_confidence, judgement.confidence)
    active.reported_cause = active.reported_cause or judgement.cause is not Cause.UNKNOWN
    return [
        Verdict(
            verdict_id=active.verdict_id,
            kind=Kind.STRAGGLER,
            gang=name,
            attempt=watched.attempt,
            rank=watched.ranks[rank],
            node=watched.where.names[watched.where.index[rank]],
            cause=judgement.cause,
            confidence=judgement.confidence,
            slowdown=judgement.slowdown,
            step_seconds_before=_before(watched, len(interval)),
            step_seconds_now=judgement.step_seconds,
            first_wall_ns=active.first_ns,
            last_wall_ns=interval[-1].window.last_ns,
            evidence=judgement.evidence,
            frames=job.frames,
            detector=DETECTOR,
            **place,
            first_step=_onset(interval, rank).first_step,
            last_step=interval[-1].window.last_step,
            detected_step=interval[-1].window.last_step,
        ),
        *cover(watched, active, mates),
        *faults,
    ]


def cover(watched: GangState, active: ActiveVerdict, ranks: Iterable[int]) -> list[Proposal]:
    """Add the ranks to an active verdict on their node. It is cleared when all of its ranks run at normal speed."""
    new = [rank for rank in ranks if watched.active.get(rank) is not active and rank not in active.others]
    active.others.update(new)
    return [Cover(active.verdict_id, tuple(watched.ranks[rank] for rank in new))] if new else []


def is_settled(active: ActiveVerdict, windows: int, own: bool) -> bool:
    """Return whether the verdict needs no further evaluation in this window. A verdict without a known cause is
    evaluated again at intervals.

    own: whether the verdict is on the rank itself, not on its node.
    """
    known = active.reported_cause and own
    return active.reported_confidence >= ACTING_CONFIDENCE and (known or windows % CAUSE_WINDOWS > 0)


def under_suspicion(watched: GangState) -> list[int]:
    """Return the indices of the ranks whose verdict may still change with new samples of counters.

    That is so while a rank's CUSUM is above UNEASY_SCORE, until its verdict has a cause and enough confidence to act,
    or until the newest HISTORY_WINDOWS windows are all part of its episode.
    """
    known: set[int] = set()
    for rank, active in watched.active.items():
        if active.reported_cause and active.reported_confidence >= ACTING_CONFIDENCE:
            known |= {rank, *active.others}
    return [
        rank
        for rank in np.flatnonzero(watched.score >= UNEASY_SCORE).tolist()
        if rank not in known and watched.episode(rank) <= HISTORY_WINDOWS
    ]


def says_more(active: ActiveVerdict, judgement: Judgement, own: bool) -> bool:
    """Return whether the judgement adds to the reported verdict: its cause, or enough confidence to act.

    own: whether the verdict is on the rank itself. A fault of one part is also reported if its node is slow for another
    reason.
    """
    if not own and judgement.cause in OF_PARTS and judgement.cause != active.cause:
        return True
    if active.reported_confidence < ACTING_CONFIDENCE <= judgement.confidence:
        return True
    sure = judgement.confidence >= min(active.reported_confidence, ACTING_CONFIDENCE)
    return sure and not active.reported_cause and judgement.cause is not Cause.UNKNOWN


def abstention(name: str, watched: GangState, judgement: Judgement) -> Abstention:
    """Return an abstention with the reason why the alarm does not become a verdict."""
    return Abstention(
        name,
        watched.attempt,
        watched.ranks[judgement.rank],
        watched.history[-1].window.last_ns,
        judgement.refusal,
        judgement.evidence,
        DETECTOR,
    )


def cleared(name: str, watched: GangState, window: Window) -> list[Finding]:
    """Clear the verdicts whose ranks have run at normal speed for CLEAR_WINDOWS windows, and return these events."""
    if not watched.active:
        return []
    newest = np.array([judged.sigmas for judged in list(watched.history)[-CLEAR_WINDOWS:]])
    if len(newest) < CLEAR_WINDOWS:
        return []
    paced = (newest < HIT_SIGMAS).all(axis=0) & (newest.mean(axis=0) < ALLOWANCE_SIGMAS)
    over = [rank for rank, active in watched.active.items() if paced[[rank, *active.others]].all()]
    calm = [other for rank in over for other in (rank, *watched.active[rank].others)]
    watched.score[calm] = 0.0
    watched.since[calm] = -1
    found: list[Finding] = []
    for rank in over:
        active = watched.active.pop(rank)
        those = "its ranks" if active.others else "the rank"
        reason = f"{those} ran at normal speed for {CLEAR_WINDOWS} windows"
        found.append(
            Cleared(
                active.verdict_id,
                name,
                window.last_ns,
                reason,
                _last_slow(watched, rank),
                confirmed=_was_a_fault(watched, active, rank),
            )
        )
    return found


def whole_gang(name: str, watched: GangState, baseline: Baseline, alarmed: bool, timed: bool) -> list[Finding]:
    """Return an abstention if the whole gang is slow, and no single rank is the cause or wait times are unknown.

    It is reported once in each period of slowness. This function also tracks when such a period ends.
    """
    window = watched.history[-1].window
    best = min(baseline.step_seconds, watched.best_step_seconds)
    slower = window.step_seconds / best
    calm = slower < LEAST_SLOWDOWN and not (watched.score >= UNEASY_SCORE).any() and not watched.active
    watched.calm_windows = watched.calm_windows + 1 if calm else 0
    if watched.calm_windows >= CALM_WINDOWS:
        watched.abstained.clear()
    least = GANG_SLOWDOWN
    if not (window.known and baseline.known):  # nothing else can be reported: a mean over windows shows smaller changes
        newest = [judged.window for judged in list(watched.history)[-RECENT_WINDOWS:]]
        slower, least = float(join(newest, "step_seconds")) / best, LEAST_SLOWDOWN
    watched.slow_windows = watched.slow_windows + 1 if slower >= least else 0
    if (
        alarmed
        or watched.active
        or -1 in watched.abstained
        or watched.slow_windows < (GANG_WINDOWS if timed else GANG_STEPS)
    ):
        return []
    watched.abstained.add(-1)
    why = "no rank is an outlier: suspect the workload or the machine"
    if not (window.known and baseline.known):
        why = "the time that ranks wait in collectives is unknown: their step times do not show which rank is slow"
    reason = f"steps take {slower:.3g} times their best time, and {why}"
    return [Abstention(name, watched.attempt, None, window.last_ns, reason, (), DETECTOR)]


def _place(shape: Shape, rank: int, cause: Cause, mates: tuple[int, ...]) -> dict[str, Any]:
    """Return the accused device (GPU, NIC, or the node if several of its ranks are slow), and other possible
    devices."""
    node, gpu = shape.nodes[rank], shape.gpus[rank] if shape.gpus else ""
    nic = shape.nics[rank] if shape.nics else ""
    places = [("gpu", gpu), ("nic", nic), ("node", node)]
    if cause in OF_NIC:
        places = [("nic", nic), ("gpu", gpu), ("node", node)]
    elif mates or cause in OF_HOST:
        places = [("node", node), ("gpu", gpu), ("nic", nic)]
    known = [(level, name) for level, name in places if name]
    level, device = known[0] if known else ("", "")
    return {
        "level": level,
        "device": "" if level == "node" else device,
        "suspects": tuple(f"{other}:{name}" for other, name in known[1:]),
        "ranks": tuple(shape.ranks[[rank, *mates]].tolist()) if mates else (),
    }


def _onset(interval: list[Judged], rank: int) -> Window:
    """Return the window in which the slowness most likely began. By chance the CUSUM can have risen earlier.

    For each window, sum up the excess from there to the end, less half of the newest excess per window. The window with
    the largest sum is returned.
    """
    sigmas = np.array([min(judged.sigmas[rank], CLIP_SIGMAS) for judged in interval])
    newest = float(np.median(sigmas[-LEAST_HITS:]))
    to_the_end = np.cumsum((sigmas - newest / 2)[::-1])[::-1]
    return interval[int(to_the_end.argmax())].window


def _was_a_fault(watched: GangState, active: ActiveVerdict, rank: int) -> bool:
    """Return whether an ended slowdown was more likely a fault than the job's own work.

    It was if its verdict was certain, if its cause is known, or if it lasted for LEAST_FAULT_WINDOWS windows.
    """
    spells = watched.spells.get(rank)
    if active.reported_confidence >= ACTING_CONFIDENCE or active.reported_cause or not spells:
        return True
    slow = (ago for ago, judged in enumerate(reversed(watched.history)) if judged.sigmas[rank] >= HIT_SIGMAS)
    return watched.counted - next(slow, 0) - spells[-1].first_window >= LEAST_FAULT_WINDOWS


def _last_slow(watched: GangState, rank: int) -> int:
    """Return the last step of the newest window in which the rank was slow; -1 if no such window is kept."""
    slow = (judged.window.last_step for judged in reversed(watched.history) if judged.sigmas[rank] >= HIT_SIGMAS)
    return next(slow, -1)


def _before(watched: GangState, interval: int) -> float:
    """Return the gang's mean step time in seconds before the alarm began; if too few windows are kept, during the
    warm-up."""
    past = [judged.window for judged in list(watched.history)[:-interval]][-16:]
    if len(past) >= 3:
        return float(join(past, "step_seconds"))
    return watched.baseline.step_seconds if watched.baseline is not None else float("nan")


def not_yet_sure(
    judgement: Judgement,
    reason: str,
    windows: int,
    mates: tuple[int, ...],
    own_work: bool = False,
    routed: bool = False,
) -> Judgement:
    """Return the judgement of a rank that may still be healthy for this reason, with a lower confidence.

    The confidence is then too low for actions on a running job. If the job's own work is likely, it is too low for a
    verdict. So it is if counters are known and none of them deviates: they show most faults, so that the rest is more
    often the job's own work. And so it is for an expert that may be popular: no counter shows how many tokens it gets.

    windows: windows for which the rank has been slow. mates: indices of the other alarmed ranks of its node. own_work:
    whether the job's own work is more likely than a fault. routed: whether the rank may compute a popular expert.
    """
    why = Evidence("windows_of_slowness", float(windows), float(LEAST_WINDOWS), "windows", reason, 0.0)
    own_work = routed or (not judgement.hinted if judgement.counters else own_work)
    unsure = OWN_WORK_CONFIDENCE if own_work else UNSURE_CONFIDENCE
    confidence = min(judgement.confidence, unsure)
    refusal = reason if confidence < LEAST_CONFIDENCE else ""
    evidence = (*judgement.evidence, why)
    return replace(judgement, confidence=confidence, evidence=evidence, refusal=refusal, about=mates, in_doubt=True)


def too_weak(judgement: Judgement) -> Judgement:
    """Return the judgement as a refusal, because its evidence is too weak for a verdict."""
    return replace(
        judgement, refusal=f"the evidence is too weak: confidence {log_odds.confidence(judgement.evidence):.2f}"
    )
