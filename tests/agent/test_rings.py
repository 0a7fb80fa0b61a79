"""Step rings in shared memory: valid, torn, overwritten and arbitrary records."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schema.errors import ReporterError
from agent.sources.steps import rings
from agent.sources.steps.rings import Ring

SLOTS = 256
NOW_NS = 1_000_000_000_000
SLOT = struct.Struct("<QBB6xqqqqqQ")
END = rings.STEP_ENDED


class Writer:
    """Writer of a step ring in a memory file, one record at a time."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.slots = slots
        size = rings.HEADER_BYTES + slots * rings.SLOT_BYTES
        self.descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        self.written = 0

    def ring(self) -> Ring:
        """Return a reader of the ring. Closing it closes the file descriptor."""
        return Ring(self.descriptor, self.slots)

    def put(
        self,
        kind: int = END,
        flags: int = 0,
        number: int | None = None,
        time_ns: int = NOW_NS - 10_000,
        values: tuple[int, int, int] = (5_000, 0, 0),
        sequences: tuple[int, int] | None = None,
    ) -> None:
        sequence = self.written + 1
        first, last = sequences or (sequence, sequence)
        at = rings.HEADER_BYTES + self.written % self.slots * rings.SLOT_BYTES
        SLOT.pack_into(
            self.memory, at, first, kind, flags, self.written if number is None else number, time_ns, *values, last
        )
        self.count(sequence)

    def count(self, written: int) -> None:
        self.written = written
        struct.pack_into("<Q", self.memory, 16, written)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def ring(writer: Writer) -> Iterator[Ring]:
    made = writer.ring()
    yield made
    made.close()


def numbers(ring: Ring, now_ns: int = NOW_NS, **options: int) -> list[int]:
    return [record.number for record in ring.read(now_ns, **options)]


def test_each_record_is_read_once_also_across_the_end_of_the_ring(writer: Writer, ring: Ring) -> None:
    seen: list[int] = []
    for _ in range(20):
        for _ in range(37):
            writer.put()
        seen += numbers(ring)
    assert seen == list(range(20 * 37))
    assert numbers(ring) == []
    assert (ring.lost, ring.malformed) == (0, 0)


def test_overwritten_records_are_counted_as_lost(writer: Writer, ring: Ring) -> None:
    writer.put()
    assert numbers(ring) == [0]
    for _ in range(1000):
        writer.put()
    # The slot after the newest may be half written, so a reader reads one record less than there are slots.
    assert numbers(ring, NOW_NS + 1_000_000) == list(range(1001 - (SLOTS - 1), 1001))
    assert ring.lost == 1000 - (SLOTS - 1)


def test_records_from_before_the_reader_are_not_counted_as_lost(writer: Writer, ring: Ring) -> None:
    for _ in range(1000):
        writer.put()
    assert len(numbers(ring)) == SLOTS - 1
    assert ring.lost == 0


def test_one_read_takes_at_most_its_limit(writer: Writer, ring: Ring) -> None:
    for _ in range(100):
        writer.put()
    assert numbers(ring, limit=64) == list(range(64))
    assert numbers(ring, limit=64) == list(range(64, 100))


def test_records_overwritten_during_the_copy_are_dropped(writer: Writer, ring: Ring) -> None:
    for _ in range(SLOTS - 1):
        writer.put()
    copy = ring._copy

    def copy_and_overwrite(start: int, end: int) -> bytes:
        copied = copy(start, end)
        for _ in range(3):
            writer.put()
        return copied

    ring._copy = copy_and_overwrite  # type: ignore[method-assign]
    assert numbers(ring) == list(range(3, SLOTS - 1))
    assert ring.lost == 3


