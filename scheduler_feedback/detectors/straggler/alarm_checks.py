"""What an alarm must pass to become a verdict: the reasons for and against, as evidence a person can check.

An alarm says that one rank stands out. Whether the job is hurt, whether it is hurt by that rank, whether by that rank
alone and for its own reason, is asked here, over all windows since the alarm's beginning.
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
"""Below five per cent nothing is worth stopping a job for (EROICA's and Guard's threshold)."""

FIRST_SLOWDOWN = 1.15
"""While the norm is young, only what is plain is told: real workers wander by a tenth for a few steps (PAI job 1)."""

HIT_SIGMAS = 2.0
"""A window in which a rank is slow: by two standard deviations."""

INVERTED = 0.7
"""Public traces: a culprit waited 0.144 times its peers' wait, the lowest healthy rank 0.85 times."""

HELD_SHARE = 0.5
"""Peers must wait longer by at least this share of the suspect's excess, or they did not wait for it."""

ALONE = 3.0
"""The suspect explains at least this many times what the next rank does; odds below it are no finding, unless the
suspect itself was found stopped again and again: then the others' part is another matter."""


OWN_RHYTHM_HITS = 3
OWN_RHYTHM_STEPS = 5
"""Slow steps that come every n-th step exactly (n >= 5), three times and more, are what the rank itself does then:
saving a checkpoint, evaluating, collecting garbage. A fault does not count steps, unless it stops them in step with
itself: a stopped process is exempt."""

CONCENTRATED = 0.6
"""One step holds at least this share of its window's excess."""

LARGER_PART = float(np.log(1.6))
"""A rank that never was faster may have more to do: pipeline stages of healthy jobs differ by up to half (ByteDance
trace ST; NVRx's rule, 1.33 times, names two of its ranks). Beyond this it is told as a straggler, with doubt."""

LARGER_PART_OF_ROLE = float(np.log(1.25))
"""Where the layout says that its peers do the same work, what is left is uneven data and experts."""

GIVEN_SHARE = 0.5
"""Tokens that explain half of what a rank takes longer by are its reason. Where tokens drove the time in warm-up,
computing is held against the work given from the start, and there is nothing left to explain."""

FEW = 8
"""At most one rank in eight can be slow, each for its own reason, at one time; more is the workload or the machine."""


