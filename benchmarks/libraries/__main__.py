"""Cost of each library in running agents: ``python -m benchmarks.libraries --json``.

All variants of the agent (variants.py) run side by side on one fake node (eight H100, eight NICs, a kubelet), each
scraped once a second. Eight ranks of four processes with sixteen threads each run on the machine; the two variants of
their reading use this machine's /proc, and are compared with each other.

For each variant: CPU time at 1 Hz, resident memory, scrape time, and the ratios to the agent as shipped. CPU time is
taken in slices of ten seconds at the same time for all variants, and a ratio is the median of the ratios of the slices,
because other programs of the machine disturb all variants of a slice alike. Exits 1 if a scrape failed. The
figures are printed all the same, because scrapes also fail on a machine that is too busy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.agent.hardware import Hardware, HardwareProcess
from benchmarks.agent.programs import Program
from benchmarks.agent.scraping import Scraper
from benchmarks.libraries.variants import VARIANTS
from scheduler_feedback.backends.local.local_processes import start_time
from tests.ports import held_port

ROOT = Path(__file__).resolve().parents[2]
SECONDS, WARM_UP_SECONDS, SLICE_SECONDS = 120.0, 40.0, 10.0
RANKS, CHILDREN, THREADS = 8, 3, 16
WITH_RANKS = "shipped, with ranks"
"""The agent as shipped, which reads the ranks of this machine. "psutil: processes of ranks" is compared with it."""

RANK = f"""
import subprocess, sys, threading, time
if len(sys.argv) == 1:
    for _ in range({CHILDREN}):
        subprocess.Popen([sys.executable, "-c", sys.stdin.read(), "child"])
for _ in range({THREADS - 1}):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
time.sleep(3600)
"""


def agent(folder: Path, variant: str, hardware: Hardware, ranks: list[int]) -> Program:
    """Return the variant as a program with the default profile and all series. ranks: pids of the ranks it reads."""
    name = "".join(letter if letter.isalnum() else "-" for letter in variant)
    port, state = held_port(), folder / name
    (folder / f"{name}.toml").write_text('[exporter]\nprofile = "full"\n')
    proc_root = str(hardware.root)
    if ranks:
        proc_root = "/proc"
        own = state / "ranks" / "benchmark"
        own.mkdir(parents=True)
        for rank, pid in enumerate(ranks):
            record = {"gang": "j-1", "attempt": 1, "rank": rank, "pid": pid, "start_time": start_time(pid)}
            (own / f"j-1.1.{rank}.json").write_text(json.dumps(record))
    command = [
        *(sys.executable, "-P", "-m", "benchmarks.libraries.variants"),
        *("shipped" if variant == WITH_RANKS else variant, "agent", "--state", str(state)),
        *("--config", str(folder / f"{name}.toml"), "--node", "benchmark", "--listen", f"127.0.0.1:{port}"),
        *("--nvml-library", str(hardware.library), "--kubelet-socket", str(hardware.kubelet)),
        *("--sysfs-root", str(hardware.root), "--proc-root", proc_root),
    ]
    environment = {**hardware.environment, "PYTHONPATH": str(ROOT)}
    return Program(variant, command, port, folder / f"{name}.log", environment)


@contextlib.contextmanager
def running_ranks() -> Iterator[list[int]]:
    """Start the processes of all ranks, and kill them at the end. Yield the pids of the main processes."""
    program = RANK.replace("sys.stdin.read()", repr(RANK.replace("sys.stdin.read()", "''")))
    ranks = [subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for _ in range(RANKS)]
    try:
        time.sleep(3)
        yield [rank.pid for rank in ranks]
    finally:
        for rank in ranks:
            for child in psutil.Process(rank.pid).children(recursive=True):
                child.kill()
            rank.kill()
            rank.wait()


def cpu_ns(pid: int) -> int:
    """Return the CPU time of the living threads in nanoseconds (Documentation/scheduler/sched-stats.rst)."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total


def measure(programs: list[Program], seconds: float) -> dict[str, dict[str, Any]]:
    """Scrape all programs once a second. Return the figures of each, by name."""
    scrapers = [Scraper(program.port, index / len(programs)) for index, program in enumerate(programs)]
    for scraper in scrapers:
        scraper.start()
    time.sleep(WARM_UP_SECONDS)
    skip = [len(scraper.milliseconds) for scraper in scrapers]
    slices: list[list[float]] = [[] for _ in programs]
    for _ in range(max(1, round(seconds / SLICE_SECONDS))):
        before = [(time.monotonic_ns(), cpu_ns(program.pid)) for program in programs]
        time.sleep(SLICE_SECONDS)
        for used, (began_ns, began_cpu_ns), program in zip(slices, before, programs, strict=True):
            used.append(100 * (cpu_ns(program.pid) - began_cpu_ns) / (time.monotonic_ns() - began_ns))
    found: dict[str, dict[str, Any]] = {}
    for program, scraper, used, first in zip(programs, scrapers, slices, skip, strict=True):
        times = scraper.milliseconds[first:]
        found[program.name] = {
            "cpu_percent_of_core": round(statistics.median(used), 3),
            "cpu_slices": [round(one, 3) for one in used],
            "rss_mib": round(program.resident_mib(), 1),
            "scrape_ms_p50": round(float(np.percentile(times, 50)), 2),
            "scrape_ms_p99": round(float(np.percentile(times, 99)), 2),
            "scrapes_failed": len(scraper.failures),
            "wire_bytes": int(statistics.median(scraper.sizes)),
        }
    for scraper in scrapers:
        scraper.stop()
    for name, figures in found.items():
        base = found.get(WITH_RANKS if name in (WITH_RANKS, "psutil: processes of ranks") else "shipped", figures)
        pairs = zip(figures["cpu_slices"], base["cpu_slices"], strict=True)
        figures["cpu_ratio"] = round(statistics.median(own / other for own, other in pairs), 2)
        figures["rss_difference_mib"] = round(figures["rss_mib"] - base["rss_mib"], 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.libraries", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"measured time (default {SECONDS:.0f})")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="variants whose name has this text, and shipped ones"
    )
    arguments = parser.parse_args()
    wanted = [name for name in VARIANTS if name == "shipped" or arguments.only in name]
    if "psutil: processes of ranks" in wanted:
        wanted.insert(0, WITH_RANKS)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangwatch-benchmark-")))
        hardware = stack.enter_context(HardwareProcess(folder))
        ranks = stack.enter_context(running_ranks())
        with ThreadPoolExecutor(len(wanted)) as starters:  # all at once: a busy machine takes a minute for one
            programs = [agent(folder, name, hardware, ranks if "ranks" in name else []) for name in wanted]
            for program in starters.map(lambda program: program.__enter__(), programs):
                stack.push(program)
        found = measure(programs, arguments.seconds)
    failed = int(any(figures["scrapes_failed"] for figures in found.values()))
    load = [round(one, 1) for one in os.getloadavg()]
    machine = {"processors": os.cpu_count(), "python": platform.python_version(), "load_average": load}
    if arguments.json:
        print(json.dumps({"variants": found, "machine": {**machine, "seconds": arguments.seconds}}, indent=2))
        return failed
    for name, figures in found.items():
        row = ", ".join(f"{key} {value}" for key, value in figures.items() if key != "cpu_slices")
        print(f"{name:<40} {row}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
