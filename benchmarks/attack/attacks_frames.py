"""Attacks by a compromised agent: frames about other nodes' jobs, floods of frames, and other nodes' identities.

python -m benchmarks.attack.attacks_frames [NAME ...] [--seconds N] [--json]

The honest agents' servers with mutual TLS, the controller's feed and detectors, and the rogue agent are real, each in a
separate process. Only the cluster is simulated. Six honest nodes run two healthy jobs; the rogue node runs none.

The measured latency is that of honest frames, from their creation by the agent until the controller has processed
them. `lost` counts honest frames that were not processed. `wrong_actions` counts verdicts about healthy jobs,
changed gangs, frames accepted under another node's certificate, and frames given to an unauthorised client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bcrypt

from agent.schema.clock import SystemClock
from agent.schema.frame import (
    AnyLayout,
    Frame,
    Layout,
    Member,
    StepRecord,
)
from agent.schema.identity import CONTROLLER
from benchmarks.attack.rogue_agent import (
    FRAMES_A_SECOND,
    HONEST,
    IMPERSONATED,
    JOBS,
    LIES,
    PASSWORD,
    ROGUE,
    SECOND,
    announce,
    frame_of,
    serve_rogue,
)
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
"""Duration of each measurement in seconds, once without and once with the attack."""

START_SECONDS = 60.0

TICK_SECONDS = 0.05
"""Seconds between two passes of the controller over received frames. It is a tenth of the product's interval, so that
shorter delays are visible."""

REPOSITORY = Path(__file__).resolve().parents[2]


# --- honest agents ---------------------------------------------------------------------------------------------------


class _Honest:
    """Honest agent of a node with a rank that makes one step per frame. It uses the product's own server."""

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
        frame = frame_of(self.layout, self.seq, steps, self.seq)
        self.newest = self.layout, frame
        for listener in tuple(self._listeners):
            listener(self.layout, frame)


def _serve_honest(folder: Path) -> None:
    agents = [_Honest(folder, node) for node in HONEST]
    for one in agents:
        one.tick()
        one.server.start()
        announce(folder, one.layout.node, int(one.server.url.rpartition(":")[2].rstrip("/")))
    while True:
        for one in agents:
            one.tick()
            time.sleep(1 / FRAMES_A_SECOND / len(agents))


# --- the controller --------------------------------------------------------------------------------------------------


class _Controller:
    """Controller under attack: feed and detectors. It records all verdicts and the latency of honest frames."""

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
        """Return the number of false verdicts, of changed gangs, and of nodes whose identity was stolen."""
        gangs = self.fleet.gangs
        changed = sum(
            job not in gangs or (gangs[job].attempt, gangs[job].nodes) != (1, nodes) for job, nodes in JOBS.items()
        )
        # Verdicts about its own node are not counted: an agent may send any data about it.
        accused = sum(isinstance(one, Verdict) and one.node != ROGUE for one in self.found)
        return changed + accused + (IMPERSONATED in self.fleet.nodes)

    def refused(self) -> float:
        """Return the number of records and series of the rogue node that the controller refused."""
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
                asyncio.run(serve_rogue(folder, of))
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
