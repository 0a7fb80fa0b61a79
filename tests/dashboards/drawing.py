"""HTML page that draws a dashboard from its JSON and the results of a real Prometheus, without Grafana.

For pictures and visual checks. It draws the panels that our dashboards use (rows, stats, time series, status histories,
state timelines, tables) in a plain style. It is not Grafana's rendering, and the page says so at its end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Answer = list[dict[str, Any]]
"""The result of a query as Prometheus gives it, `values` or `value` by series."""

Ask = Callable[[str, bool], Answer]
"""Query the expression of a panel; the second argument restricts the query to the end of the range."""

COLUMNS, CELL_WIDTH, CELL_HEIGHT, GAP = 24, 52, 32, 8
"""Grafana's grid of 24 columns; the sizes are for a page of about 1,250 pixels."""

COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#8ab8ff", "#ffb357", "#e0b400")
NAMED = {"green": "#73bf69", "yellow": "#f2cc0c", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
GREY = "#8e8e99"

STYLE = """
body { margin: 0; padding: 12px; background: #111217; color: #ccccdc; font: 12px/1.3 Inter, system-ui, sans-serif }
h1 { font-size: 18px; font-weight: 500; margin: 0 0 10px }
#board { position: relative }
section { position: absolute; box-sizing: border-box; background: #181b1f; border: 1px solid #2a2c33;
  border-radius: 2px; overflow: hidden; padding: 6px 8px }
section.row { background: none; border: 0; font-size: 15px; padding: 8px 0 }
h2 { font-size: 12px; font-weight: 500; margin: 0 0 4px; white-space: nowrap }
.number { font-size: 24px; text-align: center; margin-top: 14px; white-space: nowrap }
.none { text-align: center; color: #8e8e99; margin-top: 20px; white-space: normal }
table { border-collapse: collapse; width: 100% }
th { text-align: left; color: #6e9fff; font-weight: 500 } th, td { padding: 3px 8px 3px 0; white-space: nowrap }
tr + tr { border-top: 1px solid #2a2c33 }
ul { list-style: none; margin: 2px 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 12px }
li::before { content: ""; display: inline-block; width: 12px; height: 3px; margin-right: 5px; background: var(--of);
  vertical-align: middle }
svg { display: block } text { fill: #8e8e99; font-size: 10px } footer { color: #8e8e99; padding-top: 8px }
"""


@dataclass(frozen=True, slots=True)
class Span:
    """Time range to draw, in Prometheus's seconds, and the simulated seconds per second."""

    start: float
    end: float
    speed: float = 1.0

    def share(self, at: float) -> float:
        return (at - self.start) / (self.end - self.start)

    def label(self, at: float) -> str:
        minutes, seconds = divmod(round((at - self.start) * self.speed), 60)
        return f"{minutes}:{seconds:02}"


def draw(board: dict[str, Any], ask: Ask, span: Span, above: str) -> str:
    """Return an HTML page with the whole dashboard. above: text next to the title, for example values of variables."""
    panels = list(_panels(board["panels"]))
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * (CELL_HEIGHT + GAP)
    drawn = "".join(_placed(panel, ask, span) for panel in panels)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(board["title"])}</title>'
        f"<style>{STYLE}</style><h1>{escape(board['title'])} &ensp;<small>{escape(above)}</small></h1>"
        f'<div id="board" style="height:{height}px">{drawn}</div>'
        "<footer>Drawn from the dashboard's JSON and a real Prometheus's answers; Grafana itself draws it finer. Times "
        "are minutes of the simulated run.</footer></html>"
    )


