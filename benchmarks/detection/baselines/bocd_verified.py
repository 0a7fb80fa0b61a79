"""Bayesian online change-point detection with verification: Greyhound (ATC 2025).

The detector of Adams and MacKay (2007), with unknown mean and variance, reads iteration times. (Greyhound infers
them from the collectives; here they are given.) A change with p > 0.9 is verified: the means before and after must
differ by 10 %. Then the rule finds groups that are 10 % slower than the median, and the slow ranks in them.
Greyhound finds the ranks with GEMM and P2P tests; here the ranks' own times are compared within a role. Slow links,
for which P2P tests are needed, are not found.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from benchmarks.detection.baselines.history import JobHistory, Rule
from benchmarks.detection.baselines.sliding_window import CHANGE, slow_ranks
from scheduler_feedback.sim.world.arrays import FloatArray

PROBABILITY = 0.9
HAZARD = 1.0 / 250.0
"""Prior probability of a change at each iteration. The paper does not state its value; 1/250 is from Adams and
MacKay."""

LONGEST_RUN = 200
VERIFY_STEPS = 4
"""Number of iterations after the change whose mean is compared with the mean before it."""


class ChangePoint:
    """Probability distribution of the number of iterations since the last change. Each run has a normal-gamma model."""

    def __init__(self, hazard: float = HAZARD) -> None:
        self.hazard = hazard
        self._prior: tuple[float, float, float, float] | None = None
        self._run: FloatArray = np.ones(1)
        self._mean = self._weight = self._shape = self._rate = np.zeros(1)

    def take(self, value: float) -> float:
        """Add an iteration time. Return the probability that a change occurred within the newest VERIFY_STEPS
        iterations."""
        if self._prior is None:
            self._prior = (value, 1.0, 1.0, (0.05 * abs(value) + 1e-9) ** 2)
            mean, weight, shape, rate = self._prior
            self._mean, self._weight = np.array([mean]), np.array([weight])
            self._shape, self._rate = np.array([shape]), np.array([rate])
        mean0, weight0, shape0, rate0 = self._prior
        scale = self._rate * (self._weight + 1) / (self._shape * self._weight)
        degrees = 2 * self._shape
        normal = _log_gamma_ratio(degrees) - 0.5 * np.log(np.pi * degrees * scale)
        density = np.exp(normal - (degrees + 1) / 2 * np.log1p((value - self._mean) ** 2 / (degrees * scale)))
        grown = self._run * density * (1 - self.hazard)
        ended = float((self._run * density).sum() * self.hazard)
        run = np.concatenate([[ended], grown])
        self._rate = np.concatenate(
            [[rate0], self._rate + self._weight * (value - self._mean) ** 2 / (2 * (self._weight + 1))]
        )
        self._mean = np.concatenate([[mean0], (self._weight * self._mean + value) / (self._weight + 1)])
        self._weight = np.concatenate([[weight0], self._weight + 1])
        self._shape = np.concatenate([[shape0], self._shape + 0.5])
        if len(run) > LONGEST_RUN:
            run[-2] += run[-1]
            run = run[:-1]
            self._mean, self._weight = self._mean[:-1], self._weight[:-1]
            self._shape, self._rate = self._shape[:-1], self._rate[:-1]
        self._run = run / max(run.sum(), 1e-300)
        return float(self._run[: VERIFY_STEPS + 1].sum())


_GAMMA_RATIOS: FloatArray = np.array(
    [math.lgamma((k + 1) / 2) - math.lgamma(k / 2) if k else 0.0 for k in range(2 * LONGEST_RUN + 8)]
)


def _log_gamma_ratio(degrees: FloatArray) -> FloatArray:
    """Return log Gamma((v + 1)/2) - log Gamma(v/2) for whole degrees of freedom v."""
    return np.asarray(_GAMMA_RATIOS[np.minimum(np.round(degrees).astype(int), len(_GAMMA_RATIOS) - 1)])


class BocdVerified(Rule):
    name: ClassVar[str] = "bocd_verified"
    every_seconds: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._points: dict[str, ChangePoint] = {}
        self._times: dict[str, deque[float]] = {}
        self._asked: dict[str, bool] = {}

    def note(self, history: JobHistory) -> None:
        job = history.shape.job
        point = self._points.setdefault(job, ChangePoint())
        times = self._times.setdefault(job, deque(maxlen=40))
        for seconds in history.new:
            times.append(seconds)
            probability = point.take(seconds)
            if probability > PROBABILITY and len(times) > 4 * VERIFY_STEPS:
                known = list(times)
                after = sum(known[-VERIFY_STEPS:]) / VERIFY_STEPS
                before = sum(known[:-VERIFY_STEPS]) / (len(known) - VERIFY_STEPS)
                self._asked[job] = self._asked.get(job, False) or after >= (1 + CHANGE) * before

    def judge(self, history: JobHistory) -> Iterable[int | str]:
        if not self._asked.pop(history.shape.job, False):
            return []
        return slow_ranks(history.medians(VERIFY_STEPS), history.shape)

    def forget(self, job: str) -> None:
        for kept in (self._points, self._times, self._asked):
            kept.pop(job, None)
