"""Self-contained HTML page of `gangwatch simulate compare --html`: the figures and curves of several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.page import thinned, used_steps, waiting_steps, write_template
from scheduler_feedback.sim.truth import Course

SHORTEST_SECONDS = 10.0
"""Run times below this count as this long in a slowdown, so that jobs of seconds do not dominate it (the bounded
slowdown of Feitelson et al., "Theory and practice in parallel job scheduling", JSSPP'97)."""

POINTS = 400
"""Number of points of a curve: about one for each pixel column of a chart."""

_TEMPLATE = Path(__file__).with_name("comparison_page.html")


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves of one policy. Times are in seconds."""

    name: str
    """Name of the policy."""
    waiting: list[tuple[float, int]]
    """(Time after the first submission, number of GPUs that waiting jobs request) after each change."""
    used: list[tuple[float, int]]
    """(Time after the first submission, number of slots that gangs hold) after each change."""
    jct: list[float]
    """Times from submission to end that equal parts of the jobs do not exceed, ascending."""
    slowdown: list[float]
    """The same for slowdowns."""


def curves_of(name: str, engine: Engine) -> Curves:
    """Return the curves of a finished simulation; those over time are empty if it kept no spans."""
    spans = sorted(engine.spans, key=lambda span: span.began_ns)
    waiting = waiting_steps(spans, engine.courses, engine.first_ns, by_ranks=True) if spans else []
    _, jct, slowdown = slowdowns(list(engine.courses.values()))
    return Curves(
        name,
        thinned(waiting, POINTS),
        thinned(used_steps(spans, engine.first_ns), POINTS),
        _quantiles(jct),
        _quantiles(slowdown),
    )


def slowdowns(courses: Sequence[Course]) -> tuple[list[Course], NDArray[np.float64], NDArray[np.float64]]:
    """Return the ended jobs, and the time from submission to end in seconds and the slowdown of each."""
    ended = [course for course in courses if course.ended_ns is not None]
    jct = np.array([((course.ended_ns or 0) - course.submitted_ns) / 1e9 for course in ended])
    alone = np.array([max(course.work_ns / 1e9, SHORTEST_SECONDS) for course in ended])
    return ended, jct, np.maximum(jct / alone, 1.0) if ended else np.zeros(0)


def write_comparison(path: Path, document: Mapping[str, Any], curves: Sequence[Curves], slots: int) -> None:
    """Write the page. document: that of `--json`. slots: of the cluster. Raises TraceError if it cannot be written."""
    refused = list(document["refused"])
    page = {**document, "refused": refused[:1], "refusals": len(refused), "slots": slots}
    write_template(path, _TEMPLATE, {**page, "curves": [asdict(one) for one in curves]})


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    if not values.size:
        return []
    shares = np.linspace(0.0, 1.0, min(POINTS, values.size))
    return [float(f"{value:.5g}") for value in np.quantile(values, shares)]
