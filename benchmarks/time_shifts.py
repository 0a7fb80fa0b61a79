"""Gain of time shifts for two real gangs on one shaped uplink: ``python -m benchmarks.time_shifts --json``.

Four network namespaces are nodes of two racks, whose uplink has a token bucket (tc tbf). Two gangs of two ranks each
span both racks. A rank sleeps (its computation) and then sends and receives data with plain sockets. The steps of the
two gangs are differently long, so that they drift through all phases without shifts.

The ranks are real processes with ``gangwatch.steps``. The agents' step collectors receive their steps; from these, the
scheduling cycle learns the steps and decides the shifts, as in production. The shifts then go through the collectors to
the reporters. Times with and without these shifts alternate. The controller and its connections are not part of this
(tests/security/test_time_shift_orders.py). Needs root, cgroup v1 and tc.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from agent.collectors.steps.step_collector import StepCollector
from agent.rank_attribution import Attribution
from agent.schema.frame import StepRecord
from agent.sources.steps.shift_orders import ShiftOrders
from benchmarks.reality.site import SHARES, SUBNET, Site, SiteError, unsupported
from gangwatch.steps import Reporter
from scheduler_feedback import cycle
from scheduler_feedback.controller.reports.time_shift_reports import DELAY, STEPS
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.events import AttemptRunning, NodeSeen, SpeedMeasured, Submitted
from scheduler_feedback.core.job import JobSpec, TimeShift
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.core.telemetry.steps.speed_reports import LEAST_WAIT

MBIT = 40
"""Speed of the uplink between the racks. The links of nodes have five times that."""
COMPUTE_SECONDS = {"a": 0.36, "b": 0.39}
"""Time for which the ranks of each gang sleep in a step."""
NETWORK_SECONDS = 0.33
"""Time to send the data of a step over the idle uplink."""
BYTES = round(MBIT * 1e6 / 8 * NETWORK_SECONDS)
PORT = 29400
LEARN_SECONDS = 8.0
"""Time from which the shifts are decided."""
START_SECONDS = 6.0
"""Time for the start of the ranks."""
SETTLE_SECONDS = {"without": 6.0, "with": 2.0}
"""First part of a time that does not count: the reporters get their orders, and the steps lose their former phases."""
MEASURED_SECONDS = {"without": 20.0, "with": 8.0}
"""Length of a time that counts. Without shifts, it contains all phases of the two gangs."""
PAIRS = 4
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for 95 %, for 1 to 9 degrees of freedom."""


