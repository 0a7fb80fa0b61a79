"""Readers of the step rings to which training processes write their step records.

``gangwatch/steps.py`` describes the memory file and its lock-free writers. The reader does not trust the content: the
file must be sealed at its full size, and records with impossible values are counted and skipped.

The file is read with ``pread`` and never mapped. Reading a hole of a mapped file would allocate pages in the agent's
control group, or raise SIGBUS. ``pread`` of a hole returns zeros and allocates nothing (mm/shmem.c,
shmem_file_read_iter).
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
"""A record is invalid if its step number or token count is above this number. JSON parsers disagree about larger
integers (RFC 8259, section 6)."""

FASTEST_RECORD_NS = 100
"""Minimum time in ns in which a process writes one record; CPython needs four times as long. A record count that
increased faster is invalid."""

FUTURE_NS = 1_000_000_000
"""A record is invalid if its time is more than this number of nanoseconds after the start of the read. Both times use
the same clock."""

CHUNK_SLOTS = 1024
"""Maximum number of record slots per pread (64 KiB). It limits the reader's buffer, and the time in which the process
can overwrite slots that are being read."""

LATE_RECORDS = 64
"""Number of newest records that may be incomplete: the maximum number of threads that report at the same time."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_HEADER = struct.Struct("<8sII")
_COUNT = struct.Struct("<Q")
_COUNT_OFFSET = 16
_SLOT = struct.Struct("<QBBHIqqqqqQ")


class RingRecord(NamedTuple):
    """One valid record of a ring."""

    kind: int
    number: int
    time_ns: int
    duration_ns: int
    """Duration of the step or collective in nanoseconds, in the record of its end. In that of a step's begin, duration
    of the wait before it for a time shift. Otherwise 0."""
    wait_ns: int | None
    """Nanoseconds spent waiting in collectives; None if unknown."""
    tokens: int | None
    """Number of tokens of the step; None if unknown."""
    abandoned: bool
    squares: int | None = None
    """Sum of the squared lengths of the sequences in the rank's step; None if unknown."""


