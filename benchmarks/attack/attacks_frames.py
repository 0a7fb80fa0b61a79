"""Attacks by a compromised agent: frames about other nodes' jobs, floods of frames, and other nodes' identities.

python -m benchmarks.attack.attacks_frames [NAME ...] [--seconds N] [--json]

Everything is real except the cluster: honest agents' servers behind mutual TLS, the controller's feed, watch and
detectors, and the rogue agent, each in a separate process. Six honest nodes run two healthy jobs; the rogue node runs
none.

The others' waits are those of honest frames, from their creation by the agent until the controller has folded them.
`lost` counts honest frames that were not folded. `wrong_actions` counts verdicts about healthy jobs, changed gangs,
frames accepted under another node's certificate, and frames given to an unauthorised client.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import gc
import itertools
import json
import os
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bcrypt
import numpy as np
from msgspec.structs import replace

from agent.schema.clock import SystemClock
from agent.schema.frame import (
    AnyLayout,
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
from agent.schema.identity import CONTROLLER
from agent.schema.wire import encode_frame, encode_layout, with_length
from benchmarks.ingest.generator import HEAD, chunk
from exporter.security.frame_readers import FrameReaders
from exporter.security.security import Security
from exporter.server import ThreadedServer, agent_app
from gangwatch.certificates.folder import AuthorityFolder
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.telemetry.placements import Placements
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors import make_all
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed.credentials import Credentials
from tests.security.rogue import layout_of

Result = dict[str, Any]

SECONDS = 12.0
"""Length of each measurement, without and with the attack."""

START_SECONDS = 60.0
SECOND = 1_000_000_000
JOBS = {"j-000001": ("n0", "n1", "n2", "n3"), "j-000002": ("n4", "n5")}
HONEST = tuple(node for nodes in JOBS.values() for node in nodes)
ROGUE, IMPERSONATED = "n7", "n6"
FRAMES_A_SECOND = 4
"""Rate of an honest agent: higher than the product's one a second, for more samples."""

RECORDS = 100_000
"""More records than a frame has."""

TICK_SECONDS = 0.05
"""Interval of the watch: a tenth of the product's, so that shorter delays show."""

PASSWORD = "scrapers-know-it"
REPOSITORY = Path(__file__).resolve().parents[2]


# --- the rogue agent -------------------------------------------------------------------------------------------------

Lies = Iterator[tuple[Layout | None, Frame]]
"""Sequence of frames that the rogue agent sends, each with a new layout if that changes."""


def _steps(members: Sequence[Member], number: int, at_ns: int, seconds: int) -> list[Record]:
    return [StepRecord(one, number, at_ns - seconds * SECOND, seconds * SECOND, 0) for one in members]


def _frame(layout: Layout, seq: int, records: Sequence[Record], records_before: int) -> Frame:
    """Return a current frame whose counters advance with time."""
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
    """Yield every rank of both jobs once a second, forty times slower than in truth."""
    members = _ranks(attempt)
    layout = layout_of(ROGUE, members)
    for seq in itertools.count(1):
        yield (
            layout if seq == 1 else None,
            _frame(layout, seq, _steps(members, FRAMES_A_SECOND * seq, time.monotonic_ns(), 10), seq * RECORDS),
        )


def records() -> Lies:
    """Yield frames with a thousand records each."""
    members = _ranks(1)
    layout = layout_of(ROGUE, members)
    for seq in itertools.count(1):
        at_ns = time.monotonic_ns()
        many = [one for number in range(170) for one in _steps(members, 170 * seq + number, at_ns, 10)]
        yield layout if seq == 1 else None, _frame(layout, seq, many, seq * RECORDS)


def layouts() -> Lies:
    """Yield a new layout of 800 columns with each frame."""
    for seq in itertools.count(1):
        columns = [Column("gangwatch_host_cpu_seconds_total", (("mode", f"{seq}-{at}"),)) for at in range(800)]
        layout = make_layout(ROGUE, (Tier("all", 1.0),), (), columns)
        yield layout, _frame(layout, seq, (), seq * RECORDS)


