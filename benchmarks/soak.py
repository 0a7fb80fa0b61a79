"""Accelerated soak test: a hundred thousand ticks of a whole agent with random faults, to find leaks.

python -m benchmarks.soak --ticks 100000 --json

The product's own collectors read two fake GPUs, two fake NICs and a fake kubelet, each at its own interval. Their clock
advances one second per tick, without waiting. Every few ticks a fault begins or ends: for example, a GPU is lost, the
driver is reloaded, a NIC disappears, counters restart, or the kubelet stops. Then the node runs in its own threads
while some calls hang.

Resident memory, descriptors and threads are measured after a warm-up, and again at the end without faults. Exits
non-zero if memory grew by 2 MiB, a descriptor or thread is left over, a collector still fails, or a rate was ever
negative.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import platform
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from agent.collectors.host import kubelet_pods, owners
from agent.sources.nvml import nvml as nvml_source
from agent.sources.nvml import nvml_events
from agent.sources.proc.proc import PAGE_BYTES
from benchmarks.soak_site import Site
from gangwatch.daemons.process_limits import use_one_arena

MOST_GROWTH_BYTES = 2 * 2**20

COURSE_POINTS = 9
"""Number of samples of resident memory during the run, to show whether it keeps growing."""

LEAST_WARM_UP = 700
"""Minimum number of warm-up ticks. Every kind of fault occurs several times in them and loads what it needs."""


def shorten_retry_delays() -> None:
    """Shorten the product's retry delays of ten to thirty seconds to zero, because ticks take no time."""
    nvml_source.RETRY_LOST_SECONDS = 0.0
    nvml_events.WAIT_MILLISECONDS = 1
    kubelet_pods.LIST_NS = owners.RDMA_LIST_NS = 20_000_000


def resident_bytes() -> int:
    """Return this process's resident memory in bytes, after it has freed unused memory."""
    gc.collect()
    # glibc keeps freed memory for later requests; give it back to measure only memory in use.
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def fill_numpys_cache() -> None:
    """Fill numpy's cache of freed arrays, so that its later growth does not count as a leak.

    The cache (numpy/_core/src/multiarray/alloc.c, NBUCKETS and NCACHE) has seven arrays of every size below a
    kilobyte, 3.6 MB at most.
    """
    for size in range(1, 1024):
        held = [np.empty(size, np.uint8) for _ in range(7)]
        held.clear()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def run(ticks: int, thread_seconds: float, seed: int) -> dict[str, object]:
    """Run the soak test and return the document that ``--json`` prints."""
    shorten_retry_delays()
    use_one_arena()
    logging.disable(logging.CRITICAL)
    before_threads, before_descriptors = threading.active_count(), descriptors()
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), seed)
        try:
            warm = max(min(LEAST_WARM_UP, ticks // 2), ticks // 10)
            fill_numpys_cache()
            for number in range(warm):
                site.tick(number)
            site.settle()
            warm_bytes, warm_descriptors, warm_threads = resident_bytes(), descriptors(), threading.active_count()
            began = time.process_time()
            course: list[float] = []
            for number in range(warm, ticks):
                site.tick(number)
                if (number - warm) % max(1, (ticks - warm) // COURSE_POINTS) == 0:
                    course.append(round(resident_bytes() / 2**20, 2))
            spent = time.process_time() - began
            site.settle()
            failing = site.failing()
            end_bytes, end_descriptors, end_threads = resident_bytes(), descriptors(), threading.active_count()
            site.node.stop()
            abandoned = site.run_threads(thread_seconds)
        finally:
            site.kubelet.stop()
    growth = end_bytes - warm_bytes
    left = {
        "descriptors_after_ticks": end_descriptors - warm_descriptors,
        "threads_after_ticks": end_threads - warm_threads,
        # The fake library stays loaded, but none of its descriptors may stay open.
        "descriptors_after_stop": max(0, descriptors() - before_descriptors),
        "threads_after_stop": threading.active_count() - before_threads,
    }
    within = growth < MOST_GROWTH_BYTES and not any(left.values()) and not failing and site.rates.least >= 0
    return {
        "benchmark": "soak",
        "machine": {"processors": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "ticks": ticks,
        "warm_up_ticks": warm,
        "seed": seed,
        "faults": dict(sorted(site.faults.items())),
        "cpu_microseconds_a_tick": round(spent / max(1, ticks - warm) * 1e6, 1),
        "resident_mib_after_warm_up": round(warm_bytes / 2**20, 2),
        "resident_mib_at_the_end": round(end_bytes / 2**20, 2),
        "resident_mib_on_the_way": course,
        "growth_mib": round(growth / 2**20, 3),
        "left_over": left,
        "unwell_at_the_end": failing,
        "threads": {"seconds": thread_seconds, "most_abandoned_at_once": abandoned},
        "rates": {"counted": site.rates.count, "least": site.rates.least},
        "ranges": {"growth_mib": [None, MOST_GROWTH_BYTES / 2**20], "left_over": [0, 0], "rates.least": [0, None]},
        "within_ranges": within,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="An agent through a hundred thousand ticks with random faults.")
    parser.add_argument("--ticks", type=int, default=100_000)
    parser.add_argument(
        "--thread-seconds", type=float, default=20.0, help="how long the node then runs in its own threads"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    result = run(arguments.ticks, arguments.thread_seconds, arguments.seed)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 0 if result["within_ranges"] else 1


if __name__ == "__main__":
    sys.exit(main())
