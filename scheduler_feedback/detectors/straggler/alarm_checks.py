"""Checks that an alarm must pass to become a verdict.

An alarm means that one rank is an outlier (alarm_case.py). The checks cover all windows since the alarm began. They
test whether the job is slowed, whether this rank alone slows it, and whether the cause is the rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import Attribution
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.places import LEAST_PEERS, middle_of_others_of
from scheduler_feedback.detectors.straggler.alarm_case import Case, Measured, measure, slow_windows
from scheduler_feedback.detectors.straggler.alarm_evidence import evidence_of

LEAST_SLOWDOWN = 1.05
"""Minimum slowdown for which a job may be stopped: five per cent (the threshold of EROICA and Guard)."""

FIRST_SLOWDOWN = 1.15
"""Minimum slowdown to report before the baseline is final: healthy workers vary by a tenth for a few steps (PAI job
1)."""

INVERTED = 0.7
"""Maximum wait of a culprit relative to its peers. Public traces: a culprit waited 0.144 times as long as its peers,
the lowest healthy rank 0.85 times."""

EXTRA_WAIT_SHARE = 0.5
"""Minimum extra wait of the peers, as a share of the suspect's excess. Below it the peers did not wait for the
suspect."""

ALONE = 3.0
"""Minimum ratio of the seconds that the suspect explains to those of the next rank. Below it the alarm is refused,
unless samples found the suspect stopped more than once."""


OWN_PERIOD_HITS = 3
OWN_PERIOD_STEPS = 5
"""Three or more slow steps exactly n steps apart (n >= 5) are periodic work of the rank: checkpoints, evaluation,
garbage collection. Faults are not tied to step numbers. A stopped process is exempt, because stops can coincide with
steps."""

CONCENTRATED = 0.6
"""Minimum share of a window's excess that a single step must hold."""

LARGER_PART = float(np.log(1.6))
"""A rank that was slow from the start may have more work: pipeline stages of healthy jobs differ by up to half
(ByteDance trace ST; NVRx's rule, 1.33 times, accuses two of its ranks). Above this ratio the detector reports a
straggler, with low confidence."""

LARGER_PART_OF_ROLE = float(np.log(1.25))
"""As LARGER_PART, if the layout shows that the peers do the same work: only uneven data or experts can explain the
ratio."""

TOKENS_SHARE = 0.5
"""Tokens that explain half of a rank's excess are its reason. If tokens determined the compute time during warm-up,
compute times are already normalised by work, and this check does not apply."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of the checks for one alarmed rank."""

    rank: int
    slowdown: float
    """Step time over step time without the suspect, or without its node where other ranks of the node are outliers
    too."""
    step_seconds: float
    cause: Cause
    confidence: float
    evidence: tuple[Evidence, ...]
    counters: bool
    """Whether the process counters that could show the cause are available."""
    refusal: str = ""
    """Why the alarm is not a verdict; '' if it is one."""
    harmless: bool = False
    """Whether the job is not slowed. Such a refusal is not reported as an abstention either."""
    about: tuple[int, ...] = ()
    """Indices of other ranks to which the refusal applies as well."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for which an alarm is not a verdict."""

    reason: str
    harmless: bool = False
    """Whether the job is not slowed."""


def judge(case: Case) -> Judgement:
    """Run the checks on an alarm, the cheapest first. The first that fails refuses it."""
    measured = measure(case)
    evidence = evidence_of(case, measured)
    refusals = (check(case, measured) for check in CHECKS)
    refusal = next((found for found in refusals if found is not None), Refusal(""))
    return Judgement(
        rank=case.rank,
        slowdown=measured.slowdown,
        step_seconds=measured.step_seconds,
        cause=measured.split.cause,
        confidence=log_odds.confidence(evidence),
        evidence=evidence,
        counters=measured.split.known,
        refusal=refusal.reason,
        harmless=refusal.harmless,
    )