Means = dict[tuple[int, str], FloatArray]
"""By number of windows and field."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A window and what was made of it: float64 [n] excess of each rank in standard deviations."""

    window: Window
    sigmas: FloatArray


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gates say of one alarmed rank.

    refusal: why it is no verdict, '' where it is one. harmless: the job is not hurt, so that not even an abstention
    is due. slowdown: step time over step time without the suspect (or its whole node, where its other ranks stand
    out as well). counters: whether its processes' counters are there to tell the cause. about: other ranks (indices)
    that a refusal is about as much.
    """

    rank: int
    slowdown: float
    step_seconds: float
    cause: Cause
    confidence: float
    evidence: tuple[Evidence, ...]
    counters: bool
    refusal: str = ""
    harmless: bool = False
    about: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """An alarmed rank (index) and all that is looked at: the interval's windows, the ranks alarmed with it.

    accused: of those, others that a verdict stands on. for_work: whether computing is held against the work given.
    on_device: whether it computes on a GPU that is read. means: of fields, by the interval's windows; all alarmed ranks
    of a job have theirs in one, since every interval ends now.
    """

    rank: int
    ranks: tuple[int, ...]
    where: Places
    interval: Sequence[Judged]
    baseline: Baseline
    best_step_seconds: float
    alarmed: frozenset[int]
    unrest: float
    shared_machine: bool
    switches: Switches
    for_work: bool = False
    accused: frozenset[int] = frozenset()
    on_device: bool = False
    means: Means = field(default_factory=dict)

    def mean(self, of: str) -> FloatArray:
        """The mean of a field over the interval, weighted by steps (``windows.join``)."""
        key = (len(self.interval), of)
        found = self.means.get(key)
        if found is None:
            found = self.means[key] = join([judged.window for judged in self.interval], of)
        return found


def slow_windows(interval: Sequence[Judged], rank: int) -> list[Window]:
    """The windows in which the rank is slow: by two standard deviations, and not by a trifle beside the rest.

    The second largest excess is the measure, so that one long stall makes no other window small.
    """
    sigmas = np.array([judged.sigmas[rank] for judged in interval])
    second = np.partition(sigmas, -2)[-2] if len(sigmas) > 1 else 0.0
    least = max(HIT_SIGMAS, second / 4)
    return [judged.window for judged in interval if judged.sigmas[rank] >= least]


def stopped_again(interval: Sequence[Judged], rank: int) -> bool:
    """Whether samples found the rank stopped more than once.

    One stop, however long, lies in one step and so in one window, and reaches the one before by interpolation: two
    windows that are not neighbours, or three, are two stops.
    """
    found = [index for index, judged in enumerate(interval) if judged.window.stopped[rank] > 0]
    return len(found) > 1 and found[-1] - found[0] > 1


def judge(case: Case) -> Judgement:
    """Pass an alarm through the gates, in order of what they cost; every one that applies adds its evidence."""
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
        own_gain = min(own_gain, max(split.rest, 0.0))  # what chance load may have added is not held against it
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
            "work or may be slower, and no healthy history tells them apart"
        )
    elif split.cause is not Cause.SUSPENDED and (rhythm := _rhythm(case, usual * drift)):
        refusal = f"it is slow exactly every {rhythm} steps: periodic work of its own, such as checkpoints"
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
    """By how much the steps would be shorter without these ranks once the others that stand out are gone, each for its
    own reason: what those cost is held against nobody else."""
    alarmed = np.zeros(len(compute), np.bool_)
    alarmed[list(case.alarmed)] = True
    role = case.where.role[case.rank]
    members = case.where.roles[role]
    rest = compute[members][~alarmed[members]]
    slowest = max(float(compute[one]) for one in own if case.where.role[one] == role)
    return slowest - float(rest.max()) if len(rest) else 0.0


def _drift_of_others(compute: FloatArray, baseline: Baseline, where: Places, rank: int) -> float:
    """How much slower or faster the others compute than in warm-up: what the whole gang does is no one's fault."""
    return middle_of_others_of(compute / np.maximum(baseline.reference, 1e-9), where, rank)


def _given(case: Case) -> float:
    """How many times its peers' tokens the rank was given, while it was slow; 0 where not reported."""
    tokens = case.mean("tokens")
    if not np.isfinite(tokens).all() or (tokens <= 0).any():
        return 0.0
    return float(tokens[case.rank] / middle_of_others_of(tokens, case.where, case.rank))


def _held(wait: FloatArray, usual: FloatArray | None, where: Places, rank: int) -> float:
    """By how much longer the others wait than the rank does, beyond what is usual between them; seconds a step."""
    now = middle_of_others_of(wait, where, rank) - float(wait[rank])
    return now if usual is None else now - (middle_of_others_of(usual, where, rank) - float(usual[rank]))


def _rhythm(case: Case, usual: float) -> int:
    """Every how many steps the rank is slow, where one step makes each slow window and they come exactly so; or 0."""
    rank = case.rank
    slow = slow_windows(case.interval, rank)
    excess = np.array([(window.compute[rank] - usual) * window.steps for window in slow])
    peaks = np.array([window.peak[rank] - usual for window in slow])
    if len(slow) < OWN_RHYTHM_HITS or (peaks < CONCENTRATED * excess).any():
        return 0
    peak_steps = [int(window.peak_step[rank]) for window in slow]
    if all(judged.window.steps == 1 for judged in case.interval):  # a trace may number every tenth step only
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
