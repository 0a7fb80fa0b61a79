"""Attackers of a node's agent. Each is a separate process that sends malicious data to the step socket."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable

from agent.sources.steps.rings import HEADER_BYTES, MAGIC, MAX_SLOTS, MIN_SLOTS, SLOT_BYTES, STEP_ENDED

GANG = "j-000001"
"""Name of the honest job. Its ranks are registered by rank files, as the local backend writes them."""


def ring_file(slots: int = MIN_SLOTS, written: int = 0) -> int:
    """Return the descriptor of an almost empty step ring whose header claims `written` records."""
    descriptor = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, HEADER_BYTES + slots * SLOT_BYTES)
    os.pwrite(descriptor, struct.pack("<8sIIQ", MAGIC, SLOT_BYTES, slots, written), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def message(**claim: object) -> bytes:
    """Return a registration message with the given claims, preceded by its length in four bytes."""
    body = json.dumps({"v": 1, **claim}).encode()
    return len(body).to_bytes(4, "big") + body


def send(client: socket.socket, data: bytes, descriptors: list[int]) -> None:
    """Send data with these descriptors. Ignores a connection that the agent has closed."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.sendmsg([data], rights)


def answer(client: socket.socket) -> str:
    """Read the agent's response. Return '' if the agent has accepted the message, else its error text."""
    try:
        data = client.recv(4096)
        said = json.loads(data[4:]) if len(data) > 4 else {"error": "no answer"}
    except (OSError, ValueError) as error:
        return str(error)
    return "" if said.get("ok") is True else str(said.get("error"))


def connect(path: str, seconds: float = 10.0) -> socket.socket:
    """Return a connection to the agent's step socket. Retries for at most `seconds`."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), 0))
    client.connect(path)
    client.settimeout(seconds)
    return client


def lingering_socket() -> tuple[int, list[socket.socket]]:
    """Return a TCP socket whose close blocks for an hour, and the sockets that must stay open for this."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender.connect(listener.getsockname())
    receiver, _ = listener.accept()
    listener.close()
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(b"x" * 65536)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return sender.detach(), [receiver]


def sparse_rings(path: str, until: float) -> None:
    """Register one rank after another, each with a sparse ring of 4 MiB that claims to be full."""
    kept: list[int] = []
    while time.monotonic() < until:
        for slots in (MAX_SLOTS, 16384):
            kept.append(ring_file(slots, slots))
            with connect(path) as client:
                send(client, message(rank=len(kept)), kept[-1:])
                answer(client)
                time.sleep(0.05)
        if len(kept) >= 64:
            for descriptor in kept:
                os.close(descriptor)
            kept.clear()


def reporter_hog(path: str, until: float) -> None:
    """Register as many processes as the agent accepts, with gang names of maximum length."""
    descriptor, held = ring_file(), []
    for rank in range(1100):
        client = connect(path)
        send(client, message(rank=rank, gang=None if rank % 2 else "g" * 120), [descriptor])
        if rank % 2:
            answer(client)
        held.append(client)
        if time.monotonic() > until:
            break
    time.sleep(max(0.0, until - time.monotonic()))


def connection_flood(path: str, until: float) -> None:
    """Connect, send nothing and close, as fast as possible."""
    while time.monotonic() < until:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            client.setblocking(False)
            client.connect(path)
        client.close()


