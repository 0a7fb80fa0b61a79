"""Mechanisms of the survey that the product does not have. Each row states what is missing."""

from __future__ import annotations

from benchmarks.survey.replays import MURI
from benchmarks.survey.row import Row

NO_NOISE = "its goodput depends on gradient noise, which jobs do not report"

MISSING: tuple[tuple[str, str, str, float | None, str, str], ...] = (
    ("AntMan", "its scheduler in Muri's runs", "average JCT on muri-1, ks", 5476.4, MURI,
     "first come, first served with its own placement of pairs; not rebuilt, see the other row"),
    ("SchedTune", "memory prediction", "jobs out of memory", 0.0, "Albahar et al., CCGrid'22 (100 % avoided)",
     "declared memory counts, but is not predicted: agents export the memory of each process, and the controller does "
     "not read it; no trace in GANGWATCH_DATA has the GPU memory that jobs used"),
    ("Gandiva_fair", "ticket trading between users and types", "total gain", None, "Chaudhary et al., EuroSys'20",
     "quotas count slots of all types alike"),
    ("Pollux", "goodput-optimal size and batch", "average JCT", None, "Qiao et al., OSDI'21", NO_NOISE),
)  # fmt: skip
"""(system, mechanism, measure, published, source, reason)."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [Row(*one[:5], reason=one[5]) for one in MISSING]