def _panels(panels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", ()))


def _placed(panel: dict[str, Any], ask: Ask, span: Span) -> str:
    at = panel["gridPos"]
    width, height = at["w"] * (CELL_WIDTH) - GAP, at["h"] * (CELL_HEIGHT + GAP) - GAP
    place = f"left:{at['x'] * CELL_WIDTH}px;top:{at['y'] * (CELL_HEIGHT + GAP)}px;width:{width}px;height:{height}px"
    kind = panel["type"]
    inside = "" if kind == "row" else KINDS[kind](panel, _answered(panel, ask, kind), span, width - 18, height - 30)
    return (
        f'<section class="{kind}" style="{place}"><h2>{escape(panel["title"])}</h2>'
        f"{inside or _nothing(panel) if kind != 'row' else ''}</section>"
    )


def _nothing(panel: dict[str, Any]) -> str:
    return f'<div class="none">{escape(panel["fieldConfig"]["defaults"].get("noValue", "No data"))}</div>'


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]


def _answered(panel: dict[str, Any], ask: Ask, kind: str) -> list[_Series]:
    found = []
    for target in panel["targets"]:
        instant = bool(target.get("instant"))
        for one in ask(target["expr"], instant):
            points = [(float(at), float(value)) for at, value in one.get("values") or [one["value"]]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            if points:
                found.append(_Series(_legend(target, one["metric"]), one["metric"], points))
    return found


def _legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    pattern = target.get("legendFormat", "__auto")
    if pattern == "__auto":
        return ", ".join(value for name, value in labels.items() if name not in ("__name__", "cluster"))
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda found: labels.get(found[1], ""), pattern)


