"""Checks that an alarm must pass to become a verdict.

An alarm means that one rank differs from its peers (alarm_case.py). The checks use all windows since the alarm began.
They test whether the job is slower, whether this rank alone slows it, and whether the cause is the rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.series.consumption_trail import BLOCK_IO
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import Attribution
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.baseline import OUTLIER_RATIO
from scheduler_feedback.detectors.steps.places import LEAST_PEERS, middle_of_others_of
from scheduler_feedback.detectors.straggler.alarm_case import Case, Measured, measure, slow_windows
from scheduler_feedback.detectors.straggler.alarm_evidence import evidence_of

LEAST_SLOWDOWN = 1.05
"""An alarm becomes a verdict only if the job is at least this many times slower: five per cent, as in EROICA and
Guard."""

FIRST_SLOWDOWN = 1.15
"""Used instead of LEAST_SLOWDOWN before the warm-up has ended. Healthy workers vary by a tenth for a few steps (PAI job
1)."""

INVERTED = 0.7
"""A rank is the culprit only if it waits at most this share of the time for which its peers wait. In public traces a
culprit had 0.144, and no healthy rank had less than 0.85."""

EXTRA_WAIT_SHARE = 0.5
"""A rank is the culprit only if its peers wait for it at least this share of its excess time."""

ALONE = 3.0
"""A rank is the culprit only if it explains at least this many times as much lost time as the next rank. Not tested if
samples found the rank stopped more than once, or if it is an outlier of its role: then the next rank is the slowest of
another stage, whose cost is added."""


OWN_PERIOD_HITS = 3
"""A rank has periodic work of its own, such as checkpoints, only if at least this many slow steps are at a fixed
period."""

OWN_PERIOD_STEPS = 5
"""A rank has periodic work of its own only if the period is at least this many steps. Faults do not occur at fixed
steps. Stopped processes are not tested for a period, because their stops can coincide with steps; see WRITES_SHARE."""

WRITES_SHARE = 0.25
"""A rank that sleeps is tested for a period too if in the warm-up its waits for disks were at least this share of its
excess time. Ranks that save had half of it or more, with samples two seconds apart (``python -m benchmarks.straggler
--every 2``); ranks without a disk have none."""

CONCENTRATED = 0.6
"""A period is measured only if a single step has at least this share of the excess time of its window."""

LARGER_PART = float(np.log(1.6))
"""A rank that was slow from the start is accused only if it is slower than its peers by at least this ratio (the
logarithm of 1.6). With less, more work can be the reason: pipeline stages of healthy jobs differ by up to half
(ByteDance trace ST)."""

LARGER_PART_OF_ROLE = float(np.log(1.25))
"""Used instead of LARGER_PART if the layout gives the peers the same work. Then only uneven data or experts can be the
reason. An outlier of its role needs no more than OUTLIER_RATIO."""

TOKENS_SHARE = 0.5
"""If the rank's tokens explain at least this share of its excess time, they are the reason, and the alarm is refused.
Not tested if the effect of tokens has already been removed from compute times."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of the checks for one suspected rank."""

    rank: int
    slowdown: float
    """Step time divided by the step time without the suspect. If other ranks of its node are also alarmed, the whole
    node is left out."""
    step_seconds: float
    cause: Cause
    confidence: float
    evidence: tuple[Evidence, ...]
    counters: bool
    """Whether the process counters that could show the cause are available."""
    refusal: str = ""
    """Reason why the alarm does not become a verdict; '' if it does."""
    harmless: bool = False
    """Whether the job is not slower. The alarm then leads neither to a verdict nor to an abstention."""
    asleep: bool = False
    """Whether the rank's processes only sleep more (`Attribution.asleep`)."""
    hinted: bool = False
    """Whether a device counter deviates as with a fault, although too little to show the cause, or may do so: its usual
    value was learned since the alarm began."""
    in_doubt: bool = False
    """Whether the rank may still be healthy (persistence.py)."""
    about: tuple[int, ...] = ()
    """Indices of other ranks to which the refusal applies too."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why an alarm does not become a verdict."""

    reason: str
    harmless: bool = False
    """Whether the job is not slower, so that nothing is reported."""


def judge(case: Case) -> Judgement:
    """Run the checks on an alarm, in the order of CHECKS. The first check that fails refuses the alarm."""
    measured = measure(case)
    evidence = evidence_of(case, measured)
    refusals = (check(case, measured) for check in CHECKS)
    refusal = next((found for found in refusals if found is not None), Refusal(""))
    return Judgement(
        rank=case.rank,
        slowdown=measured.slowdown,
        step_seconds=measured.step_seconds,
        cause=measured.split.cause,
        confidence=(log_odds.confidence if measured.split.known else log_odds.without_counters)(evidence),
        evidence=evidence,
        counters=measured.split.known,
        refusal=refusal.reason,
        harmless=refusal.harmless,
        asleep=measured.split.asleep,
    )


