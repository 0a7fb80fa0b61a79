"""Cost of one whole controller: ``python -m benchmarks.controller --nodes 1000 --json``.

Runs `gangwatch controller` with the Slurm backend in advise mode and simulated agents: one TLS stream per node of eight
GPUs, with one frame per second. Jobs of 8 to 3,000 ranks start, report steps and end; 1 % of the ranks become slow when
the measured time begins. Twenty clients read the page and the API, Prometheus scrapes the controller, and the journal
is on disk. Agents, clients and the fake Slurm are other processes, whose CPU does not count.

A fixed computation is timed before and after each size, to show whether the machine was slow at that time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.controller.fake_slurm import FakeSlurm
from benchmarks.controller.readers import Readers, get
from benchmarks.controller.score import (
    Figures,
    Window,
    largest_in_time,
    score,
    score_responses,
    score_verdicts,
)
from benchmarks.ingest.frames import STEP_SECONDS
from benchmarks.ingest.processes import (
    certificates,
    cpu_seconds,
    generators,
    processor_sets,
    reader_processes,
    shared_memory_mib,
)
from benchmarks.ingest.timeline import Plan, Run, Timeline

SIZES = (1_000, 5_000, 12_500)
WARM_SECONDS, SECONDS, LIFETIME_SECONDS = 30.0, 60.0, 1_800.0
READY_SECONDS, CONNECTED_SECONDS, STOP_SECONDS = 60.0, 300.0, 60.0

STARTING_SECONDS, STARTING_SECONDS_A_NODE = 8.0, 0.02
"""Time until all streams are open, by default. The agents must know in advance when the disturbance begins."""

WINDOW_BEFORE_NS = 1_000_000_000
"""Time from the start of the measured window to the disturbance."""

CONNECTED = "gangwatch_feed_connected{"

REST_SHARE = 9.0
"""Pause between two requests that count the open streams, as a multiple of the last one's duration: they take at most a
tenth of the time."""

_RATE = re.compile(r"agents are asked for one message for ([0-9]+) frames")
"""Logged request for fewer messages (``Feed._take_rate``)."""

_CONFIGURATION = """
[controller]
port = 0

[feed]
ca_file = "{ca_file}"
verify = "host"
{processes}

[slurm]
enabled = true
mode = "advise"
programs = "{programs}"
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one run."""

    nodes: int
    warm_seconds: float
    seconds: float
    lifetime_seconds: float
    seed: int
    starting_seconds: float | None = None
    """Time after which all streams are expected to be open; None estimates it from the number of nodes."""
    step_seconds: tuple[float, float] = STEP_SECONDS
    """Shortest and longest step of the jobs."""
    processes: int | None = None
    """Number of the controller's reader processes; None for the default."""
    nice: int = 0
    """Priority of the controller."""
    spread: bool = False
    """Whether the reader processes may use all processors, also those of the agents, once the streams are open."""


def reference_seconds() -> float:
    """Return the CPU time of a fixed computation with the same kinds of operations as in the controller."""
    begun = time.process_time()
    random = np.random.default_rng(1)
    values = random.uniform(size=(256, 1024))
    for number in range(200):
        values = np.sort(values, axis=1)[:, ::-1] * 1.0001
        table = {f"node-{key}": (key, number) for key in range(2_000)}
        sum(pair[0] for pair in table.values())
    return time.process_time() - begun


