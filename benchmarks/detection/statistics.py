"""Statistical formulas of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from scipy.stats import binomtest, chi2

FloatArray = npt.NDArray[np.float64]


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of successes / trials (Wilson 1927); None without trials."""
    if trials == 0:
        return None
    interval = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def poisson_upper(events: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper bound of a Poisson mean after `events` events (Garwood 1936).

    It is 3.0 for no events at 95 %: the rule of three.
    """
    return float(chi2.ppf(confidence, 2 * (events + 1)) / 2)


def f1_interval(tp: int, fp: int, fn: int, draws: int = 4000) -> tuple[float, float] | None:
    """Return the 95 % interval of F1, by parametric bootstrap of the three counts.

    tp, fp, fn: true positives, false positives, false negatives. The random seed is fixed.
    """
    total = tp + fp + fn
    if total == 0:
        return None
    drawn = np.random.default_rng(1).multinomial(total, [tp / total, fp / total, fn / total], draws)
    scores = 2 * drawn[:, 0] / np.maximum(2 * drawn[:, 0] + drawn[:, 1] + drawn[:, 2], 1)
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile of the values, rounded to three digits; None without values."""
    return round(float(np.quantile(values, share)), 3) if len(values) else None


def scores(tp: int, fp: int, fn: int) -> dict[str, Any]:
    """Return precision, recall and F1 with their 95 % intervals; None if the divisor is zero."""

    def rounded(pair: tuple[float, float] | None) -> list[float] | None:
        return None if pair is None else [round(pair[0], 4), round(pair[1], 4)]

    return {
        "precision": round(tp / (tp + fp), 4) if tp + fp else None,
        "precision_interval": rounded(wilson(tp, tp + fp)),
        "recall": round(tp / (tp + fn), 4) if tp + fn else None,
        "recall_interval": rounded(wilson(tp, tp + fn)),
        "f1": round(2 * tp / (2 * tp + fp + fn), 4) if tp + fp + fn else None,
        "f1_interval": rounded(f1_interval(tp, fp, fn)),
        "tp": tp,
        "fp": fp,
        "fn": fn,
    }


def calibration_error(confidences: Sequence[float], right: Sequence[bool], bins: int = 10) -> float | None:
    """Return the expected calibration error: the mean gap between confidence and share of right verdicts over bins.

    Bins are weighted by their number of verdicts.
    """
    if not confidences:
        return None
    stated, true = np.clip(np.asarray(confidences), 0.0, 1.0), np.asarray(right, float)
    bin_of = np.minimum((stated * bins).astype(int), bins - 1)
    gap = 0.0
    for number in np.unique(bin_of):
        members = bin_of == number
        gap += members.sum() * abs(stated[members].mean() - true[members].mean())
    return round(float(gap / len(stated)), 4)


def reliability(confidences: Sequence[float], right: Sequence[bool], bins: int = 10) -> list[dict[str, Any]]:
    """Return the share of right verdicts by confidence: one row for each bin with verdicts, lowest first."""
    stated, true = np.clip(np.asarray(confidences, float), 0.0, 1.0), np.asarray(right, float)
    bin_of = np.minimum((stated * bins).astype(int), bins - 1)
    rows = []
    for number in np.unique(bin_of).tolist():
        members = bin_of == number
        count, hits = int(members.sum()), int(true[members].sum())
        interval = wilson(hits, count)
        rows.append(
            {
                "confidence": round(float(stated[members].mean()), 4),
                "right": round(hits / count, 4),
                "interval": None if interval is None else [round(one, 4) for one in interval],
                "told": count,
            }
        )
    return rows


def platt(confidences: Sequence[float], right: Sequence[bool], weight: float = 4.0) -> tuple[float, float] | None:
    """Return (slope, intercept) of the logistic map from reported to true log odds (Platt 1999).

    A prior with the weight of `weight` verdicts pulls the fit towards the identity (1, 0), so that a few wrong
    verdicts do not dominate it. None without verdicts.
    """
    if not confidences:
        return None
    stated = logit(np.clip(np.asarray(confidences, float), 1e-4, 1.0 - 1e-4))
    x, y = np.stack([stated, np.ones(len(stated))], axis=1), np.asarray(right, float)
    identity = np.array([1.0, 0.0])

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        """Return the negative log likelihood with the prior, and its gradient."""
        odds, off = x @ at, at - identity
        likelihood = log_expit(odds).sum() - ((1.0 - y) * odds).sum()
        return weight * (off @ off) / 2 - likelihood, weight * off - x.T @ (y - expit(odds))

    slope, intercept = minimize(loss, identity, jac=True, tol=1e-9).x
    return float(slope), float(intercept)
