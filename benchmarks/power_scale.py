"""Time of the power budget in a large cluster: ``python -m benchmarks.power_scale --nodes 12500 --json``.

Each node has eight GPUs, and gangs of 1 to 64 nodes hold nine tenths of them. Printed is the time of one choice of all
limits after a gang has ended, beside that of the whole cycle with and without a budget.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from statistics import median

from scheduler_feedback import cycle
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, Event, NodeSeen, PowerSeen, Submitted, Tick
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import Policy, State

SLOTS = 8


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--ends", type=int, default=15, help="gangs that end, one a cycle")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {
        name: _run(arguments.nodes, arguments.ends, watts)
        for name, watts in (("without", 0.0), ("with", arguments.nodes * SLOTS * 450.0))
    }
    document = {"nodes": arguments.nodes, "gangs": found["with"][1]} | {
        f"cycle_ms_{name}_budget": round(1e3 * seconds, 1) for name, (seconds, _) in found.items()
    }
    print(json.dumps(document))


def _run(nodes: int, ends: int, budget_watts: float) -> tuple[float, int]:
    """Return the median time of a cycle in which a gang ends, in seconds, and the number of gangs."""
    chance, state, now_ns = random.Random(1), State(policy=Policy(power_budget_watts=budget_watts)), 10**18
    gpus = tuple(SlotPower(200.0, 700.0, 200.0, 75.0) for _ in range(SLOTS))
    events: list[Event] = [NodeSeen(f"n{number}", SLOTS) for number in range(nodes)]
    cycle.run(state, [*events, *(PowerSeen(f"n{number}", gpus) for number in range(nodes))], now_ns)
    free, jobs = int(0.9 * nodes), list[str]()
    submitted: list[Event] = []
    while free > 0:
        size = min(free, int(2 ** chance.uniform(0, 6)))
        free -= size
        jobs.append(f"j{len(jobs)}")
        submitted.append(Submitted(jobs[-1], JobSpec(jobs[-1], ("x",), size * SLOTS, time_limit_seconds=1e5)))
    cycle.run(state, submitted, now_ns)
    for _ in range(5):
        now_ns += 10**9
        cycle.run(state, [AttemptRunning(job, 1, ()) for job in jobs if state.jobs[job].attempt], now_ns)
    times = []
    for job in chance.sample(jobs, ends):
        now_ns += 60 * 10**9
        began = time.perf_counter()
        cycle.run(state, [AttemptEnded(job, 1, (), all_exited_with=0)], now_ns)
        times.append(time.perf_counter() - began)
        cycle.run(state, [Tick()], now_ns)
    return median(times), len(jobs)


if __name__ == "__main__":
    main()
