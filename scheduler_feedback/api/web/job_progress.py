"""Progress of a job in one word, from its state, its steps and its active verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.telemetry.steps.pace import Speed

Document = dict[str, Any]

ARRIVAL_SECONDS = 2.0
"""Maximum delay in seconds until the controller receives a step. Agents send frames every second."""

UNKNOWN_SECONDS = 60.0
"""Seconds for which the page shows a job as slow after a detector has reported slowness without a cause. The detector
reports it once, and the mean step time may look normal although the job is slow."""


class Progress(StrEnum):
    """Progress of a job in one word, as the page shows it."""

    ENDED = "ended"
    NOT_RUNNING = "not running"  # pending, starting or stopping
    HELD_UP = "held up"  # a verdict is active
    STALLED = "no step"  # for longer than its steps usually take
    SLOW = "slow, cause unknown"
    NORMAL = "normal speed"
    LEARNING = "usual speed not known yet"  # too few steps
    UNREPORTED = "reports no steps"

    @property
    def noteworthy(self) -> bool:
        """Whether lists show the job before other jobs."""
        return self in (Progress.HELD_UP, Progress.STALLED, Progress.SLOW)


def progress_of(
    state: str, attempt: int, held_up: bool, speed: Speed | None, now_ns: int, unknown_ns: int | None = None
) -> Progress:
    """Return the progress of a job from its state and its speed.

    held_up: whether a verdict about the job is active. speed: speed of the newest attempt with received steps, None if
    there is no such attempt. now_ns: wall time. unknown_ns: when a detector last reported slowness without a cause,
    None for never.
    """
    if JobState(state).ended:
        return Progress.ENDED
    if held_up:
        return Progress.HELD_UP
    if state != JobState.RUNNING:
        return Progress.NOT_RUNNING
    if speed is None or speed.attempt != attempt:
        return Progress.UNREPORTED
    if is_stalled(speed, now_ns):
        return Progress.STALLED
    if speed.slow or (unknown_ns is not None and now_ns - unknown_ns < UNKNOWN_SECONDS * 1e9):
        return Progress.SLOW
    return Progress.LEARNING if speed.usual_seconds != speed.usual_seconds else Progress.NORMAL


def is_stalled(speed: Speed, now_ns: int) -> bool:
    """Return whether the time since the last step is longer than normal for the job."""
    return (now_ns - speed.end_ns) / 1e9 > speed.gap_seconds + ARRIVAL_SECONDS


def unknown_since(story: Iterable[Document], attempt_started_ns: int | None) -> Document | None:
    """Return the newest entry of the attempt in which a detector reported slowness without a cause, or None.

    story: newest first.
    """
    entry = next((entry for entry in story if entry["kind"] == "unknown"), None)
    if entry is None or attempt_started_ns is None or entry["wall_ns"] < attempt_started_ns:
        return None
    return entry
