"""Speed of a job at a power limit, relative to its speed at the highest limit.

Without measurements it is the mean of six trainings of Zeus's public measurements. A class of jobs differs from it by
one number, its sensitivity a: its speed is the default speed to the power of a. Learnt from two of the seven measured
limits, it predicts the other speeds of each of these six trainings within .04 (tests/policies/test_power_speeds.py; a
from 0.0 to 1.4). The sensitivity is learnt from speeds that running gangs report at several limits.
"""

from __future__ import annotations

import math

from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.power import PowerRates
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.speeds.learnt_speeds import FULL_SECONDS, class_of, placed
from scheduler_feedback.policies.speeds.speed_model import Configuration

DEFAULT_CURVE = (
    (0.4, 0.64), (0.5, 0.7771), (0.6, 0.877), (0.7, 0.9247), (0.8, 0.9565), (0.9, 0.9838), (1.0, 1.0),
)  # fmt: skip
"""(limit as a share of the highest one, relative speed): geometric means of six trainings on a V100 at 100 to 250 W, of
Zeus's public measurements (ml-energy/zeus 75a8b93, Apache 2.0; benchmarks/survey/data/zeus-power.csv)."""

PRIOR = 0.002
"""Weight of the sensitivity 1 in the regression, as a sum of squares of x. Reported speeds vary by about 2 %, and the
sensitivities of these six trainings by 0.5: (.02 / .5)^2."""

ROUNDED = 0.05
"""Sensitivities are multiples of this, so that limits do not change with each measurement."""

MOST_SENSITIVITY = 3.0
"""Highest sensitivity, so that a wrong report does not give one job all of the power."""

MOST_WEIGHT = 16.0
"""Maximum weight of the measurements of a configuration. So about the last 16 count."""

NEAR = 0.01
"""Difference of the logarithm of default speeds below which two limits count as one."""

MOST_CLASSES, MOST_PLACES = 2000, 8
"""Maximum number of classes in the state, and of configurations of a class. Those measured longest ago are dropped."""


def default_speed(share: float) -> float:
    """Return the relative speed at a limit, without measurements. share: limit as a share of the highest one."""
    if share >= 1.0:
        return 1.0
    low = DEFAULT_CURVE[0]
    for high in DEFAULT_CURVE[1:]:
        if share <= high[0] or high is DEFAULT_CURVE[-1]:
            slope = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
            # Below the curve: as between its first two points.
            return low[1] * math.pow(max(share, 0.05) / low[0], slope)
        low = high
    return 1.0


def sensitivity(state: State, job_id: str, spec: JobSpec) -> float:
    """Return the sensitivity of the job's class; 1 without measurements."""
    rows = state.power_rates.get(class_of(job_id, spec)) if state.policy.learn_speeds else None
    if not rows:
        return 1.0
    spread = sum(row.xx - row.x * row.x / row.weight for row in rows)
    joint = sum(row.xy - row.x * row.y / row.weight for row in rows)
    found = min(max((joint + PRIOR) / (spread + PRIOR), 0.0), MOST_SENSITIVITY)
    return round(found / ROUNDED) * ROUNDED


def speed_at(limit_watts: float, most_watts: float, sensitivity: float) -> float:
    """Return the relative speed at a limit; 1 at the highest one."""
    return math.pow(default_speed(limit_watts / most_watts), sensitivity) if most_watts > 0 else 1.0


def lag(state: State, job: Job, share: float, per_second: float) -> float | None:
    """Return the measured speed of the job at a limit, divided by the one that higher limits predict for it.

    None if its configuration was not measured at higher limits on average. share: limit as a share of the highest one.
    """
    row = _row(state, job, placed(state, job))
    x = math.log(default_speed(share))
    if row is None or row.x / row.weight <= x + NEAR:
        return None
    a = sensitivity(state, job.job_id, job.spec)
    return per_second / math.exp((row.y - a * row.x) / row.weight + a * x)


def record(state: State, job: Job, share: float, per_second: float, seconds: float) -> None:
    """Add a measured speed of the running job at a limit.

    share: limit as a share of the highest one. per_second: work per second. seconds: time over which it was measured.
    """
    place = placed(state, job)
    if place is None or not (math.isfinite(per_second) and per_second > 0) or not seconds > 0:
        return
    key = class_of(job.job_id, job.spec)
    rows = state.power_rates.pop(key, [])  # the newest class is last
    row = next((one for one in rows if _place(one) == place), None)
    if row is None:
        row = PowerRates(*place)
    else:
        rows.remove(row)
    weight = min(seconds / FULL_SECONDS, 1.0)
    kept = min(1.0, (MOST_WEIGHT - weight) / row.weight) if row.weight else 1.0
    x, y = math.log(default_speed(share)), math.log(per_second)
    row.weight = row.weight * kept + weight
    row.x, row.y = row.x * kept + weight * x, row.y * kept + weight * y
    row.xx, row.xy = row.xx * kept + weight * x * x, row.xy * kept + weight * x * y
    state.power_rates[key] = [*rows[-(MOST_PLACES - 1) :], row]
    if len(state.power_rates) > MOST_CLASSES:
        del state.power_rates[next(iter(state.power_rates))]


def _place(row: PowerRates) -> Configuration:
    return Configuration(row.gpu_type, row.ranks, row.level)


def _row(state: State, job: Job, place: Configuration | None) -> PowerRates | None:
    rows = state.power_rates.get(class_of(job.job_id, job.spec), ())
    return next((one for one in rows if place is not None and _place(one) == place), None)