def silent_connections(path: str, until: float) -> None:
    """Open as many connections as possible. They send one byte per second or nothing."""
    held: list[socket.socket] = []
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            while len(held) < 900:
                client = connect(path, 1.0)
                client.setblocking(False)
                held.append(client)
        for index, client in enumerate(held):
            if index % 2:
                with contextlib.suppress(OSError):
                    client.send(b"\0")
        time.sleep(0.5)
        for client in held[: len(held) // 4]:
            client.close()
        del held[: len(held) // 4]


def half_messages(path: str, until: float) -> None:
    """Send half a message, with the maximum number of descriptors or with one that is no ring."""
    with open("/dev/null", "rb") as null:
        many, one = [null.fileno()] * 253, [ring_file()]
        held: list[socket.socket] = []
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                client = connect(path, 1.0)
                send(client, message(rank=1)[:7], (many, one, many[:1])[len(held) % 3])
                held.append(client)
            if len(held) > 300:
                for client in held:
                    client.close()
                held.clear()


def lingering_descriptors(path: str, until: float) -> None:
    """Send descriptors whose close blocks, as the step ring or after a refused message."""
    held: list[socket.socket] = []
    # Our own close may be the last one, and block: a signal interrupts it.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    while time.monotonic() < until:
        for first in (True, False):
            descriptor, open_ends = lingering_socket()
            held.extend(open_ends)
            with contextlib.suppress(OSError), connect(path, 1.0) as client:
                if not first:
                    send(client, b"\xff\xff\xff\xff", [])
                send(client, message(rank=1), [descriptor])
            os.close(descriptor)
        if len(held) > 400:
            for client in held:
                client.close()
            held.clear()


def record_flood(path: str, until: float) -> None:
    """Run sixteen ranks that write valid steps as fast as possible."""
    slots = 16384
    record = struct.Struct("<QBBHIqqqqqQ")
    rings: list[tuple[int, socket.socket]] = []
    for rank in range(16):
        descriptor = ring_file(slots)
        client = connect(path)
        send(client, message(rank=rank), [descriptor])
        answer(client)
        rings.append((descriptor, client))
    written = 0
    while time.monotonic() < until:
        now_ns = time.monotonic_ns()
        block = b"".join(
            record.pack(written + n + 1, STEP_ENDED, 1, 0, 0, n, now_ns, 1000, 10, 0, written + n + 1)
            for n in range(4096)
        )
        for descriptor, _ in rings:
            os.pwrite(descriptor, block, HEADER_BYTES + written % slots * SLOT_BYTES)
            os.pwrite(descriptor, struct.pack("<Q", written + 4096), 16)
        written += 4096


def registration_churn(path: str, until: float) -> None:
    """Register ranks under new names, send their positions repeatedly, and disconnect."""
    number, descriptor = 0, ring_file()
    while time.monotonic() < until:
        number += 1
        with contextlib.suppress(OSError), connect(path, 2.0) as client:
            send(client, message(rank=number, attempt=number), [descriptor])
            if not answer(client):
                for stage in range(15):
                    body = json.dumps({"v": 1, "place": {"stage": stage}}).encode()
                    client.send(len(body).to_bytes(4, "big") + body)


def impossible_rings(path: str, until: float) -> None:
    """Register rings with impossible content: counts that jump or decrease, removed memory, random slots."""
    slots = 4096
    rings: list[tuple[int, socket.socket]] = []
    for rank in range(16):
        descriptor = ring_file(slots)
        client = connect(path)
        send(client, message(rank=rank), [descriptor])
        answer(client)
        rings.append((descriptor, client))
    noise = os.urandom(SLOT_BYTES * 512)
    while time.monotonic() < until:
        for turn, (descriptor, _) in enumerate(rings):
            os.pwrite(descriptor, noise, HEADER_BYTES + turn * 512)
            for count in (2**64 - 1, 0, 4096 * turn, 2**63, 17, int.from_bytes(os.urandom(3), "big")):
                os.pwrite(descriptor, struct.pack("<Q", count), 16)
            _punch(descriptor, HEADER_BYTES, slots * SLOT_BYTES)


def forged_names(path: str, until: float) -> None:
    """Claim to be ranks of the honest job, or of pods and jobs that do not exist."""
    descriptor, held = ring_file(), []
    gangs = (
        GANG,
        f"{GANG}\u202e",
        "pod-01234567-89ab-cdef-0123-456789abcdef",
        "slurm-1.0",
        "x" * 253,
        'a"}\\n',
        "\u3000",
    )
    rank = 0
    while time.monotonic() < until:
        for gang in gangs:
            rank += 1
            with contextlib.suppress(OSError):
                client = connect(path, 2.0)
                send(client, message(gang=gang, rank=rank % 4, attempt=1), [descriptor])
                held.append(client)
        time.sleep(0.05)
        if len(held) > 200:
            for client in held:
                client.close()
            held.clear()


def _punch(descriptor: int, offset: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(descriptor, 0x2 | 0x1, ctypes.c_long(offset), ctypes.c_long(size))


PROGRAMS: dict[str, tuple[Callable[[str, float], None], int]] = {
    "sparse-rings": (sparse_rings, 1),
    "reporter-hog": (reporter_hog, 1),
    "connection-flood": (connection_flood, 2),
    "silent-connections": (silent_connections, 1),
    "half-messages": (half_messages, 2),
    "lingering-descriptors": (lingering_descriptors, 2),
    "record-flood": (record_flood, 1),
    "registration-churn": (registration_churn, 2),
    "impossible-rings": (impossible_rings, 1),
    "forged-names": (forged_names, 1),
}
"""Attacking programs by name: function (socket path, end on the monotonic clock), and number of processes."""
