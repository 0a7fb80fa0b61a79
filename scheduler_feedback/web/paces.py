"""How fast a gang goes, as documents: for the page's drawings, and for whoever asks the API."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from scheduler_feedback.core.gangs import IntArray
from scheduler_feedback.core.pace import Pace
from scheduler_feedback.core.telemetry import Float32Array

Document = dict[str, Any]

MOST_LINES = 16
"""Ranks that each have a line of their own; of a larger gang, the slowest, the median and the like have one."""

MOST_ACCUSED = 8
"""Ranks with a verdict that have one besides."""

MOST_BANDS = 512
"""Rows of the map of all ranks: a larger gang's ranks share rows, each as dark as its worst."""

LAST = 4
"""Rows that `summary` looks at: seconds in which there were steps."""

UNSETTLED_NS = 2_000_000_000
"""The newest row may still grow for as long: steps of its second come with the frames of the next."""


def summary(pace: Pace, ranks: Iterable[int]) -> Document | None:
    """How it goes now, of the newest LAST rows. ranks: whose own times are wanted."""
    if not len(pace.sequence):
        return None
    own, ratios = pace.own_seconds.mean(axis=0), pace.ratios().mean(axis=0)
    worst = int(ratios.argmax())
    places = {int(rank): place for place, rank in enumerate(pace.ranks)}
    return {
        "seconds": float((pace.seconds * pace.steps).sum() / pace.steps.sum()),
        "usual_seconds": pace.usual_seconds,
        "newest": int(pace.newest[-1]),
        "worst_rank": int(pace.ranks[worst]),
        "worst_node": pace.nodes[worst],
        "worst_ratio": float(ratios[worst]),
        "own_seconds": {rank: float(own[places[rank]]) for rank in ranks if rank in places},
    }


def document(pace: Pace, accused: Sequence[int], now_ns: int | None = None) -> Document:
    """Rows as the page draws them. accused: ranks that get a line although there are many.

    sequence: of the last row, to go on from. at: seconds since 1970, step: newest step number, seconds: mean time of a
    step, a row each. lines: [{name, values}] of own seconds. bands: names of the map's rows; cells: base64 of uint8
    [rows, bands], the worst own time over its peers' in hundredths. now_ns: leaves out a row that may still grow.
    """
    settled = len(pace.sequence)
    if now_ns is not None and settled and now_ns - int(pace.at_ns[-1]) < UNSETTLED_NS:
        settled -= 1
    own, ratios = pace.own_seconds[:settled], pace.ratios()[:settled]
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
        "lines": [{"name": name, "values": _short(values)} for name, values in _lines(pace, own, accused)],
        "bands": [_band(pace.ranks, pace.nodes, first, share) for first in starts.tolist()],
        "cells": base64.b64encode(cells.tobytes()).decode(),
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
    """Four digits are more than a picture shows, and half the bytes."""
    return [float(f"{value:.4g}") for value in values.tolist()]
