"""``python -m benchmarks.traces.diagram RESULTS FILE.svg``: reliability diagrams of a result file, by class.

Each point is a bin of confidence: its height is the share of right verdicts, its bar the 95 % interval (Wilson). Points
on the diagonal are calibrated. Verdicts about a job's own work that are equal count once per trace.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.detection.statistics import wilson
from benchmarks.traces.campaign import Row, read_results
from benchmarks.traces.figures import counted

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
SIDE, GAP, COLUMNS = 130, 46, 5

Bin = tuple[float, int, int]
"""Mean confidence, right verdicts, all verdicts."""


def bins(verdicts: Sequence[Row]) -> list[Bin]:
    """Return the bins of EDGES that contain verdicts. The last bin contains its upper edge."""
    found = []
    for low, high in itertools.pairwise(EDGES):
        inside = [v for v in verdicts if low <= v["confidence"] < high or v["confidence"] == high == EDGES[-1]]
        if inside:
            mean = sum(v["confidence"] for v in inside) / len(inside)
            found.append((mean, sum(v["mark"] == "right" for v in inside), len(inside)))
    return found


def panel(title: str, of: Sequence[Bin], left: float, top: float) -> list[str]:
    """Return the SVG elements of one diagram. The axes go from .5 to 1 and from 0 to 1."""

    def x(confidence: float) -> float:
        return left + SIDE * (confidence - EDGES[0]) / (EDGES[-1] - EDGES[0])

    def y(share: float) -> float:
        return top + SIDE * (1.0 - share)

    lines = [
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{title}</text>',
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
        f'<line x1="{x(0.5)}" y1="{y(0.5)}" x2="{x(1)}" y2="{y(1)}" stroke="#bbb" stroke-dasharray="4 3"/>',
        *(f'<text x="{x(v) - 8}" y="{top + SIDE + 13}" fill="#555">{v:g}</text>' for v in (0.5, 0.75, 1.0)),
        *(f'<text x="{left - 18}" y="{y(v) + 4}" fill="#555">{v:g}</text>' for v in (0, 0.5, 1)),
    ]
    for mean, right, count in of:
        low, high = wilson(right, count) or (0.0, 1.0)
        lines.append(
            f'<line x1="{x(mean):.1f}" y1="{y(low):.1f}" x2="{x(mean):.1f}" y2="{y(high):.1f}" stroke="#1f6fb4"/>'
        )
        size = min(6.0, 2.0 + 0.3 * count**0.5)
        lines.append(f'<circle cx="{x(mean):.1f}" cy="{y(right / count):.1f}" r="{size:.1f}" fill="#1f6fb4"/>')
        lines.append(f'<text x="{x(mean) + 4:.1f}" y="{y(right / count) + 14:.1f}" fill="#333">{count}</text>')
    return lines


def diagrams(rows: Sequence[Row]) -> str:
    """Return one SVG document: a diagram of all accusations, one of all other verdicts, and one of each class."""
    verdicts = {"accusations": [], "own work": []} | {row["truth"]["name"]: [] for row in rows}
    for row in rows:
        for verdict in counted([row]):
            verdicts[row["truth"]["name"]].append(verdict)
            verdicts["accusations" if verdict["accuses"] else "own work"].append(verdict)
    drawn = [(name, bins(those)) for name, those in verdicts.items() if bins(those)]
    width = COLUMNS * (SIDE + GAP) + GAP
    height = -(-len(drawn) // COLUMNS) * (SIDE + GAP + 14) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, of) in enumerate(drawn):
        left = GAP / 2 + 12 + number % COLUMNS * (SIDE + GAP)
        lines += panel(name, of, left, GAP + number // COLUMNS * (SIDE + GAP + 14))
    return "\n".join([*lines, "</svg>\n"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the diagrams."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces.diagram", description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, help="result file of python -m benchmarks.traces --out")
    parser.add_argument("svg", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    options.svg.write_text(diagrams(read_results(options.results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