# --- values -----------------------------------------------------------------------------------------------------------

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def formatted(value: float, unit: str) -> str:
    """Return the value with the Grafana unit of this id."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("s", "dtdurations", "clocks"):
        if value and abs(value) < 1:
            return f"{1e3 * value:.3g} ms"
        return f"{value:.3g} s" if abs(value) < 100 else f"{value / 60:.3g} min"
    names = {"Bps": "B/s", "binBps": "B/s", "bytes": "B", "decbytes": "B", "watt": "W", "watth": "Wh", "hertz": "Hz"}
    names |= {"rotmhz": "Hz", "celsius": "°C", "cps": "/s", "ops": "/s", "reqps": "/s"}
    name = names.get(unit, "")
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{name}".strip()
    return f"{value:.3g} {name}".strip()


def _unit(panel: dict[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"].get("unit", "short"))


def _colour(panel: dict[str, Any], value: float) -> str:
    colour = NAMED["blue"]
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ()):
        if step.get("value") is None or value >= step["value"]:
            colour = NAMED.get(step["color"], step["color"])
    return colour


def _mapped(panel: dict[str, Any], value: float) -> tuple[str, str] | None:
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", ()):
        options = mapping["options"]
        if mapping["type"] == "value" and f"{value:g}" in options:
            one = options[f"{value:g}"]
            return one.get("text", f"{value:g}"), NAMED.get(one.get("color", ""), one.get("color") or GREY)
    return None


# --- panels -----------------------------------------------------------------------------------------------------------


def _stat(panel: dict[str, Any], series: list[_Series], span: Span, width: float, height: float) -> str:
    parts = []
    for one in series[:4]:
        value = one.points[-1][1]
        text, colour = _mapped(panel, value) or (formatted(value, _unit(panel)), _colour(panel, value))
        mode = panel["options"].get("textMode", "auto")
        text = one.name if mode == "name" else f"{one.name} {text}" if mode == "value_and_name" else text
        parts.append(f'<div style="color:{colour}">{escape(text)}</div>')
    return f'<div class="number">{"".join(parts)}</div>' if parts else ""


def _timeseries(panel: dict[str, Any], series: list[_Series], span: Span, width: float, height: float) -> str:
    if not series:
        return ""
    left, bottom, legend = 60.0, 16.0, 20.0
    high, low = max(v for one in series for _, v in one.points), min(v for one in series for _, v in one.points)
    least = panel["fieldConfig"]["defaults"].get("min")
    low = min(low, least) if least is not None else low
    high = high if high > low else low + (abs(low) or 1.0)
    high += 0.05 * (high - low)
    inner_width, inner_height = width - left, height - bottom - legend

    def x(at: float) -> float:
        return left + span.share(at) * inner_width

    def y(value: float) -> float:
        return 10 + (inner_height - 10) * (1 - (value - low) / (high - low))

    lines = []
    for part in range(5):
        value = low + part * (high - low) / 4
        lines.append(f'<path d="M{left},{y(value):.1f}H{width}" stroke="#2a2c33"/>')
        lines.append(
            f'<text x="{left - 6}" y="{y(value) + 3:.1f}" text-anchor="end">{formatted(value, _unit(panel))}</text>'
        )
    for part in range(1, 6):
        at = span.start + part * (span.end - span.start) / 6
        lines.append(f'<text x="{x(at):.1f}" y="{height - legend - 2}" text-anchor="middle">{span.label(at)}</text>')
    entries = []
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        lines.append(
            f'<path class="line" d="{_path(one.points, x, y, span)}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
        )
        entries.append(f'<li style="--of:{colour}">{escape(one.name)}</li>')
    return f'<svg width="{width}" height="{height - legend}">{"".join(lines)}</svg><ul>{"".join(entries)}</ul>'


def _path(
    points: list[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float], span: Span
) -> str:
    """Return an SVG path with gaps where values are missing for a twentieth of the span."""
    commands, before = [], -math.inf
    for at, value in points:
        joined = at - before < (span.end - span.start) / 20
        commands.append(f"{'L' if joined else 'M'}{x(at):.1f},{y(value):.1f}")
        before = at
    return "".join(commands)


def _timeline(panel: dict[str, Any], series: list[_Series], span: Span, width: float, height: float) -> str:
    if not series:
        return ""
    left, bottom = 130.0, 16.0
    each = min((height - bottom) / len(series), 28.0)
    cells = []
    for row, one in enumerate(series):
        top = row * each
        cells.append(
            f'<text x="{left - 6}" y="{top + each / 2 + 3:.1f}" text-anchor="end">{escape(one.name[:22])}</text>'
        )
        pairs = zip(one.points, [*one.points[1:], (span.end, 0.0)], strict=True)
        for (at, value), (until, _) in pairs:
            until = min(until, at + (span.end - span.start) / 20)
            mapped = _mapped(panel, value)
            colour = mapped[1] if mapped else _colour(panel, value)
            begin, end = left + span.share(at) * (width - left), left + span.share(until) * (width - left)
            cells.append(
                f'<rect class="cell" x="{begin:.1f}" y="{top + 1:.1f}" width="{max(end - begin, 0.5):.1f}" '
                f'height="{each - 2:.1f}" fill="{colour}" opacity=".8"/>'
            )
    for part in range(1, 6):
        at = span.start + part * (span.end - span.start) / 6
        across = left + span.share(at) * (width - left)
        cells.append(
            f'<text x="{across:.1f}" y="{len(series) * each + 12:.1f}" text-anchor="middle">{span.label(at)}</text>'
        )
    return f'<svg width="{width}" height="{height}">{"".join(cells)}</svg>'


def _table(panel: dict[str, Any], series: list[_Series], span: Span, width: float, height: float) -> str:
    if not series:
        return ""
    hidden: set[str] = {"__name__"}
    renamed: dict[str, str] = {}
    for transformation in panel.get("transformations", ()):
        options = transformation["options"]
        hidden |= {name for name, excluded in options.get("excludeByName", {}).items() if excluded}
        renamed |= options.get("renameByName", {})
    columns = sorted({name for one in series for name in one.labels} - hidden)
    rows = [[one.labels.get(name, "") for name in columns] for one in series]
    heads = [renamed.get(name, name) for name in columns]
    if "Value" not in hidden:
        heads.append(renamed.get("Value", "Value"))
        for row, one in zip(rows, series, strict=True):
            row.append(formatted(one.points[-1][1], _unit(panel)))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{body}</table>"


KINDS = {
    "stat": _stat,
    "timeseries": _timeseries,
    "status-history": _timeline,
    "state-timeline": _timeline,
    "table": _table,
}
