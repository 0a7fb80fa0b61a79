"""Cost of the agent on this machine's own GPUs and NICs, and the time of each driver call."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agent.collectors.gpu.nvml_collector import NvmlCollector
from agent.node import Node
from agent.schema.catalog import BY_NAME
from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Library
from benchmarks.agent.__main__ import FULL, TEN_HERTZ, Figures, agent, measure
from benchmarks.agent.scraping import distinct_series
from benchmarks.nvml_survey import TimedLibrary

TICKS = 60
"""Number of runs of each GPU collector whose driver calls are timed: one minute at one run a second."""


def calls_and_gaps(library: str | None, ticks: int = TICKS) -> tuple[dict[str, Figures], list[str]]:
    """Return the cost of each driver call, and the GPU metrics that this hardware or driver does not support.

    ticks: number of reads. Raises RuntimeError if there is no GPU.
    """
    opened: list[TimedLibrary] = []

    def load(path: str | None) -> Library:
        opened.append(TimedLibrary(path))
        return opened[-1]

    node = Node("benchmark", [NvmlCollector(library, burst=True, load=load)])
    try:
        for _ in range(ticks):
            layout, frame = node.tick()
            time.sleep(0.15)  # two GPM samples must be more than a tenth of a second apart
    finally:
        node.stop()
    present = {column.metric for column, value in zip(layout.gauges, frame.gauges, strict=True) if not np.isnan(value)}
    present |= {column.metric for column, valid in zip(layout.counters, frame.counters_valid, strict=True) if valid}
    if not any(name.startswith("gangwatch_gpu_") for name in present):
        raise RuntimeError("no GPU responds here: python -m benchmarks.agent measures on the fake")
    families = ("gangwatch_gpu_", "gangwatch_nvlink_", "gangwatch_c2c_", "gangwatch_fabric_")
    absent = sorted(name for name in BY_NAME if name.startswith(families) and name not in present)
    table: dict[str, Figures] = {
        symbol: {
            "calls": cost.calls,
            "us_mean": round(cost.mean_us, 1),
            "us_most": round(cost.most_ns / 1e3, 1),
            "us_a_tick": round(cost.total_ns / 1e3 / ticks, 1),
        }
        for timed in opened
        for symbol, cost in sorted(timed.costs.items(), key=lambda one: -one[1].total_ns)
        if cost.calls and not symbol.startswith("nvmlEventSetWait")  # its thread blocks inside of it by design
    }
    return table, absent


def on_the_real(seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the agent's cost on this machine at one and at ten hertz, with each driver call and unsupported metrics.

    Raises RuntimeError if there is no driver or no GPU.
    """
    try:
        Library().close()
    except SourceError as error:
        raise RuntimeError(f"{error}; without --real the fake is measured") from None
    calls, absent = calls_and_gaps(None)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangwatch-benchmark-")))
        programs = [
            stack.enter_context(agent(folder, "full", FULL, None)),
            stack.enter_context(agent(folder, "ten-hertz", TEN_HERTZ, None)),
        ]
        (ours, text), (ten, _) = measure(programs, seconds, progress)
    ours["series"] = distinct_series(text, own=True)
    return {"ours": ours, "ours_10hz": ten, "calls": calls, "unsupported": absent}
