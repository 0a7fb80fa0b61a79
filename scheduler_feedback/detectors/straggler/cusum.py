"""CUSUM of the straggler detector: computes each rank's excess in a window, and adds it up over windows.

The use of logarithms, of a frozen scale and of limited sums was decided by trials on public step traces.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.stats.group_intersection import SLOW_SHARE
from scheduler_feedback.detectors.stats.spread import spread, spread_of_others
from scheduler_feedback.detectors.steps.baseline import SPREAD_FLOOR, Baseline, log_compute
from scheduler_feedback.detectors.steps.places import LEAST_PEERS, Places, middle_of_equals, middle_of_others
from scheduler_feedback.detectors.steps.windows import Window
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Judged, slow_windows, stopped_again
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, RECENT_WINDOWS, GangState

CLIP_SIGMAS = 6.0
"""Maximum excess, in standard deviations, that one window adds to a rank's CUSUM (a running sum). So a single stall
raises no alarm, however long it is."""

ALLOWANCE_SIGMAS = 0.75
"""Number of standard deviations that is subtracted from each excess before the CUSUM (a running sum) adds it."""

ALARM = 8.0
"""Value of the CUSUM (running sum of a rank's excess) from which the rank is alarmed. In trials on public traces,
values from 6 to 10 find a slowdown of 5 % in three steps, without false accusations."""

HIGHEST_SCORE = 12.0
"""Upper limit of the CUSUM (running sum of a rank's excess). With it, the CUSUM falls soon after a fault has ended."""

LEAST_HITS = 3
"""An alarm becomes a verdict only if the rank was slow in at least this many windows. Fewer can be chance."""

LEAST_HITS_STOPPED = 2
"""Used instead of LEAST_HITS if samples found the rank stopped more than once: chance does not stop a process twice."""

ATTRIBUTION_NS = 2_000_000_000
"""An alarm's cause is determined only after the alarm has lasted for this many ns, because counters are sampled once a
second."""

LIGHT_WORK = 0.95
"""If the median rank computes less than this share of its time in the warm-up, the job is doing other work, for example
an evaluation."""

LIGHT_NS = 1_800_000_000_000
"""Time in ns after which less work counts as the normal state of the job: the warm-up was not representative."""

FAR_LESS = 0.25
"""A rank that slowed down by less than this share of another rank of its node is not accused with it. A slow window has
at least the same share of the second largest excess (`slow_windows`)."""

AS_OFTEN = 0.5
"""A rank is accused together with another rank of its node only if it was slow in at least this share of the windows in
which that rank was slow. Of 52 right ones, none was slow in less than nine of twelve (seeds 291000 to 291023 of
``benchmarks.traces``); three wrong ones were slow in two to four."""

MATE_WINDOWS = 12
"""Number of newest windows in which this is tested. After as many, an alarm without a known cause is certain."""

LARGE_GANG = 64
"""Number of ranks from which the spread is computed over all ranks, including the suspect: one rank hardly changes
it."""


def judge_window(watched: GangState, baseline: Baseline, window: Window, switches: Switches) -> None:
    """Compute each rank's excess in one window, and add it to the rank's CUSUM."""
    watched.counted += 1
    sigmas = np.zeros(len(watched.ranks))
    if window.known and baseline.known:
        sigmas = _sigmas(watched, baseline, window, switches)
        step = np.minimum(np.maximum(sigmas, -CLIP_SIGMAS), CLIP_SIGMAS) - ALLOWANCE_SIGMAS
        score = np.minimum(np.maximum(watched.score + step, 0.0), HIGHEST_SCORE)
        watched.since[(score > 0) & (watched.since < 0)] = watched.counted - 1
        over = (score <= 0) & (watched.since >= 0)
        if over.any():
            watched.longest_episode = max(watched.longest_episode, watched.counted - int(watched.since[over].min()))
        watched.since[score <= 0] = -1
        watched.score = score
    watched.history.append(Judged(window, sigmas))
    _forget(watched)
    history = watched.history
    if len(history) >= RECENT_WINDOWS:
        newest = [history[index].window for index in range(-RECENT_WINDOWS, 0)]
        recent = sum(one.steps * one.step_seconds for one in newest) / sum(one.steps for one in newest)
        watched.best_step_seconds = min(watched.best_step_seconds, recent / _less_work(watched, window))


def _forget(watched: GangState) -> None:
    """Drop the per-rank times of old windows that no alarm will read. Excesses and values of the whole gang are kept.

    Otherwise the windows would take 60 kB for each node of eight ranks.
    """
    risen = watched.since[watched.since >= 0]
    episode = watched.counted - int(risen.min()) if len(risen) else 0
    history = watched.history
    for index in range(len(history) - max(RECENT_WINDOWS, min(episode, INTERVAL_WINDOWS)) - 1, -1, -1):
        judged = history[index]
        if not len(judged.window.compute):
            break  # older windows are reduced already
        history[index] = Judged(judged.window.of_the_gang(), judged.sigmas)


def _less_work(watched: GangState, window: Window) -> float:
    """Return the median rank's recent compute time divided by that in the warm-up; 1 if it is not lower, or has been
    lower for long.

    Needed so that a short phase of less work, such as an evaluation, does not become the best step time.
    """
    work = float(np.exp(np.array(watched.middles).mean())) if watched.middles else 1.0
    if work >= LIGHT_WORK:
        watched.light_since_ns = None
        return min(work, 1.0)
    if watched.light_since_ns is None:
        watched.light_since_ns = window.first_ns
    return 1.0 if window.last_ns - watched.light_since_ns >= LIGHT_NS else work


def _sigmas(watched: GangState, baseline: Baseline, window: Window, switches: Switches) -> FloatArray:
    """Return each rank's excess in a window, in standard deviations: [n ranks].

    It is the excess over the rank's own history, and also over its peers if the role has enough ranks.
    """
    now = log_compute(window.compute, baseline.step_seconds)
    shift = now - log_compute(baseline.reference, baseline.step_seconds)
    watched.add_shift(shift)
    residual = shift - middle_of_others(shift, watched.where)
    peers = now - middle_of_equals(now, watched.where)
    if not switches.self_residual:
        residual = np.where(np.isnan(peers), 0.0, peers)
    residual = np.where(baseline.from_start, residual, np.fmin(residual, peers))
    residual[~window.present] = 0.0
    scale = np.maximum(baseline.own_spread, SPREAD_FLOOR)
    if not switches.frozen_scale:
        scale = np.maximum(_around_middles(watched).std(axis=0), SPREAD_FLOOR)
    if len(now) > LARGE_GANG:
        scale = np.maximum(scale, spread(_around_middles(watched)))
    elif (high := residual > ALLOWANCE_SIGMAS * scale).any():
        recent = np.array(watched.shifts)
        for rank in np.flatnonzero(high).tolist():
            others = _compared_with(watched.where, high, rank, watched.score >= HIGHEST_SCORE)
            scale[rank] = max(scale[rank], spread_of_others(recent[:, others], int(np.searchsorted(others, rank))))
    sigmas: FloatArray = residual / scale
    return sigmas


def _around_middles(watched: GangState) -> FloatArray:
    """Return the shifts of the newest windows relative to the median of each window: [windows, n]."""
    found: FloatArray = np.array(watched.shifts) - np.array(watched.middles)[:, None]
    return found


def _compared_with(where: Places, high: npt.NDArray[np.bool_], rank: int, certain: npt.NDArray[np.bool_]) -> IntArray:
    """Return the indices of the rank and of those ranks that show the usual spread.

    If all ranks of the rank's node are slow, the other ranks of the node are left out. They would be half of a job on
    two nodes. Otherwise the ranks with the highest CUSUM are left out, unless they are half of the job: three sick
    ranks of eight would hide each other. certain: whether the CUSUM of each rank is the highest.
    """
    node, count = where.index == where.index[rank], np.arange(len(high))
    if int(node.sum()) >= LEAST_PEERS and high[node].all() and int((~node).sum()) >= LEAST_PEERS:
        return np.flatnonzero(~node | (count == rank))
    if 2 * int(certain.sum()) < len(high):
        return np.flatnonzero(~certain | (count == rank))
    return count


def persistent(watched: GangState, rank: int, timed: bool) -> bool:
    """Return whether the alarm has lasted: it has enough slow windows, and is long enough to attribute to a cause."""
    interval = watched.interval(rank)
    slow = slow_windows(interval, rank) if interval else []
    if not slow:
        return False
    if timed and interval[-1].window.first_ns - interval[0].window.first_ns < ATTRIBUTION_NS:
        return False
    return len(slow) >= (LEAST_HITS_STOPPED if stopped_again(interval, rank) else LEAST_HITS)


def mates_of(watched: GangState, rank: int) -> tuple[int, ...]:
    """Return the indices of the other alarmed ranks on the rank's node, except ranks that slowed down far less than it.

    Noise can alarm a healthy rank while another one is at fault. It must not be accused with it: at other times it is
    not slow. The first rank often
    saves for all: unless nearly the whole node is slow, it is a mate only after INTERVAL_WINDOWS windows.
    """
    same = watched.where.index == watched.where.index[rank]
    alarmed = [r for r in np.flatnonzero(same & (watched.score >= ALARM)).tolist() if r != rank]
    if alarmed and alarmed[0] == 0 and len(alarmed) + 1 < SLOW_SHARE * int(same.sum()):
        alarmed = alarmed if len(watched.interval(0)) >= INTERVAL_WINDOWS else alarmed[1:]
    if not alarmed or not len(watched.shifts):
        return tuple(alarmed)
    recent = np.array(watched.shifts).mean(axis=0)
    excess = recent - np.median(recent)
    newest = np.array([judged.sigmas for judged in watched.interval(rank)[-MATE_WINDOWS:]]) >= HIT_SIGMAS
    slow = newest.sum(axis=0) if len(newest) else np.zeros(len(excess))
    return tuple(r for r in alarmed if excess[r] >= FAR_LESS * excess[rank] and slow[r] >= AS_OFTEN * slow[rank])
