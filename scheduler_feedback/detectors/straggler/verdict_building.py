"""Findings of the straggler detector: verdicts, abstentions, cleared verdicts, and gangs that are slow as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import Cover, PartFault, Proposal
from scheduler_feedback.detectors.counters.cause_signatures import OF_HOST, OF_NIC
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.detectors.steps.baseline import Baseline
from scheduler_feedback.detectors.steps.windows import Window, join
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Judged
from scheduler_feedback.detectors.straggler.alarm_checks import LEAST_SLOWDOWN, Judgement
from scheduler_feedback.detectors.straggler.cusum import ALARM, ALLOWANCE_SIGMAS, CLIP_SIGMAS, LEAST_HITS, mates_of
from scheduler_feedback.detectors.straggler.gang_state import ActiveVerdict, GangState
from scheduler_feedback.detectors.straggler.straggler_causes import OF_PARTS

DETECTOR = "straggler"

CAUSE_NS = 6_000_000_000
"""Maximum time for which an alarm without a clear cause is held back before it is reported without one."""

CAUSE_WINDOWS = 10
"""Interval, in windows, at which a verdict that lacks only its cause is evaluated again."""

CLEAR_WINDOWS = 10
"""A verdict is cleared when the rank was not slow in any of the newest CLEAR_WINDOWS windows, and its mean excess is
within the allowance. This is longer than the pauses of an intermittent fault. Waiting for the CUSUM to reach zero would
take three times as long."""

UNEASY_SCORE = ALARM / 3
"""An episode lasts while a CUSUM is at least a third of the alarm threshold."""

ACTING_WINDOWS = 5
UNSURE_CONFIDENCE = 0.89
"""Maximum confidence without a known cause until the rank was slow in ACTING_WINDOWS windows: a node with three long
pauses looks the same until then. The verdict is reported at once, but no running job is moved for it."""

GANG_SLOWDOWN = 1.10
GANG_WINDOWS = 8
GANG_STEPS = 25
"""A gang that is slower by GANG_SLOWDOWN for GANG_WINDOWS windows, without an outlier, is reported as an abstention.
Windows of one step are far noisier: GANG_STEPS of them are needed."""

CALM_WINDOWS = 10
"""Number of quiet windows that end an episode. A reason is reported once per episode."""


def verdict(name: str, watched: GangState, judgement: Judgement, job: JobTelemetry) -> list[Proposal]:
    """Return the verdict if it is new, or if it contains more than the one already reported.

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
    """Add the ranks to a verdict on their node. The verdict is cleared when all of its ranks run at normal speed."""
    new = [rank for rank in ranks if watched.active.get(rank) is not active and rank not in active.others]
    active.others.update(new)
    return [Cover(active.verdict_id, tuple(watched.ranks[rank] for rank in new))] if new else []


def is_settled(active: ActiveVerdict, windows: int, own: bool) -> bool:
    """Return whether no further evaluation of the verdict is due now. A verdict that lacks only its cause is evaluated
    at longer intervals.

    own: whether the verdict is on the rank itself, not on its node.
    """
    known = active.reported_cause and own
    return active.reported_confidence >= ACTING_CONFIDENCE and (known or windows % CAUSE_WINDOWS > 0)


def says_more(active: ActiveVerdict, judgement: Judgement, own: bool) -> bool:
    """Return whether the judgement adds to the reported verdict: enough confidence to act, or its cause.

    Counters may arrive every half minute, long after the steps identified the slow rank, and no job is moved without a
    known cause. A fault of one part is reported in addition to another reason for which its node is slow.
    """
    if not own and judgement.cause in OF_PARTS and judgement.cause != active.cause:
        return True
    if active.reported_confidence < ACTING_CONFIDENCE <= judgement.confidence:
        return True
    sure = judgement.confidence >= min(active.reported_confidence, ACTING_CONFIDENCE)
    return sure and not active.reported_cause and judgement.cause is not Cause.UNKNOWN


def abstention(name: str, watched: GangState, judgement: Judgement) -> Abstention:
    """Return an abstention with the reason for which the alarm is not a verdict."""
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
    """Clear the verdicts whose ranks have run at normal speed for CLEAR_WINDOWS windows."""
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
        found.append(Cleared(active.verdict_id, name, window.last_ns, reason, _last_slow(watched, rank)))
    return found


def whole_gang(name: str, watched: GangState, baseline: Baseline, alarmed: bool, timed: bool) -> list[Finding]:
    """Report once per episode that the gang is slow without an outlier, or with unknown wait times. Track the episode's
    end."""
    window = watched.history[-1].window
    slower = window.step_seconds / min(baseline.step_seconds, watched.best_step_seconds)
    calm = slower < LEAST_SLOWDOWN and not (watched.score >= UNEASY_SCORE).any() and not watched.active
    watched.calm_windows = watched.calm_windows + 1 if calm else 0
    if watched.calm_windows >= CALM_WINDOWS:
        watched.abstained.clear()
    watched.slow_windows = watched.slow_windows + 1 if slower >= GANG_SLOWDOWN else 0
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
        why = "the time that ranks wait in collectives is unknown"
    reason = f"steps take {slower:.3g} times their best time, and {why}"
    return [Abstention(name, watched.attempt, None, window.last_ns, reason, (), DETECTOR)]


def _place(shape: Shape, rank: int, cause: Cause, mates: tuple[int, ...]) -> dict[str, Any]:
    """Return the accused device and the alternatives: GPU, NIC, or the node if several of its ranks are slow."""
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
    """Return the window in which the slowness most likely began. A chance excess before it can have kept the CUSUM
    above zero.

    The most likely start of a shift is where the sum, up to the end, of the excess over half the shift is largest.
    """
    sigmas = np.array([min(judged.sigmas[rank], CLIP_SIGMAS) for judged in interval])
    newest = float(np.median(sigmas[-LEAST_HITS:]))
    to_the_end = np.cumsum((sigmas - newest / 2)[::-1])[::-1]
    return interval[int(to_the_end.argmax())].window


def _last_slow(watched: GangState, rank: int) -> int:
    """Return the last step of the newest window in which the rank was slow; -1 if no such window is kept."""
    slow = (judged.window.last_step for judged in reversed(watched.history) if judged.sigmas[rank] >= HIT_SIGMAS)
    return next(slow, -1)


def _before(watched: GangState, interval: int) -> float:
    """Return the gang's mean step time before the alarm's interval, or during warm-up if there are too few windows."""
    past = [judged.window for judged in list(watched.history)[:-interval]][-16:]
    if len(past) >= 3:
        return float(join(past, "step_seconds"))
    return watched.baseline.step_seconds if watched.baseline is not None else float("nan")


def not_yet_sure(judgement: Judgement, slow_windows: int) -> Judgement:
    """Limit the confidence below ACTING_CONFIDENCE if neither a cause nor enough slow windows support the judgement."""
    if judgement.cause is not Cause.UNKNOWN or slow_windows >= ACTING_WINDOWS:
        return judgement
    return replace(judgement, confidence=min(judgement.confidence, UNSURE_CONFIDENCE))


def too_weak(judgement: Judgement) -> Judgement:
    """Return the judgement as a refusal, because its confidence is below 0.5."""
    return replace(judgement, refusal=f"the evidence is too weak: confidence {judgement.confidence:.2f}")
