"""The Metric type, and constructors for the common kinds of metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the catalogue."""

    name: str
    """Full Prometheus name."""
    kind: Kind
    """Prometheus type. 'info' is a gauge of constant 1 whose labels carry the information."""
    help: str
    unit: str = ""
    """Published base unit; '' for a count or a state."""
    labels: tuple[str, ...] = ()
    """Sorted label names without ``node``."""
    source: str = ""
    """Place from which the value is read, for example a file or a driver call."""
    scale: float = 1.0
    """Factor from the internal integer to the published value; counters only."""
    integer_unit: str = ""
    """Unit of the internal integer, for example ns; counters only."""
    compatibility: str = ""
    """Name that other exporters use for the same value."""


NANOSECONDS = 1e-9
"""Factor from internal nanoseconds to published seconds."""

MEMBER = ("attempt", "gang", "rank")


def seconds_counter(name: str, help: str, labels: tuple[str, ...], source: str, compatibility: str = "") -> Metric:
    """Return the catalogue entry of a counter that is stored in nanoseconds and published in seconds."""
    return Metric(name, "counter", help, "seconds", labels, source, NANOSECONDS, "ns", compatibility)


def bytes_counter(name: str, help: str, labels: tuple[str, ...], source: str, compatibility: str = "") -> Metric:
    return Metric(name, "counter", help, "bytes", labels, source, 1.0, "bytes", compatibility)
