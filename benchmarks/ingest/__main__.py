"""Cost of receiving agents' frames in the controller: ``python -m benchmarks.ingest --json``.

Simulated agents on nodes of eight H100 and eight NICs send one frame per second over TLS, from separate processes;
their ranks report steps. The measured process runs the product's feed and detectors. ``cpu_cores`` is its CPU time
divided by the wall time. A frame's age is the time from its creation by the agent to the end of the detector tick that
used it. In a last run, one agent in ten misbehaves: it is slow, sends nothing, malformed data or too much data. The
effect on the other agents is measured.

If the machine is too slow for that many frames, use a longer ``--interval`` and compare ``cpu_us_a_frame``.

Exits 1 if a bound of the largest size is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.ingest.processes import certificates, cpu_seconds, generators, processor_sets

SIZES = (1_000, 10_000)
WARM_SECONDS = 20.0
SECONDS = 60.0
MISBEHAVING_SHARE = 0.1

BOUNDS = {"cpu_cores": 1.0, "frame_age_seconds_p99": 2.0, "rss_mib": 1228.8, "kb_a_stream": 100.0}
"""Bounds for 10,000 agents."""

Figures = dict[str, object]


def measure(
    agents: int, misbehaving: int, warm_seconds: float, seconds: float, seed: int, interval_seconds: float
) -> Figures:
    """Measure one controller with this many agents, some of which misbehave."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-ingest-") as name:
        folder = Path(name)
        ca_file, certificate, key = certificates(folder)
        with generators(folder, agents, misbehaving, seed, (certificate, key), interval_seconds) as running:
            bad = len(json.loads((folder / "misbehaving").read_text()))
            command = [sys.executable, "-m", "benchmarks.ingest.controller", name, str(ca_file), str(agents - bad)]
            begun, before = time.monotonic(), sum(cpu_seconds(one.pid) for one in running)
            command += [str(warm_seconds), str(seconds)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
                os.sched_setaffinity(controller.pid, processor_sets()[1])
                printed, _ = controller.communicate()
            if controller.returncode:
                raise RuntimeError(f"the controller ended with status {controller.returncode}")
            wall, cpu = time.monotonic() - begun, sum(cpu_seconds(one.pid) for one in running) - before
        figures: Figures = json.loads(printed.splitlines()[-1])
        return {
            **figures,
            "interval_seconds": interval_seconds,
            "misbehaving": bad,
            "generators_cpu_cores": round(cpu / wall, 3),
        }


def missed(figures: Figures) -> list[str]:
    """Return a sentence for each bound that a figure exceeds."""
    return [
        f"{key} is {figures[key]}, at most {bound}" for key, bound in BOUNDS.items() if float(str(figures[key])) > bound
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest",
        description=(__doc__ or "").split("\n\n")[1],
        epilog="Example: python -m benchmarks.ingest --agents 1000 --seconds 20 --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--agents", type=int, action="append", help="sizes (default 1000 and 10000)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"measured time (default {SECONDS:.0f})")
    parser.add_argument("--warm", type=float, default=WARM_SECONDS, help=f"before it (default {WARM_SECONDS:.0f})")
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds between an agent's frames (default 1); use more if the "
        "machine's other processors can't make the frames in time"
    )  # fmt: skip
    parser.add_argument("--no-misbehaving", action="store_true", help="leave out the run with bad agents")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sizes = arguments.agents or list(SIZES)
    report: dict[str, object] = {}
    for agents in sizes:
        report[str(agents)] = measure(agents, 0, arguments.warm, arguments.seconds, arguments.seed, arguments.interval)
        print(f"{agents} agents: {report[str(agents)]}", file=sys.stderr)
    if not arguments.no_misbehaving:
        agents = min(sizes)
        bad = int(agents * MISBEHAVING_SHARE)
        found = measure(agents, bad, arguments.warm, arguments.seconds, arguments.seed, arguments.interval)
        report["misbehaving"] = found
        print(f"{agents} agents, {bad} misbehaving: {found}", file=sys.stderr)
    largest = report[str(max(sizes))]
    assert isinstance(largest, dict)
    wrong = missed(largest)
    report["machine"] = {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
    }
    if arguments.json:
        print(json.dumps({**report, "missed": wrong}, indent=2))
    for line in wrong:
        print(f"MISSED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
