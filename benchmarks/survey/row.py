"""One row of the survey: a mechanism of a published system, and what this project measures about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measured figures of one row, in the unit that the row's `measure` names."""

    reproduced: float | None
    """Result of the published rules, computed by code of this project; None: not reproduced."""
    ours: float | None
    """Result of our scheduler with the cost of restarts; None: the product does not have the mechanism."""
    reason: str = ""
    """Why a figure is None, or what limits the comparison."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the survey before it is measured."""

    system: str
    """Name of the published system."""
    mechanism: str
    """The mechanism of the system that the row measures."""
    measure: str
    """Meaning and unit of the figures."""
    published: float | None
    """Published figure; None: none is public for this input."""
    source: str
    """Source of the published figure."""
    run: Callable[[], Outcome] | None = None
    """Measures the row; None: the mechanism is missing."""
    reason: str = ""
    """Why the mechanism is missing."""
    slow: bool = False
    """Whether the row takes minutes of processor time. It is measured only on request."""


NOT_REQUESTED = "takes minutes of processor time: --slow measures it"


def measured(row: Row, slow: bool = False) -> dict[str, Any]:
    """Measure a row and return it as a JSON object. slow: whether slow rows are measured too.

    `seconds` is the wall time of the measurement, 0 if nothing was measured.
    """
    began = time.perf_counter()
    if row.run is None:
        outcome = Outcome(None, None, row.reason)
    elif row.slow and not slow:
        outcome = Outcome(None, None, NOT_REQUESTED)
    else:
        outcome = row.run()
    about = {"system": row.system, "mechanism": row.mechanism, "measure": row.measure, "published": row.published}
    seconds = round(time.perf_counter() - began, 2) if row.run is not None else 0.0
    return {**about, **asdict(outcome), "seconds": seconds, "source": row.source}


def chosen(rows: Sequence[Row], systems: Sequence[str]) -> list[Row]:
    """Return the rows of these systems, or all rows if none is named. Names are compared without case."""
    names = {name.lower() for name in systems}
    return [row for row in rows if not names or row.system.lower() in names]