class Conductor(threading.Thread):
    """A thread that updates the fake Slurm's list of jobs. runs: every job that has run so far."""

    def __init__(self, slurm: FakeSlurm, plan: Plan) -> None:
        super().__init__(daemon=True)
        self._slurm, self._timeline = slurm, Timeline(plan)
        self._ended = threading.Event()
        self.runs: list[Run] = list(self._timeline.running)
        slurm.list_jobs(self.runs)

    def run(self) -> None:
        while not self._ended.wait(0.5):
            if started := self._timeline.advance(time.monotonic_ns()):
                self.runs += started
                self._slurm.list_jobs(self._timeline.running)

    def stop(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def controller(
    state: Path, configuration: Path, recorded: Path, nice: int = 0
) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """Run the measured controller. Yields its process, its address and its token."""
    command = [sys.executable, "-m", "benchmarks.controller.measured", str(recorded), "controller"]
    command += ["--state", str(state), "--config", str(configuration)]
    with (state.parent / "controller.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    os.sched_setaffinity(process.pid, processor_sets()[1])
    if nice:
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
    try:
        announced = state / "controller.json"
        deadline = time.monotonic() + READY_SECONDS
        while not announced.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (state.parent / "controller.log").read_text()[-2000:]
                raise RuntimeError(f"the controller did not start within {READY_SECONDS:.0f} s: {said}")
            time.sleep(0.1)
        yield process, json.loads(announced.read_text())["url"], (state / "token").read_text().strip()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_streams(url: str, token: str, nodes: int) -> float:
    """Wait until the controller reads every agent's stream; return the seconds until then. Raises TimeoutError."""
    begun = time.monotonic()
    while True:
        asked = time.monotonic()
        text = get(url.partition("://")[2], "/metrics", {"Authorization": f"Bearer {token}"}).decode()
        connected = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(CONNECTED))
        seconds = time.monotonic() - begun
        if connected >= nodes:
            return seconds
        if seconds > CONNECTED_SECONDS:
            raise TimeoutError(f"{connected:.0f} of {nodes} streams are open after {seconds:.0f} s")
        print(f"{nodes} nodes: {connected:.0f} streams are open", file=sys.stderr)
        # Rendering /metrics of thousands of nodes competes with the feed for Python's lock. A request that waits for
        # seconds would be followed by the next one at once, and half of the controller's time would go to counting.
        time.sleep(max(2.0, REST_SHARE * (time.monotonic() - asked)))


def logged_in(state: Path) -> str:
    """Return what the controller has logged."""
    files = sorted((state / "log").glob("controller.log*"), reverse=True)
    return "".join(file.read_text(errors="replace") for file in files)


def resident_mib(pid: int) -> float:
    """Return the largest resident memory of the process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(settings: Settings) -> Figures:
    """Measure one controller of this size."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-controller-", dir="/var/tmp") as name:  # /tmp may be memory
        folder = Path(name)
        state = folder / "state"
        state.mkdir(mode=0o700)
        ca_file, certificate, key = certificates(folder)
        reference = reference_seconds()
        begun_ns = time.monotonic_ns()
        starting_seconds = settings.starting_seconds
        if starting_seconds is None:
            starting_seconds = STARTING_SECONDS + STARTING_SECONDS_A_NODE * settings.nodes
        plan = Plan(
            settings.nodes, settings.seed, begun_ns, begun_ns + int((starting_seconds + settings.warm_seconds) * 1e9),
            settings.lifetime_seconds, step_seconds=settings.step_seconds,
        )  # fmt: skip
        slurm = FakeSlurm(folder / "slurm", settings.nodes)
        configuration = folder / "config.toml"
        configuration.write_text(
            _CONFIGURATION.format(
                ca_file=ca_file,
                programs=slurm.folder,
                processes="" if settings.processes is None else f"processes = {settings.processes}",
            )
        )
        conductor = Conductor(slurm, plan)
        conductor.start()
        try:
            with generators(state, settings.nodes, 0, settings.seed, (certificate, key), jobs=asdict(plan)) as agents:
                figures = _measure(settings, plan, (state, configuration), conductor, [one.pid for one in agents])
        finally:
            conductor.stop()
    figures["reference_cpu_seconds_before"] = round(reference, 3)
    figures["reference_cpu_seconds_after"] = round(reference_seconds(), 3)
    return figures