def main() -> None:
    """Run the benchmark, or one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="number of times without and with shifts")
    parser.add_argument("--rank", nargs=3, metavar=("GANG", "RANK", "PEER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        train(given.rank[0], int(given.rank[1]), given.rank[2])
        return
    if reason := unsupported():
        sys.exit(reason)
    result = measure(given.pairs)
    print(json.dumps(result, indent=2) if given.json else "\n".join(f"{key}: {one}" for key, one in result.items()))


# --- a rank ----------------------------------------------------------------------------------------------------------


def train(gang: str, rank: int, peer: str) -> None:
    """Repeat steps until the process is ended: sleep, then exchange data with the other rank."""
    reporter = Reporter()
    link = _connected(rank, peer)
    data, received = bytes(BYTES // 2), bytearray(BYTES // 2)
    while True:
        with reporter.step():
            time.sleep(COMPUTE_SECONDS[gang])
            with reporter.wait():  # like a ring: what a rank sends second depends on what it has received first
                for _ in range(2):
                    _exchange(link, data, received)


def _exchange(link: socket.socket, data: bytes, received: bytearray) -> None:
    """Send and receive half of the data of a step."""
    sender = threading.Thread(target=link.sendall, args=(data,))
    sender.start()
    view = memoryview(received)
    while view:
        count = link.recv_into(view)
        if not count:
            raise SystemExit("the other rank has ended")
        view = view[count:]
    sender.join()


def _connected(rank: int, peer: str) -> socket.socket:
    if rank == 0:
        with socket.create_server(("", PORT)) as server:
            return server.accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection((peer, PORT))
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{peer} does not accept a connection")


# --- the agents ------------------------------------------------------------------------------------------------------


class Agents:
    """Step collectors of all nodes, and the steps that they have received."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.orders = [ShiftOrders() for _ in range(nodes)]
        self.paths = [str(folder / f"agent-{number}.sock") for number in range(nodes)]
        self.collectors = [
            StepCollector(path, Attribution(str(folder / "ranks")), shifts=orders)
            for path, orders in zip(self.paths, self.orders, strict=True)
        ]
        self.steps: list[tuple[str, StepRecord]] = []
        self._totals: dict[str, tuple[float, int]] = {}
        self._before: dict[str, tuple[float, int]] = {}

    def forget_delays(self) -> None:
        """Begin to measure the delays of steps."""
        self._before = dict(self._totals)

    def delay_seconds(self, gang: str) -> float:
        """Return the mean delay of the gang's steps by time shifts since ``forget_delays``, in seconds."""
        (seconds, steps), (before_seconds, before_steps) = self._totals[gang], self._before.get(gang, (0.0, 0))
        return (seconds - before_seconds) / max(steps - before_steps, 1)

    def run(self, seconds: float, shifts: dict[str, TimeShift]) -> None:
        """Collect for this time, with these shifts."""
        owned = {f"uid-{os.getuid()}/{gang}": (one.period_ns, one.offset_ns) for gang, one in shifts.items()}
        for orders in self.orders:
            orders.order(owned)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.25)
            for collector in self.collectors:
                block = collector.collect()
                found = {
                    (column.metric, dict(column.labels).get("gang", "").partition("/")[2]): position
                    for position, column in enumerate(block.counter_columns)
                }
                for gang in COMPUTE_SECONDS:
                    if (place := found.get((DELAY, gang))) is not None:
                        count = int(block.counters[found[STEPS, gang]])
                        self._totals[gang] = float(block.counters[place]) / 1e9, count
                for record in collector.take_records():
                    if isinstance(record, StepRecord):
                        self.steps.append((record.member.gang.partition("/")[2], record))

    def close(self) -> None:
        """Stop all collectors."""
        for collector in self.collectors:
            collector.close()


def of_gang(steps: list[tuple[str, StepRecord]], gang: str, since_ns: int) -> tuple[list[float], list[float]]:
    """Return the time of each step of the gang from the end of the one before, and the least wait of its ranks in it.

    Both are in seconds.
    """
    ends: dict[int, list[tuple[int, int]]] = {}
    for name, step in steps:
        if name == gang and step.start_ns >= since_ns:
            ends.setdefault(step.step, []).append((step.start_ns + step.duration_ns, step.wait_ns or 0))
    whole = [one for _, one in sorted(ends.items()) if len(one) == 2]
    times = [max(end for end, _ in one) / 1e9 for one in whole]
    return np.diff(times).tolist(), [min(wait for _, wait in one) / 1e9 for one in whole[1:]]


# --- the scheduler ---------------------------------------------------------------------------------------------------


class Scheduler:
    """The scheduling cycle with both gangs running. It learns their steps and decides the shifts."""

    def __init__(self) -> None:
        self.state = State(policy=Policy(time_shifts=True))
        self.reasons: list[str] = []
        for number, gang in enumerate(COMPUTE_SECONDS):
            # The nodes of each gang appear just before it, so that it gets the nodes on which it really runs.
            seen = [NodeSeen(f"node-{2 * number + rack}", 1, rack=f"rack-{rack}") for rack in range(2)]
            outcome = cycle.run(self.state, [*seen, Submitted(gang, JobSpec(gang, ("train",), 2))], number + 1)
            started = [action for action in outcome.actions if isinstance(action, StartGang)]
            cycle.run(self.state, [AttemptRunning(one.job_id, one.attempt, ()) for one in started], number + 1)

    def decide(self, agents: Agents, since_ns: int) -> dict[str, TimeShift]:
        """Learn from the steps since this time, and return the shifts in force."""
        events = []
        for gang in COMPUTE_SECONDS:
            intervals, waits = of_gang(agents.steps, gang, since_ns)
            step, share = fmean(intervals), fmean(waits) / fmean(intervals)
            least = float(np.quantile(np.array(waits), LEAST_WAIT))
            delay = agents.delay_seconds(gang)
            events.append(SpeedMeasured(gang, 1, 1 / step, LEARN_SECONDS, "steps", share, step, least, delay))
        outcome = cycle.run(self.state, events, self.state.now_ns + round(2 * LEARN_SECONDS * 1e9))
        self.reasons += [f"{entry.subject}: {entry.text}" for entry in outcome.entries if entry.kind == "time-shift"]
        shifts = {gang: self.state.jobs[gang].time_shift for gang in COMPUTE_SECONDS}
        return {gang: shift for gang, shift in shifts.items() if shift is not None}


