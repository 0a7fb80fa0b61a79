"""Device counters of a job's steps: rates and gauges over the agents' sampling windows.

Bytes between stages and in tensor groups increase while a step computes, bytes between replicas during the gradient
exchange, and power during both. Each node's agent samples at a different time within the interval.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES
from scheduler_feedback.sim.world.arrays import FloatArray, IndexArray
from scheduler_feedback.sim.world.block import Block
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.physics.step_timing import local_replicas

TENSOR_PIPE = 0.7
"""Share of cycles in which the GPU's tensor pipe is busy during a large matrix product."""

COMPUTING_SMS, SPINNING_SMS = 0.96, 24 / 132
"""Share of a GPU's multiprocessors that are active: while it computes, and while a collective polls. A collective of
NCCL with 24 channels uses 24 of the 132 multiprocessors of an H100."""

MEMORY_BOUND_DRAM, PRODUCT_DRAM = 0.75, 0.30
"""Share of cycles in which device memory moves data: in memory-bound kernels, and in matrix products."""

CLOCK_STEP_HERTZ = 15e6
"""Difference between two adjacent GPU clock rates: 15 MHz (nvidia-smi -q -d SUPPORTED_CLOCKS)."""

CORES_PER_RANK = 1.6
"""Number of processors that one rank uses with its main thread, its proxy thread and its share of the input threads."""

COUNTS = (
    "memory_errors",
    "nvlink_errors",
    "pcie_errors",
    "nic_congestion",
    "nic_pause_received",
    "nic_pause_sent",
    "nic_physical_errors",
    "nic_sequence_errors",
)
"""Features that count single events. Their values in a window are Poisson-distributed."""


def standing(course: Course, random: np.random.Generator) -> dict[str, FloatArray]:
    """Return a healthy job's constant event rates per second: for each counter, an array with one rate per GPU."""
    count = course.plan.gpus
    few = random.random(count) < 0.01
    return {
        "memory_errors": np.where(random.random(count) < 0.002, 1e-3, 0.0),
        "nic_physical_errors": np.where(few, random.exponential(0.02, count), 0.0),
        "nic_congestion": random.lognormal(0.0, 1.0, count) * (1.0 + 20.0 * course.place.crosses),
        "nic_pause_received": np.where(random.random(count) < 0.05, random.exponential(0.5, count), 0.0),
        "pcie_errors": np.where(random.random(count) < 0.005, 1e-3, 0.0),
    }


