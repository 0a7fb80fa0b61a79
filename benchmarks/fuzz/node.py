"""Data from a tenant to the agent of its node: rings, registrations, places, and words in /proc.

Inputs begin as valid ones and are changed in places that the parser checks: a field's value, a length, an order of
events. Only a part of them is changed byte by byte.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import random
import socket
import struct
import threading
from collections.abc import Callable

from agent.collectors.steps.claimed_identity import judge, usable_name
from agent.collectors.steps.rank_progress import Progress
from agent.rank_attribution import Identity
from agent.schema.errors import GangwatchError, ReporterError, SourceError
from agent.schema.frame import Member
from agent.sources.proc.cgroup import Membership, parse_cgroup, user_of_cgroup
from agent.sources.proc.proc import parse_process_stat
from agent.sources.proc.slurm_node import parse_environment
from agent.sources.steps import rings
from agent.sources.steps.closers import Closer
from agent.sources.steps.rings import Ring, RingRecord
from agent.sources.steps.step_connection import Admission, Connection, Registered
from agent.sources.steps.step_messages import MAX_MESSAGE_BYTES, Peer, Place, parse_claim, parse_place, take_message
from agent.sources.steps.tenants import Tenant
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from gangwatch.steps import place_in_layout

NOW_NS = 10**15
"""Time at which the rings are read, on the clock that stamps their records."""

_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_EDGES = (0, 1, 2, 63, 64, 255, 256, 2**16 - 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)


# --- rings -----------------------------------------------------------------------------------------------------------

_SLOT = struct.Struct("<QBBHIqqqqqQ")
_FILE = struct.Struct("<BBIH")
"""Encoding of a memory file: seals, access, size, number of patches; each patch is offset, length and bytes, or with
length 0 a reading. An offset from _MEANWHILE on is written while the next reading copies slots."""
_MEANWHILE = 2**31
_PATCH = struct.Struct("<IH")
_READING = _PATCH.pack(0, 0)


def _patch(offset: int, data: bytes) -> bytes:
    return _PATCH.pack(offset, len(data)) + data


def _record(rng: random.Random, index: int) -> bytes:
    """Return one slot; at most one of its values is impossible."""
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
    """A ring whose writer continues while slots are copied."""

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
    """Make a memory file and its writer's changes between readings."""
    slots = rng.choice((256, 256, 256, 512, 512, 1024))
    seals, access, size = _ALL_SEALS, os.O_RDWR, rings.HEADER_BYTES + slots * rings.SLOT_BYTES
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
    """Read the ring as the agent would, and check that the results are possible."""
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


# --- registrations and places ----------------------------------------------------------------------------------------

_NAMES = (
    "train", "j-000001", "12", "slurm-12.0", "pod-01234567-89ab-cdef-0123-456789abcdef", "训练", "a" * 128, "a" * 129,
    "x" * 253, "x" * 254, "", " ", "a\u202eb", "a\u2028b", "\ud800", "a\nb", "{}\"\\", "\u200b", "0", "-1",
)  # fmt: skip
_VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**63, 2**64, 2**200, 1.5, 1e308, -0.0, "1", "", [], {}, [[]],
)  # fmt: skip


def _claim(rng: random.Random) -> dict[str, object]:
    claim: dict[str, object] = {"v": 1}
    for name, most in (("rank", 1024), ("attempt", 9), ("world_size", 1024), ("pid", 2**22)):
        if rng.random() < 0.8:
            claim[name] = rng.randrange(most)
    if rng.random() < 0.7:
        claim["gang"] = rng.choice(_NAMES)
    if rng.random() < 0.5:
        claim["place"] = _place(rng)
    if rng.random() < 0.3:
        claim[rng.choice(("v", "gang", "rank", "attempt", "world_size", "pid", "place", "later"))] = rng.choice(_VALUES)
    return claim


def _place(rng: random.Random) -> dict[str, object]:
    place: dict[str, object] = {}
    for name in ("data", "stage", "tensor", "expert", "later"):
        if rng.random() < 0.6:
            place[name] = rng.randrange(64) if rng.random() < 0.9 else rng.choice((*_VALUES, 2**20 - 1, 2**20))
    return place


def _framed(rng: random.Random, document: object) -> bytes:
    body = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        body = octets(rng, body, rng.randint(1, 4))
    length = len(body)
    if rng.random() < 0.05:
        length = rng.choice((0, len(body) + 1, max(0, len(body) - 1), 4096, 4097, 2**31))
    return length.to_bytes(4, "big") + body


