"""Fuzz target: step rings, which training processes write and the node's agent reads.

Inputs are valid data with a change in a value, a length or the order of events. Few inputs are changed byte by byte.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct

from agent.collectors.steps.rank_progress import Progress
from agent.schema.errors import ReporterError
from agent.schema.frame import Member
from agent.sources.steps import rings
from agent.sources.steps.rings import Ring, RingRecord
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target

NOW_NS = 10**15
"""Time at which the rings are read, in nanoseconds on the clock of their records."""

ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_EDGES = (0, 1, 2, 63, 64, 255, 256, 2**16 - 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)

_SLOT = struct.Struct("<QBBHIqqqqqQ")
_FILE = struct.Struct("<BBIH")
"""Header of an input: seals, access, size of the memory file, and number of patches.

Each patch is offset, length and bytes. A patch of length 0 means that the agent reads the ring. A patch with an offset
from _MEANWHILE on is written while the agent's next reading copies slots.
"""
_MEANWHILE = 2**31
_PATCH = struct.Struct("<IH")
_READING = _PATCH.pack(0, 0)


def _patch(offset: int, data: bytes) -> bytes:
    return _PATCH.pack(offset, len(data)) + data


def _record(rng: random.Random, index: int) -> bytes:
    """Return one slot of a ring. At most one of its values is impossible."""
    kind = rng.choice((1, 2, 2, 2, 3, 4))
    duration_ns = rng.randrange(10**9)
    wait_ns, tokens = rng.randrange(duration_ns + 1), rng.randrange(10**6)
    values = [index + 1, kind, rng.randrange(8) if kind == 2 else 0, rng.randrange(2**16), rng.randrange(2**32)]
    values += [rng.randrange(100), NOW_NS - rng.randrange(10**9), duration_ns, wait_ns, tokens, index + 1]
    if rng.random() < 0.15:
        field = rng.randrange(len(values))
        width = (64, 8, 8, 16, 32, 63, 63, 63, 63, 63, 64)[field]
        value = rng.choice((*_EDGES, rng.getrandbits(64), NOW_NS + rings.FUTURE_NS + 1)) % 2**width
        values[field] = -value if 5 <= field <= 9 and rng.random() < 0.3 else value
    return _SLOT.pack(*values)


_PATH_ONLY = 3


class _RacingRing(Ring):
    """A step ring whose process continues to write while the agent copies slots."""

    meanwhile: tuple[tuple[int, bytes], ...] = ()

    def _bytes(self, first: int, slots: int) -> bytes:
        data = super()._bytes(first, slots)
        if self.meanwhile:
            writable = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
            for offset, content in self.meanwhile:
                _write(writable, offset, content)
            os.close(writable)
            self.meanwhile = ()
        return data


def make_ring(rng: random.Random) -> bytes:
    """Make a memory file, followed by the changes that its process makes between two reads."""
    slots = rng.choice((256, 256, 256, 512, 512, 1024))
    seals, access, size = ALL_SEALS, os.O_RDWR, rings.HEADER_BYTES + slots * rings.SLOT_BYTES
    magic, slot_bytes = rings.MAGIC, rings.SLOT_BYTES
    if rng.random() < 0.1:
        match rng.randrange(6):
            case 0:
                seals = rng.randrange(16)
            case 1:
                size = rng.choice((0, 63, size - 1, size + 64, 5 << 20))
            case 2:
                magic = rng.choice((b"GWRING02", b"GWRING99", b"GWRINGxx", rng.randbytes(8)))
            case 3:
                slot_bytes = rng.choice((0, 32, 128))
            case 4:
                access = rng.choice((os.O_WRONLY, os.O_RDONLY, _PATH_ONLY))
            case _:
                slots = rng.choice((0, 300, 2 * slots, 2**31))
    patches = [_patch(0, struct.pack("<8sII", magic, slot_bytes, slots))]
    base = rng.choice((0, 0, 0, slots - 3, 5 * slots, 2**40, 2**64 - 600))
    for _ in range(rng.randint(1, 4)):
        count = rng.choice((1, 5, 30, 64, 120))
        for index in range(base, base + min(count, 40)):
            at = rings.HEADER_BYTES + index % max(1, slots) % 1024 * rings.SLOT_BYTES
            patches.append(_patch(at, _record(rng, index % (2**64 - 1))))
        base += min(count, 40)
        claimed = rng.choice(
            (base, base, base, base, base + rng.randrange(300), max(0, base - 100), rng.choice(_EDGES))
        )
        patches.append(_patch(16, struct.pack("<Q", claimed % 2**64)))
        if rng.random() < 0.1:
            patches.append(_patch(rng.randrange(2**14), rng.randbytes(rng.randint(1, 64))))
        if rng.random() < 0.2:
            meanwhile = rng.choice((max(0, claimed - 1), max(0, claimed - 70), claimed + 200, claimed + slots)) % 2**64
            patches.append(_patch(_MEANWHILE + 16, struct.pack("<Q", meanwhile)))
        patches.append(_READING)
    return _FILE.pack(seals, access & 3, size, len(patches)) + b"".join(patches)


def parse_ring(data: bytes) -> str:
    """Read the ring as the agent does. Check that the results are possible."""
    if len(data) < _FILE.size:
        return REFUSED_FIRST
    seals, access, size, count = _FILE.unpack_from(data)
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    given = -1
    try:
        os.ftruncate(descriptor, min(size, 8 << 20))
        patches = _patches(data[_FILE.size :], count)
        if patches and patches[0][1]:
            _write(descriptor, *patches[0])
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals & 0xF & ~fcntl.F_SEAL_WRITE)
        flags = os.O_PATH if access == _PATH_ONLY else min(access, 2)
        given = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
        try:
            ring = _RacingRing.of_descriptor(given, 512)
        except ReporterError as error:
            early = ("not a memory file", "not sealed", " bytes, expected a ring")
            return REFUSED_FIRST if any(words in str(error) for words in early) else REFUSED
        progress = Progress(Member("g", 0, 0), 0)
        found = 0
        try:
            for offset, content in patches[1:]:
                if content and offset >= _MEANWHILE:
                    ring.meanwhile = (*ring.meanwhile, (offset - _MEANWHILE, content))
                    continue
                if content:
                    _write(descriptor, offset, content)
                    continue
                assert 0 <= ring.fresh() <= ring.slots
                before, quiet = os.fstat(descriptor).st_blocks, not ring.meanwhile
                records = ring.read(NOW_NS, 4096)
                assert not quiet or os.fstat(descriptor).st_blocks == before, "reading has allocated memory"
                assert len(records) < ring.slots
                for record in records:
                    _check(record)
                    progress.fold(record)
                found += len(records)
                assert len(progress.inside()) <= 2
        finally:
            ring.close()
        assert ring.lost >= 0 and ring.malformed >= 0
        assert all(total is None or 0 <= total < 2**64 for total in progress.totals())
        return ACCEPTED if found else REFUSED
    finally:
        os.close(descriptor)
        if given >= 0:
            os.close(given)


def _patches(data: bytes, most: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    at = 0
    while len(found) < most and at + _PATCH.size <= len(data):
        offset, length = _PATCH.unpack_from(data, at)
        at += _PATCH.size
        found.append((offset, data[at : at + length]))
        at += length
    return found


def _write(descriptor: int, offset: int, data: bytes) -> None:
    size = os.fstat(descriptor).st_size
    if offset < size:
        os.pwrite(descriptor, data[: size - offset], offset)


def _check(record: RingRecord) -> None:
    assert record.kind in (1, 2, 3, 4)
    assert 0 <= record.number <= rings.MAX_NUMBER
    assert 0 < record.time_ns <= NOW_NS + rings.FUTURE_NS
    assert 0 <= record.duration_ns <= record.time_ns
    assert record.wait_ns is None or 0 <= record.wait_ns <= record.duration_ns
    assert record.tokens is None or 0 <= record.tokens <= rings.MAX_NUMBER
    assert record.squares is None or 0 < record.squares < 2**48


TARGETS = (
    Target(
        "node-ring",
        make_ring,
        parse_ring,
        ("agent.sources.steps.rings", "agent.collectors.steps.rank_progress:Progress"),
    ),
)