def test_a_half_written_record_is_retried_once(writer: Writer, ring: Ring) -> None:
    writer.put()
    writer.put(sequences=(0, 0))
    writer.put()
    assert numbers(ring) == [0]
    at = rings.HEADER_BYTES + rings.SLOT_BYTES
    SLOT.pack_into(writer.memory, at, 2, END, 0, 1, NOW_NS - 1, 0, 0, 0, 2)
    assert numbers(ring) == [1, 2]
    writer.put(sequences=(writer.written + 1, 0))
    writer.put()
    assert numbers(ring) == []
    assert numbers(ring) == [4]
    assert (ring.lost, ring.malformed) == (0, 1)


def test_a_torn_record_that_is_not_new_is_skipped(writer: Writer, ring: Ring) -> None:
    writer.put(sequences=(1, 7))
    for _ in range(rings.LATE_RECORDS):
        writer.put()
    assert len(numbers(ring)) == rings.LATE_RECORDS
    assert ring.malformed == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 0},
        {"kind": 5},
        {"kind": 255},
        {"flags": 8},
        {"kind": rings.STEP_BEGUN, "flags": 1, "values": (0, 0, 0)},
        {"number": -1},
        {"number": 2**53 + 1},
        {"time_ns": 0},
        {"time_ns": -5},
        {"time_ns": NOW_NS + rings.FUTURE_NS + 1},
        {"values": (-1, 0, 0)},
        {"values": (NOW_NS, 0, 0)},  # started before the machine booted
        {"flags": rings.WAIT_KNOWN, "values": (5, 6, 0)},
        {"flags": rings.WAIT_KNOWN, "values": (5, -1, 0)},
        {"flags": rings.TOKENS_KNOWN, "values": (5, 0, -1)},
        {"flags": rings.TOKENS_KNOWN, "values": (5, 0, 2**53 + 1)},
    ],
)
def test_an_impossible_record_is_counted_and_the_next_is_read(
    wrong: dict[str, object], writer: Writer, ring: Ring
) -> None:
    writer.put(**wrong)  # type: ignore[arg-type]
    writer.put(number=77)
    assert numbers(ring) == [77]
    assert ring.malformed == 1


def test_unknown_wait_and_token_counts_are_none(writer: Writer, ring: Ring) -> None:
    writer.put(values=(5, 4, 3))
    writer.put(flags=rings.WAIT_KNOWN | rings.TOKENS_KNOWN, values=(5, 0, 0))
    assert [(record.wait_ns, record.tokens) for record in ring.read(NOW_NS)] == [(None, None), (0, 0)]


@pytest.mark.parametrize("count", [2**64 - 1, 2**40 * 1000])
def test_an_impossible_count_is_ignored(count: int, writer: Writer, ring: Ring) -> None:
    writer.put()
    assert numbers(ring) == [0]
    writer.count(count)
    assert numbers(ring) == []
    assert (ring.malformed, ring.lost) == (1, 0)


def test_a_decreasing_count_reads_no_record_twice(writer: Writer, ring: Ring) -> None:
    for _ in range(200):
        writer.put()
    assert len(numbers(ring)) == 200
    writer.count(199)  # another thread stored late
    assert numbers(ring) == []
    assert ring.malformed == 0
    writer.count(3)
    assert numbers(ring) == []
    assert ring.malformed == 1
    writer.put(number=9)
    assert numbers(ring) == [9]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), reads=st.integers(1, 4))
