"""A row of the catalogue, and short ways to write the common ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    name: the full Prometheus name; kind: 'info' is a gauge of constant 1 whose labels are the message.
    unit: base unit outside ('' where it is a count or a state); labels: names beside ``node``, sorted.
    scale, integer_unit: from the integer inside to the unit outside; counters only.
    source: where the number is read. compatibility: name of the same number in dashboards that people already have.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    source: str = ""
    scale: float = 1.0
    integer_unit: str = ""
    compatibility: str = ""


NANOSECONDS = 1e-9
"""From nanoseconds inside to seconds outside."""

MEMBER = ("attempt", "gang", "rank")


def seconds_counter(name: str, help: str, labels: tuple[str, ...], source: str, compatibility: str = "") -> Metric:
    """A counter of seconds, kept in nanoseconds."""
    return Metric(name, "counter", help, "seconds", labels, source, NANOSECONDS, "ns", compatibility)


def bytes_counter(name: str, help: str, labels: tuple[str, ...], source: str, compatibility: str = "") -> Metric:
    return Metric(name, "counter", help, "bytes", labels, source, 1.0, "bytes", compatibility)
