"""Checks that an alarm must pass to become a verdict. Each check adds evidence that a person can verify.

An alarm means that one rank is an outlier. The checks cover all windows since the alarm began. They test whether the
job is slowed, whether this rank alone slows it, and whether the cause is the rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import STOPPED, FloatArray
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.cause_attribution import CAUSE_SHARE, CONTESTED_HINT, Attribution, attribute
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.baseline import Baseline, per_step
from scheduler_feedback.detectors.steps.windows import (
    LEAST_PEERS,
    Places,
    Window,
    join,
    middle_of_others_of,
)

LEAST_SLOWDOWN = 1.05
"""Minimum slowdown for which a job may be stopped: five per cent (the threshold of EROICA and Guard)."""

FIRST_SLOWDOWN = 1.15
"""Minimum slowdown to report before the baseline is final: healthy workers vary by a tenth for a few steps (PAI job
1)."""

HIT_SIGMAS = 2.0
"""A rank is slow in a window if its excess is at least two standard deviations."""

INVERTED = 0.7
"""Maximum wait of a culprit relative to its peers. Public traces: a culprit waited 0.144 times as long as its peers,
the lowest healthy rank 0.85 times."""

HELD_SHARE = 0.5
"""Minimum extra wait of the peers, as a share of the suspect's excess. Below it the peers did not wait for the
suspect."""

ALONE = 3.0
"""Minimum ratio of the seconds that the suspect explains to those of the next rank. Below it the alarm is refused,
unless samples found the suspect stopped more than once."""


OWN_RHYTHM_HITS = 3
OWN_RHYTHM_STEPS = 5
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

GIVEN_SHARE = 0.5
"""Tokens that explain half of a rank's excess are its reason. If tokens determined the compute time during warm-up,
compute times are already normalised by work, and this check does not apply."""

FEW = 8
"""At most one rank in eight can be slow for its own reason at one time. More means a workload or machine problem."""


Means = dict[tuple[int, str], FloatArray]
"""Mean of a field over the interval, by number of windows and name of the field."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A window, and the excess of each rank in standard deviations: float64 [n]."""

    window: Window
    sigmas: FloatArray


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
class Case:
    """An alarmed rank (index) with all data that the checks read."""

    rank: int
    ranks: tuple[int, ...]
    where: Places
    interval: Sequence[Judged]
    """Judged windows since the alarm began."""
    baseline: Baseline
    best_step_seconds: float
    alarmed: frozenset[int]
    """Indices of all ranks that are alarmed at the same time."""
    unrest: float
    """Spread of the other ranks, in log seconds."""
    shared_machine: bool
    switches: Switches
    for_work: bool = False
    """Whether compute times are normalised by the work of each rank."""
    accused: frozenset[int] = frozenset()
    """Alarmed ranks, except this one, that active verdicts cover."""
    on_device: bool = False
    """Whether the rank computes on a GPU with readable counters."""
    means: Means = field(default_factory=dict)
    """Cache of field means by the number of windows. All alarmed ranks of a job share it, because every interval ends
    now."""

    def mean(self, of: str) -> FloatArray:
        """Return the mean of a field over the interval, weighted by steps (``windows.join``)."""
        key = (len(self.interval), of)
        found = self.means.get(key)
        if found is None:
            found = self.means[key] = join([judged.window for judged in self.interval], of)
        return found


def slow_windows(interval: Sequence[Judged], rank: int) -> list[Window]:
    """Return the windows in which the rank is slow: by two standard deviations, and by a quarter of its second largest
    excess.

    The second largest excess is the reference, so that one long stall does not hide all other slow windows.
    """
    sigmas = np.array([judged.sigmas[rank] for judged in interval])
    second = np.partition(sigmas, -2)[-2] if len(sigmas) > 1 else 0.0
    least = max(HIT_SIGMAS, second / 4)
    return [judged.window for judged in interval if judged.sigmas[rank] >= least]


