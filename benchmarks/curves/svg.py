"""Drawing of precision-recall curves as one SVG document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from benchmarks.curves.points import Point

SIDE, GAP, LEGEND, TOP, LINE = 300, 64, 150, 40, 13
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
OURS, SIMPLE, PUBLISHED = "#1f6fb4", "#d1641b", "#555555"


@dataclass(slots=True)
class Panel:
    """One diagram."""

    title: str
    ours: Sequence[Point]
    """Curve of the product's verdicts; its threshold is the confidence."""
    marked: Point | None
    """Point of the product at the confidence that counts."""
    simple: Sequence[Point] = ()
    """Curve of the simple rule; its threshold is a ratio."""
    published: dict[str, Point] = field(default_factory=dict)
    """Point of each published rule."""


def panel(of: Panel, left: float, top: float) -> list[str]:
    """Return the SVG elements of one diagram: recall to the right, precision upwards."""

    def at(one: Point) -> tuple[float, float]:
        return left + SIDE * one.recall, top + SIDE * (1.0 - one.precision)

    lines = [
        f'<text x="{left}" y="{top - 12}" font-weight="bold">{escape(of.title)}</text>',
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
    ]
    for tick in TICKS:
        lines.append(f'<text x="{left + SIDE * tick - 8:.0f}" y="{top + SIDE + 15}" fill="#555">{tick:g}</text>')
        lines.append(f'<text x="{left - 28}" y="{top + SIDE * (1 - tick) + 4:.0f}" fill="#555">{tick:g}</text>')
        if 0 < tick < 1:
            y = top + SIDE * (1 - tick)
            lines.append(f'<line x1="{left}" y1="{y}" x2="{left + SIDE}" y2="{y}" stroke="#eee"/>')
    lines.append(f'<text x="{left + SIDE / 2 - 20}" y="{top + SIDE + 32}" fill="#333">recall</text>')
    x, y = left - 36, top + SIDE / 2 + 24
    lines.append(f'<text x="{x}" y="{y}" transform="rotate(-90 {x} {y})" fill="#333">precision</text>')
    for points, colour in ((of.simple, SIMPLE), (of.ours, OURS)):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    below = top
    for name, one in sorted(of.published.items(), key=lambda item: -item[1].precision):
        x, y = at(one)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="none" stroke="{PUBLISHED}" stroke-width="1.5"/>')
        below = max(y + 4, below + LINE)  # names must not overlap
        side, anchor = (-8, "end") if one.recall > 0.6 else (8, "start")
        lines.append(
            f'<text x="{x + side:.1f}" y="{below:.1f}" text-anchor="{anchor}" fill="{PUBLISHED}">{escape(name)}</text>'
        )
    if of.marked is not None:
        x, y = at(of.marked)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{OURS}"/>')
    return lines


def document(panels: Sequence[Panel]) -> str:
    """Return the SVG document: the diagrams side by side, and a legend below."""
    width, height = GAP + len(panels) * (SIDE + GAP), TOP + SIDE + LEGEND - 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, one in enumerate(panels):
        lines += panel(one, GAP + number * (SIDE + GAP), TOP)
    legend = (
        (OURS, "gangwatch: one point for each confidence; the dot is at .9"),
        (SIMPLE, "simple rule: own time / median of the role / the same in the first steps, three windows in a row"),
        (PUBLISHED, "published rules (circles), as their authors run them"),
    )
    for number, (colour, text) in enumerate(legend):
        y = TOP + SIDE + 56 + 18 * number
        lines.append(f'<line x1="{GAP}" y1="{y - 4}" x2="{GAP + 24}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{GAP + 32}" y="{y}">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>\n"])
