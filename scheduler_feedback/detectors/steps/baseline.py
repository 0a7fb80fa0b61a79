"""What a gang is like when healthy: learned once from its warm-up, then frozen.

A baseline that went on learning would take a lasting fault for the normal state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.detectors.steps.windows import (
    LEAST_COMPUTE,
    Places,
    Window,
    join,
    middle_of_others,
    middle_of_peers,
    spread,
)

SKIPPED_STEPS = 3
"""The first steps compile, allocate and fill caches."""

WARM_UP_STEPS = 25
WARM_UP_SECONDS = 8.0
"""Public step traces: the scale of a rank settles within about 25 steps. Short steps are given eight seconds all the
same: what disturbs a machine for a second or two must not make the norm."""

SPREAD_FLOOR = 0.02
"""Two per cent: no scale is smaller, or a very regular job would make suspects of trifles."""

FROM_START_PEERS = float(np.log(1.15))
FROM_START_SELF = float(np.log(1.10))
FROM_START_SIGMAS = 4.0
"""A rank so much above its peers (or above its own place among them in an earlier attempt) has been slow from the
start. Four sigma of the others' own spread: unequal pipeline stages spread a healthy gang (ByteDance trace ST)."""

LEAST_SHARE = 16
"""More than one place in sixteen slow from the start is how the work was divided."""

EARLY_WINDOWS = 3
EARLY_RATIO = float(np.log(1.3))
"""So few windows suffice to see a rank that is far slower than its peers from the start, in each of them: the norm of
everybody else is learned all the same when the warm-up is over."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Healthy means of n ranks. All times in seconds a step.

    steps: how many it rests on. step_seconds: of the gang. shared_wait: of the collective itself.
    compute, wait: float64 [n].
    own_spread: float64 [n], standard deviation of the logarithm of a window's computing time against its peers.
    parts: float64 [n, 3], processor, run-queue and block-I/O time, NaN where unknown; parts_compute: float64 [n], the
    computing time over exactly the same windows.
    from_start: bool [n], slow already here; reference: float64 [n], what its computing time should have been then.
    role_known: whether an earlier attempt of the gang tells the ranks' places among their peers.
    final: whether it rests on a whole warm-up; otherwise it was learned early, for a rank slow from the start.
    """

    steps: int
    step_seconds: float
    shared_wait: float
    compute: FloatArray
    wait: FloatArray
    own_spread: FloatArray
    parts: FloatArray
    parts_compute: FloatArray
    from_start: npt.NDArray[np.bool_]
    reference: FloatArray
    role_known: bool
    final: bool = True

    @property
    def known(self) -> bool:
        """Whether waits were known when it was learned."""
        return bool(np.isfinite(self.compute[0]))


def log_compute(compute: FloatArray, step_seconds: float) -> FloatArray:
    """Logarithm of computing time; what is too short to matter to the step counts as just so long."""
    result: FloatArray = np.log(np.maximum(compute, LEAST_COMPUTE * step_seconds))
    return result


def per_step(windows: Sequence[Window]) -> FloatArray:
    """[n, 5] counters' advance a step from the beginning of the first window to that of the last, NaN where unknown.

    The last window only lends its beginning: by the time it is complete, samples from both sides of that instant are
    there. The counters' own times count, not the windows'.
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
    """Freeze what the warm-up's windows show. `role`: float64 [n], log computing time against the gang's median in an
    earlier attempt; None where there is none.

    Each rank's own worst window is left out, and of the gang's times its worst: one stall while starting must not
    become the norm; two are nature.
    """
    compute = np.array([window.compute for window in windows])
    usual_windows = sorted(windows, key=lambda window: window.step_seconds)[: max(1, len(windows) - 1)]
    wait, step_seconds = join(usual_windows, "wait"), float(join(usual_windows, "step_seconds"))
    count = compute.shape[1]
    usual = (compute.sum(axis=0) - compute.max(axis=0)) / max(len(windows) - 1, 1) if len(windows) > 1 else compute[0]
    logs = log_compute(compute, step_seconds)
    usual_log = log_compute(usual, step_seconds)
    from_start, reference = np.zeros(count, np.bool_), usual
    own = np.full(count, SPREAD_FLOOR)
    if np.isfinite(usual).all() and count > 1:
        shifts = logs - usual_log
        residual = np.array([row - middle_of_others(row, where) for row in shifts])
        squares = np.sort(residual**2, axis=0)[: max(1, len(windows) - 1)]
        own = np.maximum(np.sqrt(squares.mean(axis=0)), max(SPREAD_FLOOR, spread(residual)))
        from_start, reference = _slow_from_start(usual_log, own, role, where)
    known = len(windows) > 1
    return Baseline(
        steps=sum(window.steps for window in windows),
        step_seconds=step_seconds,
        shared_wait=float(np.median([window.shared_wait for window in windows])),
        compute=usual,
        wait=wait,
        own_spread=own,
        parts=per_step(windows)[:, :3] if known else np.full((count, 3), np.nan),
        parts_compute=join(windows[:-1], "compute") if known else usual,
        from_start=from_start,
        reference=reference,
        role_known=role is not None,
        final=final,
    )


def learn_early(windows: Sequence[Window], role: FloatArray | None, where: Places) -> Baseline | None:
    """A norm from the first few windows, where in all of them some rank is far slower than its peers; None else."""
    if len(windows) < EARLY_WINDOWS or not all(window.known for window in windows):
        return None
    found = learn(windows, role, where, final=False)
    if not found.from_start.any():
        return None
    logs = [log_compute(window.compute, found.step_seconds) for window in windows]
    place = np.array([row - np.nan_to_num(middle_of_peers(row, where), nan=np.inf) for row in logs])
    sure = found.from_start & (place >= EARLY_RATIO).all(axis=0)
    if not sure.any():
        return None
    return replace(found, from_start=sure, reference=np.where(sure, found.reference, found.compute))


def _slow_from_start(
    usual_log: FloatArray, own: FloatArray, role: FloatArray | None, where: Places
) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """Who is slow from the start, and each rank's healthy computing time as far as that can be told."""
    place = usual_log if role is None else usual_log - role
    expected = middle_of_peers(place, where) if role is None else middle_of_others(place, where)
    residual = np.nan_to_num(place - expected, nan=-np.inf)
    threshold = FROM_START_PEERS if role is None else FROM_START_SELF
    slow = np.zeros(len(usual_log), np.bool_)
    for members in where.roles if role is None else (np.arange(len(usual_log)),):
        for rank in members[residual[members] >= threshold].tolist():
            others = members[members != rank]
            scale = max(spread(place[others]), float(own[rank]), SPREAD_FLOOR)
            slow[rank] = residual[rank] >= FROM_START_SIGMAS * scale
    if len(set(where.index[slow].tolist())) > max(1, len(usual_log) // LEAST_SHARE):
        return np.zeros_like(slow), np.exp(usual_log)  # many places: unequal work, not bad places
    return slow, np.exp(np.where(slow, expected if role is None else expected + role, usual_log))
