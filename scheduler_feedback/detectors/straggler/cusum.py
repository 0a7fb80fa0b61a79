"""CUSUM of the straggler detector: residuals of one window, and persistence of an alarm.

Log residuals, a frozen scale and clipped sums were chosen in trials on public step traces.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.stats.medians import row_medians
from scheduler_feedback.detectors.steps.baseline import SPREAD_FLOOR, Baseline, log_compute
from scheduler_feedback.detectors.steps.windows import (
    Window,
    middle_of_others,
    middle_of_peers,
    spread,
    spread_of_others,
)
from scheduler_feedback.detectors.straggler.alarm_case import Judged, slow_windows, stopped_again
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, RECENT_WINDOWS, GangState

CLIP_SIGMAS = 6.0
"""Maximum that one window adds: a single stall cannot raise an alarm, however long it is. Two stalls near each other
can."""

ALLOWANCE_SIGMAS = 0.75
ALARM = 8.0
"""Trials on public traces: with an allowance of 0.75 and an alarm at 6 to 10, a slowdown of 5 % is found in three
steps, without false accusations."""

HIGHEST_SCORE = 12.0
"""Upper bound of the CUSUM. It limits the time that the CUSUM takes to fall after a fault has ended."""

LEAST_HITS = 3
LEAST_HITS_STOPPED = 2
"""Minimum number of slow windows; fewer are treated as chance. Two suffice if samples found the rank stopped more than
once: chance does not stop a process twice, and stalls of seconds fill few windows."""

ATTRIBUTION_NS = 2_000_000_000
"""Minimum length of an interval to attribute its time: counters are sampled once a second."""

LIGHT_WORK = 0.95
LIGHT_NS = 1_800_000_000_000
"""All ranks computing so much less than in the warm-up are doing other work, such as an evaluation, which takes
minutes. After half an hour the warm-up is treated as not representative, for example because caches were cold."""

LARGE_GANG = 64
"""From this size on the spread of all ranks replaces the spread of the other ranks: one rank hardly changes it."""


def judge_window(watched: GangState, baseline: Baseline, window: Window, switches: Switches) -> None:
    """Compute the residuals of one window, and add them to the CUSUMs."""
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
    newest = [judged.window for judged in list(watched.history)[-RECENT_WINDOWS:]]
    if len(newest) == RECENT_WINDOWS:
        recent = sum(one.steps * one.step_seconds for one in newest) / sum(one.steps for one in newest)
        watched.best_step_seconds = min(watched.best_step_seconds, recent / _less_work(watched, window))


def _forget(watched: GangState) -> None:
    """Drop per-rank times of windows that no alarm will read; keep their gang values and sigmas.

    All windows would take 60 kB for each node of eight ranks.
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
    """Return the ratio of the median rank's recent work to the warm-up's, if it is lower and has not lasted long; else
    1.

    A short phase of less work, such as an evaluation, must not set the best step time.
    """
    work = float(np.exp(np.median(np.array(watched.shifts), axis=1).mean())) if len(watched.shifts) else 1.0
    if work >= LIGHT_WORK:
        watched.light_since_ns = None
        return min(work, 1.0)
    if watched.light_since_ns is None:
        watched.light_since_ns = window.first_ns
    return 1.0 if window.last_ns - watched.light_since_ns >= LIGHT_NS else work


def _sigmas(watched: GangState, baseline: Baseline, window: Window, switches: Switches) -> FloatArray:
    """Return each rank's excess over its own history and, in large enough groups, over its peers, in standard
    deviations."""
    now = log_compute(window.compute, baseline.step_seconds)
    shift = now - log_compute(baseline.reference, baseline.step_seconds)
    watched.shifts.append(shift)
    residual = shift - middle_of_others(shift, watched.where)
    peers = now - middle_of_peers(now, watched.where)
    if not switches.self_residual:
        residual = np.where(np.isnan(peers), 0.0, peers)
    residual = np.where(baseline.from_start, residual, np.fmin(residual, peers))
    residual[~window.present] = 0.0
    recent = np.array(watched.shifts)
    scale = np.maximum(baseline.own_spread, SPREAD_FLOOR)
    if not switches.frozen_scale:
        scale = np.maximum((recent - row_medians(recent)[:, None]).std(axis=0), SPREAD_FLOOR)
    if len(now) > LARGE_GANG:
        scale = np.maximum(scale, spread(recent - row_medians(recent)[:, None]))
    else:
        for rank in np.flatnonzero(residual > ALLOWANCE_SIGMAS * scale):
            scale[rank] = max(scale[rank], spread_of_others(recent, int(rank)))
    sigmas: FloatArray = residual / scale
    return sigmas


def persistent(watched: GangState, rank: int, timed: bool) -> bool:
    """Return whether the alarm has enough slow windows, and a long enough interval to attribute the time."""
    interval = watched.interval(rank)
    slow = slow_windows(interval, rank) if interval else []
    if not slow:
        return False
    if timed and interval[-1].window.first_ns - interval[0].window.first_ns < ATTRIBUTION_NS:
        return False
    return len(slow) >= (LEAST_HITS_STOPPED if stopped_again(interval, rank) else LEAST_HITS)


def mates_of(watched: GangState, rank: int) -> tuple[int, ...]:
    """Return the other alarmed ranks of the rank's node."""
    same = watched.where.index == watched.where.index[rank]
    return tuple(r for r in np.flatnonzero(same & (watched.score >= ALARM)).tolist() if r != rank)
