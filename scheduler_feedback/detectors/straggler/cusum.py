"""Residuals and sums of the straggler detector: what one window adds to each rank's CUSUM, and when an alarm counts.

Residuals on logarithms, frozen scale and clipped sums follow trials on public step traces.
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
from scheduler_feedback.detectors.straggler.alarm_checks import Judged, slow_windows, stopped_again
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, RECENT_WINDOWS, Watched

CLIP_SIGMAS = 6.0
"""One window adds at most this: a single stall, however long, can't alarm; two that are near one another can."""

ALLOWANCE_SIGMAS = 0.75
ALARM = 8.0
"""Trials on public traces: an allowance of 0.75, an alarm at 6 to 10: 5 % found in three steps without false ranks."""

HIGHEST_SCORE = 12.0
"""Bounds how long a sum takes to come down after the fault has gone."""

LEAST_HITS = 3
LEAST_HITS_STOPPED = 2
"""Persistence: fewer than three slow windows are an accident. Two suffice where the rank was also seen stopped: no
accident stops a process twice, and stalls of seconds make few windows."""

ATTRIBUTION_NS = 2_000_000_000
"""Counters sampled once a second say little of where time went in a shorter interval."""

LIGHT_WORK = 0.95
LIGHT_NS = 1_800_000_000_000
"""All ranks computing so much less than in the warm-up do something else, unless it goes on for half an hour: then the
warm-up was not like the rest, as with caches that were cold. Evaluations take minutes."""

LARGE_GANG = 64
"""From here on the spread of all ranks stands for that of the others: one of so many hardly moves it."""


def judge_window(watched: Watched, baseline: Baseline, window: Window, switches: Switches) -> None:
    """One window's residuals into the sums."""
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


def _forget(watched: Watched) -> None:
    """Of windows from before any sum left zero keep what they say of the gang, and which ranks were slow: no alarm
    will look at the ranks' times in them. All of them would take 60 kB of a node of eight."""
    risen = watched.since[watched.since >= 0]
    episode = watched.counted - int(risen.min()) if len(risen) else 0
    history = watched.history
    for index in range(len(history) - max(RECENT_WINDOWS, min(episode, INTERVAL_WINDOWS)) - 1, -1, -1):
        judged = history[index]
        if not len(judged.window.compute):
            break  # nor those before it
        history[index] = Judged(judged.window.of_the_gang(), judged.sigmas)


def _less_work(watched: Watched, window: Window) -> float:
    """How many times its work of the warm-up the middle rank does of late, where that is less and not for long yet; or
    1: what is soon over, such as an evaluation, says nothing of how short the usual steps can be."""
    work = float(np.exp(np.median(np.array(watched.shifts), axis=1).mean())) if len(watched.shifts) else 1.0
    if work >= LIGHT_WORK:
        watched.light_since_ns = None
        return min(work, 1.0)
    if watched.light_since_ns is None:
        watched.light_since_ns = window.first_ns
    return 1.0 if window.last_ns - watched.light_since_ns >= LIGHT_NS else work


def _sigmas(watched: Watched, baseline: Baseline, window: Window, switches: Switches) -> FloatArray:
    """Excess of each rank over its own past and, in groups that can vote, its peers, in standard deviations."""
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


def persistent(watched: Watched, rank: int, timed: bool) -> bool:
    """Whether the alarm rests on enough slow windows to be no accident, and on enough time to say where it went."""
    interval = watched.interval(rank)
    slow = slow_windows(interval, rank) if interval else []
    if not slow:
        return False
    if timed and interval[-1].window.first_ns - interval[0].window.first_ns < ATTRIBUTION_NS:
        return False
    return len(slow) >= (LEAST_HITS_STOPPED if stopped_again(interval, rank) else LEAST_HITS)


def mates_of(watched: Watched, rank: int) -> tuple[int, ...]:
    """The other alarmed ranks of the node."""
    same = watched.where.index == watched.where.index[rank]
    return tuple(r for r in np.flatnonzero(same & (watched.score >= ALARM)).tolist() if r != rank)
