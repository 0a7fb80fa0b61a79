"""A rank x step heat map of a job's own times, and its verdicts: in a terminal, and as one self-contained page.

A cell is the rank's own time in a step over the median of its peers in that step: 1 keeps pace. Where own times are
unknown, it is the step's time over the median step. Many cells are shown by the worst of those that fall together.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_feedback.core.gangs import FloatArray
from scheduler_feedback.detectors.windows import places
from scheduler_feedback.step_traces.judging import JobReport

TERMINAL_ROWS, TERMINAL_COLUMNS = 40, 96
PAGE_ROWS, PAGE_COLUMNS = 512, 1600
SHADES = " ·░▒▓█"
LIMITS = (1.05, 1.1, 1.25, 1.5, 2.0)
"""A cell below the first is blank; each limit reached is one shade darker."""

COLOURS = (None, 250, 229, 221, 208, 196)
"""Of the 256-colour palette, from grey over yellow to red, for each shade."""


def ratios(report: JobReport) -> FloatArray:
    """float64 [k, n]: each rank's own time over that of its peers; NaN where unknown."""
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


def reduced(cells: FloatArray, rows: int, columns: int) -> tuple[FloatArray, list[int], list[int]]:
    """[k steps, n ranks] -> [rows, columns] by rank and step: the worst ranks where there are too many (at their own
    order), and the worst of the steps that share a column; with the ranks' and the steps' indices."""
    worst = np.nan_to_num(cells, nan=0.0)
    ranks = list(range(cells.shape[1]))
    if len(ranks) > rows:
        score = np.sort(worst, axis=0)[-max(1, len(worst) // 20) :].mean(axis=0)
        ranks = sorted(np.argsort(score)[-rows:].tolist())
    bounds = np.unique(np.linspace(0, len(cells), min(columns, len(cells)) + 1).astype(int))
    starts = bounds[:-1]
    shown = np.maximum.reduceat(worst[:, ranks], starts, axis=0) if len(starts) else worst[:, ranks]
    return shown.T, ranks, starts.tolist()


def terminal(report: JobReport) -> list[list[tuple[str, int | None]]]:
    """Lines of (text, colour of the 256-colour palette or None), to be printed in a row."""
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


def page(reports: Sequence[JobReport], documents: Sequence[dict[str, Any]], title: str) -> str:
    """One HTML page with everything in it: no request leaves it."""
    sections = [_section(number, *pair) for number, pair in enumerate(zip(reports, documents, strict=True))]
    return _PAGE.replace("{title}", html.escape(title)).replace("{sections}", "\n".join(sections))


def _section(number: int, report: JobReport, document: dict[str, Any]) -> str:
    job = document["job"]
    facts = ", ".join(f"{key.replace('_', ' ')} {_shown(value)}" for key, value in job.items())
    rows = "\n".join(_row(verdict) for verdict in document["verdicts"])
    none = "" if rows else '<tr><td colspan="8">none: every rank kept pace</td></tr>'
    picture = ""
    if len(report.number):
        shown, ranks, steps = reduced(ratios(report), PAGE_ROWS, PAGE_COLUMNS)
        cells = np.clip(np.nan_to_num(shown) * 100, 0, 255).astype(np.uint8)
        word = "worker" if report.worker else "rank"
        data = {
            "rows": len(ranks),
            "columns": len(steps),
            "cells": base64.b64encode(cells.tobytes()).decode(),
            "ranks": [f"{word} {report.shape.ranks[rank]}" for rank in ranks],
            "steps": [int(report.number[step]) for step in steps],
        }
        worst = ", ".join(sorted({f"{word} {v['rank']}" for v in document["verdicts"] if v["rank"] is not None}))
        label = f"Own time of each {word} and step over its peers'; verdicts about: {worst or 'nobody'}"
        picture = (
            f'<figure><canvas id="map{number}" role="img" aria-label="{html.escape(label)}"></canvas>'
            f'<figcaption id="cell{number}" aria-live="polite">&nbsp;</figcaption></figure>'
            f"<script>draw({number}, {json.dumps(data)});</script>"
        )
    return (
        f"<section><h2>{html.escape(report.name)}</h2><p>{html.escape(facts)}</p>{picture}"
        "<table><thead><tr><th>kind</th><th>who</th><th>cause</th><th>steps</th><th>told at</th><th>slowdown</th>"
        f"<th>confidence</th><th>evidence</th></tr></thead><tbody>{rows}{none}</tbody></table></section>"
    )


def _row(verdict: dict[str, Any]) -> str:
    who = verdict["rank"] if verdict["worker"] is None else f"worker {verdict['worker']}"
    if verdict["stage"] is not None:
        who = f"{'all' if verdict['rank'] is None else who} (stage {verdict['stage']})"
    evidence = "".join(f"<li>{html.escape(sentence(item))}</li>" for item in verdict["evidence"])
    cells = (
        verdict["kind"].replace("_", " "),
        "the job" if who is None else who,
        verdict["cause"],
        f"{_shown(verdict['first_step'])} to {_shown(verdict['last_step'])}",
        verdict["detected_step"],
        verdict["slowdown"],
        verdict["confidence"],
    )
    text = "".join(f"<td>{html.escape(_shown(cell))}</td>" for cell in cells)
    return f"<tr>{text}<td><ul>{evidence}</ul></td></tr>"


def sentence(item: dict[str, Any]) -> str:
    """One piece of evidence in words."""
    if item["value"] is None:
        return str(item["against"])
    words = f"{item['measure'].replace('_', ' ')} {_shown(item['value'])} {item['unit']}".rstrip()
    return f"{words}, against {_shown(item['reference'])} ({item['against']})"


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
figure { margin: 1rem 0; overflow-x: auto; }
canvas { image-rendering: pixelated; width: 100%; min-height: 6rem; border: 1px solid var(--line); }
figcaption { font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
td ul { margin: 0; padding-left: 1rem; }
</style>
<script>
function colour(ratio) {
  const stops = [[1.0, [247, 247, 247]], [1.1, [254, 224, 139]], [1.3, [253, 141, 60]], [2.0, [165, 0, 38]]];
  if (ratio <= 0) return [128, 128, 128];
  if (ratio <= stops[0][0]) return stops[0][1];
  for (let i = 1; i < stops.length; i++) {
    if (ratio <= stops[i][0]) {
      const t = (ratio - stops[i - 1][0]) / (stops[i][0] - stops[i - 1][0]);
      return stops[i][1].map((c, k) => Math.round(stops[i - 1][1][k] + t * (c - stops[i - 1][1][k])));
    }
  }
  return stops[stops.length - 1][1];
}
function draw(number, data) {
  const cells = Uint8Array.from(atob(data.cells), c => c.charCodeAt(0));
  const canvas = document.getElementById("map" + number);
  canvas.width = data.columns; canvas.height = data.rows;
  canvas.style.height = Math.max(96, Math.min(640, data.rows * 18)) + "px";
  const context = canvas.getContext("2d"), image = context.createImageData(data.columns, data.rows);
  cells.forEach((cell, i) => image.data.set([...colour(cell / 100), 255], 4 * i));
  context.putImageData(image, 0, 0);
  canvas.onmousemove = event => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(data.columns - 1, Math.floor((event.clientX - box.left) / box.width * data.columns));
    const y = Math.min(data.rows - 1, Math.floor((event.clientY - box.top) / box.height * data.rows));
    const value = cells[y * data.columns + x];
    const more = value === 255 ? " or more" : "";
    const text = value ? (value / 100).toFixed(2) + more + " times its peers" : "no report";
    document.getElementById("cell" + number).textContent = data.ranks[y] + ", step " + data.steps[x] + ": " + text;
  };
}
</script></head><body><h1>{title}</h1>
<p>A cell is a rank's own time in a step over the median of its peers: pale keeps pace, dark is slow, grey is
unknown.</p>
{sections}
</body></html>
"""