def measure(pairs: int) -> dict[str, object]:
    """Return steps per second with and without shifts, and the ratio of each pair of times."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="gwr-shifts-")))
        site = opened.enter_context(Site(4, 5 * MBIT, leaves=2))
        site.set_uplink(MBIT)
        agents = Agents(folder, 4)
        opened.callback(agents.close)
        processes: list[subprocess.Popen[bytes]] = []
        opened.callback(_end, processes)
        for number in range(4):
            gang, rank = "ab"[number // 2], number % 2
            peer = f"{SUBNET}.{10 + (number ^ 1)}"
            environment = {
                **os.environ, "GANGWATCH_SOCKET": agents.paths[number], "GANGWATCH_JOB": gang, "RANK": str(rank),
                "WORLD_SIZE": "2",
            }  # fmt: skip
            enter = ("ip", "netns", "exec", site.node(number).namespace)
            rank_of = (sys.executable, "-m", "benchmarks.time_shifts", "--rank", gang, str(rank), peer)
            processes.append(subprocess.Popen([*enter, *rank_of], env=environment))
            # The ranks come before other processes of the machine, which they would not have beside them in reality.
            (site.group("cpu", site.node(number).name) / "cgroup.procs").write_text(str(processes[-1].pid))
        site.set_shares(SHARES)
        agents.run(START_SECONDS, {})
        if len({(name, step.member.rank) for name, step in agents.steps}) < 4:
            raise SiteError(f"not all ranks have reported steps within {START_SECONDS:g} s")
        scheduler, shifts = Scheduler(), dict[str, TimeShift]()
        for _ in range(3):  # without shifts, then with the first ones, which also show the times without other traffic
            agents.run(SETTLE_SECONDS["with"], shifts)
            agents.forget_delays()
            since_ns = time.monotonic_ns()
            agents.run(LEARN_SECONDS, shifts)
            shifts = scheduler.decide(agents, since_ns)
        if not shifts:
            return {"shifts": {}, "reasons": scheduler.reasons, "gain": None}
        speeds: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        for number in range(2 * pairs):
            kind = ("without", "with")[number % 2 if number // 2 % 2 == 0 else 1 - number % 2]  # ABBA
            agents.run(SETTLE_SECONDS[kind], shifts if kind == "with" else {})
            since_ns = time.monotonic_ns()
            agents.run(MEASURED_SECONDS[kind], shifts if kind == "with" else {})
            speeds[kind].append({one: 1 / fmean(of_gang(agents.steps, one, since_ns)[0]) for one in COMPUTE_SECONDS})
    ratios = {
        gang: [b[gang] / a[gang] for a, b in zip(speeds["without"], speeds["with"], strict=True)] for gang in "ab"
    }
    ratios["both"] = [fmean(pair) for pair in zip(*ratios.values(), strict=True)]
    return {
        "shifts": {gang: [one.period_ns / 1e6, one.offset_ns / 1e6] for gang, one in shifts.items()},
        "reasons": scheduler.reasons,
        "steps_per_second": speeds,
        "gain": {gang: {"mean": fmean(one), "interval": _interval(one)} for gang, one in ratios.items()},
        "pairs": pairs,
    }


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for one in processes:
        one.kill()
    for one in processes:
        one.wait()


def _interval(values: Sequence[float]) -> float | None:
    """Return half of the 95 % confidence interval of the mean (Student's t); None for less than two values."""
    if len(values) < 2:
        return None
    return float(T_95[min(len(values) - 2, len(T_95) - 1)] * stdev(values) / math.sqrt(len(values)))


if __name__ == "__main__":
    main()
