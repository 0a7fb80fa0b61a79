"""Explanation: why a job is where it is, when that changes, and what would change it; for `gangwatch explain`."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.job import JobState, Slot


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """A job whose end is awaited: how many ranks' slots it frees, and until when it is expected to hold them."""

    job_id: str
    ranks: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """A node that the job cannot use freely now. free: its free slots. reason: in words."""

    node: str
    state: str
    free: int
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is.

    why: one sentence. waits_for: in order of time. expected_start_ns: None where it cannot be told, and for a job that
    does not wait. expected_start_range_ns: from the earliest instant to the latest that is thought likely.
    reservation: the slots that are kept for it, by rank. what_would_change_it: each a sentence, the cheapest first.
    binds: the one constraint that keeps it from starting: frozen, pause, dependency, capacity (not even the empty
    cluster could hold it), limit (of its queue), slots, level (they are free, but not in one domain), reservation
    (there is room, but for another); '' where it does not wait.
    """

    job_id: str
    state: JobState
    why: str
    waits_for: tuple[WaitsFor, ...] = ()
    expected_start_ns: int | None = None
    reservation: tuple[Slot, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    what_would_change_it: tuple[str, ...] = ()
    expected_start_range_ns: tuple[int, int] | None = None
    binds: str = ""
