"""Mechanisms of the survey that the product does not have. Each row states what is missing."""

from __future__ import annotations

from benchmarks.survey.replays import MURI
from benchmarks.survey.row import Row

MISSING: tuple[tuple[str, str, str, float | None, str, str], ...] = (
    ("AntMan", "its scheduler in Muri's runs", "average JCT on muri-1, ks", 5476.4, MURI,
     "first come, first served with its own placement of pairs; not rebuilt, see the other row"),
    ("Pollux", "goodput-optimal size and batch", "average JCT on the Helios traces, 64 GPUs of three types, h", 1.0,
     "Subramanya et al., SOSP'23, table 3 (1.0 +-0.2)",
     "its genetic search is not rebuilt; the row of Sia has the same goodput with an integer program"),
    ("Training on Kubernetes", "job templates with parameters", "templates shipped", None,
     "studies of training on Kubernetes",
     "five are shipped (ddp, fsdp, deepspeed, mpi, horovod), without a figure to compare; tests/gangwatch starts them"),
)  # fmt: skip
"""(system, mechanism, measure, published, source, reason)."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [Row(*one[:5], reason=one[5]) for one in MISSING]
