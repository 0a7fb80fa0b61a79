"""Self-contained HTML page with charts of a simulation: attempts by node and time, and waiting jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from agent.schema.errors import TraceError
from scheduler_feedback.sim.engine import Engine, Span
from scheduler_feedback.sim.results import Report
from scheduler_feedback.sim.truth import Course

MOST_SPANS = 100_000
"""Maximum number of attempts in the chart. If there are more, the longest are drawn. They take some megabytes in the
browser."""

MOST_POINTS = 2000
"""Maximum number of points of a plot: more than a screen has columns."""

_TEMPLATE = Path(__file__).with_name("page.html")
_PLACE = "/*DATA*/"


def write_page(path: Path, engine: Engine, report: Report) -> None:
    """Write the page. Raises TraceError if the file cannot be written."""
    write_template(path, _TEMPLATE, page_data(engine, report))


def write_template(path: Path, template: Path, data: Mapping[str, Any]) -> None:
    """Write a page: the template with the data as JSON in it. Raises TraceError if the file cannot be written."""
    document = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    # A job's name may contain '</script>'. In a JSON string, the escaped '<' is the same text.
    text = template.read_text(encoding="utf-8").replace(_PLACE, document.replace("<", "\\u003c"))
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def page_data(engine: Engine, report: Report) -> dict[str, Any]:
    """Return the data of the page. Times are in seconds after the first submission.

    bars: [node, lane, lanes, begin, end, job, why] with node and job as numbers. queue, used: [time, value] steps.
    """
    first_ns = engine.first_ns
    spans = sorted(engine.spans, key=lambda span: span.began_ns)
    kept = spans
    if len(spans) > MOST_SPANS:
        kept = sorted(spans, key=lambda span: span.began_ns - span.ended_ns)[:MOST_SPANS]
        kept.sort(key=lambda span: span.began_ns)
    jobs = {job_id: number for number, job_id in enumerate(dict.fromkeys(span.job_id for span in kept))}
    nodes = {name: number for number, name in enumerate(engine.account.capacity)}
    return {
        "report": asdict(report),
        "nodes": [[name, slots] for name, slots in engine.account.capacity.items()],
        "jobs": [_job(engine.courses[job_id]) for job_id in jobs],
        "bars": [
            [nodes[name], lane, lanes, _seconds(span.began_ns - first_ns), _seconds(span.ended_ns - first_ns), job, why]
            for name, lane, lanes, span in lay_out(kept, engine.account.capacity)
            for job, why in ((jobs[span.job_id], span.why),)
        ],
        "left_out": len(spans) - len(kept),
        "waiting": thinned(waiting_steps(spans, engine.courses, first_ns, by_ranks=False)),
        "waiting_ranks": thinned(waiting_steps(spans, engine.courses, first_ns, by_ranks=True)),
        "used": thinned(used_steps(spans, first_ns)),
    }


def _job(course: Course) -> list[Any]:
    spec = course.job.spec
    return [course.job.job_id, spec.queue, spec.workload, spec.ranks, _seconds(course.waiting_ns)]


def _seconds(ns: int) -> float:
    return round(ns / 1e9, 1)


def lay_out(spans: Sequence[Span], capacity: Mapping[str, int]) -> list[tuple[str, int, int, Span]]:
    """Return (node, first lane, number of lanes, span) for each bar of the chart. A lane is the row of one slot.

    Bars in one lane do not overlap. A span whose free lanes are not adjacent is returned in several pieces.
    """
    free = {name: list(range(slots)) for name, slots in capacity.items()}
    busy: dict[str, list[tuple[int, int]]] = {name: [] for name in capacity}
    found = []
    for span in spans:
        for name, count in span.nodes.items():
            while busy[name] and busy[name][0][0] <= span.began_ns:
                heappush(free[name], heappop(busy[name])[1])
            lanes = [heappop(free[name]) for _ in range(count)]
            for lane in lanes:
                heappush(busy[name], (span.ended_ns, lane))
            start = 0
            for position in range(1, count + 1):
                if position == count or lanes[position] != lanes[position - 1] + 1:
                    found.append((name, lanes[start], position - start, span))
                    start = position
    return found


def waiting_steps(
    spans: Sequence[Span], courses: Mapping[str, Course], first_ns: int, by_ranks: bool
) -> list[tuple[float, int]]:
    """Return (seconds, number of waiting jobs) after each change. With `by_ranks`, the number counts their ranks."""
    moves = []
    for course in courses.values():
        moves.append((course.submitted_ns, course.job.spec.ranks if by_ranks else 1))
    for span in spans:
        weight = courses[span.job_id].job.spec.ranks if by_ranks else 1
        moves.append((span.began_ns, -weight))
        if span.why != "ended":
            moves.append((span.ended_ns, weight))
    return _steps(moves, first_ns)


def used_steps(spans: Sequence[Span], first_ns: int) -> list[tuple[float, int]]:
    """Return (seconds, number of slots that gangs hold) after each change."""
    moves = []
    for span in spans:
        slots = sum(span.nodes.values())
        moves += [(span.began_ns, slots), (span.ended_ns, -slots)]
    return _steps(moves, first_ns)


def _steps(moves: list[tuple[int, int]], first_ns: int) -> list[tuple[float, int]]:
    moves.sort()
    steps: list[tuple[float, int]] = []
    value = 0
    for at_ns, change in moves:
        value += change
        at = _seconds(at_ns - first_ns)
        if steps and steps[-1][0] == at:
            steps[-1] = (at, value)
        else:
            steps.append((at, value))
    return steps


def thinned(steps: list[tuple[float, int]], most: int = MOST_POINTS) -> list[tuple[float, int]]:
    """Reduce a curve to at most `most` points. The largest value of each interval remains, so that peaks stay
    visible, and the last point."""
    if len(steps) <= most:
        return steps
    begin, length = steps[0][0], (steps[-1][0] - steps[0][0]) / (most - 2)
    best: dict[int, tuple[float, int]] = {}
    for at, value in steps:
        stretch = int((at - begin) / length)
        if stretch not in best or value > best[stretch][1]:
            best[stretch] = (at, value)
    points = list(best.values())
    return points if points[-1] == steps[-1] else [*points, steps[-1]]
