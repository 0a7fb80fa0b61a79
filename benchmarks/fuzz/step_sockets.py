"""Fuzz targets: messages of users' processes to the agent's step socket: registrations, positions, connections.

Inputs are valid data with a change in a value, a length or the order of events. Few inputs are changed byte by byte.
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

from agent.collectors.steps import blocked_ranks
from agent.collectors.steps.claimed_identity import judge, usable_name
from agent.rank_attribution import Identity
from agent.schema.errors import GangwatchError, ReporterError
from agent.schema.frame import Member
from agent.sources.steps import rings, step_messages
from agent.sources.steps.closers import Closer
from agent.sources.steps.step_connection import Admission, Connection, Registered
from agent.sources.steps.step_messages import (
    MAX_MESSAGE_BYTES,
    MAX_REPORT_BYTES,
    Peer,
    Place,
    parse_claim,
    take_message,
)
from agent.sources.steps.tenants import Tenant
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.step_rings import ALL_SEALS
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target

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
    """Make a registration message, preceded by its length."""
    return _framed(rng, _claim(rng))


def make_place(rng: random.Random) -> bytes:
    """Make a message as sent after the registration, preceded by its length: a rank's position or its report."""
    document: dict[str, object] = {"v": 1, "place": _place(rng)}
    if rng.random() < 0.5:
        report: dict[str, object] = {
            "where": "train.py:4 in load",
            "stacks": "thread MainThread\n  a.py:1 in f\x1b" * 9,
        }
        report["collective"] = {"operation": "allreduce", "group": "0", "sequence": 7, "ranks": "0-7", "bytes": 4096}
        if rng.random() < 0.5:
            report[rng.choice(("where", "stacks", "collective", "later"))] = rng.choice(_VALUES)
        document = {"v": 1, "blocked": report}
    if rng.random() < 0.2:
        document[rng.choice(("v", "place", "blocked", "later"))] = rng.choice(_VALUES)
    return _framed(rng, document)


_IDENTITIES = (
    Identity("j-000001", 2, 3, "local"),
    Identity("j-000001", 2, None, "local"),
    Identity("slurm-12.0", None, None, "slurm"),
    Identity("pod-01234567-89ab-cdef-0123-456789abcdef", None, None, "kubernetes"),
)


def parse_registration(data: bytes) -> str:
    """Parse a registration. Check that accepted values are in range and match the identity that the agent has
    attested."""
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
    """Parse a message that was sent after the registration: a rank's position, or its report about where it is
    blocked."""
    try:
        message = take_message(bytearray(data), MAX_REPORT_BYTES)
        if message is None:
            return REFUSED_FIRST
    except ReporterError:
        return REFUSED_FIRST
    try:
        found = step_messages.parse_later(message)
        if isinstance(found, Place):
            _check_place(found)
        else:
            assert len(found.where) <= 512 and len(found.stacks) <= 8192
            event = blocked_ranks.event_of(Member("g", 1, 0), found, 1, 2)
            assert all(len(value) <= 8192 for value in event.detail.values())
            assert all(value.replace("\n", "").isprintable() for value in event.detail.values())
    except ReporterError as error:
        str(error).encode()
        return REFUSED
    return ACCEPTED


def _check_place(place: Place) -> None:
    for index in (place.data, place.stage, place.tensor, place.expert):
        assert index is None or 0 <= index < 2**20


# --- a whole connection ----------------------------------------------------------------------------------------------

_SEND, _SEND_RING, _SEND_MANY, _SEND_OTHER, _END = range(5)
"""Operations of a client: send bytes, with a ring, with several descriptors, or with one that is no ring; close."""
_ASKS = 5
"""Added to an operation: the agent first asks the process where it is blocked."""
_STEP = struct.Struct("<BH")


def make_connection(rng: random.Random) -> bytes:
    """Make the sequence of a client's operations on one connection."""
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
        asks = _ASKS if rng.random() < 0.5 else 0
        steps.append(_STEP.pack(what + asks, len(chunk)) + chunk)
        at += size
    if rng.random() < 0.5:
        steps.append(_STEP.pack(_END, 0))
    return b"".join(steps)


@functools.cache
def _ring_descriptor() -> int:
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, rings.HEADER_BYTES + rings.MIN_SLOTS * rings.SLOT_BYTES)
    os.pwrite(descriptor, struct.pack("<8sII", rings.MAGIC, rings.SLOT_BYTES, rings.MIN_SLOTS), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, ALL_SEALS)
    return descriptor


class _ClosesAtOnce(Closer):
    """Replacement of the agent's background closer. It closes descriptors at once, in the same thread."""

    def put(self, descriptor: int, tenant: Tenant) -> None:  # noqa: ARG002
        os.close(descriptor)


def parse_connection(data: bytes) -> str:
    """Serve a connection as the agent does. Check that no received descriptor stays open."""
    tenant = Tenant("user", "1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.setblocking(False)
    connection = Connection(ours, Peer(1, 1), tenant, 0.0)
    closer = _ClosesAtOnce("fuzz")
    outcome, at, asked = REFUSED_FIRST, 0, False
    try:
        while at + _STEP.size <= len(data):
            what, length = _STEP.unpack_from(data, at)
            at += _STEP.size
            if what >= _ASKS and connection.registered is not None:
                connection.ask()
                asked = True
            if not _do(theirs, what % _ASKS, data[at : at + length]):
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
        assert len(connection.message) <= 2 * (MAX_REPORT_BYTES if asked else MAX_MESSAGE_BYTES) + 4096
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
    """Receive and handle the connection's data once. Return False if there is none."""
    try:
        if not connection.receive(closer):
            return False
    except BlockingIOError:
        return False
    if connection.registered is not None:
        connection.take_updates()
    elif connection.parse_registration():
        claim, ring = connection.claim, connection.ring
        assert claim is not None and ring is not None
        member = judge(claim, Identity("g", 1, None, "local"))
        connection.registered = Registered(connection.peer, claim, Admission(member, connection.tenant), ring)
        connection.take_updates()
    return True


def _in_main_thread(parse: Callable[[bytes], str]) -> Callable[[bytes], str]:
    """Wrap a parser with a check that it starts no thread."""

    def checked(data: bytes) -> str:
        before = threading.active_count()
        outcome = parse(data)
        assert threading.active_count() == before
        return outcome

    return checked


TARGETS: tuple[Target, ...] = (
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
    Target("node-place", make_place, parse_later, ("agent.sources.steps.step_messages:parse_later",)),
    Target(
        "node-connection",
        make_connection,
        _in_main_thread(parse_connection),
        ("agent.sources.steps.step_connection:Connection", "agent.sources.steps.step_messages"),
    ),
)
