"""Cost of reading the GPUs: ``python -m benchmarks.nvml [--board h100 | --real] [--json]``.

Runs each collector of each GPU as the agent does and measures the CPU time of its thread. Calls of the fake NVML
cost almost nothing, so the result is the collectors' own cost. ``bindings`` is the cost of the same reads through
pynvml alone. ``--real`` uses the machine's driver and also reports cost and result of every call and field.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pynvml

from agent.collectors.block import Collector
from agent.collectors.gpu import nvml_collector
from agent.collectors.gpu.gpu import fast_fields
from agent.collectors.gpu.gpu_slow import slow_fields
from agent.collectors.gpu.nvlink import link_count
from agent.collectors.gpu.nvml_collector import NvmlCollector
from agent.node import Node
from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Library
from agent.sources.nvml.nvml_enumeration import find_devices
from benchmarks.nvml_bindings import tick_costs
from benchmarks.nvml_survey import TimedLibrary, ask_fields

SPREAD = 8
"""Number of phases that ``--spread`` uses."""

SETTLE_SECONDS = 1.0

APART_SECONDS = 0.11
"""Seconds between two runs of a collector. Profiling needs a tenth of a second between its samples."""


def measure(collector: NvmlCollector, runs: int) -> dict[str, Any]:
    """Return the CPU and wall time of each kind of collector, and the CPU time of all collectors per second."""
    collector.collect()
    members = collector.members()
    kinds: dict[str, list[Collector]] = defaultdict(list)
    for member in members:
        kinds[member.name.partition("/")[0]].append(member)
    series = 0
    first_ms: dict[str, float] = {}
    for kind, group in kinds.items():
        began = time.perf_counter()
        for member in group:
            member.collect()
        first_ms[kind] = (time.perf_counter() - began) * 1e3 / len(group)
    processor: dict[str, list[float]] = defaultdict(list)
    wall: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        time.sleep(APART_SECONDS)
        for kind, group in kinds.items():
            for member in group:
                began, began_processor = time.perf_counter_ns(), time.thread_time_ns()
                block = member.collect()
                processor[kind].append((time.thread_time_ns() - began_processor) / 1e3)
                wall[kind].append((time.perf_counter_ns() - began) / 1e3)
                assert block is not None
    for member in members:
        block = member.collect()
        series += sum(not column.metric.endswith("_info") for column in (*block.gauge_columns, *block.counter_columns))
    report: dict[str, Any] = {
        kind: {
            "collectors": len(group),
            "interval_seconds": group[0].interval_seconds,
            "first_run_ms": round(first_ms[kind], 2),
            "processor_us_median": round(statistics.median(processor[kind]), 1),
            "processor_us_max": round(max(processor[kind]), 1),
            "wall_us_median": round(statistics.median(wall[kind]), 1),
            "wall_us_max": round(max(wall[kind]), 1),
        }
        for kind, group in kinds.items()
    }
    per_second = {
        kind: statistics.median(processor[kind]) * len(group) / group[0].interval_seconds
        for kind, group in kinds.items()
    }
    burst_us = per_second.pop("gpu-burst", 0.0)
    return {
        "collectors": report,
        "series": series,
        "percent_of_core": round(sum(per_second.values()) / 1e4, 4),
        "percent_of_core_with_bursts": round((sum(per_second.values()) + burst_us) / 1e4, 4),
    }


def live(path: str | None, seconds: float, *, burst: bool) -> float:
    """Return the percentage of a CPU core that an agent with only the GPU collectors uses.

    path: NVML library. seconds: duration of the measurement. burst: whether GPUs are also read at 10 Hz.
    """
    node = Node("benchmark", [NvmlCollector(path, burst=burst)])
    node.start()
    try:
        time.sleep(2 * SETTLE_SECONDS)
        began, began_processor = time.monotonic(), time.process_time()
        time.sleep(seconds)
        return (time.process_time() - began_processor) / (time.monotonic() - began) * 100
    finally:
        node.stop()


def survey(path: str | None) -> dict[str, Any]:
    """Read every supported field of the first GPU, one at a time, and return the costs."""
    library = Library(path)
    try:
        device = find_devices(library)[0]
        links = link_count(device)
        wanted = [*fast_fields(device, min(links, 1)), *slow_fields(device, min(links, 1))]
        answers = ask_fields(device, (source.field for one in wanted for source in one.sources))
        return {
            "driver": library.text("nvmlSystemGetDriverVersion"),
            "model": library.text("nvmlDeviceGetName", device.handle),
            "links": links,
            "fields": {
                str(answer.field): {
                    "answer": answer.text,
                    "value_type": answer.value_type if answer.code == pynvml.NVML_SUCCESS else None,
                    "microseconds": round(answer.microseconds, 1),
                }
                for answer in answers
            },
        }
    finally:
        library.close()


def run(path: str | None, runs: int, live_seconds: float, *, real: bool) -> dict[str, Any]:
    """Return the whole report. path: NVML library; None for the machine's own. real: also measure every call and
    field."""
    made: list[TimedLibrary] = []

    def load(at: str | None) -> TimedLibrary:
        made.append(TimedLibrary(at))
        return made[-1]

    collector = NvmlCollector(path, burst=True, load=load) if real else NvmlCollector(path, burst=True)
    try:
        report = measure(collector, runs)
        if real:
            report["calls"] = {
                symbol: {
                    "calls": cost.calls,
                    "mean_us": round(cost.mean_us, 1),
                    "max_us": round(cost.most_ns / 1e3, 1),
                    "codes": {str(code): count for code, count in sorted(cost.codes.items())},
                }
                for symbol, cost in sorted(made[-1].costs.items())
                if cost.calls
            }
            report["missing_symbols"] = sorted(made[-1].missing)
    finally:
        for member in reversed(collector.members()):
            member.close()
        collector.close()
    report["survey"] = survey(path)
    if live_seconds:
        report["live_percent_of_core"] = round(live(path, live_seconds, burst=False), 3)
        report["live_percent_of_core_with_bursts"] = round(live(path, live_seconds, burst=True), 3)
    report["rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="h100", help="which machine the fake plays (tests/fakes/nvml/boards.c)")
    parser.add_argument("--real", action="store_true", help="the machine's own driver")
    parser.add_argument("--library", default=None, help="with --real: another library than the system's")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--live", type=float, default=0.0, metavar="SECONDS", help="also run a node of it for this long"
    )
    parser.add_argument("--spread", action="store_true", help="with --live: each GPU at a different instant")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.spread:
        nvml_collector.INSTANTS = tuple((place + 0.5) / SPREAD for place in range(SPREAD))
    if options.real:
        try:
            report = run(options.library, options.runs, options.live, real=True)
        except SourceError as error:
            print(f"{error}; without --real the fake is measured", file=sys.stderr)
            return 1
    else:
        from tests.fakes.nvml.build import build
        from tests.fakes.nvml.control import FakeNvml

        with tempfile.TemporaryDirectory() as folder:
            try:
                library = build(Path(folder))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"the fake of NVML cannot be compiled: {error}", file=sys.stderr)
                return 1
            FakeNvml(library).reset(options.board)
            report = run(str(library), options.runs, options.live, real=False)
            report["board"] = options.board
            report["bindings"] = tick_costs(str(library))
    if options.json:
        print(json.dumps(report, indent=1))
        return 0
    for kind, cost in report["collectors"].items():
        print(
            f"{kind:14} x{cost['collectors']:<3} every {cost['interval_seconds']:>5} s: "
            f"{cost['processor_us_median']:>8} us of a processor, {cost['wall_us_median']:>8} us in all"
        )
    print(
        f"{report['series']} series; {report['percent_of_core']} % of a core, "
        f"{report['percent_of_core_with_bursts']} % with bursts; {report['rss_mib']} MiB"
    )
    if "bindings" in report:
        print(
            "a tick of {gpus} GPUs, {fields_per_gpu} fields each: {plain_us} us through pynvml, "
            "{kept_array_us} us with a kept array, {ours_us} us our way".format(**report["bindings"])
        )
    if options.live:
        print(
            f"in a running node: {report['live_percent_of_core']} % of a core, "
            f"{report['live_percent_of_core_with_bursts']} % with bursts"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
