"""Documents about the speed of a gang, for the page's drawings and for clients of the API."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.steps.pace import Pace
from scheduler_feedback.core.telemetry.telemetry import Float32Array

Document = dict[str, Any]

MOST_LINES = 16
"""The chart has one line per rank in gangs of at most this many ranks. In larger gangs it has lines for the fastest and
slowest rank, the median, the 90 % quantile, and ranks with a verdict."""

MOST_ACCUSED = 8
"""In the chart of a large gang, at most this many ranks with a verdict get a line of their own."""

MOST_BANDS = 512
"""Maximum number of rows in the map of all ranks. In a larger gang several ranks share a row, which shows the worst."""

MOST_SLOWEST = 16
"""Maximum number of slowest ranks that `summary` names."""

UNSETTLED_NS = 2_000_000_000
"""Age in ns below which the newest row (one second of steps) is left out. Until then, later frames may add steps to
it."""


def summary(pace: Pace) -> Document | None:
    """Return the current speed of the gang and its ranks, from the newest seconds of steps; None if there are no steps.

    slowest: the ranks with the largest own time relative to their peers, slowest first. own_seconds: own part of a step
    by rank. ratios: own part divided by the peers' median, by rank.
    """
    if not len(pace.sequence):
        return None
    own = _mean(pace.own_seconds)
    ratios = np.nan_to_num(_mean(pace.ratios()))
    slowest = np.argsort(-ratios, kind="stable")[:MOST_SLOWEST].tolist()
    return {
        "speed": pace.speed,
        "slowest": [int(pace.ranks[place]) for place in slowest],
        "worst_rank": int(pace.ranks[slowest[0]]),
        "worst_node": pace.nodes[slowest[0]],
        "worst_ratio": float(ratios[slowest[0]]),
        "own_seconds": _ByRank(pace.ranks, own),
        "ratios": _ByRank(pace.ranks, ratios),
    }


def _mean(values: Float32Array) -> Float32Array:
    """Return the mean of the finite values of each rank; NaN for a rank without one. values: float32 [steps, ranks]."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0, dtype=np.float64)
    result: Float32Array = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return result


class _ByRank:
    """Values by rank, which are looked up one at a time, because a page shows few of 100,000 ranks."""

    def __init__(self, ranks: IntArray, values: Float32Array) -> None:
        self._ranks = ranks
        self._values = values

    def get(self, rank: int) -> float | None:
        place = int(np.searchsorted(self._ranks, rank))
        if place == len(self._ranks) or int(self._ranks[place]) != rank or np.isnan(self._values[place]):
            return None
        return float(self._values[place])


def document(pace: Pace, accused: Sequence[int], now_ns: int | None = None, until_ns: int | None = None) -> Document:
    """Return the data of the charts of step times. Each second in which steps were completed is one row of the data.

    Arguments: accused: ranks that have a line even in a large gang. now_ns: leave out the newest row if it may still
    change; None: never. until_ns: when the job ended.

    Fields with one value per row: at: seconds since 1970. step: newest step number. seconds and slowest_seconds: mean
    and longest time of a step. lines: [{name, values}], the longest own part of a step in seconds. cells: base64 of
    uint8 [rows, bands], the colours of the map of ranks: the worst own part in hundredths of the peers'.

    Other fields: sequence: number of the last row, from which the next request continues. bands: names of the map's
    bands, one or several ranks each. gap: seconds without a step from which the page shows a gap. now: seconds since
    1970 of this response. until: where the time axis ends, in seconds since 1970; None for now.
    """
    settled = len(pace.sequence)
    if now_ns is not None and settled and now_ns - int(pace.at_ns[-1]) < UNSETTLED_NS:
        settled -= 1
    own, ratios = pace.slowest_own_seconds[:settled], np.nan_to_num(pace.ratios()[:settled])
    share = max(1, -(-len(pace.ranks) // MOST_BANDS))
    starts = np.arange(0, len(pace.ranks), share)
    worst = np.maximum.reduceat(ratios, starts, axis=1) if settled else np.zeros((0, len(starts)), np.float32)
    cells = np.clip(np.rint(worst * 100), 0, 255).astype(np.uint8)
    return {
        "gang": pace.gang,
        "attempt": pace.attempt,
        "ranks": len(pace.ranks),
        "sequence": int(pace.sequence[settled - 1])
        if settled
        else int(pace.sequence[0]) - 1
        if len(pace.sequence)
        else -1,
        "at": [round(at / 1e9, 3) for at in pace.at_ns[:settled].tolist()],
        "step": pace.newest[:settled].tolist(),
        "seconds": _short(pace.seconds[:settled]),
        "slowest_seconds": _short(pace.slowest_seconds[:settled]),
        "lines": [{"name": name, "values": _short(values)} for name, values in _lines(pace, own, accused)],
        "bands": [_band(pace.ranks, pace.nodes, first, share) for first in starts.tolist()],
        "cells": base64.b64encode(cells.tobytes()).decode(),
        "gap": round(pace.speed.gap_seconds, 3),
        "now": None if now_ns is None else round(now_ns / 1e9, 3),
        "until": None if until_ns is None else round(until_ns / 1e9, 3),
    }


def _lines(pace: Pace, own: Float32Array, accused: Sequence[int]) -> list[tuple[str, Float32Array]]:
    def of_rank(place: int) -> tuple[str, Float32Array]:
        return f"rank {pace.ranks[place]} · {pace.nodes[place]}", own[:, place]

    if len(pace.ranks) <= MOST_LINES:
        return [of_rank(place) for place in range(len(pace.ranks))]
    places = np.flatnonzero(np.isin(pace.ranks, accused))[:MOST_ACCUSED]
    low, middle, high, top = (
        np.quantile(own, [0.0, 0.5, 0.9, 1.0], axis=1) if len(own) else np.zeros((4, 0), np.float32)
    )
    return [
        *(of_rank(int(place)) for place in places),
        ("slowest", top),
        ("90 % are faster", high),
        ("median", middle),
        ("fastest", low),
    ]


def _band(ranks: IntArray, nodes: tuple[str, ...], first: int, share: int) -> str:
    if share == 1:
        return f"rank {ranks[first]} · {nodes[first]}"
    return f"ranks {ranks[first]} to {ranks[min(first + share, len(ranks)) - 1]}"


def _short(values: Float32Array) -> list[float]:
    """Return the values rounded to four digits, which is enough for a drawing and halves the size."""
    return [float(f"{value:.4g}") for value in values.tolist()]