def events() -> Lies:
    """Yield a thousand events a frame, about the GPUs and machines of others."""
    layout = layout_of(ROGUE, ())
    rng = random.Random(18)
    for seq in itertools.count(1):
        detail = {"code": "79", "state": "down", "action": "RESET_GPU"}
        kinds = ("xid", "gpu_lost", "recovery-action", "device-lost", "nic_link")
        found = [
            EventRecord(rng.choice(kinds), f"GPU-{rng.choice(HONEST)}", time.time_ns(), detail) for _ in range(1000)
        ]
        yield layout if seq == 1 else None, _frame(layout, seq, found, seq * RECORDS)


def names() -> Lies:
    """Yield gangs that were never placed, under new names all the time."""
    for seq in itertools.count(1):
        members = [Member(f"uid-0/{seq}-{at}", 0, at) for at in range(200)]
        layout = layout_of(ROGUE, members)
        yield layout, _frame(layout, seq, _steps(members, seq, time.monotonic_ns(), 1), seq * RECORDS)


def quiet() -> Lies:
    """Yield the frames of an honest agent on a node without ranks."""
    layout = layout_of(ROGUE, ())
    for seq in itertools.count(1):
        yield layout if seq == 1 else None, _frame(layout, seq, (), seq * RECORDS)


LIES: dict[str, tuple[Callable[[], Lies], float]] = {
    "foreign_ranks": (foreign_ranks, 1.0),
    "attempt": (functools.partial(foreign_ranks, 2**61), 1.0),
    "records_flood": (records, 0.0),
    "layouts_flood": (layouts, 0.0),
    "events_flood": (events, 0.0),
    "names": (names, 0.1),
    "identity": (quiet, 1.0),
}
"""By name: the frames sent, and the seconds between two of them; 0: as fast as possible."""

DOCUMENTS = {
    "foreign_ranks": "it reports every rank of jobs of other nodes",
    "attempt": "it reports attempt 2^61 of jobs of other nodes",
    "records_flood": "frames of a thousand records, as fast as the controller accepts them",
    "layouts_flood": "a new layout of 800 columns with each frame, as fast as the controller accepts them",
    "events_flood": "a thousand events a frame about other nodes' GPUs, as fast as the controller accepts them",
    "names": "2,000 new names of gangs a second",
    "identity": "it impersonates another node, and asks honest agents for frames with its certificate and the password",
}


def _context(folder: Path, own: Path | None, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "ca" / "authority.crt")
    context.verify_mode = ssl.CERT_OPTIONAL if server else ssl.CERT_REQUIRED
    if own is not None:
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
    return context


def _announce(folder: Path, node: str, port: int) -> None:
    """Write the agent's file, as gangwatch's agents do."""
    announcement = {"pid": os.getpid(), "start_time": 1, "node": node, "url": f"https://127.0.0.1:{port}"}
    path = folder / "agents" / f"{node}.json"
    path.with_suffix(".new").write_text(json.dumps(announcement))
    path.with_suffix(".new").replace(path)


async def _rogue(folder: Path, name: str) -> None:
    """Send malicious frames once the file `begin` exists, and honest frames before."""
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
        _announce(folder, node, server.sockets[0].getsockname()[1])
    if name == "identity":
        await _ask_for_frames(folder)
    await asyncio.Event().wait()


async def _ask_for_frames(folder: Path) -> None:
    """Request frames from honest agents, sixteen requests at a time, and record how often some were given."""
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


# --- honest agents ---------------------------------------------------------------------------------------------------