class Meter:
    """Device counters of one job. phase: for each node, how many seconds before a window's end the agent samples."""

    def __init__(self, course: Course, random: np.random.Generator, seconds: float) -> None:
        self.course, self.random, self.seconds = course, random, seconds
        self.nodes, self.node_of = np.unique(course.place.node, return_inverse=True)
        self.phase = random.uniform(0.02, 0.9 * min(1.0, seconds), len(self.nodes))
        self._standing = standing(course, random)
        self._host = random.lognormal(-4.5, 0.5, len(self.nodes))

    def read(self, ends: FloatArray) -> FloatArray:
        """Return the counter values of the windows that end at these simulated times: float32 [features, windows,
        ranks].

        The course must have been advanced past the last window. Values before the job began are NaN.
        """
        course, windows, count = self.course, len(ends), self.course.plan.gpus
        found = np.full((len(FEATURES), windows, count), np.nan, np.float32)
        if not windows:
            return found
        times = np.concatenate([[ends[0] - self.seconds], ends])[:, None] - self.phase  # [windows + 1, nodes]
        blocks = [b for b in course.blocks if b.end[-1] > times.min() and b.begin[0] <= times.max()]
        if not blocks and course.traits.restarts:
            # After a crash, no step runs, but agents still sample the idle devices.
            blocks = [b for b in course.blocks if b.end[-1] <= times.min()][-1:]
        if not blocks:
            return found
        line = _Line(blocks, times)
        spread = line.spread(blocks, self.node_of)
        lasted = np.diff(times, axis=0)[:, self.node_of]
        kernels, products, stall = (np.diff(values, axis=0) / lasted for values in spread)
        paused = np.diff(line.paused, axis=0)[:, self.node_of] / lasted
        # The remaining time is polling. The driver itself samples averages, which adds sampling noise.
        spin = np.clip(1.0 - kernels - stall - paused, 0.0, 1.0)
        self._compute(found, line, blocks, kernels, products, spin)
        self._traffic(found, line, lasted)
        self._host_side(found, windows)
        self._counts(found, blocks, line, times)
        found[:, (times[:-1] < course.begin)[:, self.node_of]] = np.nan
        return found

    def _normal(self, sigma: float, windows: int) -> FloatArray:
        values = self.random.standard_normal((windows, self.course.plan.gpus), dtype=np.float32)
        values *= sigma
        return values

    def _compute(
        self,
        found: FloatArray,
        line: _Line,
        blocks: list[Block],
        kernels: FloatArray,
        products: FloatArray,
        spin: FloatArray,
    ) -> None:
        windows = found.shape[1]
        model, governor = self.course.plan.model, self.course.weather.governor
        found[FEATURE["sm_active"]] = COMPUTING_SMS * kernels + SPINNING_SMS * spin + self._normal(0.004, windows)
        found[FEATURE["tensor_active"]] = TENSOR_PIPE * products * (1.0 + self._normal(0.008, windows))
        bound = np.maximum(kernels - products, 0.0)
        found[FEATURE["dram_active"]] = MEMORY_BOUND_DRAM * bound + PRODUCT_DRAM * products
        index = line.index[1:]
        clock = line.pick(blocks, "clock", index, self.node_of)
        celsius = line.pick(blocks, "celsius", index, self.node_of)
        thermal = line.pick(blocks, "thermal", index, self.node_of)
        power = line.pick(blocks, "power", index, self.node_of)
        variation = self.course.variation
        boost = model.boost_hertz if variation is None else variation.boost_hertz
        hertz = boost * clock * (1.0 + self._normal(0.003, windows))
        found[FEATURE["sm_clock"]] = np.minimum(np.round(hertz / CLOCK_STEP_HERTZ) * CLOCK_STEP_HERTZ, boost)
        watts = governor.watts(clock, products + 0.6 * bound, spin)
        if variation is not None:
            watts = watts * variation.watts_share
        found[FEATURE["power"]] = watts * (1.0 + self._normal(0.015, windows))
        found[FEATURE["temperature"]] = np.round(celsius + self._normal(0.7, windows))
        found[FEATURE["thermal_throttle"]] = np.where(thermal > 0.003, np.minimum(1.0, kernels), 0.0)
        found[FEATURE["power_throttle"]] = np.where(power > 0.003, np.minimum(1.0, products), 0.0)

    def _traffic(self, found: FloatArray, line: _Line, lasted: FloatArray) -> None:
        plan = self.course.plan
        computing = np.diff(line.computing, axis=0)[:, self.node_of] / lasted  # steps' computing parts a second
        moving = np.diff(line.moving, axis=0)[:, self.node_of] / lasted
        around = 2.0 * (plan.tensor - 1) / plan.tensor * plan.tensor_bytes * 2.0 * plan.microbatches
        local = local_replicas(plan)
        replicas = 2.0 * (plan.data - 1) / plan.data * plan.data_bytes / local
        stage = plan.coordinates()[0]
        inner = 2.0 * (plan.chunks - 1) if plan.stages > 1 else 0.0
        hops = (stage > 0).astype(float) + (stage < plan.stages - 1) + inner
        between = plan.stage_bytes * plan.microbatches * hops
        gathered = 3.0 * plan.layers * plan.gathered_bytes * plan.microbatches  # twice parameters, once gradients
        if gathered:
            around += gathered * min(plan.per_node, plan.data)
            between = between + gathered * (plan.data > plan.per_node)
        exchanged = 2.0 * 3.0 * plan.exchange_bytes * plan.microbatches if plan.expert > plan.per_node else 0.0
        inside = replicas if local >= plan.data else 0.0
        found[FEATURE["nvlink_bytes"]] = computing * around + moving * inside
        sent = computing * (between + exchanged) + moving * (replicas - inside)
        found[FEATURE["nic_transmit_bytes"]] = sent * 1.02  # headers
        found[FEATURE["nic_receive_bytes"]] = sent * 1.02
        found[FEATURE["pcie_link"]] = 1.0

    def _host_side(self, found: FloatArray, windows: int) -> None:
        random = self.random
        busy = self._host * random.lognormal(0.0, 0.4, (windows, len(self.nodes)))
        found[FEATURE["cpu_waiting"]] = np.minimum(busy, 0.5)[:, self.node_of]
        found[FEATURE["io_waiting"]] = np.minimum(0.1 * self._host * random.lognormal(0.0, 0.8, busy.shape), 0.5)[
            :, self.node_of
        ]
        found[FEATURE["runqueue_wait"]] = (0.3 * busy)[:, self.node_of] * (1.0 + np.abs(self._normal(0.3, windows)))
        found[FEATURE["processor"]] = CORES_PER_RANK * (1.0 + self._normal(0.04, windows))

    def _counts(self, found: FloatArray, blocks: list[Block], line: _Line, times: FloatArray) -> None:
        windows = found.shape[1]
        for name in COUNTS:
            rate = self._standing.get(name)
            found[FEATURE[name]] = 0.0
            if rate is not None:
                own = np.flatnonzero(rate)
                found[FEATURE[name]][:, own] = np.broadcast_to(rate[own], (windows, len(own)))
        lasted = np.diff(times, axis=0)
        offset = 0
        for block in blocks:
            rows = np.arange(offset, offset + len(block))
            for signal in block.signals:
                if signal.feature not in FEATURE or not len(signal.ranks):
                    continue
                target = found[FEATURE[signal.feature]]
                nodes = self.node_of[signal.ranks]
                if signal.adds:
                    values = np.zeros(len(line.begin))
                    values[rows] = signal.values
                    target[:, signal.ranks] += (np.diff(line.integral(values, times), axis=0) / lasted)[:, nodes]
                else:
                    chosen = np.full(len(line.begin), np.nan)
                    chosen[rows] = signal.values
                    now = chosen[line.index[1:]][:, nodes]
                    target[:, signal.ranks] = np.where(np.isnan(now), target[:, signal.ranks], now)
            offset += len(block)
        for name in COUNTS:
            target = found[FEATURE[name]]
            some = target > 0
            if some.any():
                target[some] = self.random.poisson(np.minimum(target[some] * self.seconds, 1e12)) / self.seconds
        for name, most in (("cpu_waiting", 0.98), ("io_waiting", 0.98)):
            np.minimum(found[FEATURE[name]], most, out=found[FEATURE[name]])


