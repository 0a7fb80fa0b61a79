"""Replay of the journal's cycles, with all events or without some.

A replay with all events makes exactly the recorded decisions. A replay without the events of one job shows the
decisions if that job had never been submitted: for example, when the head of the queue would have started. Observations
of other jobs are still replayed as recorded, even if they do not fit the new decisions. So only the
first start of a job is meaningful in such a replay, not its later course.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    Event,
    FirstStep,
    LatencyMeasured,
    MemoryMeasured,
    RankFailed,
    SharedSpeed,
    SpeedMeasured,
    Submitted,
)
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict


def nothing(event: Event) -> bool:  # noqa: ARG001 - every event is kept
    """Return False for every event: this filter drops no event."""
    return False


def about(*job_ids: str) -> Callable[[Event], bool]:
    """Return a filter that drops every event about the given jobs."""

    def drop(event: Event) -> bool:
        match event:
            case (
                Submitted()
                | CancelRequested()
                | AttemptRunning()
                | AttemptEnded()
                | RankFailed()
                | AttemptUnknown()
                | FirstStep()
                | SharedSpeed()
                | LatencyMeasured()
                | SpeedMeasured()
                | MemoryMeasured()
                | ActionFailed()
            ):
                return event.job_id in job_ids
            case Verdict() | Cleared() | Abstention():
                return event.gang in job_ids
            case _:
                return False

    return drop


def replay(
    initial: State, cycles: Iterable[tuple[int, Sequence[Event]]], drop: Callable[[Event], bool] = nothing
) -> tuple[State, list[cycle.Outcome]]:
    """Run the cycles (time, events) again from a copy of `initial`, without the events that `drop` selects."""
    state = decode_state(encode_state(initial))
    return state, [
        cycle.run(state, [event for event in events if not drop(event)], now_ns) for now_ns, events in cycles
    ]


def start_times(outcomes: Iterable[cycle.Outcome]) -> dict[tuple[str, int], int]:
    """Return the wall time in nanoseconds of the start of each (job id, attempt)."""
    return {
        (action.job_id, action.attempt): outcome.now_ns
        for outcome in outcomes
        for action in outcome.actions
        if isinstance(action, StartGang)
    }
