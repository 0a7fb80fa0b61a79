"""Occurrence: an entry of the simulation's timetable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler_feedback.core.events import Event

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine


@dataclass(frozen=True, slots=True)
class Occurrence:
    """At an instant, do this, which gives events for that instant; not any more once no job is left."""

    at_ns: int
    happen: Callable[[Engine, int], Iterable[Event]]