class _Line:
    """Consecutive steps of a job on one time line, and the step in which each counter sample was taken.

    All these arrays have the shape of the sample times, [windows, nodes]. index: position, on the time line, of the
    step in which the sample was taken. computing: number of steps whose computing has ended by then, plus the finished
    share of the current step's computing. moving: number of gradient exchanges that have ended by then, plus the
    finished share of the current one. paused: seconds of saving, and of no steps after a crash, before the sample.
    """

    def __init__(self, blocks: list[Block], times: FloatArray) -> None:
        self.begin = np.concatenate([b.begin for b in blocks])
        self.meet = np.concatenate([b.meet for b in blocks])
        self.end = np.concatenate([b.end for b in blocks])
        pause = np.concatenate([b.pause for b in blocks])
        self.index = np.clip(np.searchsorted(self.begin, times, side="right") - 1, 0, len(self.begin) - 1)
        begin, meet, end = self.begin[self.index], self.meet[self.index], self.end[self.index]
        rest = end - pause[self.index]
        self.part = np.clip((times - begin) / np.maximum(meet - begin, 1e-9), 0.0, 1.0)
        self.computing = self.index + self.part
        exchanges = np.concatenate([np.ones(len(b)) if b.exchanges is None else b.exchanges for b in blocks])
        exchanged = np.concatenate([[0.0], np.cumsum(exchanges)])
        part = np.clip((times - meet) / np.maximum(rest - meet, 1e-9), 0.0, 1.0)
        self.moving = exchanged[self.index] + exchanges[self.index] * part
        idle = pause + np.append(self.begin[1:] - self.end[:-1], max(float(times.max() - self.end[-1]), 0.0))
        before = np.concatenate([[0.0], np.cumsum(idle)])
        earlier = np.minimum(times - self.begin[0], 0.0)
        self.paused = before[self.index] + np.clip(times - rest, 0.0, idle[self.index]) + earlier

    def integral(self, values: FloatArray, times: FloatArray) -> FloatArray:
        """Return the integral of a quantity from the first step up to each sample. `values`: its value in each step."""
        lasted = np.minimum(self.end - self.begin, 1e6)
        before = np.concatenate([[0.0], np.cumsum(values * lasted)])
        inside = np.clip(times - self.begin[self.index], 0.0, lasted[self.index])
        found: FloatArray = before[self.index] + values[self.index] * inside
        return found

    def spread(self, blocks: list[Block], node_of: IndexArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the seconds of kernels, matrix products and stalls up to each sample: [samples, ranks] each."""
        index, part = self.index[:, node_of], self.part[:, node_of].astype(np.float32)
        ranks = np.arange(index.shape[1])
        found = []
        for name in ("kernels", "products", "stall"):
            rows = [_all_rows(getattr(block, name), len(block)) for block in blocks]
            if name == "stall" and not any(values.any() for values in rows):
                found.append(np.zeros(index.shape, np.float32))
                continue
            values = rows[0] if len(rows) == 1 else np.concatenate(rows)
            before = np.zeros((len(values) + 1, values.shape[1]), np.float32)
            np.cumsum(values, axis=0, out=before[1:])
            found.append(before[index, ranks] + values[index, ranks] * part)
        return found[0], found[1], found[2]

    def pick(self, blocks: list[Block], name: str, index: IndexArray, node_of: IndexArray) -> FloatArray:
        """Return the value of the field `name` for each sample, from the sample's block or step: [samples, ranks]."""
        first = np.cumsum([0] + [len(block) for block in blocks])
        if all(np.ndim(getattr(block, name)) == 1 or len(getattr(block, name)) == 1 for block in blocks):
            table = np.stack([getattr(block, name).reshape(-1) for block in blocks])
            if len(blocks) == 1:
                return np.broadcast_to(table, (len(index), table.shape[1]))
            return table[np.searchsorted(first, index[:, node_of], side="right") - 1, np.arange(table.shape[1])]
        values = np.concatenate([_all_rows(getattr(block, name), len(block)) for block in blocks])
        return values[index[:, node_of], np.arange(values.shape[1])]


def _all_rows(values: FloatArray, steps: int) -> FloatArray:
    return values if len(values) == steps else np.broadcast_to(values, (steps, values.shape[-1]))
