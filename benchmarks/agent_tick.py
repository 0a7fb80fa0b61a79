"""Cost of one run of an agent's collectors, of reading step rings and of rendering /metrics.

python -m benchmarks.agent_tick --json

A tick runs the host and process collectors. Step rings are read with pread and, for comparison, through a mapping.
Rendering is compared, in the same run and on the same series, with prometheus_client's encoder and a custom
collector, the fastest way of that library. CPU time is the user and system time of the process; the figures are
medians of many rounds. Exits non-zero if a figure is out of its range.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector as PeerCollector

from agent.collectors.host.host import HostCollector
from agent.collectors.host.rank_processes import ProcessCollector
from agent.node import Node
from agent.rank_attribution import RankFile
from agent.schema.catalog import BY_NAME
from agent.schema.frame import Frame, Layout
from agent.sources.proc.proc import read_process_stat
from agent.sources.steps.rings import HEADER_BYTES, SLOT_BYTES, Ring
from exporter.prometheus.exposition import EVERYTHING, Exposition
from exporter.prometheus.series import labels_of
from gangwatch.steps import Reporter

IDLE = "import sys, threading; [threading.Thread(target=sys.stdin.read, daemon=True).start() for _ in range({})]; \
print(flush=True); sys.stdin.read()"
"""Program of a rank that does no work, so that only the agent's cost counts. A blocked read keeps its threads alive."""

LEAST_RATIO = 5.0
"""Minimum of prometheus_client's CPU time divided by ours, for one exposition. Measured: 26 (two cores, CPython
3.11)."""

MOST_CORE_SHARE = 0.05
"""Maximum share of one core for reading the host every second and 160 threads of ranks twice a second. Measured: 0.3
%."""


RECORDS_A_READING = 20
"""Number of records that one rank writes in half a second: two steps with four collectives each."""

MOST_RING_RATIO = 3.0
"""Maximum CPU time of reading a ring with pread, divided by that of reading through a mapping. Measured: 1.2."""


class _MappedRing(Ring):
    """Reader of a step ring through a memory mapping, for comparison. The agent reads with pread instead."""

    def __init__(self, descriptor: int, slots: int) -> None:
        super().__init__(descriptor, slots)
        self._memory = mmap.mmap(descriptor, HEADER_BYTES + slots * SLOT_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)

    def _count(self) -> int:
        return int.from_bytes(self._memory[16:24], "little")

    def _bytes(self, first: int, slots: int) -> bytes:
        at = HEADER_BYTES + first * SLOT_BYTES
        return self._memory[at : at + slots * SLOT_BYTES]


def measure_rings(ranks: int, rounds: int) -> dict[str, float]:
    """Return the CPU microseconds of reading all ranks' rings once, with and without new records.

    Each is measured with pread and through a mapping.
    """
    slots, costs = 4096, {}
    reporters = [Reporter({"GANGWATCH_SOCKET": "/nonexistent/gangwatch.sock"}, slots) for _ in range(ranks)]
    registrations = [reporter._registration for reporter in reporters]
    try:
        for name, kind in (("pread", Ring), ("mapped", _MappedRing)):
            rings = [kind.of_descriptor(one._memory) for one in registrations if one is not None]
            spent: list[float] = []
            idle: list[float] = []
            for _ in range(max(20, rounds)):
                for reporter in reporters:
                    for number in range(RECORDS_A_READING):
                        reporter.report(number, 0.001, 0.0005, 10)
                began = time.thread_time()
                read = sum(len(ring.read(time.monotonic_ns())) for ring in rings if ring.fresh())
                spent.append(time.thread_time() - began)
                assert read >= ranks * RECORDS_A_READING
                began = time.thread_time()
                assert sum(ring.fresh() for ring in rings) == 0
                idle.append(time.thread_time() - began)
            costs[f"rings_{name}"] = round(statistics.median(spent) * 1e6, 1)
            costs[f"rings_{name}_without_news"] = round(statistics.median(idle) * 1e6, 1)
            for ring in rings:
                ring.close()
    finally:
        for reporter in reporters:
            reporter.close()
    return costs


