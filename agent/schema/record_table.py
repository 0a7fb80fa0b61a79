"""Table of records: steps of ranks as rows of integers, which a reader takes without an object for each record.

A controller requests it (``TABLE_TYPE``), because it reads the records of thousands of nodes each second. A frame has
either records or a table. Records that the table cannot represent exactly (events, impossible values) are sent as
records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from agent.schema.frame import MOST_SAMPLES, EventRecord, Member, OpenRecord, Record, RecordTable, StepRecord

TABLE_TYPE = "application/vnd.gangwatch.frame; records=table"
"""Media type that a client of /frames accepts if it can read tables of records. Agents of earlier releases ignore it,
and send records."""

OPEN_STEP, OPEN_COLLECTIVE, FINISHED_STEP = 0, 1, 2
"""Kinds of rows: first number of a row."""

NOT_REPORTED = -1
"""Value of a wait, tokens or squares that the rank did not report."""

ROW = struct.Struct("<8q")
"""A row, as little-endian int64: kind, index of the member, number of the step or collective, start in ns, duration in
ns, wait in ns, tokens, sum of squares. The last four are 0 in a row of an open step or collective."""

LARGEST = (1 << 63) - 1


def wants_table(accept: str) -> bool:
    """Return whether a client with this Accept header can read tables of records."""
    return "records=table" in accept.replace(" ", "").lower()


SAMPLES_TYPE = f"{TABLE_TYPE}; samples={MOST_SAMPLES}"
"""Media type that a client of /frames accepts if it can also read frames with earlier samples. Agents of earlier
releases send a newest sample only."""


def reads_samples(accept: str) -> bool:
    """Return whether a client with this Accept header can read frames with earlier samples."""
    return f"samples={MOST_SAMPLES}" in accept.replace(" ", "").lower()


def tabulate(records: Sequence[Record]) -> RecordTable | None:
    """Return the records as a table; None if there are none, or if a table cannot represent one of them.

    The number of collectives of a step is not part of the table; no controller uses it.
    """
    places: dict[Member, int] = {}
    numbers: list[int] = []
    for record in records:
        if isinstance(record, EventRecord):
            return None
        place = places.setdefault(record.member, len(places))
        if isinstance(record, OpenRecord):
            kind = OPEN_STEP if record.what == "step" else OPEN_COLLECTIVE
            numbers += (kind, place, record.number, record.since_ns, 0, 0, 0, 0)
            continue
        given = record.wait_ns, record.tokens, record.squares
        numbers += (FINISHED_STEP, place, record.step, record.start_ns, record.duration_ns)
        for value in given:
            if value is not None and value < 0:
                return None
            numbers.append(NOT_REPORTED if value is None else value)
    if not numbers or min(numbers) < -LARGEST or max(numbers) > LARGEST:
        return None
    return RecordTable(tuple(places), struct.pack(f"<{len(numbers)}q", *numbers))


def records_of(table: RecordTable) -> Iterator[Record]:
    """Yield the records of a table. Raises IndexError for a row without a member."""
    for row in ROW.iter_unpack(table.rows):
        yield record_of(table.members[row[1]], row)


def record_of(member: Member, row: tuple[int, ...]) -> StepRecord | OpenRecord:
    """Return the record of one row."""
    kind, _, number, start_ns, duration_ns, *given = row
    if kind != FINISHED_STEP:
        return OpenRecord(member, "step" if kind == OPEN_STEP else "collective", number, start_ns)
    wait_ns, tokens, squares = (None if value == NOT_REPORTED else value for value in given)
    return StepRecord(member, number, start_ns, duration_ns, wait_ns, tokens, 0, squares)
