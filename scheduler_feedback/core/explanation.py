"""Explanation of a job's state for `gangwatch explain`: why, until when, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.job import JobState, Slot


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """A job whose end frees slots for a waiting job."""

    job_id: str
    """Id of that job."""
    ranks: int
    """Slots that its end frees."""
    until_ns: int
    """Expected time of its end."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A node that the job cannot use freely now."""

    node: str
    """Name of the node."""
    state: str
    """State of the node."""
    free: int
    """Free slots of the node."""
    reason: str
    """Why the job cannot use it, in words."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons for a job's state, and what would change it."""

    job_id: str
    """The job."""
    state: JobState
    """State of the job."""
    why: str
    """Reason in one sentence."""
    waits_for: tuple[WaitsFor, ...] = ()
    """Jobs whose ends it waits for, in order of time."""
    expected_start_ns: int | None = None
    """Expected start; None if unknown or if the job does not wait."""
    reservation: tuple[Slot, ...] = ()
    """Slots reserved for it, by rank."""
    blockers: tuple[Blocker, ...] = ()
    """Nodes that it cannot use, each with a reason."""
    what_would_change_it: tuple[str, ...] = ()
    """Sentences, the cheapest change first."""
    expected_start_range_ns: tuple[int, int] | None = None
    """Earliest and latest likely start."""
    binds: str = ""
    """The one constraint that prevents the start: frozen, pause, dependency, capacity (the empty cluster is too small),
    limit (of its queue), slots, level (slots are free, but not in one domain) or reservation (slots are free, but
    reserved for another job); '' if the job does not wait."""
