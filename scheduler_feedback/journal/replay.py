"""Replay: the journal's cycles again, whole or with some events left out.

With nothing left out a replay decides exactly what was decided. Without the events about one job it tells what would
have been decided if that job had never come: when, for example, the head of the queue would have started. What was
observed of the others is then told as it was, and may come too late or about attempts that were never made: the first
start of a job is what can be read from such a replay, not what became of it later.
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
    RankFailed,
    Submitted,
)
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict


def nothing(event: Event) -> bool:  # noqa: ARG001 - the event that is not left out
    """Leave no event out."""
    return False


def about(*job_ids: str) -> Callable[[Event], bool]:
    """Leave out every event about these jobs."""

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
    """Run the cycles (time, events) again from a copy of `initial`, without the events that `drop` names."""
    state = decode_state(encode_state(initial))
    return state, [
        cycle.run(state, [event for event in events if not drop(event)], now_ns) for now_ns, events in cycles
    ]


def start_times(outcomes: Iterable[cycle.Outcome]) -> dict[tuple[str, int], int]:
    """When each (job, attempt) was started."""
    return {
        (action.job_id, action.attempt): outcome.now_ns
        for outcome in outcomes
        for action in outcome.actions
        if isinstance(action, StartGang)
    }