def stopped_again(interval: Sequence[Judged], rank: int) -> bool:
    """Return whether samples found the rank stopped more than once.

    One stop lies in one step, and therefore in one window. Interpolation can extend it to the window before. Two
    windows that are not adjacent, or three windows, are at least two stops.
    """
    found = [index for index, judged in enumerate(interval) if judged.window.stopped[rank] > 0]
    return len(found) > 1 and found[-1] - found[0] > 1


def judge(case: Case) -> Judgement:
    """Run the checks on an alarm, the cheapest first. Every check that applies adds its evidence."""
    rank, baseline = case.rank, case.baseline
    windows = [judged.window for judged in case.interval]
    from_start = bool(baseline.from_start[rank])
    compute, wait, gain = case.mean("compute"), case.mean("wait"), case.mean("gain")
    step_seconds = float(case.mean("step_seconds"))
    mates = [r for r in sorted(case.alarmed) if r != rank and case.where.index[r] == case.where.index[rank]]
    strangers = [r for r in sorted(case.alarmed) if case.where.index[r] != case.where.index[rank]]
    own_gain = float(case.mean("node_gain")[case.where.index[rank]] if mates else gain[rank])
    few = len(case.alarmed) <= max(1, len(case.ranks) // FEW)
    if strangers and few:
        own_gain = max(own_gain, _gain_beyond(compute, case, [rank, *(set(mates) - case.accused)]))
    split = _attribute(case, windows, from_start)
    if split.cause is Cause.SUSPENDED and case.shared_machine and split.contested_share >= CONTESTED_HINT:
        own_gain = min(own_gain, max(split.rest, 0.0))  # exclude what other load on the machine may have added
    without = max(step_seconds - own_gain, 1e-9)
    slowdown = step_seconds / without

    usual = baseline.reference[rank] if from_start else baseline.compute[rank]
    drift = _drift_of_others(compute, baseline, case.where, rank)
    excess = float(compute[rank] - usual * drift)
    held = _held(wait, None if from_start else baseline.wait, case.where, rank)
    others_wait = middle_of_others_of(wait, case.where, rank)
    others_gain = np.delete(gain, sorted(case.alarmed) if few else [rank, *mates])
    next_gain = float(others_gain.max()) if len(others_gain) else 0.0
    sigmas = float(np.mean([judged.sigmas[rank] for judged in case.interval]))
    hits = len(slow_windows(case.interval, rank))

    against_own = f"its mean over {baseline.steps} warm-up steps, times {drift:.3g} for the drift of its peers"
    against_peers = "its peers, which should take as long from the start"
    evidence = [
        Evidence(
            "compute_seconds_a_step",
            float(compute[rank]),
            float(usual * drift),
            "seconds",
            against_peers if from_start else against_own,
            log_odds.of_residual(sigmas),
        ),
        Evidence(
            "wait_seconds_a_step",
            float(wait[rank]),
            others_wait,
            "seconds",
            "median of the other ranks, which wait for the slowest rank",
            log_odds.of_waits(held, excess),
        ),
        Evidence(
            "step_seconds",
            step_seconds,
            without,
            "seconds",
            "the same steps without " + _without(mates, strangers, few),
            log_odds.of_slowdown(slowdown),
        ),
        Evidence(
            "seconds_a_step_explained",
            own_gain,
            next_gain,
            "seconds",
            "seconds explained by the next best other rank",
            log_odds.of_margin(own_gain, next_gain),
        ),
        Evidence(
            "slow_windows",
            float(hits),
            float(len(windows)),
            "windows",
            "all windows since the alarm began",
            log_odds.of_persistence(hits, len(windows)),
        ),
        Evidence(
            "unrest_of_others",
            case.unrest,
            float(baseline.own_spread[rank]),
            "log seconds",
            "the spread during warm-up",
            log_odds.of_unrest(case.unrest, float(baseline.own_spread[rank])),
        ),
        *_where_it_went(split, case.shared_machine, from_start),
    ]
    if from_start and not baseline.role_known:
        evidence.append(
            Evidence(
                "healthy_state_known",
                0.0,
                1.0,
                "",
                "no healthy history of this rank; its share of the work may be larger",
                log_odds.ROLE_LAID_OUT if case.where.layout_known else log_odds.ROLE_UNKNOWN,
            )
        )

    refusal, harmless = "", False
    slower = step_seconds / min(baseline.step_seconds, case.best_step_seconds)
    inversion = case.switches.wait_inversion
    larger_part = LARGER_PART_OF_ROLE if case.where.layout_known else LARGER_PART
    if not from_start and slower < LEAST_SLOWDOWN:
        refusal, harmless = f"the gang is not slowed: its steps take {slower:.3g} times their best time", True
    elif len(case.alarmed) > max(1, len(case.ranks) // 2):
        refusal = f"{len(case.alarmed)} of {len(case.ranks)} ranks are outliers: suspect the workload or the machine"
    elif slowdown < LEAST_SLOWDOWN:
        refusal, harmless = f"without this rank the steps would be only {slowdown - 1:.1%} shorter", not strangers
        if strangers:
            numbers = ", ".join(str(case.ranks[r]) for r in sorted([rank, *strangers]))
            refusal = f"ranks {numbers} are equally slow: no single rank explains the step time"
    elif not baseline.final and not from_start and slowdown < FIRST_SLOWDOWN:
        refusal, harmless = "the slowdown is too small to report during warm-up", True
    elif not case.for_work and _given(case) >= (compute[rank] / max(usual * drift, 1e-9)) ** GIVEN_SHARE:
        given = _given(case)
        refusal = f"the rank processes {given:.3g} times the tokens of its peers: it has more work"
    elif inversion and held < HELD_SHARE * excess:
        refusal = "its peers do not wait for it: it does not delay the gang"
    elif inversion and from_start and len(case.ranks) >= LEAST_PEERS and wait[rank] >= INVERTED * others_wait:
        refusal = (
            f"it waits {wait[rank] / max(others_wait, 1e-9):.2g} times as long as its peers: it does not delay them"
        )
    elif from_start and not baseline.role_known and np.log(compute[rank] / usual) < larger_part:
        refusal = (
            f"it has computed {compute[rank] / usual:.3g} times as long as its peers from the start: it may have more "
            "work or may be slower, and there is no healthy history to compare with"
        )
    elif split.cause is not Cause.SUSPENDED and (rhythm := _rhythm(case, usual * drift)):
        refusal = f"it is slow exactly every {rhythm} steps: periodic work of this rank, such as checkpoints"
    elif own_gain < ALONE * next_gain and not split.stopped_again:
        refusal = "another rank explains the slow steps nearly as well"
    elif case.shared_machine and split.may_be_chance_load:
        refusal = _chance_load(split)
    return Judgement(
        rank,
        slowdown,
        step_seconds,
        split.cause,
        log_odds.confidence(evidence),
        tuple(evidence),
        split.known,
        refusal,
        harmless,
    )


def _without(mates: list[int], strangers: list[int], few: bool) -> str:
    ranks = "the node's ranks" if mates else "this rank"
    return f"{ranks}, ignoring the other outliers" if strangers and few else ranks


def _gain_beyond(compute: FloatArray, case: Case, own: list[int]) -> float:
    """Return by how much the steps would be shorter without these ranks, after removing the other alarmed ranks.

    The cost of the other ranks, which are slow for their own reasons, is not attributed to these.
    """
    alarmed = np.zeros(len(compute), np.bool_)
    alarmed[list(case.alarmed)] = True
    role = case.where.role[case.rank]
    members = case.where.roles[role]
    rest = compute[members][~alarmed[members]]
    slowest = max(float(compute[one]) for one in own if case.where.role[one] == role)
    return slowest - float(rest.max()) if len(rest) else 0.0


def _drift_of_others(compute: FloatArray, baseline: Baseline, where: Places, rank: int) -> float:
    """Return the ratio of the other ranks' compute time to the warm-up: drift of the gang is not a rank's fault."""
    return middle_of_others_of(compute / np.maximum(baseline.reference, 1e-9), where, rank)


def _given(case: Case) -> float:
    """Return the ratio of the rank's tokens to its peers' while it was slow; 0 if tokens are not reported."""
    tokens = case.mean("tokens")
    if not np.isfinite(tokens).all() or (tokens <= 0).any():
        return 0.0
    return float(tokens[case.rank] / middle_of_others_of(tokens, case.where, case.rank))


def _held(wait: FloatArray, usual: FloatArray | None, where: Places, rank: int) -> float:
    """Return by how much the rank delays the others: seconds per step.

    This is the others' wait minus the rank's own wait, minus the usual value of this difference.
    """
    now = middle_of_others_of(wait, where, rank) - float(wait[rank])
    return now if usual is None else now - (middle_of_others_of(usual, where, rank) - float(usual[rank]))


def _rhythm(case: Case, usual: float) -> int:
    """Return the exact period, in steps, of the slow steps, if one step causes each slow window; 0 if there is none."""
    rank = case.rank
    slow = slow_windows(case.interval, rank)
    excess = np.array([(window.compute[rank] - usual) * window.steps for window in slow])
    peaks = np.array([window.peak[rank] - usual for window in slow])
    if len(slow) < OWN_RHYTHM_HITS or (peaks < CONCENTRATED * excess).any():
        return 0
    peak_steps = [int(window.peak_step[rank]) for window in slow]
    if all(judged.window.steps == 1 for judged in case.interval):  # a trace may contain only every tenth step number
        place = {judged.window.last_step: index for index, judged in enumerate(case.interval)}
        peak_steps = [place[number] for number in peak_steps]
    apart = np.diff(peak_steps)
    rhythm = int(apart.min())
    return rhythm if rhythm >= OWN_RHYTHM_STEPS and not (apart % rhythm).any() else 0


def _attribute(case: Case, windows: Sequence[Window], from_start: bool) -> Attribution:
    if len(windows) < 2:
        return Attribution(Cause.UNKNOWN, False, np.nan)
    used = per_step(windows)
    samples = windows[-1].began.values[:, STOPPED:] - windows[0].began.values[:, STOPPED:]
    compute = join(windows[:-1], "compute")
    usual_compute = None if from_start else case.baseline.parts_compute
    usual_parts = None if from_start else case.baseline.parts
    step_seconds = float(join(windows, "step_seconds"))
    again = stopped_again(case.interval, case.rank)
    return attribute(case.rank, compute, used, samples, usual_compute, usual_parts, step_seconds, again, case.on_device)


def _where_it_went(split: Attribution, shared_machine: bool, from_start: bool) -> list[Evidence]:
    ratio = log_odds.bounded(log_odds.of_cause(split, shared_machine, from_start))
    if not split.known:
        return [Evidence("process_counters", 0.0, 1.0, "", "its process counters, which are missing", ratio)]
    parts = (
        ("off_processor_seconds_a_step", split.rest),
        ("runqueue_seconds_a_step", split.queue),
        ("processor_seconds_a_step", split.processor),
        ("block_io_seconds_a_step", split.storage),
    )
    against = "its total excess over its healthy state, less the growth of its peers"
    return [
        *(Evidence(measure, part, split.excess, "seconds", against) for measure, part in parts),
        Evidence(
            "stopped_samples_share",
            split.stopped_share,
            0.0,
            "ratio",
            "processes that are not stopped",
        ),
        Evidence(
            "largest_part_of_excess",
            max(split.share(part) for _, part in parts),
            CAUSE_SHARE,
            "ratio",
            f"the least share that identifies a cause: {split.cause}",
            ratio,
        ),
    ]


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