def test_arbitrary_bytes_cause_no_error_and_no_impossible_record(data: st.DataObject, reads: int) -> None:
    writer = Writer()
    ring = writer.ring()
    now_ns = data.draw(st.sampled_from([1, 10**9, NOW_NS, 2**62]))
    near = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, now_ns, now_ns + 1, 2**53])
    record = st.tuples(st.integers(0, 255), st.integers(0, 255), near, near, near, near, near)
    for _ in range(reads):
        base = data.draw(st.sampled_from([0, 1, 5, 250, 256, 300, 2**32, 2**63, 2**64 - 21]))
        for offset, fields in enumerate(data.draw(st.lists(record, max_size=20))):
            honest = data.draw(st.booleans())
            sequence = base + offset + 1 if honest else data.draw(st.integers(0, 2**64 - 1))
            at = rings.HEADER_BYTES + (base + offset) % SLOTS * rings.SLOT_BYTES
            SLOT.pack_into(writer.memory, at, sequence, *fields, sequence)
            writer.count(base + offset + 1)
        noise = data.draw(st.binary(max_size=200))
        at = data.draw(st.integers(0, len(writer.memory) - 200))
        writer.memory[at : at + len(noise)] = noise
        before = ring.lost + ring.malformed
        found = ring.read(now_ns)
        assert len(found) < SLOTS
        assert ring.lost + ring.malformed >= before
        for each in found:
            assert each.kind in (1, 2, 3, 4)
            assert 0 <= each.number <= 2**53
            assert 0 < each.time_ns <= now_ns + rings.FUTURE_NS
            assert 0 <= each.duration_ns <= each.time_ns
            assert each.wait_ns is None or 0 <= each.wait_ns <= each.duration_ns
            assert each.tokens is None or 0 <= each.tokens <= 2**53
    ring.close()


# --- memory files ----------------------------------------------------------------------------------------------------

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memory_file(size: int, seals: int = SEALS, header: bytes | None = None) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if header is None:
        header = struct.pack("<8sII", b"GWRING01", 64, SLOTS)
    os.pwrite(descriptor, header, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


WHOLE = 64 + SLOTS * 64


def test_a_sealed_file_of_the_right_size_is_a_ring() -> None:
    descriptor = memory_file(WHOLE)
    ring = Ring.of_descriptor(descriptor)
    os.close(descriptor)
    assert ring.read(NOW_NS) == []
    ring.close()


@pytest.mark.parametrize(
    ("size", "seals", "header", "said"),
    [
        (WHOLE, 0, None, "not sealed"),
        (WHOLE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, None, "not sealed"),
        (0, SEALS, b"", "0 bytes"),
        (64 + 64 * 1024 * 1024, SEALS, None, "a ring of 256 to 65536"),
        (WHOLE + 64, SEALS, None, "not a step ring"),
        (WHOLE, SEALS, struct.pack("<8sII", b"GWRING99", 64, SLOTS), "layout 99"),
        (WHOLE, SEALS, struct.pack("<8sII", b"GWRING01", 32, SLOTS), "not a step ring"),
        (64 + 300 * 64, SEALS, struct.pack("<8sII", b"GWRING01", 64, 300), "not a step ring"),
    ],
)
def test_invalid_files_are_rejected(size: int, seals: int, header: bytes | None, said: str) -> None:
    descriptor = memory_file(size, seals, header)
    try:
        with pytest.raises(ReporterError, match=said):
            Ring.of_descriptor(descriptor)
    finally:
        os.close(descriptor)


def test_a_file_that_is_not_a_memory_file_is_rejected() -> None:
    descriptor = os.open("/proc/self/stat", os.O_RDONLY)
    try:
        with pytest.raises(ReporterError, match="not a memory file"):
            Ring.of_descriptor(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("magic", "said"), [(b"GWRING02", "layout 2"), (b"GWRING00", "layout 0"), (b"GWRING99", "99")])
def test_the_error_for_another_layout_names_it_and_the_upgrade(magic: bytes, said: str) -> None:
    descriptor = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = rings.HEADER_BYTES + SLOTS * rings.SLOT_BYTES
        os.pwrite(descriptor, struct.pack("<8sII", magic, 64, SLOTS), 0)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with pytest.raises(ReporterError, match=rf"{said}.*supports layout 1: upgrade"):
            Ring.of_descriptor(descriptor)
    finally:
        os.close(descriptor)


def test_records_with_unknown_kinds_or_flags_are_counted_and_skipped(writer: Writer, ring: Ring) -> None:
    writer.put()
    writer.put(kind=9)
    writer.put(flags=64)
    writer.put()
    assert numbers(ring) == [0, 3]
    assert (ring.malformed, ring.lost) == (2, 0)