def _measure(
    settings: Settings, plan: Plan, paths: tuple[Path, Path], conductor: Conductor, agents: list[int]
) -> Figures:
    """Measure a controller while the agents run. paths: state folder and configuration file. agents: process ids."""
    recorded = paths[0].parent / "recorded.npz"
    with controller(*paths, recorded, settings.nice) as (process, url, token):
        connected_seconds = wait_for_streams(url, token, settings.nodes)
        for reader in reader_processes(process.pid) if settings.spread else ():
            os.sched_setaffinity(reader, set.union(*processor_sets()))
        with Readers(url, token) as readers:
            due_ns = max(plan.disturbed_ns - WINDOW_BEFORE_NS, time.monotonic_ns() + int(settings.warm_seconds * 1e9))
            wait_seconds = (due_ns - time.monotonic_ns()) / 1e9
            if due_ns > plan.disturbed_ns:
                print(
                    f"{settings.nodes} nodes: the streams opened after {connected_seconds:.0f} s, too late to measure "
                    "verdicts: ranks are disturbed before the measured time. Use a longer --starting",
                    file=sys.stderr,
                )
            print(f"{settings.nodes} nodes: connected, warming up for {wait_seconds:.0f} s", file=sys.stderr)
            time.sleep(wait_seconds)
            readers_of_feed = reader_processes(process.pid)
            begun_ns, cpu, agents_cpu = time.monotonic_ns(), cpu_seconds(process.pid), sum(map(cpu_seconds, agents))
            read_cpu = sum(map(cpu_seconds, readers_of_feed))
            time.sleep(settings.seconds)
            window = Window(begun_ns, time.monotonic_ns())
            cpu, agents_cpu = cpu_seconds(process.pid) - cpu, sum(map(cpu_seconds, agents)) - agents_cpu
            read_cpu = sum(map(cpu_seconds, readers_of_feed)) - read_cpu
            rss_mib = resident_mib(process.pid)
            own_mib, readers_mib = shared_memory_mib(process.pid), sum(map(shared_memory_mib, readers_of_feed))
            if process.poll() is not None:
                raise RuntimeError(f"the controller ended with status {process.returncode}")
    with np.load(recorded) as arrays:
        found = dict(arrays)
    logged = logged_in(paths[0])
    for what, count in readers.failed.items():
        print(f"{settings.nodes} nodes: {count} requests failed: {what}", file=sys.stderr)
    return {
        "cpu_cores": round((cpu + read_cpu) / window.seconds, 3),
        "reader_cpu_cores": round(read_cpu / window.seconds, 3),
        "rss_mib": round(rss_mib, 1),
        "memory_mib": round(own_mib + readers_mib, 1),
        "reader_memory_mib": round(readers_mib, 1),
        "reader_processes": len(readers_of_feed),
        **score(found, window),
        **score_responses(readers.responses, window),
        **score_verdicts(found, conductor.runs, window),
        "failed_responses": sum(readers.failed.values()),
        "jobs_started": sum(plan.begun_ns < run.begun_ns < window.ended_ns for run in conductor.runs),
        "connected_seconds": round(connected_seconds, 1),
        "largest_every": max(map(int, _RATE.findall(logged)), default=1),
        "silent_streams": logged.count("it has fallen silent"),
        "agents_cpu_cores": round(agents_cpu / window.seconds, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.controller",
        description=(__doc__ or "").split("\n\n")[1],
        epilog="Example: python -m benchmarks.controller --nodes 1000 --warm 20 --seconds 30 --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--nodes", type=_positive, action="append", help="sizes (default 1000, 5000 and 12500)")
    parser.add_argument("--seconds", type=_seconds, default=SECONDS, help=f"measured time (default {SECONDS:.0f})")
    parser.add_argument("--warm", type=_seconds, default=WARM_SECONDS, help=f"before it (default {WARM_SECONDS:.0f})")
    parser.add_argument(
        "--lifetime", type=_seconds, default=LIFETIME_SECONDS,
        help=f"mean seconds from a job's start to its end (default {LIFETIME_SECONDS:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--starting",
        type=_seconds,
        help="seconds until all streams are expected to be open (default 8 and 0.02 a node)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, help="reader processes of the controller (default: by the nodes)")
    parser.add_argument("--nice", type=int, default=0, help="priority of the controller; below 0 as root only")
    parser.add_argument("--spread", action="store_true", help="reader processes may use the agents' processors too")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sizes: dict[str, Figures] = {}
    for nodes in arguments.nodes or SIZES:
        settings = Settings(
            nodes, arguments.warm, arguments.seconds, arguments.lifetime, arguments.seed, arguments.starting,
            processes=arguments.processes, nice=arguments.nice, spread=arguments.spread,
        )  # fmt: skip
        sizes[str(nodes)] = measure(settings)
        print(f"{nodes} nodes: {sizes[str(nodes)]}", file=sys.stderr)
    report = {
        "nodes": sizes,
        "largest_nodes_in_time": largest_in_time(sizes),
        "machine": {
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "load_average": os.getloadavg()[0],
        },
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of nodes from 1 to 100000")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds from 1 to 86400")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
