"""Checks of single records, and their effect on the gangs of a frame."""

from __future__ import annotations

import numpy as np

from agent.schema.frame import Frame, Member, RecordTable, StepRecord
from agent.schema.record_table import FINISHED_STEP, NOT_REPORTED, OPEN_COLLECTIVE, OPEN_STEP
from scheduler_feedback.core.telemetry.fleet_nodes import KnownRanks, NodeView
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang

MOST_RANKS = 1 << 17
"""Limit of rank numbers: every rank number must be below this value."""

LARGEST_BITS = 62
LARGEST = 1 << LARGEST_BITS
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
            gang.finish_all(np.array(steps, np.int64))
            steps.clear()


def open_all(node: NodeView, frame: Frame, taken: list[Taken], only_open: bool) -> None:
    """Add the open steps and collectives to their gangs. only_open: whether the frame has no other records."""
    opened = tuple([(gang, gang.opened_all(cells, frame.monotonic_ns)) for gang, cells, _ in taken if cells])
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


def is_possible(row: tuple[int, ...], oldest_ns: int, latest_ns: int) -> bool:
    """Return whether the numbers of a table's row are within limits, except for the index of its rank.

    oldest_ns, latest_ns: limits of the end of a finished step.
    """
    kind, _, number, start_ns, duration_ns, wait_ns, tokens, squares = row
    if not 0 <= number < LARGEST or not 0 <= start_ns < LARGEST:
        return False
    if kind != FINISHED_STEP:
        return kind in (OPEN_STEP, OPEN_COLLECTIVE)
    return (
        duration_ns > 0
        and oldest_ns <= start_ns + duration_ns <= latest_ns
        and NOT_REPORTED <= wait_ns <= duration_ns
        and NOT_REPORTED <= tokens < LARGEST
        and NOT_REPORTED <= squares < LARGEST
    )


def known_ranks(
    node: NodeView, table: RecordTable, taken: list[Taken], ranks: frozenset[int] | None
) -> KnownRanks | None:
    """Return the ranks of a processed table, if all of them are of one attempt and on this node; otherwise None.

    taken: gangs with accepted records. ranks: ranks that the node may report; None: any.
    """
    members = table.members
    if len(taken) != 1 or not members:
        return None
    gang, first = taken[0][0], members[0]
    if any(one.gang != first.gang or one.attempt != first.attempt for one in members):
        return None
    numbers = [one.rank for one in members]
    columns = gang.columns_on(numbers, node.name)
    if not columns or (ranks is not None and not ranks.issuperset(numbers)):
        return None
    at = np.array(columns, np.intp)
    return KnownRanks(members, gang, at, gang.slots_of(at), ranks, gang.changes)
