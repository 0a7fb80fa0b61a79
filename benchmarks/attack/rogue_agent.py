"""The agent of a compromised node, which sends frames about other nodes' jobs and impersonates other nodes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import itertools
import json
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from agent.schema.frame import (
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    Record,
    StepRecord,
    Tier,
    make_layout,
)
from agent.schema.wire import encode_frame, encode_layout, with_length
from benchmarks.ingest.generator import HEAD, chunk
from tests.security.rogue import layout_of

SECOND = 1_000_000_000
JOBS = {"j-000001": ("n0", "n1", "n2", "n3"), "j-000002": ("n4", "n5")}
HONEST = tuple(node for nodes in JOBS.values() for node in nodes)
ROGUE, IMPERSONATED = "n7", "n6"

FRAMES_A_SECOND = 4
"""Frames per second of each honest agent. The product sends one per second; more give more samples."""

RECORDS = 100_000
"""Number by which each frame raises its count of earlier records. No frame contains that many records."""

PASSWORD = "scrapers-know-it"

Lies = Iterator[tuple[Layout | None, Frame]]
"""Frames of the rogue agent, each with its new layout, or None if the layout does not change."""


def _steps(members: Sequence[Member], number: int, at_ns: int, seconds: int) -> list[Record]:
    return [StepRecord(one, number, at_ns - seconds * SECOND, seconds * SECOND, 0) for one in members]


def frame_of(layout: Layout, seq: int, records: Sequence[Record], records_before: int) -> Frame:
    """Return a frame with the current time. Its counters increase with time.

    records_before: number of records in earlier frames.
    """
    at_ns = time.monotonic_ns()
    tiers, _, counters = layout.sizes
    runs = np.array([float(column.metric == "gangwatch_rank_process_state") for column in layout.gauges])
    return Frame(
        layout.node, f"boot-{layout.node}", f"agent-{layout.node}", seq, layout.layout_id, time.time_ns(), at_ns,
        np.full(tiers, at_ns, np.int64), runs, np.full(counters, at_ns // 2, np.uint64),
        np.ones(counters, np.bool_), records_before, tuple(records),
    )  # fmt: skip


def _ranks(attempt: int) -> list[Member]:
    return [Member(job, attempt, rank) for job, nodes in JOBS.items() for rank in range(len(nodes))]


def foreign_ranks(attempt: int = 1) -> Lies:
    """Yield frames with a false step of every rank of both honest jobs each second, forty times longer than real
    steps."""
    members = _ranks(attempt)
    layout = layout_of(ROGUE, members)
    for seq in itertools.count(1):
        yield (
            layout if seq == 1 else None,
            frame_of(layout, seq, _steps(members, FRAMES_A_SECOND * seq, time.monotonic_ns(), 10), seq * RECORDS),
        )


def records() -> Lies:
    """Yield frames with a thousand records each, more than an honest agent sends."""
    members = _ranks(1)
    layout = layout_of(ROGUE, members)
    for seq in itertools.count(1):
        at_ns = time.monotonic_ns()
        many = [one for number in range(170) for one in _steps(members, 170 * seq + number, at_ns, 10)]
        yield layout if seq == 1 else None, frame_of(layout, seq, many, seq * RECORDS)


def layouts() -> Lies:
    """Yield frames that each follow a new layout of 800 columns."""
    for seq in itertools.count(1):
        columns = [Column("gangwatch_host_cpu_seconds_total", (("mode", f"{seq}-{at}"),)) for at in range(800)]
        layout = make_layout(ROGUE, (Tier("all", 1.0),), (), columns)
        yield layout, frame_of(layout, seq, (), seq * RECORDS)


def events() -> Lies:
    """Yield frames with a thousand events each, about GPUs and machines of other nodes."""
    layout = layout_of(ROGUE, ())
    rng = random.Random(18)
    for seq in itertools.count(1):
        detail = {"code": "79", "state": "down", "action": "RESET_GPU"}
        kinds = ("xid", "gpu_lost", "recovery-action", "device-lost", "nic_link")
        found = [
            EventRecord(rng.choice(kinds), f"GPU-{rng.choice(HONEST)}", time.time_ns(), detail) for _ in range(1000)
        ]
        yield layout if seq == 1 else None, frame_of(layout, seq, found, seq * RECORDS)


def names() -> Lies:
    """Yield frames with ranks of gangs that do not exist, under names that change in each frame."""
    for seq in itertools.count(1):
        members = [Member(f"uid-0/{seq}-{at}", 0, at) for at in range(200)]
        layout = layout_of(ROGUE, members)
        yield layout, frame_of(layout, seq, _steps(members, seq, time.monotonic_ns(), 1), seq * RECORDS)


def quiet() -> Lies:
    """Yield the frames of an honest agent on a node without ranks."""
    layout = layout_of(ROGUE, ())
    for seq in itertools.count(1):
        yield layout if seq == 1 else None, frame_of(layout, seq, (), seq * RECORDS)


LIES: dict[str, tuple[Callable[[], Lies], float]] = {
    "foreign_ranks": (foreign_ranks, 1.0),
    "attempt": (functools.partial(foreign_ranks, 2**61), 1.0),
    "records_flood": (records, 0.0),
    "layouts_flood": (layouts, 0.0),
    "events_flood": (events, 0.0),
    "names": (names, 0.1),
    "identity": (quiet, 1.0),
}
"""Attacks by name: the frames to send, and the seconds between two frames; 0: as fast as possible."""


def _context(folder: Path, own: Path | None, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "ca" / "authority.crt")
    context.verify_mode = ssl.CERT_OPTIONAL if server else ssl.CERT_REQUIRED
    if own is not None:
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
    return context


def announce(folder: Path, node: str, port: int) -> None:
    """Write the file in the state folder from which the controller learns the agent's address."""
    announcement = {"pid": os.getpid(), "start_time": 1, "node": node, "url": f"https://127.0.0.1:{port}"}
    path = folder / "agents" / f"{node}.json"
    path.with_suffix(".new").write_text(json.dumps(announcement))
    path.with_suffix(".new").replace(path)