class _IdleRanks:
    """Idle processes, with as many threads as a training rank, that the agent monitors."""

    def __init__(self, count: int, threads: int, stack: ExitStack) -> None:
        self._files: list[RankFile] = []
        for rank in range(count):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", IDLE.format(threads - 1)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            stat = read_process_stat("/proc", process.pid)
            assert stat is not None
            self._files.append(RankFile("benchmark", 1, rank, process.pid, stat.start_time))

    def ranks(self) -> list[RankFile]:
        return self._files


class _Peer(PeerCollector):
    """Exporter with prometheus_client that publishes the same frame, for comparison.

    It builds all metrics at every scrape.
    """

    def __init__(self, layout: Layout, frame: Frame) -> None:
        self._layout = layout
        self._frame = frame

    def collect(self) -> Iterator[Metric]:
        layout, frame = self._layout, self._frame
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for kind, columns, values, valid in (
            (GaugeMetricFamily, layout.gauges, frame.gauges, frame.gauges == frame.gauges),
            (CounterMetricFamily, layout.counters, frame.counters, frame.counters_valid),
        ):
            for column, value, present in zip(columns, values.tolist(), valid.tolist(), strict=True):
                if not present:
                    continue
                metric = BY_NAME[column.metric]
                labels = labels_of(layout, column)
                family = families.get(column.metric)
                if family is None:
                    family = kind(column.metric, metric.help, labels=[key for key, _ in labels])
                    families[column.metric] = family
                family.add_metric([text for _, text in labels], value * metric.scale)
        yield from families.values()


def cpu_seconds(call: Callable[[], object], rounds: int) -> float:
    """Return the median CPU seconds of one call. Some calls before the measurement fill caches."""
    for _ in range(3):
        call()
    spent: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def measure(ranks: int, threads: int, rounds: int) -> dict[str, object]:
    """Run the benchmark and return the document that ``--json`` prints."""
    with ExitStack() as stack:
        host = HostCollector()
        process = ProcessCollector(_IdleRanks(ranks, threads, stack))
        stack.callback(host.close)
        stack.callback(process.close)
        host_seconds = cpu_seconds(host.collect, rounds)
        # Every fourth run also scans for child processes; the mean over whole rounds includes both kinds.
        turns = max(1, rounds // 4)
        process_seconds = cpu_seconds(lambda: [process.collect() for _ in range(4)], turns) / 4

        node = Node("benchmark", [host, process])
        tick_seconds = cpu_seconds(node.tick, rounds)
        # Eight frames: series that change between scrapes are rendered again.
        frames = itertools.cycle([node.tick() for _ in range(8)])
        layout, frame = next(frames)
    exposition = Exposition(EVERYTHING)
    registry = CollectorRegistry()
    registry.register(_Peer(layout, frame))
    ours = cpu_seconds(lambda: exposition.body(*next(frames)), rounds)
    theirs = cpu_seconds(lambda: generate_latest(registry), rounds)
    ratio = theirs / ours
    rings = measure_rings(ranks, rounds)
    ring_ratio = rings["rings_pread"] / rings["rings_mapped"]
    core_share = host_seconds * 1.0 + process_seconds * 2.0
    return {
        "benchmark": "agent_tick",
        "machine": {"processors": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "ranks": ranks,
        "threads_a_rank": threads,
        "series": len(layout.gauges) + len(layout.counters),
        "cpu_microseconds": {
            "host_collect": round(host_seconds * 1e6, 1),
            "process_collect": round(process_seconds * 1e6, 1),
            "tick_with_frame": round(tick_seconds * 1e6, 1),
            **rings,
            "exposition": round(ours * 1e6, 1),
            "exposition_prometheus_client": round(theirs * 1e6, 1),
        },
        "collectors_share_of_one_core": round(core_share, 5),
        "exposition_ratio": round(ratio, 2),
        "ring_ratio": round(ring_ratio, 2),
        "ranges": {
            "exposition_ratio": [LEAST_RATIO, None],
            "ring_ratio": [None, MOST_RING_RATIO],
            "collectors_share_of_one_core": [None, MOST_CORE_SHARE],
        },
        "within_ranges": (ratio >= LEAST_RATIO and core_share <= MOST_CORE_SHARE and ring_ratio <= MOST_RING_RATIO),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What an agent's tick and exposition cost.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--threads", type=int, default=20, help="threads a rank")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    result = measure(arguments.ranks, arguments.threads, arguments.rounds)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 0 if result["within_ranges"] else 1


if __name__ == "__main__":
    sys.exit(main())
