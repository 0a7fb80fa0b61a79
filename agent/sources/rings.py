"""Reading the rings in shared memory that training processes write their step records into.

``gangwatch/steps.py`` describes the memory file, and why its writers take no lock. Nothing a writer does is believed:
the file must be sealed at its full size, every value of a record must be possible, and what is not is counted and
skipped. The work of one reading is bounded, whatever a ring holds.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import NamedTuple

from agent.schema.errors import ReporterError

STEP_BEGUN, STEP_ENDED, COLLECTIVE_ENTERED, COLLECTIVE_LEFT = 1, 2, 3, 4
WAIT_KNOWN, TOKENS_KNOWN, ABANDONED = 1, 2, 4

MAGIC = b"GWRING01"
HEADER_BYTES = 64
SLOT_BYTES = 64
MIN_SLOTS, MAX_SLOTS = 256, 65536

MAX_NUMBER = 2**53
"""Greatest number and token count: beyond it JSON's readers disagree about integers (RFC 8259, 6)."""

FASTEST_RECORD_NS = 100
"""No writer is faster: CPython needs four times as long for one record. A count that rose faster is no count."""

FUTURE_NS = 1_000_000_000
"""A record may be stamped this much after the reading began; both clocks are one, so more is a lie."""

LATE_RECORDS = 64
"""So many records before the newest may still be in the making: as many threads as could report at once."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_HEADER = struct.Struct("<8sII")
_COUNT = struct.Struct("<Q")
_COUNT_OFFSET = 16
_SLOT = struct.Struct("<QBBHIqqqqqQ")


class RingRecord(NamedTuple):
    """One record that is possible. duration_ns: of an end or exit, else 0; wait_ns, tokens, squares (the sum of the
    squared lengths of what the rank was given): None where unknown."""

    kind: int
    number: int
    time_ns: int
    duration_ns: int
    wait_ns: int | None
    tokens: int | None
    abandoned: bool
    squares: int | None = None


def _possible(
    kind: int,
    flags: int,
    squares: int,
    number: int,
    time_ns: int,
    duration_ns: int,
    wait_ns: int,
    tokens: int,
    now_ns: int,
) -> RingRecord | None:
    """The record, None where a value in it cannot be. `now_ns` is CLOCK_MONOTONIC, which began with this boot."""
    if not (0 <= number <= MAX_NUMBER and 0 < time_ns <= now_ns + FUTURE_NS and 0 <= duration_ns <= time_ns):
        return None
    if kind == STEP_ENDED:
        if flags & ~(WAIT_KNOWN | TOKENS_KNOWN | ABANDONED):
            return None
        known_wait_ns = wait_ns if flags & WAIT_KNOWN else None
        if known_wait_ns is not None and not 0 <= known_wait_ns <= duration_ns:
            return None
        known_tokens = tokens if flags & TOKENS_KNOWN else None
        if known_tokens is not None and not 0 <= known_tokens <= MAX_NUMBER:
            return None
        abandoned = flags & ABANDONED != 0
        return RingRecord(kind, number, time_ns, duration_ns, known_wait_ns, known_tokens, abandoned, squares or None)
    if flags or not STEP_BEGUN <= kind <= COLLECTIVE_LEFT:
        return None
    return RingRecord(kind, number, time_ns, duration_ns, None, None, False)


class Ring:
    """The agent's read-only view of one reporter's memory file.

    The first reading also gives what the ring still holds from before; ``lost`` counts records that were overwritten
    before they were read, ``malformed`` those that were torn or impossible, and counts that could not be.
    """

    def __init__(self, memory: mmap.mmap, slots: int) -> None:
        self.lost = 0
        self.malformed = 0
        self._memory = memory
        self._slots = slots
        self._position: int | None = None
        self._stalled_at: int | None = None
        self._read_ns = 0

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Ring:
        """Map the memory file; the descriptor stays the caller's.

        Raises ReporterError where it is no memory file, is not sealed, or its size is not what its header says: a file
        that its owner could shrink would kill the agent with SIGBUS.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise ReporterError(f"the descriptor is no memory file: {error.strerror}") from None
        if seals & _SEALS != _SEALS:
            raise ReporterError(f"the memory file is not sealed against changes of size (seals {seals:#x})")
        if not HEADER_BYTES + MIN_SLOTS * SLOT_BYTES <= size <= HEADER_BYTES + MAX_SLOTS * SLOT_BYTES:
            raise ReporterError(
                f"the memory file has {size} bytes, which is no ring of {MIN_SLOTS} to {MAX_SLOTS} slots"
            )
        try:
            memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise ReporterError(f"the memory file cannot be mapped: {error}") from None
        # The owner can still change the header; what is checked here is kept, and never read again.
        magic, slot_bytes, slots = _HEADER.unpack_from(memory, 0)
        if magic[:6] == MAGIC[:6] and magic != MAGIC and magic[6:].isdigit():
            memory.close()
            raise ReporterError(
                f"a step ring of layout {int(magic[6:])}; this agent reads layout {int(MAGIC[6:])}: upgrade gangwatch "
                "on the node, or gangwatch-steps in the job, whichever is older"
            )
        if (
            magic != MAGIC
            or slot_bytes != SLOT_BYTES
            or slots & (slots - 1)
            or size != HEADER_BYTES + slots * SLOT_BYTES
        ):
            memory.close()
            raise ReporterError(f"no ring of ours: magic {magic!r}, {slots} slots of {slot_bytes}, {size} bytes")
        return cls(memory, slots)

    def close(self) -> None:
        """Unmap; nothing is read after it."""
        self._memory.close()

    def read(self, now_ns: int, limit: int = MAX_SLOTS) -> list[RingRecord]:
        """The records since the last reading, oldest first, at most `limit` of them. Raises nothing."""
        written = self._count()
        window = self._slots - 1  # the oldest slot may be in the writer's hands at this moment
        elapsed_ns = now_ns - self._read_ns  # at the first reading: since boot
        self._read_ns = now_ns
        first = self._position is None
        position = 0 if self._position is None else self._position
        fresh = written - position
        if fresh <= 0:
            # A thread that was held up between comparing the count and storing it may set it back a little.
            impossible = fresh < -LATE_RECORDS
            self.malformed += impossible
            self._position = written if impossible else position
            return []
        if fresh > self._slots + elapsed_ns // FASTEST_RECORD_NS:
            self.malformed += 1
            self._position = written
            return []
        if fresh > window:
            if not first:
                self.lost += fresh - window
            position = written - window
        end = min(written, position + limit)
        slots = self._copy(position, end)
        # What the writer reached meanwhile it may have overwritten under the copy.
        safe = self._count() - window
        records: list[RingRecord] = []
        for index, fields in enumerate(_SLOT.iter_unpack(slots), position):
            sequence, kind, flags, low, high, number, time_ns, duration_ns, wait_ns, tokens, again = fields
            if not sequence == again == index + 1 or index < safe:
                ahead = sequence - (index + 1)
                if index < safe or (ahead > 0 and sequence == again and ahead % self._slots == 0):
                    self.lost += 1
                elif index != self._stalled_at and index >= written - LATE_RECORDS:
                    # A thread that took its number has not written yet, or its stores are not visible here yet.
                    self._stalled_at = index
                    end = index
                    break
                else:
                    self.malformed += 1
                continue
            squares = low | high << 16
            record = _possible(kind, flags, squares, number, time_ns, duration_ns, wait_ns, tokens, now_ns)
            if record is None:
                self.malformed += 1
            else:
                records.append(record)
        self._position = end
        return records

    def _count(self) -> int:
        count: int = _COUNT.unpack_from(self._memory, _COUNT_OFFSET)[0]
        return count

    def _copy(self, start: int, end: int) -> bytes:
        """The slots of records `start` to `end` (fewer than there are slots), in one piece."""
        first, last = start % self._slots, end % self._slots
        at = HEADER_BYTES + first * SLOT_BYTES
        if first < last or start == end:
            return self._memory[at : at + (end - start) * SLOT_BYTES]
        return self._memory[at:] + self._memory[HEADER_BYTES : HEADER_BYTES + last * SLOT_BYTES]
