"""Callbacks of the cycle's thread to the other parts of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.schema.sample import AnySample
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State
from scheduler_feedback.journal.store import NumberedEntry


@dataclass(frozen=True, slots=True)
class CycleHooks:
    """Callbacks that the cycle's thread calls; they must not block.

    If one of `written`, `baselines` and `measures` raises an exception, `failed` gets it, with the name of the part
    that has the bug.
    """

    written: Callable[[Sequence[Event], Sequence[NumberedEntry]], None]
    """Called after a commit, with the cycle's events and journal entries."""
    baselines: Callable[[], Mapping[str, bytes]]
    """Returns a snapshot of each detector's baselines, by name of the detector."""
    measures: Callable[[State], Sequence[AnySample]]
    """Called once a second; returns the metrics of the state."""
    died: Callable[[BaseException], None]
    """Called when the thread ends because of a bug."""
    failed: Callable[[str, Exception], None]

    placed: Callable[[Iterable[Job]], None] = lambda _jobs: None
    """Called with all jobs before actions are carried out, so that placements are known before a rank reports."""
    shared: Sequence[Callable[[State, int], Sequence[Event]]] = ()
    """Called once a second with the monotonic time; returns measured speeds of jobs that share slots."""