def _possible(
    kind: int, flags: int, squares: int, number: int, time_ns: int, duration_ns: int, wait_ns: int, tokens: int
) -> RingRecord | None:
    """Return the record with these values; None if a value is impossible. time_ns: nanoseconds since boot."""
    if not (0 <= number <= MAX_NUMBER and time_ns > 0 and 0 <= duration_ns <= time_ns):
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
    """Reader of the step ring of one training process.

    The first read also returns older records that are still in the ring. lost: number of records that were overwritten
    before they were read. malformed: number of incomplete records, impossible records and impossible record counts.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        """Read from this descriptor, and close it in ``close``. It must refer to a memory file that ``of_descriptor``
        has checked."""
        self.slots = slots
        self.lost = 0
        self.malformed = 0
        self._descriptor = descriptor
        self._position: int | None = None
        self._stalled_at: int | None = None
        self._read_ns = 0

    @classmethod
    def of_descriptor(cls, descriptor: int, most_slots: int = MAX_SLOTS) -> Self:
        """Check the memory file and duplicate its descriptor. The caller keeps the given descriptor.

        Raise ReporterError if the descriptor is not a memory file, is not readable, is not sealed, has more than
        `most_slots` slots, or does not have the size in its header.
        """
        try:
            # Only tmpfs and hugetlbfs have seals. A pipe, a socket, or a file of FUSE or NFS could block the reader: it
            # fails here, without a call into its file system.
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise _refused(
                f"the descriptor is not a memory file ({error.strerror}): send the descriptor of memfd_create"
            ) from None
        if flags & os.O_ACCMODE == os.O_WRONLY:
            raise _refused("the memory file is open for writing only: send a readable descriptor")
        if seals & _SEALS != _SEALS:
            raise _refused(
                f"the memory file is not sealed against changes of size (seals {seals:#x}): add F_SEAL_SHRINK, "
                "F_SEAL_GROW and F_SEAL_SEAL before sending it"
            )
        if not HEADER_BYTES + MIN_SLOTS * SLOT_BYTES <= size <= HEADER_BYTES + MAX_SLOTS * SLOT_BYTES:
            raise _refused(f"the memory file has {size} bytes, expected a ring of {MIN_SLOTS} to {MAX_SLOTS} slots")
        try:
            header = os.pread(descriptor, _HEADER.size, 0)
        except OSError as error:
            raise _refused(f"the memory file cannot be read: {error.strerror}") from None
        # The owner can still change the header: keep the checked values and do not read them again.
        magic, slot_bytes, slots = _HEADER.unpack(header)
        if magic[:6] == MAGIC[:6] and magic != MAGIC and magic[6:].isdigit():
            raise _refused(
                f"step ring of layout {int(magic[6:])}; this agent supports layout {int(MAGIC[6:])}: upgrade gangwatch "
                "on the node, or gangwatch-steps in the job, whichever is older"
            )
        if (
            magic != MAGIC
            or slot_bytes != SLOT_BYTES
            or slots & (slots - 1)
            or size != HEADER_BYTES + slots * SLOT_BYTES
        ):
            raise _refused(f"not a step ring: magic {magic!r}, {slots} slots of {slot_bytes}, {size} bytes")
        if slots > most_slots:
            raise _refused(f"ring of {slots} slots; this agent accepts at most {most_slots}: use a smaller ring")
        return cls(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0), slots)

    def close(self) -> None:
        """Close the descriptor. The ring cannot be read afterwards."""
        os.close(self._descriptor)
        self._descriptor = -1

    def fresh(self) -> int:
        """Return the number of unread records according to the training process's count, at most the number of slots.

        Never raise.
        """
        try:
            written = self._count()
        except OSError:
            return 1
        if self._position is None or written < self._position:
            return max(1, min(written, self.slots))  # the first read, or a decreased count: ``read`` handles both
        return min(written - self._position, self.slots)

    def read(self, now_ns: int, limit: int = MAX_SLOTS) -> list[RingRecord]:
        """Return the valid records since the last read, oldest first. At most `limit` records are read. Never raise."""
        records: list[RingRecord] = []
        try:
            self._read(now_ns, limit, records)
        except OSError:
            # A page is lost because of a memory error, or cannot be read back from swap (EIO).
            self.malformed += 1
        return records

    def _read(self, now_ns: int, limit: int, records: list[RingRecord]) -> None:
        written = self._count()
        window = self.slots - 1  # the writer may be overwriting the oldest slot
        elapsed_ns = now_ns - self._read_ns  # at the first read: since boot
        self._read_ns = now_ns
        first = self._position is None
        position = 0 if self._position is None else self._position
        if not 0 <= written - position <= window:
            # The kernel may copy the count byte by byte while it changes (rep movsb): read an unusual count again,
            # since a torn count does not repeat.
            written = self._count()
        fresh = written - position
        if fresh <= 0:
            # A thread that was paused between comparing and storing the count may decrease it a little.
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
                # The first count was torn, or a thread decreased it: records beyond the new count are not written.
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
        """Append the valid records in `slots` to `records`, and return the index of the next record to read.

        position: index of the first record in `slots`. written, newest: number of records that the process had
        written before and after the slots were copied. Slots that it overwrote during the copy are skipped.
        """
        safe = newest - (self.slots - 1)
        latest_ns = now_ns + FUTURE_NS
        for index, fields in enumerate(_SLOT.iter_unpack(slots), position):
            sequence, kind, flags, low, high, number, time_ns, duration_ns, wait_ns, tokens, again = fields
            if not sequence == again == index + 1 or index < safe:
                ahead = sequence - (index + 1)
                if index < safe or (ahead > 0 and sequence == again and ahead % self.slots == 0):
                    self.lost += 1
                elif index != self._stalled_at and index >= written - LATE_RECORDS:
                    # A thread has taken its number but not written its record, or its stores are not visible yet.
                    self._stalled_at = index
                    return index
                else:
                    self.malformed += 1
                continue
            record = _possible(kind, flags, low | high << 16, number, time_ns, duration_ns, wait_ns, tokens)
            if record is None or time_ns > latest_ns:
                self.malformed += 1
            else:
                records.append(record)
        return position + len(slots) // SLOT_BYTES

    def _count(self) -> int:
        """Return the number of records that the training process has written. Raise OSError on failure."""
        count: int = _COUNT.unpack(os.pread(self._descriptor, _COUNT.size, _COUNT_OFFSET))[0]
        return count

    def _copy(self, start: int, end: int) -> bytes:
        """Copy the slots of the records from `start` up to, but not including, `end`. Raise OSError on failure.

        The number of these records must be smaller than the number of slots in the ring.
        """
        first, last = start % self.slots, end % self.slots
        if first < last or start == end:
            return self._bytes(first, end - start)
        return self._bytes(first, self.slots - first) + self._bytes(0, last)

    def _bytes(self, first: int, slots: int) -> bytes:
        data = os.pread(self._descriptor, slots * SLOT_BYTES, HEADER_BYTES + first * SLOT_BYTES)
        if len(data) < slots * SLOT_BYTES:
            # The read stopped at an unreadable page; the file is sealed at its size.
            raise OSError(errno.EIO, "a page of the ring cannot be read")
        return data


def _refused(reason: str) -> ReporterError:
    return ReporterError(reason, "ring")