def make_registration(rng: random.Random) -> bytes:
    """Make a registration with its length."""
    return _framed(rng, _claim(rng))


def make_place(rng: random.Random) -> bytes:
    """Make a later message with its length."""
    document = {"v": 1, "place": _place(rng)}
    if rng.random() < 0.2:
        document[rng.choice(("v", "place", "later"))] = rng.choice(_VALUES)
    return _framed(rng, document)


_IDENTITIES = (
    Identity("j-000001", 2, 3, "local"),
    Identity("j-000001", 2, None, "local"),
    Identity("slurm-12.0", None, None, "slurm"),
    Identity("pod-01234567-89ab-cdef-0123-456789abcdef", None, None, "kubernetes"),
)


def parse_registration(data: bytes) -> str:
    """Parse the registration, and judge it for each kind of process."""
    received = bytearray(data)
    try:
        message = take_message(received)
    except ReporterError:
        return REFUSED_FIRST
    if message is None:
        return REFUSED_FIRST
    try:
        claim = parse_claim(message)
    except ReporterError as error:
        str(error).encode()
        return REFUSED
    for count in (claim.rank, claim.attempt, claim.world_size, claim.pid):
        assert count is None or 0 <= count < 2**31
    assert claim.gang is None or 1 <= len(claim.gang) <= 253
    _check_place(claim.place)
    accepted = False
    for identity in _IDENTITIES:
        try:
            member = judge(claim, identity)
        except ReporterError:
            continue
        assert member.gang == identity.gang
        assert identity.rank in (None, member.rank) and identity.attempt in (None, member.attempt)
        accepted = True
    try:
        name = usable_name(claim.gang or "4711", 128)
        assert len(name) <= 128 and name.isprintable()
        name.encode()
        accepted = True
    except ReporterError as error:
        assert error.reason == "name"
    return ACCEPTED if accepted else REFUSED


def parse_later(data: bytes) -> str:
    """Parse a place."""
    try:
        message = take_message(bytearray(data))
        if message is None:
            return REFUSED_FIRST
    except ReporterError:
        return REFUSED_FIRST
    try:
        _check_place(parse_place(message))
    except ReporterError as error:
        str(error).encode()
        return REFUSED
    return ACCEPTED


def _check_place(place: Place) -> None:
    for index in (place.data, place.stage, place.tensor, place.expert):
        assert index is None or 0 <= index < 2**20


# --- a whole connection ----------------------------------------------------------------------------------------------

_SEND, _SEND_RING, _SEND_MANY, _SEND_OTHER, _END = range(5)
"""Operations of a client: send bytes alone, with a ring, with several descriptors, with one that is no ring; close."""
_STEP = struct.Struct("<BH")


def make_connection(rng: random.Random) -> bytes:
    """Make the operations of a client on one connection, in order."""
    stream = make_registration(rng) if rng.random() < 0.3 else _framed(rng, {"v": 1, "gang": "g", "rank": 1})
    for _ in range(rng.choice((0, 0, 1, 3, 20))):
        stream += make_place(rng)
    if rng.random() < 0.05:
        stream += rng.randbytes(rng.choice((1, 100, 9000)))
    steps, at, attached = [], 0, False
    while at < len(stream):
        size = rng.choice((1, 3, 7, 100, 1000, len(stream)))
        what = _SEND
        if not attached:
            what = rng.choices((_SEND_RING, _SEND, _SEND_MANY, _SEND_OTHER), (20, 2, 1, 1))[0]
            attached = True
        elif rng.random() < 0.01:
            what = rng.choice((_SEND_RING, _SEND_MANY, _SEND_OTHER))
        chunk = stream[at : at + size]
        steps.append(_STEP.pack(what, len(chunk)) + chunk)
        at += size
    if rng.random() < 0.5:
        steps.append(_STEP.pack(_END, 0))
    return b"".join(steps)


@functools.cache
def _ring_descriptor() -> int:
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, rings.HEADER_BYTES + rings.MIN_SLOTS * rings.SLOT_BYTES)
    os.pwrite(descriptor, struct.pack("<8sII", rings.MAGIC, rings.SLOT_BYTES, rings.MIN_SLOTS), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ALL_SEALS)
    return descriptor


class _ClosesAtOnce(Closer):
    """A closer without threads: closing never blocks here."""

    def put(self, descriptor: int, tenant: Tenant) -> None:  # noqa: ARG002
        os.close(descriptor)


