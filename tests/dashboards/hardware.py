"""Expositions of a real agent on fake hardware (NVML library, sysfs and proc files) whose devices fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exporter.prometheus.exposition import Exposition, Settings
from tests.dashboards.live import Bodies
from tests.dashboards.scenarios import LENGTH, ONSET, Scenario, healthy
from tests.exporter.fake_nodes import Workshop
from tests.fakes.nvml.control import GPU_IS_LOST
from tests.fakes.sysfs.tree import write_number

NODE = "n0"
NAMES = (
    "GpuLost", "GpuXid", "GpuMemoryErrors", "GpuRowRemap", "GpuThrottled", "NicDown", "NicFlapping", "NicSlowLink",
    "PauseStorm", "CollectorFailing", "SeriesLimit",
)  # fmt: skip
SCENARIO = Scenario(
    healthy,
    frozenset(f"Gangwatch{name}" for name in NAMES),
    frozenset({"GangwatchCollectorFailing"}),  # the collectors of the lost GPU
    labels=(("node", NODE),),
)

SICK = 5
"""Number of expositions while devices fail; counters grow from each to the next."""

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
HW_THERMAL = 0x40
"""nvmlClocksEventReasonHwThermalSlowdown."""

UNCORRECTED, REMAP_PENDING = 4, 144
"""Fields of nvmlDeviceGetFieldValues: uncorrected memory errors; whether a row remapping needs a reset."""


def bodies(workshop: Workshop) -> list[bytes]:
    """Return expositions of the node: healthy, several while its devices fail, healthy again. Each has its own
    agent."""
    well, series = _body(workshop, None, Settings())
    found = [well]
    for number in range(SICK):
        found.append(_body(workshop, number, Settings(series_limit=series - 400))[0])
    return [*found, _body(workshop, None, Settings())[0]]


def _body(workshop: Workshop, sick: int | None, settings: Settings) -> tuple[bytes, int]:
    """Return (exposition, number of its series). sick: number of the exposition in the fault, from 0; None:
    healthy."""
    with workshop.node("h100") as node:
        nics = node.tree.nics
        for gpu in range(8):
            node.fake.set_reading(REASONS, HW_THERMAL if gpu == 4 and sick is not None else 0, gpu=gpu)
        if sick is not None:
            node.fake.set_field(REMAP_PENDING, 1, gpu=5)
            node.fake.set_field(UNCORRECTED, 3, gpu=6)
            (nics[1].port / "state").write_text("1: DOWN\n")
            (nics[4].port / "rate").write_text("200 Gb/sec (2X NDR)\n")
            write_number(nics[2].port / "counters" / "link_downed", 1000)
            node.tree.advance(2 * LENGTH / SICK, {nics[3].name: 1.0})  # paused for 0.4 of the time
        node.node.tick()
        if sick is not None:
            node.fake.push_xid(2, 74)
            node.fake.set_gpu_code(3, GPU_IS_LOST)
            time.sleep(1.1)  # the agent reads a GPU every second
        body = Exposition(settings).body(*node.frame())
        if sick is not None:
            (nics[1].port / "state").write_text("4: ACTIVE\n")
            (nics[4].port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    return body, sum(line.startswith(b"gangwatch_") for line in body.splitlines())


@contextmanager
def answering(folder: Path) -> Iterator[tuple[dict[str, Bodies], dict[str, dict[str, str]]]]:
    """Return the expositions by path, and the labels of these scrape targets. There is no controller."""
    recorded = bodies(Workshop(folder))

    def answer(now: float) -> bytes:
        number = 1 + int((now - ONSET) / (LENGTH / SICK)) if now >= ONSET else 0
        return recorded[min(number, len(recorded) - 1)]

    yield {f"hardware/{NODE}": answer}, {f"hardware/{NODE}": {"cluster": "hardware", "job": "agent", "node": NODE}}
