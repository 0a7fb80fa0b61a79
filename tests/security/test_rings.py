"""Step rings: a reporter cannot make the agent use memory or time by what it does with the memory file."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.collectors.steps.step_collector import StepCollector
from agent.rank_attribution import Attribution
from agent.schema.errors import ReporterError
from agent.sources.steps import rings
from agent.sources.steps.rings import Ring
from agent.sources.steps.tenants import Quotas
from benchmarks.attack.node_attackers import answer, connect, message, ring_file, send

REPOSITORY = Path(__file__).parents[2]
NOW_NS = 10**15


def blocks(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks


def resident_bytes() -> int:
    """Return the memory of this process in bytes, including mapped files of other processes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def punch_hole(descriptor: int, offset: int, size: int) -> None:
    """Call fallocate(2) with FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, which seals on the size do not forbid."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(descriptor, 0x2 | 0x1, ctypes.c_long(offset), ctypes.c_long(size)) == 0


@contextmanager
def opened(descriptor: int) -> Iterator[Ring]:
    ring = Ring.of_descriptor(descriptor)
    try:
        yield ring
    finally:
        ring.close()
        os.close(descriptor)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_reading_a_hole_allocates_nothing() -> None:
    descriptor = ring_file(rings.MAX_SLOTS, rings.MAX_SLOTS)
    with opened(descriptor) as ring:
        before = blocks(descriptor)
        for _ in range(3):
            ring.fresh()
            ring.read(time.monotonic_ns())
        assert blocks(descriptor) == before, "the agent allocated pages of the reporter's file by reading it"


def test_sparse_rings_do_not_grow_the_agents_memory(tmp_path: Path) -> None:
    """Some ranks have a ring that is full by its count but has no memory pages."""
    path = str(tmp_path / "run" / "n.sock")
    collector = StepCollector(path, Attribution(None), quotas=Quotas(registrations_per_second=1000))
    descriptors = [ring_file(16384, 16384) for _ in range(48)]
    try:
        collector.collect()
        before, allocated = resident_bytes(), sum(map(blocks, descriptors))
        for rank, descriptor in enumerate(descriptors):
            with connect(path) as client:
                send(client, message(rank=rank), [descriptor])
                assert answer(client) == ""
                collector.collect()
            collector.collect()
        assert sum(map(blocks, descriptors)) == allocated
        assert resident_bytes() - before < 16 << 20, "48 rings of 1 MiB"
    finally:
        collector.close()
        for descriptor in descriptors:
            os.close(descriptor)


def test_holes_punched_during_a_read_cost_only_records() -> None:
    slots = 4096
    descriptor = ring_file(slots)
    with opened(descriptor) as ring:
        record = struct.pack("<QBBHIqqqqqQ", 1, rings.STEP_ENDED, 0, 0, 0, 7, NOW_NS - 9, 5, 0, 0, 1)
        os.pwrite(descriptor, record, rings.HEADER_BYTES)
        os.pwrite(descriptor, struct.pack("<Q", 200), 16)
        assert [one.number for one in ring.read(NOW_NS)] == [7]
        skipped = ring.malformed
        assert skipped > 0
        punch_hole(descriptor, 0, rings.HEADER_BYTES + slots * rings.SLOT_BYTES)
        assert ring.read(NOW_NS) == [] and ring.fresh() >= 0  # the count is now 0
        punched = blocks(descriptor)
        os.pwrite(descriptor, struct.pack("<Q", 300), 16)
        assert ring.read(NOW_NS) == []
        assert blocks(descriptor) == punched + mmap.PAGESIZE // 512, "only the writer's own page was allocated"


# --- descriptors ------------------------------------------------------------------------------------------------------


def reopened(flags: int) -> Callable[[], int]:
    """Return a function that opens the same memory file with these flags."""

    def make() -> int:
        descriptor = ring_file()
        try:
            return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
        finally:
            os.close(descriptor)

    return make


def pipe() -> int:
    end, other = os.pipe()
    os.close(other)
    return end


def unsealed_file() -> int:
    descriptor = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)
    os.ftruncate(descriptor, rings.HEADER_BYTES + rings.MIN_SLOTS * rings.SLOT_BYTES)
    return descriptor


def huge_pages() -> int:
    descriptor = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    os.ftruncate(descriptor, 2 << 20)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (pipe, "not a memory file"),
        (lambda: socket.socket(socket.AF_UNIX).detach(), "not a memory file"),
        (lambda: os.eventfd(0), "not a memory file"),
        (lambda: os.open("/proc/self/mem", os.O_RDONLY), "not a memory file"),
        (lambda: os.open("/", os.O_RDONLY), "not a memory file"),
        (unsealed_file, "not sealed"),
        (reopened(os.O_PATH), "not a memory file"),
        (reopened(os.O_WRONLY), "for writing only"),
        (huge_pages, "not a step ring"),
    ],
    ids=["pipe", "socket", "eventfd", "proc", "folder", "tmpfs", "O_PATH", "O_WRONLY", "huge pages"],
)
def test_any_other_descriptor_is_refused_with_a_reason(make: Callable[[], int], refusal: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "n.sock")
    collector = StepCollector(path, Attribution(None))
    try:
        descriptor = make()
        with connect(path) as client:
            send(client, message(rank=0), [descriptor])
            assert refusal in answer(client)
        os.close(descriptor)
        with connect(path) as client:  # the agent still serves the next client
            descriptor = ring_file()
            send(client, message(rank=1), [descriptor])
            os.close(descriptor)
            assert answer(client) == ""
        assert collector._socket.refused["ring"] == 1
    finally:
        collector.close()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_NONBLOCK])
def test_a_readable_descriptor_is_accepted_with_any_other_flags(flags: int) -> None:
    descriptor = reopened(flags)()
    with opened(descriptor) as ring:
        os.lseek(descriptor, 1 << 40, os.SEEK_SET)  # the offset is shared with the agent, which does not use it
        assert ring.read(NOW_NS) == [] and ring.malformed == 0


def test_a_ring_over_the_tenants_limit_is_refused() -> None:
    descriptor = ring_file(1024)
    with pytest.raises(ReporterError, match="1024 slots; this agent accepts at most 512") as refused:
        Ring.of_descriptor(descriptor, 512)
    assert refused.value.reason == "ring"
    os.close(descriptor)


# --- writes during a read ---------------------------------------------------------------------------------------------


def record(index: int, number: int) -> bytes:
    sequence = index + 1
    return struct.pack("<QBBHIqqqqqQ", sequence, rings.STEP_ENDED, 0, 0, 0, number, NOW_NS - 9, 5, 0, 0, sequence)


def test_a_count_torn_upward_reads_no_record_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may copy eight bytes one by one: a change from 0x00ff to 0x0100 may be read as 0x01ff."""
    descriptor = ring_file(1024)
    with opened(descriptor) as ring:
        for index in range(0x100):
            os.pwrite(descriptor, record(index, index), rings.HEADER_BYTES + index * rings.SLOT_BYTES)
        os.pwrite(descriptor, struct.pack("<Q", 0xFF), 16)
        assert len(ring.read(NOW_NS)) == 0xFF
        os.pwrite(descriptor, struct.pack("<Q", 0x100), 16)
        true_count = ring._count
        torn = iter([0x1FF])
        monkeypatch.setattr(ring, "_count", lambda: next(torn, None) or true_count())
        assert [one.number for one in ring.read(NOW_NS)] == [0xFF]
        assert (ring.lost, ring.malformed) == (0, 0)


