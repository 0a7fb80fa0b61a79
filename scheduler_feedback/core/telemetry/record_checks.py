"""Checks of single records, and their effect on the gangs of a frame."""

from __future__ import annotations

from agent.schema.frame import Frame, Member, StepRecord
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.gang_attempts import Gang

MOST_RANKS = 1 << 17
"""Limit of rank numbers: every rank number must be below this value."""

LARGEST = 1 << 62
"""Limit of step numbers, attempt numbers and times in nanoseconds (146 years): all must be below this value. The sum of
two such values still fits in 64 bits."""

CLOCK_SLACK_NS = 1_000_000_000
"""Maximum time by which a step may end after the time of the frame that reports it: the delay of the agent's reader."""

OLDEST_RECORD_NS = 3_600_000_000_000
"""Maximum age of a record; older ones are refused. An agent's ring cannot contain records older than an hour."""


def possible(member: Member) -> bool:
    """Return whether the rank number, attempt and gang name are within limits."""
    return 0 <= member.rank < MOST_RANKS and 0 <= member.attempt < LARGEST and 0 < len(member.gang) <= 256


Taken = tuple[Gang, list[int], list[tuple[int, ...]]]
"""A gang with records in a frame: the cells of its open steps and collectives, and its finished steps."""


def finish_steps(taken: list[Taken]) -> None:
    """Add the finished steps to their gangs, in order."""
    for gang, _, steps in taken:
        if steps:
            gang.finish_all(steps)
            steps.clear()


def open_all(node: NodeView, frame: Frame, taken: list[Taken], only_open: bool) -> None:
    """Add the open steps and collectives to their gangs. only_open: whether the frame has no other records."""
    opened = tuple([(gang, cells) for gang, cells, _ in taken if cells])
    for gang, cells in opened:
        gang.opened_all(cells, frame.monotonic_ns)
    records = frame.records if frame.table is None else frame.table
    node._records, node._opened = (records, opened) if only_open else ((), ())


def row_of(record: StepRecord, now_ns: int, received_ns: int) -> tuple[int, ...]:
    """Return the record as in ``Gang.finish_all``, without the column; () if one of its values is impossible.

    now_ns: monotonic time of the record's frame.
    """
    step, start_ns, duration_ns = record.step, record.start_ns, record.duration_ns
    wait_ns, tokens, squares = record.wait_ns, record.tokens, record.squares
    end_ns = start_ns + duration_ns
    if (
        duration_ns > 0
        and start_ns >= 0
        and now_ns - OLDEST_RECORD_NS <= end_ns <= now_ns + CLOCK_SLACK_NS
        and 0 <= step < LARGEST
        and (wait_ns is None or 0 <= wait_ns <= duration_ns)
        and (tokens is None or 0 <= tokens < LARGEST)
        and (squares is None or 0 <= squares < LARGEST)
    ):
        return (
            step,
            end_ns,
            duration_ns,
            received_ns,
            -1 if wait_ns is None else wait_ns,
            -1 if tokens is None else tokens,
            -1 if squares is None else squares,
        )
    return ()
