"""Progress of one rank: its counters, its newest step, and its open step and collectives."""

from __future__ import annotations

from collections import OrderedDict

from agent.schema.frame import Member, OpenRecord, StepRecord
from agent.sources.steps.rings import COLLECTIVE_ENTERED, COLLECTIVE_LEFT, STEP_BEGUN, STEP_ENDED, RingRecord
from agent.sources.steps.step_messages import Place

MAX_OPEN_COLLECTIVES = 256
MAX_STEPS_IN_FLIGHT = 64
"""Maximum number of unfinished steps of one rank for which entered collectives are counted; the oldest is dropped."""

NEWEST_STEP = 1 / 8
"""Weight of the newest step in the moving average of a rank's steps: a mean over about eight steps."""

WRAP = 2**64 - 1
"""Mask that keeps the lowest 64 bits of a counter."""


class Progress:
    """Progress of one rank, computed from its records. Pure.

    shift_known: whether the process can delay its steps for a time shift; set by the collector.
    newest_ns: time of the newest record. usual_step_ns: moving average of the lengths of finished steps; 0 if none.
    Times are nanoseconds of the host's monotonic clock; totals of time are nanoseconds too. Records from before
    `since_ns` only update the open step and collectives, and are not counted: a previous agent may have counted them.
    """

    def __init__(self, member: Member, since_ns: int) -> None:
        self.member = member
        self.steps = 0
        self.step_ns = 0
        self.wait_ns = 0
        self.tokens = 0
        self.entered = 0
        self.left = 0
        self.shift_ns = 0
        self.shift_known = False
        self.wait_known = False
        self.tokens_known = False
        self.newest_step: int | None = None
        self.place = Place()
        self.newest_ns = since_ns
        self.usual_step_ns = 0.0
        self._since_ns = since_ns
        self._begins = False
        self._open_step: tuple[int, int] | None = None
        self._open_collectives: OrderedDict[int, int] = OrderedDict()
        self._entered_in: OrderedDict[int, int] = OrderedDict()
        self._delays: OrderedDict[int, int] = OrderedDict()

    def fold(self, record: RingRecord) -> StepRecord | None:
        """Update the progress with one record. Return the step that the record finishes, if any."""
        counted = record.time_ns >= self._since_ns
        self.newest_ns = max(self.newest_ns, record.time_ns)
        if record.kind == STEP_BEGUN:
            self._begins = True
            if record.duration_ns:
                self._delays[record.number] = record.duration_ns
                if len(self._delays) > MAX_STEPS_IN_FLIGHT:
                    self._delays.popitem(last=False)
            self.newest_step = record.number
            self._open_step = (record.number, record.time_ns)
            self._entered_in[record.number] = 0
            if len(self._entered_in) > MAX_STEPS_IN_FLIGHT:
                self._entered_in.popitem(last=False)
        elif record.kind == STEP_ENDED:
            return self._finish(record, counted)
        elif record.kind == COLLECTIVE_ENTERED:
            self.entered += counted
            self._open_collectives[record.number] = record.time_ns
            if len(self._open_collectives) > MAX_OPEN_COLLECTIVES:
                self._open_collectives.popitem(last=False)
            if self._open_step is not None and self._open_step[0] in self._entered_in:
                self._entered_in[self._open_step[0]] += 1
        elif record.kind == COLLECTIVE_LEFT:
            self.left += counted
            self._open_collectives.pop(record.number, None)
        return None

    def _finish(self, record: RingRecord, counted: bool) -> StepRecord | None:
        # If steps are timed on a GPU, the end of a step is reported after the next has begun.
        if self._open_step is not None and self._open_step[0] == record.number:
            self._open_step = None
        collectives = self._entered_in.pop(record.number, 0)
        delay_ns = self._delays.pop(record.number, 0)
        if not self._begins:
            self.newest_step = record.number
        if record.abandoned or not counted:
            return None
        delay_ns = min(delay_ns, record.time_ns - record.duration_ns)  # an invalid one would be before the boot
        if delay_ns:  # the wait for a time shift is part of the step, and none of the rank's own time
            wait_ns = None if record.wait_ns is None else record.wait_ns + delay_ns
            record = record._replace(duration_ns=record.duration_ns + delay_ns, wait_ns=wait_ns)
            self.shift_ns += delay_ns
        self.steps += 1
        self.step_ns += record.duration_ns
        weight = NEWEST_STEP if self.usual_step_ns else 1.0
        self.usual_step_ns += weight * (record.duration_ns - self.usual_step_ns)
        self.wait_known = record.wait_ns is not None
        self.wait_ns += record.wait_ns or 0
        self.tokens_known = record.tokens is not None
        self.tokens += record.tokens or 0
        return StepRecord(
            member=self.member,
            step=record.number,
            start_ns=record.time_ns - record.duration_ns,
            duration_ns=record.duration_ns,
            wait_ns=record.wait_ns,
            tokens=record.tokens,
            collectives=collectives,
            squares=record.squares,
        )

    def inside(self) -> list[OpenRecord]:
        """Return the step and the collective in which the rank is.

        Of several collectives, return the one entered first.
        """
        found: list[OpenRecord] = []
        if self._open_step is not None:
            found.append(OpenRecord(self.member, "step", *self._open_step))
        if self._open_collectives:
            number, since_ns = min(self._open_collectives.items(), key=lambda entry: (entry[1], entry[0]))
            found.append(OpenRecord(self.member, "collective", number, since_ns))
        return found

    def totals(self) -> tuple[int | None, ...]:
        """Return the values of RANK_COUNTERS, which wrap at 2^64.

        A value is None if the newest step did not report it.
        """
        return (
            self.steps & WRAP,
            self.step_ns & WRAP,
            self.wait_ns & WRAP if self.wait_known else None,
            self.tokens & WRAP if self.tokens_known else None,
            self.entered & WRAP,
            self.left & WRAP,
            self.shift_ns & WRAP if self.shift_known else None,
        )