def test_a_count_torn_downward_reads_no_record_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = ring_file(1024)
    with opened(descriptor) as ring:
        for index in range(0x201):
            os.pwrite(descriptor, record(index, index), rings.HEADER_BYTES + index * rings.SLOT_BYTES)
        os.pwrite(descriptor, struct.pack("<Q", 0x1FF), 16)
        assert len(ring.read(NOW_NS)) == 0x1FF
        os.pwrite(descriptor, struct.pack("<Q", 0x200), 16)
        true_count = ring._count
        torn = iter([0x100])
        monkeypatch.setattr(ring, "_count", lambda: next(torn, None) or true_count())
        assert [one.number for one in ring.read(NOW_NS)] == [0x1FF]
        assert (ring.lost, ring.malformed) == (0, 0)


_WRITER = """
import fcntl, os, socket, struct, sys, time, mmap
descriptor, slots, half = int(sys.argv[1]), int(sys.argv[2]), struct.Struct("<QBBHIqq")
rest = struct.Struct("<qqqQ")
memory = mmap.mmap(descriptor, 64 + slots * 64)
count = memoryview(memory)[16:24].cast("Q")
end, index = time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < end:
    for _ in range(100):
        at = 64 + index % slots * 64
        number = index * 7
        half.pack_into(memory, at, index + 1, 2, 3, 0, 0, number, time.monotonic_ns())
        # Between the halves the record is torn: its sequence is new, the rest of it old.
        rest.pack_into(memory, at + half.size, 1_000_000 + number % 1000, number % 1000, number % 9973, index + 1)
        index += 1
        count[0] = index
print(index)
"""


def test_records_overwritten_during_a_read_are_dropped() -> None:
    """The writer overwrites records repeatedly. Every record that the reader returns must be intact."""
    descriptor = ring_file(256)
    os.set_inheritable(descriptor, True)
    with (
        opened(descriptor) as ring,
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_WRITER), str(descriptor), "256", "1.5"],
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
            text=True,
        ) as writer,
    ):
        seen, newest = 0, -1
        while writer.poll() is None or ring.fresh():
            for one in ring.read(time.monotonic_ns()):
                assert one.duration_ns == 1_000_000 + one.number % 1000
                assert (one.wait_ns, one.tokens) == (one.number % 1000, one.number % 9973)
                assert one.number > newest, "a record was read twice or out of order"
                newest = one.number
                seen += 1
        assert writer.stdout is not None
        written = int(writer.stdout.read())
        assert seen > 1000
        assert seen + ring.lost <= written