def _slows_the_job(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if the steps are not longer, or would be hardly shorter without the rank."""
    slower = measured.step_seconds / min(case.baseline.step_seconds, case.best_step_seconds)
    slowdown, from_start = measured.slowdown, measured.from_start
    if not from_start and slower < LEAST_SLOWDOWN:
        return Refusal(f"the gang is not slowed: its steps take {slower:.3g} times their best time", True)
    if len(case.alarmed) > max(1, len(case.ranks) // 2):
        return Refusal(
            f"{len(case.alarmed)} of {len(case.ranks)} ranks are outliers: suspect the workload or the machine"
        )
    if slowdown < LEAST_SLOWDOWN and measured.of_other_nodes:
        numbers = ", ".join(str(case.ranks[r]) for r in sorted([case.rank, *measured.of_other_nodes]))
        return Refusal(f"ranks {numbers} are equally slow: no single rank explains the step time")
    if slowdown < LEAST_SLOWDOWN:
        return Refusal(f"without this rank the steps would be only {slowdown - 1:.1%} shorter", True)
    if not case.baseline.final and not from_start and slowdown < FIRST_SLOWDOWN:
        return Refusal("the slowdown is too small to report during warm-up", True)
    return None


def _has_no_more_tokens(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if the rank's tokens explain its compute time."""
    if case.for_work:
        return None
    tokens = _tokens_to_peers(case)
    if tokens >= (measured.compute / max(measured.expected, 1e-9)) ** TOKENS_SHARE:
        return Refusal(f"the rank processes {tokens:.3g} times the tokens of its peers: it has more work")
    return None


def _peers_wait(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if the peers do not wait for the rank."""
    if not case.switches.wait_inversion:
        return None
    if measured.extra_wait < EXTRA_WAIT_SHARE * measured.excess:
        return Refusal("its peers do not wait for it: it does not delay the gang")
    enough = measured.from_start and len(case.ranks) >= LEAST_PEERS
    if enough and measured.wait >= INVERTED * measured.others_wait:
        times = measured.wait / max(measured.others_wait, 1e-9)
        return Refusal(f"it waits {times:.2g} times as long as its peers: it does not delay them")
    return None


def _has_no_larger_part(case: Case, measured: Measured) -> Refusal | None:
    """Refuse a rank that was slow from the start if a larger part of the work can explain it."""
    if not measured.from_start or case.baseline.role_known:
        return None
    times = measured.compute / measured.usual
    if np.log(times) < (LARGER_PART_OF_ROLE if case.where.layout_known else LARGER_PART):
        return Refusal(
            f"it has computed {times:.3g} times as long as its peers from the start: it may have more "
            "work or may be slower, and there is no healthy history to compare with"
        )
    return None


def _has_no_period(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if the slow steps are periodic work of the rank."""
    period = 0 if measured.split.cause is Cause.SUSPENDED else _period(case, measured.expected)
    if period:
        return Refusal(f"it is slow exactly every {period} steps: periodic work of this rank, such as checkpoints")
    return None


def _has_no_other_reason(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if another rank, or load of other nodes on a shared machine, can explain the slow steps."""
    if measured.gain < ALONE * measured.next_gain and not measured.split.stopped_again:
        return Refusal("another rank explains the slow steps nearly as well")
    if case.shared_machine and measured.split.may_be_chance_load:
        return Refusal(_chance_load(measured.split))
    return None


CHECKS = (
    _slows_the_job,
    _has_no_more_tokens,
    _peers_wait,
    _has_no_larger_part,
    _has_no_period,
    _has_no_other_reason,
)
"""All checks, in the order in which they run."""


def _tokens_to_peers(case: Case) -> float:
    """Return the ratio of the rank's tokens to its peers' while it was slow; 0 if tokens are not reported."""
    tokens = case.mean("tokens")
    if not np.isfinite(tokens).all() or (tokens <= 0).any():
        return 0.0
    return float(tokens[case.rank] / middle_of_others_of(tokens, case.where, case.rank))


def _period(case: Case, expected: float) -> int:
    """Return the exact period, in steps, of the slow steps, if one step causes each slow window; 0 if there is none."""
    rank = case.rank
    slow = slow_windows(case.interval, rank)
    excess = np.array([(window.compute[rank] - expected) * window.steps for window in slow])
    peaks = np.array([window.peak[rank] - expected for window in slow])
    if len(slow) < OWN_PERIOD_HITS or (peaks < CONCENTRATED * excess).any():
        return 0
    peak_steps = [int(window.peak_step[rank]) for window in slow]
    if all(judged.window.steps == 1 for judged in case.interval):  # a trace may contain only every tenth step number
        place = {judged.window.last_step: index for index, judged in enumerate(case.interval)}
        peak_steps = [place[number] for number in peak_steps]
    apart = np.diff(peak_steps)
    period = int(apart.min())
    return period if period >= OWN_PERIOD_STEPS and not (apart % period).any() else 0


def _chance_load(split: Attribution) -> str:
    if not split.known:
        return (
            "its node shares a machine with other nodes and its process counters are missing: load from those nodes "
            "cannot be excluded"
        )
    return (
        f"of its excess of {split.excess:.3g} s a step {split.share(split.queue):.0%} is waiting for a CPU and "
        f"{split.share(split.processor):.0%} is additional CPU time; its node shares a machine with other nodes: load "
        "from those nodes cannot be excluded"
    )