class _Honest:
    """The agent of a node with a rank that makes one step a frame; uses the product's own server."""

    def __init__(self, folder: Path, node: str) -> None:
        job, rank = next((job, nodes.index(node)) for job, nodes in JOBS.items() if node in nodes)
        self.member = Member(job, 1, rank)
        self.layout = layout_of(node, [self.member])
        self.newest: tuple[Layout, Frame] | None = None
        self.seq = 0
        self._listeners: list[Callable[[Layout, Frame], None]] = []
        app = agent_app(lambda: self.newest, self._add)
        security = Security(folder / f"{node}.yml", readers=FrameReaders((CONTROLLER,), None))
        self.server = ThreadedServer(app, security=security)

    def _add(self, listener: Callable[[Layout, Frame], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tick(self) -> None:
        self.seq += 1
        at_ns = time.monotonic_ns()
        duration_ns = SECOND // FRAMES_A_SECOND
        steps = [StepRecord(self.member, self.seq, at_ns - duration_ns, duration_ns - 1000, duration_ns // 10)]
        frame = _frame(self.layout, self.seq, steps, self.seq)
        self.newest = self.layout, frame
        for listener in tuple(self._listeners):
            listener(self.layout, frame)


def _serve_honest(folder: Path) -> None:
    agents = [_Honest(folder, node) for node in HONEST]
    for one in agents:
        one.tick()
        one.server.start()
        _announce(folder, one.layout.node, int(one.server.url.rpartition(":")[2].rstrip("/")))
    while True:
        for one in agents:
            one.tick()
            time.sleep(1 / FRAMES_A_SECOND / len(agents))


# --- the controller --------------------------------------------------------------------------------------------------


class _Controller:
    """Feed, watch and detectors; the waits of honest frames, and the verdicts."""

    def __init__(self, folder: Path) -> None:
        self.waits: list[float] = []
        self.found: list[Event] = []
        placements = Placements()
        placements.follow([self._job(job, nodes) for job, nodes in JOBS.items()])
        self.watch = DetectionThread(make_all(), self.found.extend, SystemClock(), TICK_SECONDS, placements=placements)
        self.fleet = self.watch._fleet
        self._observe = self.fleet.observe
        self.fleet.observe = self._timed  # type: ignore[method-assign]
        own = folder / "ca" / "controller"
        credentials = Credentials(folder / "ca" / "authority.crt", own / "tls.crt", own / "tls.key")
        self.feed = Feed(
            folder / "agents", self.watch.offer, (), SystemClock(), credentials, reached=placements.reached
        )

    @staticmethod
    def _job(job: str, nodes: Sequence[str]) -> Job:
        ranks = [RankRecord(rank, Slot(node, 0)) for rank, node in enumerate(nodes)]
        return Job(job, JobSpec(job, ("train",), len(nodes)), JobState.RUNNING, 0, 1, ranks)

    def _timed(self, layout: AnyLayout, frame: Frame, received_ns: int, superseded: bool = False) -> bool:
        folded = self._observe(layout, frame, received_ns, superseded)
        if frame.node in HONEST:
            self.waits.append((time.time_ns() - frame.wall_ns) / 1e6)
        return folded

    def lost(self) -> int:
        views = [self.fleet.nodes[node] for node in HONEST]
        return sum(view.frames_missed + view.frames_refused for view in views)

    def wrong(self) -> int:
        """Return the number of false verdicts, changed gangs and nodes with a false identity."""
        gangs = self.fleet.gangs
        changed = sum(
            job not in gangs or (gangs[job].attempt, gangs[job].nodes) != (1, nodes) for job, nodes in JOBS.items()
        )
        # Verdicts about its own node are not counted: an agent may send any data about it.
        accused = sum(isinstance(one, Verdict) and one.node != ROGUE for one in self.found)
        return changed + accused + (IMPERSONATED in self.fleet.nodes)

    def refused(self) -> float:
        """Return the refused records and series of the rogue node."""
        return sum(
            value
            for name, labels, value in self.fleet.measures()
            if name == "gangwatch_watch_records_refused_total" and dict(labels)["node"] == ROGUE
        )


def _p99(waits: Sequence[float]) -> float:
    ordered = sorted(waits)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1) if ordered else float("inf")


def _resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def _measure(folder: Path, seconds: float) -> Result:
    controller = _Controller(folder)
    controller.watch.start()
    running = asyncio.ensure_future(controller.feed.run())
    try:
        begun = time.monotonic()
        while len({*HONEST, ROGUE} & controller.fleet.nodes.keys()) < len(HONEST) + 1:
            if time.monotonic() - begun > START_SECONDS:
                raise RuntimeError(f"only {sorted(controller.fleet.nodes)} sent frames within {START_SECONDS:g} s")
            await asyncio.sleep(0.05)
        await asyncio.sleep(3.0)
        controller.waits.clear()
        lost = controller.lost()
        await asyncio.sleep(seconds)
        calm = _p99(controller.waits)
        gc.collect()
        resident = _resident_mib()
        (folder / "begin").touch()
        await asyncio.sleep(1.0)
        controller.waits.clear()
        await asyncio.sleep(seconds)
        attacked, came = _p99(controller.waits), len(controller.waits)
        # Missing frames count as late. Agents on a loaded machine make some frames fewer than scheduled.
        late = max(0, int(0.7 * FRAMES_A_SECOND * len(HONEST) * seconds) - came)
        given = json.loads((folder / "given").read_text()) if (folder / "given").exists() else [0, 0]
        return {
            "survived": not running.done() and controller.watch.broken() == "" and came > 0,
            "rss_growth_mib": round(_resident_mib() - resident, 1),
            "p99_ms_of_others": attacked,
            "p99_ms_of_others_quiet": calm,
            "lost": controller.lost() - lost + late,
            "wrong_actions": controller.wrong() + given[0],
            "refused": int(controller.refused()) + given[1] - given[0],
        }
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        controller.watch.stop()


# --- all together ----------------------------------------------------------------------------------------------------


def _prepare(folder: Path) -> None:
    """Create a CA, all certificates, and each honest agent's web configuration."""
    (folder / "agents").mkdir()
    authority = AuthorityFolder(folder / "ca")
    authority.make(3650)
    authority.issue("controller", "")
    authority.issue("client", "prometheus")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    for node in (*HONEST, ROGUE):
        own = authority.issue("node", node).path.parent
        (folder / f"{node}.yml").write_text(
            f"tls_server_config:\n  cert_file: {own}/tls.crt\n  key_file: {own}/tls.key\n"
            f"  client_ca_file: {folder}/ca/authority.crt\n  client_auth_type: VerifyClientCertIfGiven\n"
            f"basic_auth_users: {{scraper: {hashed}}}\n"
        )


@contextlib.contextmanager
def _process(*arguments: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.attack.attacks_frames", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=REPOSITORY, text=True, **more) as process:
        try:
            yield process
        finally:
            process.kill()


def run(name: str, seconds: float = SECONDS) -> Result:
    """Run one attack. Raises RuntimeError if the daemons do not start."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-attack-") as text:
        folder = Path(text)
        _prepare(folder)
        with (
            _process("--role", "honest", text),
            _process("--role", f"rogue-{name}", text),
            _process("--role", f"controller-{seconds}", text, stdout=subprocess.PIPE) as controller,
        ):
            printed, _ = controller.communicate(timeout=2 * seconds + START_SECONDS + 60)
    if not printed.strip():
        return {"name": f"frames_{name}", "survived": False, "rss_growth_mib": 0.0, "p99_ms_of_others": None,
                "p99_ms_of_others_quiet": None, "lost": 0, "wrong_actions": 0}  # fmt: skip
    return {"name": f"frames_{name}", **json.loads(printed)}


ATTACKS: tuple[tuple[str, Callable[[], Result]], ...] = tuple(
    (f"frames_{name}", functools.partial(run, name)) for name in LIES
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIES)}; default: all")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="length of each measurement, without and with the attack"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--role", nargs=2, metavar=("ROLE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role, _, of = options.role[0].partition("-")
        folder = Path(options.role[1])
        match role:
            case "honest":
                _serve_honest(folder)
            case "rogue":
                # The attacker represents another machine: its own CPU time on this one must not count as a cost of the
                # attack.
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
                asyncio.run(_rogue(folder, of))
            case _:
                print(json.dumps(asyncio.run(_measure(folder, float(of)))))
        return 0
    for name in options.names:
        if name not in LIES:
            parser.error(f"unknown attack {name!r}; known: {', '.join(LIES)}")
    results = []
    for name in options.names or LIES:
        results.append(run(name, options.seconds))
        if not options.json:
            print(results[-1], flush=True)
    if options.json:
        print(json.dumps({"attacks": results}, indent=2))
    return 0 if all(one["survived"] and not one["wrong_actions"] and not one["lost"] for one in results) else 1


if __name__ == "__main__":
    threading.stack_size(1 << 20)
    sys.exit(main())