async def serve_rogue(folder: Path, name: str) -> None:
    """Send honest frames until the file `begin` exists, and malicious frames afterwards."""
    lies, pause_seconds = LIES[name]

    async def messages() -> AsyncIterator[bytes]:
        seq = 0
        for make, pause in ((quiet, 1.0), (lies, pause_seconds)):
            for layout, frame in make():
                seq += 1
                if layout is not None:
                    yield encode_layout(layout)
                yield encode_frame(replace(frame, seq=seq, record_seq=seq * RECORDS))
                await asyncio.sleep(pause)
                if make is quiet and (folder / "begin").exists():
                    break

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            async for message in messages():
                writer.write(chunk(with_length(message)))
                await writer.drain()
        writer.close()

    nodes = (ROGUE, IMPERSONATED) if name == "identity" else (ROGUE,)
    context = _context(folder, folder / "ca" / "nodes" / ROGUE, server=True)
    for node in nodes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        announce(folder, node, server.sockets[0].getsockname()[1])
    if name == "identity":
        await _ask_for_frames(folder)
    await asyncio.Event().wait()


async def _ask_for_frames(folder: Path) -> None:
    """Request frames from honest agents without permission, 16 requests at a time, and count those that succeed."""
    while not (folder / "begin").exists():
        await asyncio.sleep(0.1)
    certificates = (None, folder / "ca" / "nodes" / ROGUE, folder / "ca" / "clients" / "prometheus")
    authorization = base64.b64encode(f"scraper:{PASSWORD}".encode())
    ports = [
        int(json.loads((folder / "agents" / f"{node}.json").read_text())["url"].rpartition(":")[2]) for node in HONEST
    ]
    given = asked = 0

    async def ask(number: int) -> None:
        nonlocal given, asked
        rng = random.Random(number)
        while True:
            context = _context(folder, rng.choice(certificates), server=False)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection("127.0.0.1", rng.choice(ports), ssl=context)
                    writer.write(
                        b"GET /frames HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + authorization + b"\r\n\r\n"
                    )
                    asked += 1
                    given += b" 200 " in await reader.readline()
                    writer.close()
            (folder / "given").write_text(json.dumps([given, asked]))

    await asyncio.gather(*(ask(number) for number in range(16)))
