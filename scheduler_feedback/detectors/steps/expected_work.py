"""Expected work: the compute time to expect for the sequences that a rank processes.

Sequences of unequal length make ranks unequal without a fault. A step of a transformer costs a constant times the
number of tokens, plus another constant times the sum of squared sequence lengths (for attention). Both constants are
fitted once, to the reports of the healthy warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray

LEAST_EXPLAINED = 0.3
"""The fitted model is used only if it explains at least this share of the variance of compute times. Otherwise tokens
do not determine the time."""

LEAST_FACTOR, MOST_FACTOR = 0.2, 5.0
"""Limits of the expected compute time relative to the usual one. Larger changes did not occur in the warm-up, and the
fit is not extrapolated."""

LEAST_ERRORS = 2.0
"""A rank with more work than usual is slower than expected only by what exceeds this number of standard errors of the
fit (95 % of the cases). In a warm-up with nearly equal work, the constants are known to a fifth. Later, the expected
time of a popular expert is then wrong by a tenth."""


@dataclass(frozen=True, slots=True)
class Work:
    """Fitted model: compute time = fixed + a_token * tokens + a_square * squares, in units of the usual compute
    time."""

    fixed: float
    a_token: float
    a_square: float
    error: float = 0.0
    """Standard error of the part that depends on the work, relative to this part."""

    def longest(self, tokens: FloatArray, squares: FloatArray | None) -> FloatArray:
        """Return the longest compute time that this work explains, relative to the usual time."""
        expected = self.factor(tokens, squares)
        result: FloatArray = np.minimum(expected + LEAST_ERRORS * self.error * np.abs(expected - 1.0), MOST_FACTOR)
        return result

    def factor(self, tokens: FloatArray, squares: FloatArray | None) -> FloatArray:
        """Return the expected compute time for this work, relative to the usual time; 1 if the work is not reported."""
        value = (
            self.fixed
            + self.a_token * tokens
            + (0.0 if squares is None or not self.a_square else self.a_square * squares)
        )
        result: FloatArray = np.clip(np.where(np.isfinite(value), value, 1.0), LEAST_FACTOR, MOST_FACTOR)
        return result


def fit(compute: FloatArray, tokens: FloatArray, squares: FloatArray) -> Work | None:
    """Fit the model to w windows of the warm-up and n ranks; None if tokens explain too little of the compute time.

    All arrays are [w, n], NaN if not reported. Only variations of a rank around its own mean count, so that a slow rank
    does not look like more work. A negative constant is left out.
    """
    known = np.isfinite(compute) & np.isfinite(tokens) & (compute > 0)
    if known.sum() < 8 or len(compute) < 2:
        return None
    columns = {"token": tokens}
    if np.isfinite(squares[known]).all():
        columns["square"] = squares
    if all((values == values[0]).all() for values in columns.values()):
        return None  # all work is alike, as in most jobs
    usual = float(np.median(compute[known]))

    def centred(values: FloatArray) -> FloatArray:
        values = np.where(known, values, np.nan)
        result: FloatArray = (values - np.nanmean(values, axis=0, keepdims=True))[known]
        return result

    seen = known.any(axis=0)
    if not seen.all():
        return None
    target = centred(compute / usual)
    names = list(columns)
    weights: dict[str, float] = {}
    while names:
        design = np.stack([centred(columns[name]) for name in names], axis=1)
        scale = design.std(axis=0)
        if (scale <= 0).any():
            names = [name for name, one in zip(names, scale, strict=True) if one > 0]
            continue
        found = np.linalg.lstsq(design / scale, target, rcond=None)[0] / scale
        weights = dict(zip(names, found.tolist(), strict=True))
        negative = [name for name in names if weights[name] < 0]
        if not negative:
            break
        names = [name for name in names if name not in negative]
        weights = {}
    if not weights:
        return None
    design = np.stack([centred(columns[name]) for name in weights], axis=1)
    explained = design @ np.array(list(weights.values()))
    total, left = float(np.sum(target**2)), target - explained
    if total <= 0 or 1.0 - float(np.sum(left**2)) / total < LEAST_EXPLAINED:
        return None
    mean = sum(weight * float(np.mean(columns[name][known])) for name, weight in weights.items())
    error = _error(design, left, explained, np.nonzero(known)[1])
    return Work(1.0 - mean, weights.get("token", 0.0), weights.get("square", 0.0), error)


def _error(design: FloatArray, left: FloatArray, explained: FloatArray, ranks: IntArray) -> float:
    """Return the standard error of the explained part, relative to it.

    The larger of two estimates is used: for independent residuals, and for residuals that are correlated within each
    rank (Liang and Zeger 1986). Ranks drift slowly, so that consecutive windows are not independent.
    design: float64 [s, columns]. left, explained: residuals and explained parts, [s]. ranks: index of each rank, [s].
    """
    count = len(left)
    inverse = np.linalg.pinv(design.T @ design)
    independent = float(np.sum(left**2)) / max(count - design.shape[1] - ranks.max() - 1, 1) * inverse
    sums = np.zeros((int(ranks.max()) + 1, design.shape[1]))
    np.add.at(sums, ranks, design * left[:, None])
    correlated = inverse @ (sums.T @ sums) @ inverse
    variance = max(float(np.sum((design @ one) * design)) for one in (independent, correlated))
    return float(np.sqrt(variance / max(float(np.sum(explained**2)), 1e-12)))