def _slows_the_job(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if the job is not slower, or if its steps would be hardly shorter without the rank."""
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
    """Refuse if the number of the rank's tokens explains its compute time."""
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
    # Compared with the healthy state of peers with the same work, extra_wait is exact: it excludes pipeline bubbles.
    enough = measured.from_start and not measured.role_outlier and len(case.ranks) >= LEAST_PEERS
    if enough and measured.wait >= INVERTED * measured.others_wait:
        times = measured.wait / max(measured.others_wait, 1e-9)
        return Refusal(f"it waits {times:.2g} times as long as its peers: it does not delay them")
    return None


def _has_no_larger_part(case: Case, measured: Measured) -> Refusal | None:
    """Refuse a rank that was slow from the start if more work can explain its slowness."""
    if not measured.from_start or case.baseline.role_known or case.shown is not Cause.UNKNOWN:
        return None
    as_long = [rank for rank in measured.of_node if case.baseline.from_start[rank]]
    if as_long and not measured.split.known:
        return Refusal(
            f"{len(as_long) + 1} ranks of its node have been slower than their peers from the start: they may "
            "be of another model or have more work"
        )
    times = measured.compute / measured.usual
    least = LARGER_PART_OF_ROLE if case.where.layout_known else LARGER_PART
    if np.log(times) < (OUTLIER_RATIO if measured.role_outlier else least):
        return Refusal(
            f"it has computed {times:.3g} times as long as its peers from the start: it may have more "
            "work or may be slower, and there is no healthy history to compare with"
        )
    return None


def _has_no_input_to_wait_for(case: Case, measured: Measured) -> Refusal | None:
    """Refuse the only rank of the first pipeline stage if no counter shows why it is slow: it may wait for its input.

    With more ranks in the stage, only one of them would wait for a slow disk; the input of a single rank is that of the
    job. Later stages get their input from the stage before.
    """
    if not case.where.alone(case.rank) or case.where.role[case.rank] != 0 or measured.split.cause is not Cause.UNKNOWN:
        return None
    return Refusal(
        "it is the only rank of the first pipeline stage: it may wait for its input, and no counter shows a cause"
    )


def _has_no_period(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if the slow steps are at a fixed period: then they are periodic work of the rank.

    A process that is stopped, or sleeps, has no such work. But a rank that usually waits for its disk may wait for it
    in the slow steps too: samples two seconds apart (docs/adr/0133) do not show in which step it waited.
    """
    split = measured.split
    writes = float(case.baseline.parts[case.rank, BLOCK_IO]) >= WRITES_SHARE * measured.excess
    stopped = split.cause is Cause.SUSPENDED and (split.stopped_again or not writes)
    period = 0 if stopped else _period(case, measured.expected)
    if period:
        return Refusal(f"it is slow exactly every {period} steps: periodic work of this rank, such as checkpoints")
    return None


def _has_no_other_reason(case: Case, measured: Measured) -> Refusal | None:
    """Refuse if another rank, or other load on a shared machine, can explain the slow steps."""
    if measured.gain < ALONE * measured.next_gain and not (measured.split.stopped_again or measured.role_outlier):
        return Refusal("another rank explains the slow steps nearly as well")
    if case.shared_machine and measured.split.may_be_chance_load:
        return Refusal(_chance_load(measured.split))
    return None


CHECKS = (
    _slows_the_job,
    _has_no_more_tokens,
    _peers_wait,
    _has_no_larger_part,
    _has_no_input_to_wait_for,
    _has_no_period,
    _has_no_other_reason,
)
"""Checks that an alarm must pass, in the order in which they run."""


def _tokens_to_peers(case: Case) -> float:
    """Return the ratio of the rank's tokens to its peers' tokens since the alarm began; 0 if tokens are not
    reported."""
    tokens = case.mean("tokens")
    if not np.isfinite(tokens).all() or (tokens <= 0).any():
        return 0.0
    return float(tokens[case.rank] / middle_of_others_of(tokens, case.where, case.rank))


def _period(case: Case, expected: float) -> int:
    """Return the exact period of the rank's slow steps, in steps; 0 if there is none.

    A period is measured only if a single step causes each slow window. expected: compute time of a healthy rank.
    """
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