def parse_connection(data: bytes) -> str:
    """Act as the agent's end of the connection, and check that none of its descriptors stays open."""
    tenant = Tenant("user", "1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.setblocking(False)
    connection = Connection(ours, Peer(1, 1), tenant, 0.0)
    closer = _ClosesAtOnce("fuzz")
    outcome, at = REFUSED_FIRST, 0
    try:
        while at + _STEP.size <= len(data):
            what, length = _STEP.unpack_from(data, at)
            at += _STEP.size
            if not _do(theirs, what % 5, data[at : at + length]):
                break
            at += length
            while _receive(connection, closer):
                if connection.claim is not None:
                    outcome = ACCEPTED if connection.registered is not None else REFUSED
            if connection.places:
                outcome = ACCEPTED
    except GangwatchError as error:
        str(error).encode()
        return REFUSED if connection.claim is not None or connection.ring is not None else REFUSED_FIRST
    finally:
        assert len(connection.message) <= 2 * MAX_MESSAGE_BYTES + 4096
        if connection.ring is not None:
            connection.ring.close()
        ours.close()
        theirs.close()
    return outcome


def _do(client: socket.socket, what: int, chunk: bytes) -> bool:
    if what == _END or not chunk:
        return False
    ring = _ring_descriptor()
    descriptors = {_SEND_RING: [ring], _SEND_MANY: [ring, ring, 0], _SEND_OTHER: [0]}.get(what, [])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
    try:
        client.sendmsg([chunk], rights if descriptors else [])
    except BlockingIOError:
        return False
    return True


def _receive(connection: Connection, closer: Closer) -> bool:
    """Run the agent's thread once for this connection; return False if there is nothing to receive."""
    try:
        if not connection.receive(closer):
            return False
    except BlockingIOError:
        return False
    if connection.registered is not None:
        connection.update_place()
    elif connection.parse_registration():
        claim, ring = connection.claim, connection.ring
        assert claim is not None and ring is not None
        member = judge(claim, Identity("g", 1, None, "local"))
        connection.registered = Registered(connection.peer, claim, Admission(member, connection.tenant), ring)
        connection.update_place()
    return True


# --- process files in /proc ------------------------------------------------------------------------------------------

_CGROUPS = (
    "/kubepods.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-{}.scope",
    "/kubepods/pod01234567-89ab-cdef-0123-456789abcdef/{}",
    "/system.slice/slurmstepd.scope/job_12/step_0/user/task_3",
    "/slurm_n1/uid_1000/job_7/step_batch/task_0",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_871/step_0",
    "/../../user.slice/user-5.slice/session-1.scope",
    "/system.slice/ssh.service",
    "/",
)


def make_cgroup(rng: random.Random) -> bytes:
    """Make /proc/PID/cgroup, of one line or many, with subfolders that a tenant may have made."""
    lines = []
    for number in range(rng.choice((1, 1, 1, 3, 12))):
        path = "".join(rng.choice(_CGROUPS) for _ in range(rng.choice((1, 1, 1, 2, 3)))).replace("{}", "ab" * 32)
        if rng.random() < 0.2:
            path = octets(rng, path.encode(), rng.randint(1, 4)).decode("utf-8", "replace")
        lines.append(f"{number}:{rng.choice(('', 'name=systemd', 'memory', 'a:b'))}:{path}")
    return ("\n".join(lines) + "\n").encode()


def parse_membership(data: bytes) -> str:
    """Parse the owner of the process; names from the file must be valid labels."""
    text = data.decode("utf-8", "replace")
    if ":" not in text:
        return REFUSED_FIRST
    found, user = parse_cgroup(text), user_of_cgroup(text)
    assert user is None or user >= 0
    if found is None:
        return REFUSED if user is None else ACCEPTED
    assert found != Membership() and (found.slurm_job or found.pod)
    assert not found.slurm_job or found.slurm_job.isdecimal()
    assert len(found.pod) in (0, 32, 36) and (found.slurm_task is None or found.slurm_task >= 0)
    return ACCEPTED


def make_environment(rng: random.Random) -> bytes:
    """Make /proc/PID/environ."""
    names = ("RANK", "SLURM_PROCID", "GANGWATCH_ATTEMPT", "SLURM_JOB_ID", "PATH", "", "RANK ", "OMPI_COMM_WORLD_RANK")
    values = ("0", "7", "123456789", "1234567890", "-1", "", "１", "0x1", "a" * 5000, "1=2")
    entries = [f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.randint(1, 12))]
    data = "\0".join((*entries, "")).encode()
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < 0.3 else data


