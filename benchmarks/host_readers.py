"""CPU time of psutil and of our own readers for the same figures: ``python -m benchmarks.host_readers --json``.

Each figure is read after a pause of 20 ms, because an agent reads it once a second and then finds its code and data
outside of the processor's caches. The processes are four children with sixteen threads each. Each reader's figure is
the median CPU time of its thread, in microseconds; a ratio is psutil's divided by ours. `docs/adr/0058` quotes them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from agent.sources.files import KeptFile
from agent.sources.proc import host_figures
from agent.sources.proc.proc import children_of, parse_loadavg, parse_statm, read_process_stat, threads_of
from agent.sources.proc.process_reader import DescriptorBudget, KeptProcess
from benchmarks.libraries import without_psutil
from benchmarks.libraries.with_psutil import PsutilProcess

PROC = "/proc"
PAUSE_SECONDS = 0.02
PROCESSES = 4
CHILD = """
import threading, time
for _ in range(15): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
time.sleep(600)
"""

Read = Callable[[], object]


def microseconds(read: Read, runs: int) -> float:
    """Return the median CPU time of one call."""
    taken = []
    for _ in range(runs):
        time.sleep(PAUSE_SECONDS)
        began_ns = time.thread_time_ns()
        read()
        taken.append((time.thread_time_ns() - began_ns) / 1e3)
    return round(statistics.median(taken), 1)


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        found.extend(children_of(PROC, one, threads_of(PROC, one)) or ())
    return found[1:]


def sample(processes: list[KeptProcess] | list[PsutilProcess], threads: bool) -> None:
    for process in processes:
        stat = process.stat()
        process.advance_io()
        process.resident_bytes()
        if threads and stat is not None:
            process.advance_threads(stat.threads)


def pairs(children: list[int]) -> dict[str, tuple[Read, Read]]:
    """Return our reader and psutil's for each figure."""
    kept = [KeptProcess(PROC, pid, DescriptorBudget(1000)) for pid in children]
    others = [PsutilProcess(PROC, pid, None) for pid in children]
    load, statm, own = KeptFile(f"{PROC}/loadavg"), KeptFile(f"{PROC}/self/statm"), psutil.Process()
    return {
        "CPU times": (lambda: without_psutil.cpu_ticks(PROC), lambda: host_figures.cpu_ticks(PROC)),
        "memory": (lambda: without_psutil.memory(PROC), lambda: host_figures.memory(PROC)),
        "disks": (lambda: without_psutil.disks(PROC), lambda: host_figures.disks(PROC)),
        "interfaces": (lambda: without_psutil.interfaces(f"{PROC}/1"), lambda: host_figures.interfaces(PROC)),
        "load average": (lambda: parse_loadavg(load.read()), psutil.getloadavg),
        "own resident memory": (lambda: parse_statm(statm.read()), lambda: own.memory_info().rss),
        "processes": (lambda: sample(kept, False), lambda: sample(others, False)),
        "processes and threads": (lambda: sample(kept, True), lambda: sample(others, True)),
        "descendants": (lambda: descendants(os.getpid()), lambda: own.children(recursive=True)),
        "start times": (
            lambda: [read_process_stat(PROC, pid) for pid in children],
            lambda: [psutil.Process(pid).create_time() for pid in children],
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_readers", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--runs", type=int, default=100, help="calls of each reader (default 100)")
    arguments = parser.parse_args()
    children = [subprocess.Popen([sys.executable, "-c", CHILD]) for _ in range(PROCESSES)]
    try:
        time.sleep(3)
        found = {
            name: {"own_us": microseconds(own, arguments.runs), "psutil_us": microseconds(library, arguments.runs)}
            for name, (own, library) in pairs([child.pid for child in children]).items()
        }
    finally:
        for child in children:
            child.kill()
            child.wait()
    for figures in found.values():
        figures["ratio"] = round(figures["psutil_us"] / figures["own_us"], 1)
    if arguments.json:
        print(json.dumps({"psutil": psutil.__version__, "processes": len(psutil.pids()), "readers": found}, indent=2))
        return
    for name, figures in found.items():
        print(
            f"{name:<24} ours {figures['own_us']:>8} us  psutil {figures['psutil_us']:>8} us  ratio {figures['ratio']}"
        )


if __name__ == "__main__":
    main()
