"""What ranks report, taken into the attempts of their gangs: finished steps, and what each is inside of.

Records that no reporter could have made are refused one by one and counted; memory is bounded by the number of gangs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.schema.frame import EventRecord, Frame, Member, OpenRecord, Record, StepRecord
from scheduler_feedback.core.fleet_nodes import NodeView
from scheduler_feedback.core.gangs import Gang

FORGET_NS = 600_000_000_000
"""A gang unheard of for ten minutes has ended without word: longer than any pause for a checkpoint that we know of."""

MOST_GANGS = 1 << 16
"""More gangs than 100,000 GPUs hold; what comes beyond is refused and counted, so that no sender fills memory."""

MOST_RANKS = 1 << 17
"""Highest rank number taken for one."""

LARGEST = 1 << 62
"""No step number, attempt or time in nanoseconds reaches this (146 years); sums of two still fit 64 bits."""

CLOCK_SLACK_NS = 1_000_000_000
"""A record may end after its frame's own time by a reader's delay, not by more."""

OLDEST_RECORD_NS = 3_600_000_000_000
"""A record from longer ago than an hour is none of this agent's ring."""


class Attempts:
    """The newest attempt of each gang. refused: records that nobody could have made. ended: those of an attempt of
    which a newer one is known."""

    def __init__(self) -> None:
        self.gangs: dict[str, Gang] = {}
        self.refused = 0
        self.ended = 0
        self._first_steps: list[tuple[str, int, int, int]] = []
        self._stepped: dict[str, int] = {}

    def first_steps(self) -> list[tuple[str, int, int, int]]:
        """(gang, attempt, step, wall time of its end) of the first finished step of each attempt seen since the last
        call."""
        found, self._first_steps = self._first_steps, []
        return found

    def of(self, name: str, attempt: int, received_ns: int) -> Gang | None:
        """The gang's attempt, begun where it is the newest; None for one that is over, or one gang too many."""
        gang = self.gangs.get(name)
        if gang is None or gang.attempt < attempt:
            if gang is None and len(self.gangs) >= MOST_GANGS:
                self.refused += 1
                return None
            gang = self.gangs[name] = Gang(name, attempt)
            gang.received_ns = received_ns
        elif gang.attempt > attempt:
            self.ended += 1
            return None
        return gang

    def forget_silent(self, received_ns: int) -> list[str]:
        """Drop gangs unheard of for FORGET_NS (one that is heard again begins anew); returns their names."""
        silent = [name for name, gang in self.gangs.items() if received_ns - gang.received_ns > FORGET_NS]
        for name in silent:
            del self.gangs[name]
        return silent

    def take(self, node: NodeView, frame: Frame, continues: bool, received_ns: int) -> Sequence[EventRecord]:
        """Take in the frame's records; those among them that are events. continues: whether the frame goes on where the
        node's newest one ended."""
        records = frame.records
        expected = node._record_seq if continues else None
        same = records is node._records and node._opened and expected == frame.record_seq
        if same and self._opened_again(node, frame):
            node._record_seq = frame.record_seq + len(records)
            return ()
        if not records and continues:
            node._records = node._opened = ()
            return ()
        if expected is not None and records:
            if frame.record_seq > expected:
                node.records_missed += frame.record_seq - expected
            elif frame.record_seq < expected:
                records = records[expected - frame.record_seq :]
        node._record_seq = frame.record_seq + len(frame.records)
        return self._take(node, frame, records, received_ns)

    def _take(self, node: NodeView, frame: Frame, records: Sequence[Record], received_ns: int) -> Sequence[EventRecord]:
        told: list[EventRecord] = []
        opened: list[tuple[Gang, list[int]]] = []
        # A node's records are mostly of one gang: it is looked up where it is another than the one before.
        name, attempt, gang = "", -1, None
        rank, column = -1, -1
        cells: list[int] = []
        count = 0
        now_ns, here = frame.monotonic_ns, node.name
        for record in records:  # the innermost loop of ten thousand nodes' frames: calls are few here
            if isinstance(record, EventRecord):
                told.append(record)
                continue
            member = record.member
            another = gang is None or member.gang != name or member.attempt != attempt
            if isinstance(record, OpenRecord):
                fine = 0 <= record.number < LARGEST and 0 <= record.since_ns < LARGEST
            else:
                fine = _possible(record, now_ns)
            if not fine or not 0 <= member.rank < MOST_RANKS or (another and not possible(member)):
                self.refused += 1
                continue
            if another:
                name, attempt = member.gang, member.attempt
                gang, cells = self.of(name, attempt, received_ns), []
                if gang is not None:
                    gang.received_ns = received_ns
                    opened.append((gang, cells))
            if gang is None:
                continue
            if another or member.rank != rank:  # what one rank says stands together
                rank = member.rank
                column = gang.column(rank, here)
            if isinstance(record, OpenRecord):
                cells += (record.what != "step", column, record.number, record.since_ns)
                count += 1
            else:
                gang.finish(
                    column, record.step, record.start_ns, record.duration_ns, record.wait_ns, received_ns,
                    record.tokens, record.squares,
                )  # fmt: skip
                if self._stepped.get(name, -1) < attempt:
                    self._first_step(record, node)
        tables = tuple((of_gang, np.array(cells, np.int64).reshape(-1, 4)) for of_gang, cells in opened if cells)
        for of_gang, table in tables:
            of_gang.opened_all(table, frame.monotonic_ns)
        node._records, node._opened = (frame.records, tables) if count == len(frame.records) else ((), ())
        return told

    def _first_step(self, record: StepRecord, node: NodeView) -> None:
        member = record.member
        self._stepped[member.gang] = member.attempt
        end_ns = record.start_ns + record.duration_ns
        self._first_steps.append((member.gang, member.attempt, record.step, node.wall_of(end_ns)))
        if len(self._stepped) > MOST_GANGS:
            del self._stepped[next(iter(self._stepped))]

    def _opened_again(self, node: NodeView, frame: Frame) -> bool:
        """The node's ranks are inside of what they were inside of a frame ago; False where a gang is another by now."""
        for gang, _ in node._opened:
            if self.gangs.get(gang.name) is not gang:
                return False
        for gang, table in node._opened:
            gang.received_ns = node.received_ns
            gang.opened_all(table, frame.monotonic_ns)
        return True


def possible(member: Member) -> bool:
    """Whether there can be such a rank."""
    return 0 <= member.rank < MOST_RANKS and 0 <= member.attempt < LARGEST and len(member.gang) <= 256


def _possible(record: StepRecord, now_ns: int) -> bool:
    """Whether a reporter could have made it, whoever of. now_ns: its frame's monotonic time."""
    wait_ns, duration_ns = record.wait_ns, record.duration_ns
    return (
        duration_ns > 0
        and record.start_ns >= 0
        and now_ns - OLDEST_RECORD_NS <= record.start_ns + duration_ns <= now_ns + CLOCK_SLACK_NS
        and 0 <= record.step < LARGEST
        and (wait_ns is None or 0 <= wait_ns <= duration_ns)
        and (record.tokens is None or 0 <= record.tokens < LARGEST)
        and (record.squares is None or 0 <= record.squares < LARGEST)
    )