def parse_words(data: bytes) -> str:
    """Parse rank, attempt and job of an environment: numbers, or nothing."""
    if b"=" not in data:
        return REFUSED_FIRST
    found = parse_environment(data)
    assert all(value.isascii() and value.isdecimal() and int(value) < 10**9 for value in found.values())
    return ACCEPTED if found else REFUSED


def make_stat(rng: random.Random) -> bytes:
    """Make /proc/PID/stat, with a process name chosen by the process."""
    name = rng.choice((b"python", b") R 1 (", b"a b c", b"", b"))))", b"\n", rng.randbytes(15)))
    words = [
        b"S",
        *(str(rng.choice((0, 1, 20, rng.randrange(2**32)))).encode() for _ in range(rng.choice((49, 49, 40, 39, 3)))),
    ]
    data = b"%d (%s) %s\n" % (rng.randrange(1, 2**22), name, b" ".join(words))
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < 0.3 else data


def parse_stat(data: bytes) -> str:
    """Parse the process of a stat line."""
    try:
        found = parse_process_stat(data)
    except SourceError:
        return REFUSED if b")" in data else REFUSED_FIRST
    assert found.pid >= 0 and found.parent >= 0 and found.start_time >= 0
    return ACCEPTED


# --- layouts ---------------------------------------------------------------------------------------------------------


def make_layout(rng: random.Random) -> bytes:
    """Make GANGWATCH_LAYOUT with a rank and a world size."""
    names = ["tensor", "context", "expert", "data", "pipeline"]
    rng.shuffle(names)
    sizes = {name: rng.choice((1, 2, 4, 8)) for name in names[: rng.randint(1, 5)]}
    ranks = 1
    for size in sizes.values():
        ranks *= size
    layout = ",".join(f"{name}={size}" for name, size in sizes.items())
    if rng.random() < 0.3:
        layout = rng.choice((layout + ",tensor=0", layout + ",", layout.upper(), layout + ",x=1", f"{layout},{layout}"))
    rank, world = rng.randrange(ranks), ranks
    if rng.random() < 0.1:
        rank, world = rng.choice((ranks, -1, 2**70)), rng.choice((ranks, 0, ranks + 1))
    data = f"{rank} {world} {layout}".encode()
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < 0.2 else data


def parse_layout(data: bytes) -> str:
    """Parse a rank's coordinates, each less than its dimension's size."""
    parts = data.decode("utf-8", "replace").split(" ", 2)
    if len(parts) < 3 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return REFUSED_FIRST
    if max(map(len, parts[:2])) > 30:
        return REFUSED_FIRST
    try:
        place = place_in_layout(parts[2], int(parts[0]), int(parts[1]))
    except ValueError:
        return REFUSED
    assert all(index >= 0 for index in place.values())
    return ACCEPTED


def _in_main_thread(parse: Callable[[bytes], str]) -> Callable[[bytes], str]:
    """Return the parser for use without threads."""

    def checked(data: bytes) -> str:
        before = threading.active_count()
        outcome = parse(data)
        assert threading.active_count() == before
        return outcome

    return checked


TARGETS: tuple[Target, ...] = (
    Target(
        "node-ring",
        make_ring,
        parse_ring,
        ("agent.sources.steps.rings", "agent.collectors.steps.rank_progress:Progress"),
    ),
    Target(
        "node-registration",
        make_registration,
        parse_registration,
        (
            "agent.sources.steps.step_messages:take_message",
            "agent.sources.steps.step_messages:parse_claim",
            "agent.collectors.steps.claimed_identity:judge",
            "agent.collectors.steps.claimed_identity:usable_name",
        ),
    ),
    Target("node-place", make_place, parse_later, ("agent.sources.steps.step_messages:parse_place",)),
    Target(
        "node-connection",
        make_connection,
        _in_main_thread(parse_connection),
        ("agent.sources.steps.step_connection:Connection", "agent.sources.steps.step_messages"),
    ),
    Target("node-cgroup", make_cgroup, parse_membership, ("agent.sources.proc.cgroup",)),
    Target("node-environment", make_environment, parse_words, ("agent.sources.proc.slurm_node:parse_environment",)),
    Target("node-stat", make_stat, parse_stat, ("agent.sources.proc.proc:parse_process_stat",)),
    Target("node-layout", make_layout, parse_layout, ("gangwatch.steps:place_in_layout",)),
)
