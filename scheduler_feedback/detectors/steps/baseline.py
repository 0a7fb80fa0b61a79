"""Baseline: healthy state of a gang, learned once from its warm-up and then frozen.

A baseline that kept learning would take a lasting fault for the normal state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, MAJOR_FAULTS
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.detectors.stats.medians import median, median_of_others
from scheduler_feedback.detectors.stats.spread import spread
from scheduler_feedback.detectors.steps.places import LEAST_PEERS, Places, middle_of_equals, middle_of_others
from scheduler_feedback.detectors.steps.windows import LEAST_COMPUTE, Window, join

SKIPPED_STEPS = 3
"""Number of first steps that are not used, because they compile, allocate and fill caches."""

WARM_UP_STEPS = 25
"""The warm-up has at least this many steps. In public step traces the variation of a rank is known after about 25
steps."""

WARM_UP_SECONDS = 8.0
"""The warm-up takes at least this many seconds, so that a disturbance of a second or two does not spoil the baseline of
a job with short steps."""

SPREAD_FLOOR = 0.02
"""Minimum standard deviation of a rank's step times: two per cent. With less, a very regular job would raise alarms for
tiny deviations."""

FROM_START_PEERS = float(np.log(1.15))
"""A rank was slow from the start only if it was slower than its peers in the warm-up by at least this ratio (logarithm
of 1.15)."""

FROM_START_SELF = float(np.log(1.10))
"""A rank was slow from the start only if it was slower than in an earlier attempt by at least this ratio (logarithm of
1.10)."""

FROM_START_SIGMAS = 4.0
"""A rank was slow from the start only if it was slower by at least this many standard deviations of the other ranks.
Unequal pipeline stages spread the ranks of a healthy gang (ByteDance trace ST)."""

SMALL_ROLE = 8
"""In a role with fewer ranks, the spread of the other ranks is measured over all roles, each rank relative to its own
role: the spread of three ranks is mostly chance."""

OUTLIER_RATIO = float(np.log(1.08))
"""A rank is an outlier of its role only if it is slower than its role by at least this ratio (logarithm of 1.08): GPUs
of one model differ by 8 % on average (Sinha et al., SC'22)."""

OUTLIER_SIGMAS = 6.0
"""A rank is an outlier of its role only if it is slower by at least this many standard deviations of the other ranks.
It has no healthy past that confirms the difference, so that more are needed than FROM_START_SIGMAS."""

OUTLIER_SIGMAS_OF_MANY = 5.0
"""Used instead of OUTLIER_SIGMAS in jobs with at least MANY_RANKS ranks, which show the spread better: of 1,500 healthy
jobs of GPUs of published spread, one of 32 ranks has such an outlier, and with OUTLIER_SIGMAS four of 16 ranks."""

BEYOND_SPREAD = float(np.log(1.25))
"""Used instead of OUTLIER_SIGMAS standard deviations if that is more: healthy GPUs of one model differ by at most 22 %
(Sinha et al., SC'22)."""

OUTLIER_OF_NEXT = 2.0
"""A rank is an outlier of its role only if it is slower by at least this many times as much as any other rank."""

MANY_RANKS = 32
"""Without a layout, only a job with at least this many ranks has an outlier of its role. A layout gives the same work
to several ranks, except in a pipeline with one rank a stage, which has fewer stages."""

LEAST_SHARE = 16
"""If more than one node for each sixteen ranks is slow from the start, the work is divided unequally and no rank is
slow."""

NODE_SHARE = 8
"""The same if more than one node in eight is slow from the start: their GPUs are of another model. At most one rank in
eight is slow for its own reason (FEW in straggler/alarm_case.py)."""

START_UP = 1.5
"""A window of the warm-up belongs to the start-up of the job if the median rank computes at least this many times as
long as in its fastest window: the job compiles, tunes kernels or fills caches. A step is long by the same ratio (SPIKE
in workload/attempt_history.py)."""

START_UP_WINDOWS = 12
"""The start-up of a job has at most this many windows: later long windows are normal behaviour."""

STALLED_SHARE = 8
"""A rank may stall in one of this many windows of the warm-up. More stalls are normal behaviour."""

STEADIER = 2.0
"""A few windows are stalls if the rank is steadier without them by at least this factor."""

EARLY_WINDOWS = 3
"""A rank is reported before the warm-up ends only if it was slow in this many windows."""

EARLY_RATIO = float(np.log(1.3))
"""A rank is reported before the warm-up ends only if it was slower than its peers by at least this ratio (logarithm of
1.3) in each of the first EARLY_WINDOWS windows."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Usual values of n healthy ranks, learned in the warm-up. All times are in seconds a step."""

    steps: int
    """Number of steps of the warm-up from which the values were learned."""
    step_seconds: float
    """Mean step time of the gang in the warm-up, in seconds."""
    shared_wait: float
    """Seconds a step that even the last rank spends in collectives: the duration of the communication itself."""
    compute: FloatArray
    """Mean compute time of each rank in the warm-up, in seconds a step: float64 [n]."""
    wait: FloatArray
    """Mean time that each rank waits in collectives, in seconds a step: float64 [n]."""
    own_spread: FloatArray
    """Standard deviation of each rank's compute time relative to its peers, over windows, in log seconds: float64
    [n]."""
    parts: FloatArray
    """Time of each rank on a CPU, waiting for a CPU, and waiting for disks, in seconds a step: float64 [n, 3], NaN if
    unknown."""
    faults: FloatArray
    """Major page faults of each rank per step: float64 [n]; NaN if unknown."""
    parts_compute: FloatArray
    """Compute time of each rank over the windows in which the process counters of `parts` were known, in seconds a
    step: float64 [n]."""
    from_start: npt.NDArray[np.bool_]
    """Whether each rank was already slow in the warm-up: bool [n]."""
    reference: FloatArray
    """Compute time to expect of each rank if it is healthy, in seconds a step: float64 [n]."""
    in_most: FloatArray
    """Median over the windows of each rank's compute time relative to the other ranks, minus its mean (logarithms):
    float64 [n]. It is far below 0 for a rank that stalled in a few windows."""
    role_known: bool
    """Whether an earlier attempt of the gang shows how each rank usually differs from its peers."""
    final: bool = True
    """Whether the baseline covers a whole warm-up. If not, it was learned early because a rank is slow from the
    start."""

    @property
    def known(self) -> bool:
        """Whether wait times were known when the baseline was learned."""
        return bool(np.isfinite(self.compute[0]))


def log_compute(compute: FloatArray, step_seconds: float) -> FloatArray:
    """Return the logarithm of compute times. Shorter times than the share LEAST_COMPUTE of a step count as that
    share."""
    result: FloatArray = np.log(np.maximum(compute, LEAST_COMPUTE * step_seconds))
    return result


def per_step(windows: Sequence[Window]) -> FloatArray:
    """Return the increase of each rank's process counters per step: [n, 6], NaN if unknown.

    The increase is measured from the start of the first window to the start of the last one. The end of the last window
    is not used, because samples after it may not have arrived. Elapsed time is taken from the counters, not from the
    windows.
    """
    first, last = windows[0].began, windows[-1].began
    elapsed = (last.at_ns - first.at_ns) * 1e-9
    step_seconds = float(join(windows[:-1], "step_seconds"))
    advance = last.values - first.values
    rate = np.where(elapsed > 0, 1.0, np.nan)[:, None] * advance / np.maximum(elapsed, 1e-9)[:, None]
    result: FloatArray = rate * step_seconds
    result[:, :3] *= 1e-9
    return result


def learn(windows: Sequence[Window], role: FloatArray | None, where: Places, final: bool = True) -> Baseline:
    """Learn the baseline from the windows of the warm-up, and return it.

    role: float64 [n], log compute time relative to the gang's median in an earlier attempt; None without one. The worst
    window of each rank, and the worst step time of the gang, are excluded: a single stall during start-up must not
    affect the baseline, but two stalls are normal behaviour. The start-up of the whole job is excluded too.
    """
    windows = after_start_up(windows)
    compute = np.array([window.compute for window in windows])
    usual_windows = _without_worst(windows)
    wait, step_seconds = join(usual_windows, "wait"), float(join(usual_windows, "step_seconds"))
    count = compute.shape[1]
    usual = (compute.sum(axis=0) - compute.max(axis=0)) / max(len(windows) - 1, 1) if len(windows) > 1 else compute[0]
    logs = log_compute(compute, step_seconds)
    usual_log = log_compute(usual, step_seconds)
    from_start, reference = np.zeros(count, np.bool_), usual
    own, in_most = np.full(count, SPREAD_FLOOR), np.zeros(count)
    if np.isfinite(usual).all() and count > 1:
        shifts = logs - usual_log
        residual = np.array([row - middle_of_others(row, where) for row in shifts])
        own = np.maximum(_without_stalls(residual), max(SPREAD_FLOOR, spread(residual)))
        in_most = np.median(residual, axis=0)
        from_start, reference = _slow_from_start(usual_log, own, role, where)
    known = len(windows) > 1
    consumed = per_step(windows) if known else np.full((count, len(CONSUMED)), np.nan)
    return Baseline(
        steps=sum(window.steps for window in windows),
        step_seconds=step_seconds,
        shared_wait=float(np.median([window.shared_wait for window in windows])),
        compute=usual,
        wait=wait,
        own_spread=own,
        parts=consumed[:, :3],
        faults=consumed[:, MAJOR_FAULTS],
        parts_compute=join(windows[:-1], "compute") if known else usual,
        from_start=from_start,
        reference=reference,
        in_most=in_most,
        role_known=role is not None,
        final=final,
    )


def _without_worst(windows: Sequence[Window]) -> list[Window]:
    """Return the windows without the one with the longest steps, shortest steps first."""
    return sorted(windows, key=lambda window: window.step_seconds)[: max(1, len(windows) - 1)]


def _without_stalls(residual: FloatArray) -> FloatArray:
    """Return the standard deviation of each rank's residuals [w, n] without its worst window: [n].

    If a rank stalled in a few windows, and is far steadier in the others, these windows are left out: otherwise a
    fault of the rank would be within its usual spread for the whole run.
    """
    squares, windows = np.sort(residual**2, axis=0), len(residual)
    usual = np.sqrt(squares[: max(1, windows - 1)].mean(axis=0))
    steady = np.sqrt(squares[: max(1, windows - windows // STALLED_SHARE)].mean(axis=0))
    found: FloatArray = np.where(steady < usual / STEADIER, steady, usual)
    return found


def after_start_up(windows: Sequence[Window]) -> Sequence[Window]:
    """Return the windows after the start-up of the job, in which all ranks compute far longer than later.

    The ranks do not compile or fill caches equally fast. Their differences there would hide faults for the whole run.
    """
    middle = np.array([median(window.compute) for window in windows])
    if not np.isfinite(middle).all():
        return windows
    long = np.flatnonzero(middle[:START_UP_WINDOWS] >= START_UP * middle.min())
    return (windows[int(long[-1]) + 1 :] or windows) if len(long) else windows


def learn_early(windows: Sequence[Window], role: FloatArray | None, where: Places) -> Baseline | None:
    """Return a baseline of the first few windows if a rank is far slower than its peers in all of them; else None."""
    if len(windows) < EARLY_WINDOWS or not all(window.known for window in windows):
        return None
    # Most jobs have no such rank, which the newest window shows already.
    step_seconds = float(join(_without_worst(after_start_up(windows)), "step_seconds"))
    if not (_apart(windows[-1], step_seconds, where) >= EARLY_RATIO).any():
        return None
    found = learn(windows, role, where, final=False)
    if not found.from_start.any():
        return None
    place = np.array([_apart(window, found.step_seconds, where) for window in windows])
    sure = found.from_start & (place >= EARLY_RATIO).all(axis=0)
    if not sure.any():
        return None
    return replace(found, from_start=sure, reference=np.where(sure, found.reference, found.compute))


def _apart(window: Window, step_seconds: float, where: Places) -> FloatArray:
    """Return by how much longer each rank computes than its peers in a window, as a logarithm: [n]; minus infinity if
    it has too few peers."""
    row = log_compute(window.compute, step_seconds)
    result: FloatArray = row - np.nan_to_num(middle_of_equals(row, where), nan=np.inf)
    return result


def _slow_from_start(
    usual_log: FloatArray, own: FloatArray, role: FloatArray | None, where: Places
) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """Return which ranks are slow from the start, and each rank's expected healthy compute time."""
    place = usual_log if role is None else usual_log - role
    expected = middle_of_equals(place, where) if role is None else middle_of_others(place, where)
    residual = np.nan_to_num(place - expected, nan=-np.inf)
    threshold = FROM_START_PEERS if role is None else FROM_START_SELF
    slow = np.zeros(len(usual_log), np.bool_)
    for members in (where.alike or where.roles) if role is None else (np.arange(len(usual_log)),):
        few = role is None and len(members) < SMALL_ROLE
        for rank in members[residual[members] >= threshold].tolist():
            others = np.delete(residual, rank) if few else place[members[members != rank]]
            scale = max(spread(others[np.isfinite(others)]), float(own[rank]), SPREAD_FLOOR)
            slow[rank] = residual[rank] >= FROM_START_SIGMAS * scale
    most = max(1, min(len(usual_log) // LEAST_SHARE, len(where.names) // NODE_SHARE))
    if len(set(where.index[slow].tolist())) > most:
        slow[:] = False  # many nodes: unequal work or another GPU model, not faulty nodes
    if role is None and not slow.any() and (found := _outlier(usual_log, where)) is not None:
        worst, usual = found
        slow[worst] = usual_log[worst] - usual >= FROM_START_SIGMAS * max(float(own[worst]), SPREAD_FLOOR)
        expected = np.where(slow, usual, expected)
    return slow, np.exp(np.where(slow, expected if role is None else expected + role, usual_log))


def is_role_outlier(baseline: Baseline, where: Places, rank: int) -> bool:
    """Return whether this rank, and no other, is clearly slower in the warm-up than ranks with the same work.

    rank: index of the rank.
    """
    found = _outlier(log_compute(baseline.compute, baseline.step_seconds), where)
    return found is not None and found[0] == rank


def _outlier(usual_log: FloatArray, where: Places) -> tuple[int, float] | None:
    """Return the index of the rank that is an outlier of its role, and the log compute time of its peers; None if no
    rank is.

    Ranks are compared with their role. If this shows no outlier, they are compared with the ranks of their role on
    their node: the GPUs of a node are of one model, those of a job need not be. usual_log: float64 [n], log compute
    times. Without a layout, the job must have MANY_RANKS ranks.
    """
    if not where.layout_known and len(usual_log) < MANY_RANKS:
        return None
    on_node = np.full_like(usual_log, np.nan)
    for members in where.cells():
        if len(members) < LEAST_PEERS:
            break
        on_node[members] = median_of_others(usual_log[members])
    for usual in (middle_of_equals(usual_log, where), on_node):
        worst = _alone_above(usual_log - usual)
        if worst is not None:
            return worst, float(usual[worst])
    return None


def _alone_above(residual: FloatArray) -> int | None:
    """Return the index of the rank that is far above all others; None if no rank is.

    It differs from its peers far more than the others differ from theirs: hardware of one model, with the same work, is
    alike. The first rank is never one: it often logs and saves for all. residual: float64 [n], log compute time
    relative to the peers, NaN if there are too few.
    """
    if not np.isfinite(residual).all():
        return None
    worst = int(residual.argmax())
    others = np.delete(residual, worst)
    if worst == 0:
        return None
    scale = max(float(np.sqrt(np.mean((others - np.median(others)) ** 2))), SPREAD_FLOOR / 2)
    sigmas = OUTLIER_SIGMAS_OF_MANY if len(residual) >= MANY_RANKS else OUTLIER_SIGMAS
    least = max(OUTLIER_RATIO, min(sigmas * scale, BEYOND_SPREAD), OUTLIER_OF_NEXT * float(others.max()))
    return worst if residual[worst] >= least else None
