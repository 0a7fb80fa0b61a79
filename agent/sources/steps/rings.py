"""Readers of the rings in which training processes write their step records.

``gangwatch/steps.py`` describes the memory file, and why its writers take no lock. The reader trusts nothing in it: the
file must be sealed at its full size, every value of a record must be possible, and what is not is counted and skipped.
The work of one reading is bounded, whatever a ring contains.

The file is read with ``pread`` and never mapped. A load from a mapped hole allocates the page, and the kernel charges
it to the control group of the process that loads: a reporter with sparse files could fill the agent's memory limit.
``pread`` of a hole gives zeros and allocates nothing (mm/shmem.c, shmem_file_read_iter). It also needs no seal against
SIGBUS, and the reporter may punch holes at any time (fallocate(2); F_SEAL_SHRINK does not forbid it).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import NamedTuple, Self

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

CHUNK_SLOTS = 1024
"""One pread takes at most 64 KiB: that bounds the reader's buffer, and the time in which a writer can overtake it."""

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
    """The agent's view of one reporter's memory file.

    The first reading also gives what the ring still holds from before; ``lost`` counts records that were overwritten
    before they were read, ``malformed`` those that were torn or impossible, and counts that could not be.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        """Take over the descriptor of a memory file that ``of_descriptor`` would accept."""
        self.slots = slots
        self.lost = 0
        self.malformed = 0
        self._descriptor = descriptor
        self._position: int | None = None
        self._stalled_at: int | None = None
        self._read_ns = 0

    @classmethod
    def of_descriptor(cls, descriptor: int, most_slots: int = MAX_SLOTS) -> Self:
        """Check the memory file and keep a descriptor of it; the one that is given stays the caller's.

        Raises ReporterError where it is no memory file, cannot be read, is not sealed, has more than `most_slots`
        slots, or has not the size that its header says.
        """
        try:
            # Only tmpfs and hugetlbfs know seals: a pipe, a socket or a file of FUSE or NFS, any of which could block
            # the reader, ends here (and does so without a call into its file system).
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise _refused(
                f"the descriptor is no memory file ({error.strerror}): send what memfd_create returned"
            ) from None
        if flags & os.O_ACCMODE == os.O_WRONLY:
            raise _refused("the memory file is open for writing only: send a descriptor that can be read")
        if seals & _SEALS != _SEALS:
            raise _refused(
                f"the memory file is not sealed against changes of size (seals {seals:#x}): add F_SEAL_SHRINK, "
                "F_SEAL_GROW and F_SEAL_SEAL before sending it"
            )
        if not HEADER_BYTES + MIN_SLOTS * SLOT_BYTES <= size <= HEADER_BYTES + MAX_SLOTS * SLOT_BYTES:
            raise _refused(f"the memory file has {size} bytes, which is no ring of {MIN_SLOTS} to {MAX_SLOTS} slots")
        try:
            header = os.pread(descriptor, _HEADER.size, 0)
        except OSError as error:
            raise _refused(f"the memory file cannot be read: {error.strerror}") from None
        # The owner can still change the header; what is checked here is kept, and never read again.
        magic, slot_bytes, slots = _HEADER.unpack(header)
        if magic[:6] == MAGIC[:6] and magic != MAGIC and magic[6:].isdigit():
            raise _refused(
                f"a step ring of layout {int(magic[6:])}; this agent reads layout {int(MAGIC[6:])}: upgrade gangwatch "
                "on the node, or gangwatch-steps in the job, whichever is older"
            )
        if (
            magic != MAGIC
            or slot_bytes != SLOT_BYTES
            or slots & (slots - 1)
            or size != HEADER_BYTES + slots * SLOT_BYTES
        ):
            raise _refused(f"no ring of ours: magic {magic!r}, {slots} slots of {slot_bytes}, {size} bytes")
        if slots > most_slots:
            raise _refused(f"a ring of {slots} slots; this agent takes at most {most_slots} here: use a smaller ring")
        return cls(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0), slots)

    def close(self) -> None:
        """Give the descriptor back; nothing is read after it."""
        os.close(self._descriptor)
        self._descriptor = -1

    def fresh(self) -> int:
        """How many records a reading would look at, as the writer counts: 0 to the number of slots. Raises nothing."""
        try:
            written = self._count()
        except OSError:
            return 1
        if self._position is None or written < self._position:
            return max(1, min(written, self.slots))  # the first reading, or a count that fell: ``read`` judges them
        return min(written - self._position, self.slots)

    def read(self, now_ns: int, limit: int = MAX_SLOTS) -> list[RingRecord]:
        """The records since the last reading, oldest first; at most `limit` are looked at. Raises nothing."""
        records: list[RingRecord] = []
        try:
            self._read(now_ns, limit, records)
        except OSError:
            # A page that the memory controller lost or the swap device cannot give back (EIO).
            self.malformed += 1
        return records

    def _read(self, now_ns: int, limit: int, records: list[RingRecord]) -> None:
        written = self._count()
        window = self.slots - 1  # the oldest slot may be in the writer's hands at this moment
        elapsed_ns = now_ns - self._read_ns  # at the first reading: since boot
        self._read_ns = now_ns
        first = self._position is None
        position = 0 if self._position is None else self._position
        if not 0 <= written - position <= window:
            # The kernel copies the eight bytes of the count, and may do so byte by byte while they change (rep movsb):
            # what is unusual is read once more, since a torn count does not repeat.
            written = self._count()
        fresh = written - position
        if fresh <= 0:
            # A thread that was held up between comparing the count and storing it may set it back a little.
            impossible = fresh < -LATE_RECORDS
            self.malformed += impossible
            self._position = written if impossible else position
            return
        if fresh > self.slots + elapsed_ns // FASTEST_RECORD_NS:
            self.malformed += 1
            self._position = written
            return
        if fresh > window:
            if not first:
                self.lost += fresh - window
            position = written - window
        end = min(written, position + limit)
        while position < end:
            slots = self._copy(position, min(end, position + CHUNK_SLOTS))
            newest = self._count()
            if newest < written:
                # The first reading of the count was torn, or a thread has set it back: what lies beyond is not written.
                written = newest
                end = max(position, min(end, written))
            reached = self._decode(slots[: (end - position) * SLOT_BYTES], position, written, newest, now_ns, records)
            stalled = reached < min(end, position + CHUNK_SLOTS)
            self._position = position = reached
            if stalled:
                break
        self._position = position

    def _decode(
        self, slots: bytes, position: int, written: int, newest: int, now_ns: int, records: list[RingRecord]
    ) -> int:
        """Append the records in `slots`, the first of which has index `position`; returns where to go on reading.

        newest: the count after they were copied. What the writer reached meanwhile it may have overwritten.
        """
        safe = newest - (self.slots - 1)
        for index, fields in enumerate(_SLOT.iter_unpack(slots), position):
            sequence, kind, flags, low, high, number, time_ns, duration_ns, wait_ns, tokens, again = fields
            if not sequence == again == index + 1 or index < safe:
                ahead = sequence - (index + 1)
                if index < safe or (ahead > 0 and sequence == again and ahead % self.slots == 0):
                    self.lost += 1
                elif index != self._stalled_at and index >= written - LATE_RECORDS:
                    # A thread that took its number has not written yet, or its stores are not visible here yet.
                    self._stalled_at = index
                    return index
                else:
                    self.malformed += 1
                continue
            squares = low | high << 16
            record = _possible(kind, flags, squares, number, time_ns, duration_ns, wait_ns, tokens, now_ns)
            if record is None:
                self.malformed += 1
            else:
                records.append(record)
        return position + len(slots) // SLOT_BYTES

    def _count(self) -> int:
        """The writer's count of records. Raises OSError."""
        count: int = _COUNT.unpack(os.pread(self._descriptor, _COUNT.size, _COUNT_OFFSET))[0]
        return count

    def _copy(self, start: int, end: int) -> bytes:
        """A copy of the slots of records `start` to `end` (fewer than there are slots). Raises OSError."""
        first, last = start % self.slots, end % self.slots
        if first < last or start == end:
            return self._bytes(first, end - start)
        return self._bytes(first, self.slots - first) + self._bytes(0, last)

    def _bytes(self, first: int, slots: int) -> bytes:
        data = os.pread(self._descriptor, slots * SLOT_BYTES, HEADER_BYTES + first * SLOT_BYTES)
        if len(data) < slots * SLOT_BYTES:
            # The kernel stops at a page that it cannot read; the file itself is sealed at its size.
            raise OSError(errno.EIO, "a page of the ring cannot be read")
        return data


def _refused(reason: str) -> ReporterError:
    return ReporterError(reason, "ring")
