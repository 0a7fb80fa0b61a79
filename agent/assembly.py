"""Assembly of frames from the collectors' newest samples and the agent's own metrics.

A frame has thousands of columns and is made every second, so no code here loops over columns. The node keeps one set of
arrays. It overwrites the columns of a collector only if this collector has a new sample or its sample has become stale.
A frame is a copy of the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from agent.collectors.block import Block
from agent.runner import Runner, Sample
from agent.schema.frame import Column, CounterArray, GaugeArray, Layout, Tier, TimeArray, ValidArray, make_layout
from agent.self_usage import Cost

NODE_TIER = "node"

_OWN_GAUGES = (
    "gangwatch_agent_memory_resident_bytes",
    "gangwatch_agent_open_descriptors",
    "gangwatch_agent_threads",
    "gangwatch_agent_threads_abandoned",
    "gangwatch_agent_released",
)
_OWN_COUNTERS = ("gangwatch_agent_frames_total", "gangwatch_agent_cpu_seconds_total")

_COLLECTOR_GAUGES = (
    "gangwatch_collector_success",
    "gangwatch_collector_stuck",
    "gangwatch_collector_duration_seconds",
    "gangwatch_collector_sample_age_seconds",
    "gangwatch_collector_interval_seconds",
)
_COLLECTOR_COUNTERS = ("gangwatch_collector_failures_total", "gangwatch_collector_cpu_seconds_total")


@dataclass(frozen=True, slots=True)
class Own:
    """Values of one frame about the agent itself: frame number, resource usage, abandoned threads, released devices.

    A thread is abandoned while a collector is stuck in it.
    """

    seq: int
    cost: Cost
    threads_abandoned: int
    released: bool


@dataclass(slots=True)
class _Place:
    """Position of one collector's series (columns) in the frame's arrays, and the sample that these columns contain."""

    runner: Runner
    block: Block | None
    gauges: slice
    counters: slice
    written: Sample | None = None
    """Sample whose values are in the collector's columns; None if these values are absent."""


class Assembly:
    """The arrays of a node's frames. Only the node's thread uses them."""

    def __init__(self, node: str, interval_seconds: float, boot_id: str, version: str) -> None:
        self._node = node
        self._interval_seconds = interval_seconds
        self._info = Column("gangwatch_agent_info", (("boot_id", boot_id), ("version", version)))
        self._places: list[_Place] = []
        self.layout: Layout
        self._gauges: GaugeArray
        self._counters: CounterArray
        self._valid: ValidArray
        self._lay_out((), ())

    def frame(
        self, runners: Sequence[Runner], now_ns: int, own: Own
    ) -> tuple[TimeArray, GaugeArray, CounterArray, ValidArray]:
        """Return the arrays of the frame at `now_ns`: sample times, gauges, counters, validity of counters.

        There is one sample time for each collector (tier). The caller owns the arrays. Afterwards ``layout`` describes
        their columns. This method makes a new layout if collectors were added or removed or returned a new block.
        """
        # Read each sample only once: a runner may replace it at any time.
        samples = [runner.sample for runner in runners]
        if self._has_changed(runners, samples):
            self._lay_out(runners, samples)
        # Ages are rounded down to 10 ms: smaller changes have no use and cost the readers bandwidth.
        collectors = len(runners)
        success = [0.0] * collectors
        stuck = [0.0] * collectors
        ages = [np.nan] * collectors
        tier_ns = [now_ns] + [0] * collectors
        for position, (place, sample) in enumerate(zip(self._places, samples, strict=True)):
            runner = place.runner
            fresh = None
            if runner.running_since_ns is not None and runner.is_stuck(now_ns):
                stuck[position] = 1.0
            elif sample is not None and not runner.is_stale(sample, now_ns):
                fresh = sample
                success[position] = float(runner.succeeded)
            if fresh is not place.written:
                self._write(place, fresh)
            if sample is not None:
                tier_ns[1 + position] = sample.sampled_ns
                ages[position] = (now_ns - sample.sampled_ns) // 10_000_000 / 100
        cost = own.cost
        # In the order of _OWN_GAUGES and _COLLECTOR_GAUGES, and of their counters.
        gauges = [
            np.nan if cost.resident_bytes is None else cost.resident_bytes,
            np.nan if cost.descriptors is None else cost.descriptors,
            cost.threads,
            own.threads_abandoned,
            own.released,
            *success,
            *stuck,
            *[runner.duration_seconds for runner in runners],
            *ages,
            *[runner.interval_ns / 1e9 for runner in runners],
        ]
        counted = [
            own.seq,
            cost.processor_ns,
            *[runner.failures for runner in runners],
            *[runner.processor_ns for runner in runners],
        ]
        self._gauges[1 : 1 + len(gauges)] = gauges
        self._counters[: len(counted)] = counted
        return np.array(tier_ns, np.int64), self._gauges.copy(), self._counters.copy(), self._valid.copy()

    def _write(self, place: _Place, sample: Sample | None) -> None:
        """Write the sample into the collector's columns, or mark them absent if it is None."""
        if sample is None:
            self._gauges[place.gauges] = np.nan
            self._valid[place.counters] = False
        else:
            self._gauges[place.gauges] = sample.gauges
            self._counters[place.counters] = sample.counters
            self._valid[place.counters] = sample.counters_valid
        place.written = sample

    def _has_changed(self, runners: Sequence[Runner], samples: Sequence[Sample | None]) -> bool:
        """Return whether a collector was added or removed, or returned a new block (a new set of series).

        A collector without a sample does not change the layout: its columns stay, and their values are absent.
        """
        places = self._places
        return len(places) != len(runners) or any(
            place.runner is not runner or (sample is not None and sample.block is not place.block)
            for place, runner, sample in zip(places, runners, samples, strict=True)
        )

    def _lay_out(self, runners: Sequence[Runner], samples: Sequence[Sample | None]) -> None:
        """Make a new layout with the agent's own series and the series of every collector."""
        known = {place.runner: place.block for place in self._places}
        tiers = [Tier(NODE_TIER, self._interval_seconds)]
        labels = [(("collector", runner.name),) for runner in runners]
        gauges = [self._info, *(Column(name) for name in _OWN_GAUGES)]
        gauges.extend(Column(name, label) for name in _COLLECTOR_GAUGES for label in labels)
        counters = [Column(name) for name in _OWN_COUNTERS]
        counters.extend(Column(name, label) for name in _COLLECTOR_COUNTERS for label in labels)
        own_counters = len(counters)
        places: list[_Place] = []
        for tier, (runner, sample) in enumerate(zip(runners, samples, strict=True), 1):
            block = known.get(runner) if sample is None else sample.block
            tiers.append(Tier(runner.name, runner.nominal_ns / 1e9))
            gauge_at, counter_at = len(gauges), len(counters)
            if block is not None:
                gauges.extend(msgspec.structs.replace(column, tier=tier) for column in block.gauge_columns)
                counters.extend(msgspec.structs.replace(column, tier=tier) for column in block.counter_columns)
            places.append(_Place(runner, block, slice(gauge_at, len(gauges)), slice(counter_at, len(counters))))
        self._places = places
        self.layout = make_layout(self._node, tiers, gauges, counters)
        self._gauges = np.full(len(gauges), np.nan, np.float64)
        self._gauges[0] = 1.0
        self._counters = np.zeros(len(counters), np.uint64)
        self._valid = np.zeros(len(counters), np.bool_)
        self._valid[:own_counters] = True
