"""Timetable entries of the simulation: functions that are called at given simulated times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler_feedback.core.events import Event

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Function that is called at a given time and returns events for that time. It is not called if no job is left."""

    at_ns: int
    happen: Callable[[Engine, int], Iterable[Event]]
