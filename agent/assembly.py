"""Frames put together: each collector's newest values at their place, and the agent's account of itself before them.

A frame a second of thousands of columns has to cost next to nothing, so nothing here is done a column. The arrays are
kept from frame to frame; a collector's slice is written when it gave a new sample or the one it has goes stale, and a
frame is a copy of the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from agent.collectors.block import Block
from agent.meter import Cost
from agent.runner import Runner, Sample
from agent.schema.frame import Column, CounterArray, GaugeArray, Layout, Tier, TimeArray, ValidArray, make_layout

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
    """What the agent says of itself in one frame."""

    seq: int
    cost: Cost
    threads_abandoned: int
    released: bool


@dataclass(slots=True)
class _Place:
    """Where one collector's columns stand, and the sample that stands there now (None: nothing does)."""

    runner: Runner
    gauges: slice
    counters: slice
    written: Sample | None = None


class Assembly:
    """The arrays of a node's frames. Used by one thread, the node's."""

    def __init__(self, node: str, interval_seconds: float, boot_id: str, version: str) -> None:
        self._node = node
        self._interval_seconds = interval_seconds
        self._info = Column("gangwatch_agent_info", (("boot_id", boot_id), ("version", version)))
        self._laid_out: list[tuple[Runner, Block | None]] | None = None
        self._places: list[_Place] = []
        self.layout: Layout = make_layout(node, (), (), ())
        self._gauges: GaugeArray = np.empty(0, np.float64)
        self._counters: CounterArray = np.empty(0, np.uint64)
        self._valid: ValidArray = np.empty(0, np.bool_)

    def frame(
        self, runners: Sequence[Runner], now_ns: int, own: Own
    ) -> tuple[TimeArray, GaugeArray, CounterArray, ValidArray]:
        """Arrays of the frame at `now_ns`: tier times, gauges, counters, which counters are valid; the caller's own.

        ``layout`` says afterwards what they mean: a new one where collectors came or went or gave a new block.
        """
        # Taken once: a runner replaces its sample at any moment.
        samples = [runner.sample for runner in runners]
        self._lay_out(runners, samples)
        collectors = len(runners)
        tier_ns = np.zeros(1 + collectors, np.int64)
        tier_ns[0] = now_ns
        gauges = self._gauges
        success: list[bool] = []
        stuck: list[bool] = []
        duration: list[float] = []
        age: list[float] = []
        interval: list[float] = []
        for position, (place, sample) in enumerate(zip(self._places, samples, strict=True), 1):
            runner = place.runner
            is_stuck = runner.is_stuck(now_ns)
            fresh = sample is not None and not is_stuck and not runner.is_stale(sample, now_ns)
            self._write(place, sample if fresh else None)
            success.append(runner.succeeded and fresh)
            stuck.append(is_stuck)
            duration.append(runner.duration_seconds)
            interval.append(runner.interval_ns / 1e9)
            if sample is None:
                age.append(np.nan)
            else:
                tier_ns[position] = sample.sampled_ns
                age.append((now_ns - sample.sampled_ns) / 1e9)

        cost = own.cost
        at = 1 + len(_OWN_GAUGES)
        gauges[1:at] = [
            np.nan if cost.resident_bytes is None else cost.resident_bytes,
            np.nan if cost.descriptors is None else cost.descriptors,
            cost.threads,
            own.threads_abandoned,
            own.released,
        ]
        for values in (success, stuck, duration, age, interval):
            gauges[at : at + collectors] = values
            at += collectors
        counters = self._counters
        counters[0] = own.seq
        counters[1] = cost.processor_ns
        at = len(_OWN_COUNTERS)
        counters[at : at + collectors] = [runner.failures for runner in runners]
        counters[at + collectors : at + 2 * collectors] = [runner.processor_ns for runner in runners]
        return tier_ns, gauges.copy(), counters.copy(), self._valid.copy()

    def _write(self, place: _Place, sample: Sample | None) -> None:
        """Make the collector's columns show the sample, or nothing."""
        if sample is place.written:
            return
        if sample is None:
            self._gauges[place.gauges] = np.nan
            self._valid[place.counters] = False
        else:
            self._gauges[place.gauges] = sample.gauges
            self._counters[place.counters] = sample.counters
            self._valid[place.counters] = sample.counters_valid
        place.written = sample

    def _lay_out(self, runners: Sequence[Runner], samples: Sequence[Sample | None]) -> None:
        """Make a new layout where a collector came or left, or its block is another object than last time.

        A collector without a sample keeps the columns of its last block: they are absent, and the layout stands.
        """
        before = self._laid_out
        known = {} if before is None else {id(runner): block for runner, block in before}
        blocks: list[tuple[Runner, Block | None]] = []
        for runner, sample in zip(runners, samples, strict=True):
            blocks.append((runner, known.get(id(runner)) if sample is None else sample.block))
        if (
            before is not None
            and len(before) == len(blocks)
            and all(old[0] is new[0] and old[1] is new[1] for old, new in zip(before, blocks, strict=True))
        ):
            return
        self._laid_out = blocks
        tiers = [Tier(NODE_TIER, self._interval_seconds)]
        labels = [(("collector", runner.name),) for runner in runners]
        gauges = [self._info, *(Column(name) for name in _OWN_GAUGES)]
        gauges.extend(Column(name, label) for name in _COLLECTOR_GAUGES for label in labels)
        counters = [Column(name) for name in _OWN_COUNTERS]
        counters.extend(Column(name, label) for name in _COLLECTOR_COUNTERS for label in labels)
        own_counters = len(counters)
        places: list[_Place] = []
        for tier, (runner, block) in enumerate(blocks, 1):
            tiers.append(Tier(runner.name, runner.nominal_ns / 1e9))
            gauge_at, counter_at = len(gauges), len(counters)
            if block is not None:
                gauges.extend(msgspec.structs.replace(column, tier=tier) for column in block.gauge_columns)
                counters.extend(msgspec.structs.replace(column, tier=tier) for column in block.counter_columns)
            places.append(_Place(runner, slice(gauge_at, len(gauges)), slice(counter_at, len(counters))))
        self._places = places
        self.layout = make_layout(self._node, tiers, gauges, counters)
        self._gauges = np.full(len(gauges), np.nan, np.float64)
        self._gauges[0] = 1.0
        self._counters = np.zeros(len(counters), np.uint64)
        self._valid = np.zeros(len(counters), np.bool_)
        self._valid[:own_counters] = True
