"""GPU collectors on the fake NVML library, with a clock that only the test advances."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.collectors.block import Block, Collector
from agent.collectors.gpu.nvml_collector import NvmlCollector
from agent.collectors.gpu.xid import XidHistory
from agent.gpu_inventory import Inventory
from agent.power_leases import Allowed, PowerLeases
from agent.schema.clock import ManualClock
from tests.fakes.nvml.control import FakeNvml

BEGAN_SECONDS = 1000.0

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-4000-8000-0*([0-9a-f]+)")
"""The fake's UUIDs; only their ends differ within one machine."""


class Machine:
    """GPU collectors of one node on the fake NVML library. ``advance`` moves their clock and the library's counters."""

    def __init__(
        self,
        library: Path,
        fake: FakeNvml,
        *,
        burst: bool = False,
        devices: tuple[str, ...] = (),
        power: tuple[Allowed, Path] | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.fake = fake
        self.clock = clock or ManualClock()
        self.leases = None if power is None else PowerLeases(*power, "boot", self.clock)
        self.xids = XidHistory()
        self.inventory = Inventory()
        self.parent = NvmlCollector(
            str(library), 1.0, devices, burst=burst, leases=self.leases, xids=self.xids, inventory=self.inventory,
            clock=self.clock,
        )  # fmt: skip
        self._elapsed = BEGAN_SECONDS
        fake.set_clock(self._elapsed)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._elapsed += seconds
        self.fake.set_clock(self._elapsed)

    def members(self) -> dict[str, Collector]:
        return {member.name: member for member in self.parent.members()}

    def member(self, kind: str, gpu: int = 0) -> Collector:
        """Return the collector of this kind for one GPU. gpu: position among the GPUs that have such a collector."""
        return [member for name, member in self.members().items() if name.startswith(f"{kind}/")][gpu]

    def close(self) -> None:
        for member in reversed(self.parent.members()):
            member.close()
        self.parent.close()


@contextmanager
def machine(library: Path, fake: FakeNvml, *, burst: bool = False, devices: tuple[str, ...] = ()) -> Iterator[Machine]:
    """Yield the GPU collectors; at the end close them, which releases the driver."""
    made = Machine(library, fake, burst=burst, devices=devices)
    try:
        yield made
    finally:
        made.close()


def uuid(board: int, gpu: int) -> str:
    """Return the fake's UUID of a GPU. board: number of the server model in boards.c, from 1."""
    return f"GPU-{board:08x}-0000-4000-8000-{gpu:012x}"


def lines(blocks: list[Block]) -> list[str]:
    """Return one sorted line for each series with its value. The links of a GPU share a line."""
    found: dict[str, list[tuple[int, str]]] = {}
    for block in blocks:
        values: list[float | int | None] = list(block.gauges.tolist())
        values = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
        counted = zip(block.counters.tolist(), block.counters_valid.tolist(), strict=True)
        values += [value if valid else None for value, valid in counted]
        for column, value in zip((*block.gauge_columns, *block.counter_columns), values, strict=True):
            labels = dict(column.labels)
            link = int(labels.pop("link", -1))
            label = ",".join(f'{name}="{text}"' for name, text in labels.items())
            text = "absent" if value is None else f"{value:.15g}" if isinstance(value, float) else str(value)
            found.setdefault(f"{column.metric}{{{label}}}", []).append((link, text))
    result = sorted(f"{name} {' '.join(text for _, text in sorted(values))}" for name, values in found.items())
    return [_UUID.sub(r"\1-\2", line) for line in result]
