"""Heat map of the ranks' own times in each step, for a terminal. heat_map_page.py draws the same map as a page.

The value of a cell is the rank's own time in a step divided by the median of its peers in that step; 1 is normal speed.
If own times are unknown, the value is the step time divided by the median step time. If several cells share a
character, the largest value is shown.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.step_traces.judging import JobReport

TERMINAL_ROWS, TERMINAL_COLUMNS = 40, 96
SHADES = " ·░▒▓█"
LIMITS = (1.05, 1.1, 1.25, 1.5, 2.0)
"""Smallest value of a cell that gets each shade. The value is a rank's own time divided by the median of its peers. A
cell below the first number is blank."""

COLOURS = (None, 250, 229, 221, 208, 196)
"""Colour of each shade, as a number of the 256-colour palette (grey, yellow, red); None for the default colour."""


def ratios(report: JobReport) -> FloatArray:
    """Return each rank's own time divided by the median of its peers' own times, as an array [step, rank].

    NaN if a time is unknown. If no own time is known, step times are used.
    """
    own = report.own_seconds
    if not np.isfinite(own).any():
        seconds = report.seconds
        known = np.isfinite(seconds)
        usual = float(np.median(seconds[known])) if known.any() else np.nan
        return seconds / usual
    result = np.full(own.shape, np.nan)
    for members in places(report.shape).roles:
        block = own[:, members]
        rows = np.isfinite(block).any(axis=1)
        result[np.ix_(rows, members)] = block[rows] / np.nanmedian(block[rows], axis=1, keepdims=True)
    return result


def reduced(
    cells: FloatArray, rows: int, columns: int, wanted: Collection[int] = ()
) -> tuple[FloatArray, list[int], list[int]]:
    """Reduce `cells` [step, rank] to at most `rows` ranks and `columns` steps, as an array [rank, step].

    Also return the indices of the ranks, and the index of the first step of each column. Of too many ranks, the
    slowest are selected, in rank order; a column of several steps has their largest value. wanted: indices of ranks
    that are always selected.
    """
    worst = np.nan_to_num(cells, nan=0.0)
    ranks = list(range(cells.shape[1]))
    if len(ranks) > rows:
        score = np.sort(worst, axis=0)[-max(1, len(worst) // 20) :].mean(axis=0)
        score[list(wanted)] = np.inf
        ranks = sorted(np.argsort(score)[-rows:].tolist())
    bounds = np.unique(np.linspace(0, len(cells), min(columns, len(cells)) + 1).astype(int))
    starts = bounds[:-1]
    shown = np.maximum.reduceat(worst[:, ranks], starts, axis=0) if len(starts) else worst[:, ranks]
    return shown.T, ranks, starts.tolist()


def terminal(report: JobReport) -> list[list[tuple[str, int | None]]]:
    """Return the heat map as lines. A line is a list of (text, colour number of the 256-colour palette or None)."""
    if not len(report.number):
        return [[("no steps", None)]]
    shown, ranks, steps = reduced(ratios(report), TERMINAL_ROWS, TERMINAL_COLUMNS)
    word = "worker" if report.worker else "rank"
    names = [f"{word} {report.shape.ranks[rank]}" for rank in ranks]
    width = max(map(len, names))
    lines: list[list[tuple[str, int | None]]] = []
    for name, row in zip(names, shown, strict=True):
        shades = np.searchsorted(LIMITS, row, side="right").tolist()
        line: list[tuple[str, int | None]] = [(f"{name:>{width}} |", None)]
        line += [(SHADES[shade], COLOURS[shade]) for shade in shades]
        lines.append([*line, ("|", None)])
    first, last = report.number[steps[0]], report.number[-1]
    axis = f"step {first}".ljust(max(0, len(steps) - len(str(last)))) + str(last)
    lines.append([(" " * (width + 2) + axis, None)])
    legend = "  ".join(f"{shade} from {limit:g}x" for shade, limit in zip(SHADES[1:], LIMITS, strict=True))
    lines.append([(" " * (width + 2) + legend + " of the peers' own time", None)])
    return lines


def sentence(item: dict[str, Any]) -> str:
    """Return one piece of a verdict's evidence as a sentence."""
    if item["value"] is None:
        return str(item["against"])
    words = f"{item['measure'].replace('_', ' ')} {amount(item['value'], item['unit'])}"
    return f"{words}, against {amount(item['reference'], item['unit'])} ({item['against']})"


def amount(value: float | None, unit: str) -> str:
    """Return a value with its unit for people: "510 ms", "1.32 s", "3.1 sigma"; "-" if unknown."""
    if value is None:
        return "-"
    if unit == "seconds":
        return f"{value * 1000:.3g} ms" if 0 < abs(value) < 0.9995 else f"{value:.3g} s"
    return f"{value:.4g} {unit}".rstrip()
