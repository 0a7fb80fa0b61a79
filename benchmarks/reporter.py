"""Cost of step reporting for a training step: ``python -m benchmarks.reporter --json``.

Measures, in one run, a record, a whole ``with step()`` and a whole ``with wait()``: without an agent, and with the
agent's step socket in another process. For comparison it also sends a record through a unix datagram socket.

All figures are nanoseconds of wall time per call: median and 99th percentile of single calls, without the cost of
the clock, and the median over batches of calls.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.schema.frame import Member
from agent.sources.steps.step_connection import Admission
from agent.sources.steps.step_messages import Claim, Peer
from agent.sources.steps.step_socket import StepSocket
from agent.sources.steps.tenants import Tenant
from gangwatch.steps import Reporter

CALLS = 20_000
BATCHES, CALLS_A_BATCH = 40, 500
READ_SECONDS = 0.05
"""Seconds between two readings of the ring by the agent's side: a tenth of the collector's interval."""

LIMIT_NS = 3000
"""Maximum median time of writing one record, in nanoseconds, with and without an agent."""

Cost = dict[str, float]


def measure(call: Callable[[], object]) -> Cost:
    """Return the cost of one call in nanoseconds."""
    clock = time.perf_counter_ns
    single: list[int] = []
    empty: list[int] = []
    for _ in range(CALLS):
        begun = clock()
        empty.append(clock() - begun)
        begun = clock()
        call()
        single.append(clock() - begun)
    own_cost = statistics.median(empty)
    single.sort()
    batches: list[float] = []
    for _ in range(BATCHES):
        begun = clock()
        for _ in range(CALLS_A_BATCH):
            call()
        batches.append((clock() - begun) / CALLS_A_BATCH)
    return {
        "median_ns": max(0.0, statistics.median(single) - own_cost),
        "p99_ns": max(0.0, single[len(single) * 99 // 100] - own_cost),
        "batch_median_ns": round(statistics.median(batches), 1),
    }


def measure_reporter(reporter: Reporter) -> dict[str, Cost]:
    """Return the cost of a record, a step and a wait with this reporter."""

    def step() -> None:
        with reporter.step(tokens=512):
            pass

    def wait() -> None:
        with reporter.wait():
            pass

    return {
        "record": measure(lambda: reporter.report(1, 0.1, 0.01, 512)),
        "step": measure(step),
        "wait": measure(wait),
    }


# --- the reading side, in another process -----------------------------------------------------------------------------


@contextmanager
def reading_side(what: str, path: Path) -> Iterator[dict[str, int]]:
    """Run a process that reads the records, inside the context. The yielded dictionary then contains what it has read.

    what: kind of the reader. path: its socket.
    """
    counts: dict[str, int] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.reporter", f"--serve-{what}", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"the {what}'s reader did not start")
            yield counts
        finally:
            process.stdin.close()
            ended = process.stdout.readline()
            counts.update(json.loads(ended) if ended else {})


def serve_ring(path: str) -> None:
    """Serve the agent's step socket and read every ring, until standard input ends."""

    def admit(_peer: Peer, _claim: Claim, _waited_seconds: float) -> Admission:
        return Admission(Member("benchmark", 0, 0), Tenant("job", "benchmark"))

    agent = StepSocket(path, admit)
    counts = {"records_read": 0, "records_lost": 0, "records_malformed": 0}
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], READ_SECONDS)[0]:
        for registered in agent.registered():
            counts["records_read"] += len(registered.ring.read(time.monotonic_ns()))
            counts["records_lost"] = registered.ring.lost
            counts["records_malformed"] = registered.ring.malformed
    agent.close()
    print(json.dumps(counts), flush=True)


def serve_datagrams(path: str) -> None:
    """Count received datagrams, until standard input ends."""
    count = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([receiver, sys.stdin], [], [])
            if receiver in ready:
                receiver.recv(64)
                count += 1
            elif sys.stdin in ready:
                break
    print(json.dumps({"records_read": count}), flush=True)


# --- measurements ----------------------------------------------------------------------------------------------------


def with_agent(folder: Path) -> tuple[dict[str, Cost], dict[str, int]]:
    """Return the costs while an agent reads the ring, and the numbers of records that it has read."""
    path = folder / "run" / "bench.sock"
    with reading_side("ring", path) as counts:
        reporter = Reporter({"GANGWATCH_SOCKET": str(path), "RANK": "0"}, slots=65536)
        deadline = time.monotonic() + 10
        while reporter.status != "registered":
            if time.monotonic() > deadline:
                raise SystemExit(f"the reporter did not register: {reporter.status}")
            time.sleep(0.01)
        costs = measure_reporter(reporter)
        time.sleep(4 * READ_SECONDS)
    reporter.close()
    return costs, counts | {"records_dropped": reporter.dropped}


def through_datagrams(folder: Path) -> tuple[Cost, dict[str, int]]:
    """Return the cost of sending the same 64 bytes through a unix datagram socket.

    The socket's queue has ten datagrams; sending blocks while it is full.
    """
    path = folder / "datagram.sock"
    record = struct.Struct("<QBB6xqqqqqQ")
    with reading_side("datagrams", path) as counts, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))

        def send() -> None:
            now_ns = time.monotonic_ns()
            sender.send(record.pack(1, 2, 3, 1, now_ns, 100_000_000, 10_000_000, 512, 1))

        cost = measure(send)
    return cost, counts


def run() -> dict[str, object]:
    """Run all measurements and return the document to print."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-bench-") as name:
        folder = Path(name)
        present, counts = with_agent(folder)
        datagram, counted = through_datagrams(folder)
    absent = measure_reporter(Reporter({}))
    within = all(costs["record"]["median_ns"] <= LIMIT_NS for costs in (present, absent))
    return {
        "benchmark": "reporter",
        "unit": "ns a call",
        "calls": CALLS,
        "agent_present": present,
        "agent_absent": absent,
        "peer_datagram": {"record": datagram},
        "agent": counts,
        "peer": counted,
        "limit_ns": LIMIT_NS,
        "within_limit": within,
        "python": platform.python_version(),
        "machine": {"architecture": platform.machine(), "processors": os.cpu_count()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--serve-ring", metavar="PATH", help=argparse.SUPPRESS)
    parser.add_argument("--serve-datagrams", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_ring:
        serve_ring(options.serve_ring)
        return 0
    if options.serve_datagrams:
        serve_datagrams(options.serve_datagrams)
        return 0
    result = run()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name in ("agent_present", "agent_absent", "peer_datagram"):
            costs = result[name]
            assert isinstance(costs, dict)
            for what, cost in costs.items():
                print(f"{name:14} {what:7} median {cost['median_ns']:6.0f} ns, p99 {cost['p99_ns']:6.0f} ns")
    return 0 if result["within_limit"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
