"""Fast output of the simulated world: telemetry for detectors as arrays, tick by tick.

A world is a set of courses on one clock. Telemetry can get lost between devices and detectors: samples are missing or
late, agents restart and reset counters, records are late, and agents stop reporting. None of this is a fault of the
job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    FEATURES,
    Counters,
    JobTelemetry,
    NodeEvent,
    Shape,
    StepTable,
    Telemetry,
)
from scheduler_feedback.sim.world.arrays import FloatArray, IndexArray, IntArray
from scheduler_feedback.sim.world.block import Block
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.outputs.device_counters import Meter
from scheduler_feedback.sim.world.outputs.node_events import NS, USER_XIDS, WALL_START_NS, fault_events, xid

STEP_JITTER_SECONDS = 2e-4
"""Standard deviation, in seconds, of the random error with which a rank reports the end of a step."""

WAIT_NOISE = 0.004
"""Relative standard deviation of the random error of a wait that is measured with device events."""

RATES = np.array([feature.rate for feature in FEATURES])


@dataclass(frozen=True, slots=True)
class Delivery:
    """Probabilities that telemetry is lost or late, per node and window, or per step."""

    missing: float = 0.001
    """Probability that a window's sample is missing."""
    late: float = 0.001
    """Probability that a window's sample arrives too late."""
    reset: float = 1e-5
    """Probability that the node's counters are reset."""
    lost: float = 2e-4
    """Probability that a rank's record of a step is lost."""
    held: float = 0.002
    """Probability that the records of one job in one tick arrive late."""
    held_seconds: float = 8.0
    """Delay of late records in seconds; each delay is drawn from 0.3 to 2 times this value."""
    silent_per_day: float = 0.1
    """Number of outages of an agent per node and day (restart, upgrade)."""
    silent_seconds: float = 90.0
    """Length of an outage in seconds, in which a node sends nothing."""


PERFECT = Delivery(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
ROUGH = Delivery(missing=0.02, late=0.02, reset=1e-3, lost=0.01, held=0.02, silent_per_day=2.0)


@dataclass(slots=True)
class _Reported:
    """Output state of one job: the steps and collectives that are already reported, its placement and its counters."""

    course: Course
    shape: Shape
    meter: Meter
    reported: int = 0
    """Number of the newest reported step."""
    reported_end: float = -np.inf
    """End of the newest reported step, in seconds on the world's clock. After a restart, numbers repeat."""
    held_until: float = 0.0
    finished: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    entered: IntArray = field(default_factory=lambda: np.zeros((0, 3), np.int64))


def shape_of(course: Course, known_topology: bool = True) -> Shape:
    """Return the job's ranks with their nodes, GPUs, NICs and coordinates, and the resources that they share."""
    plan, place = course.plan, course.place
    stage, data, tensor = plan.coordinates()
    expert = (data * plan.tensor + tensor) % plan.expert if plan.expert > 1 else None
    sharing: dict[str, tuple[str, ...]] = {"host": place.nodes, "nic": place.nics}
    if known_topology:
        sharing["uplink"] = place.uplinks
        sharing["pcie_switch"] = tuple(
            f"{node}/pcie-{slot // 2}" for node, slot in zip(place.nodes, place.local.tolist(), strict=True)
        )
    return Shape(
        plan.name,
        1,
        np.arange(plan.gpus, dtype=np.int64),
        place.nodes,
        place.gpus,
        place.nics,
        data,
        stage,
        tensor,
        expert,
        place.rail,
        sharing,
        models_of(course),
    )


def models_of(course: Course) -> tuple[str, ...]:
    """Return the model of each rank's GPU."""
    usual, other = course.plan.model, course.traits.other_model
    if course.variation is None or other is None:
        return (usual.name,) * course.plan.gpus
    return tuple(other.name if differs else usual.name for differs in course.variation.other.tolist())


class World:
    """Simulated jobs on one clock, and their telemetry. sampling_seconds: interval between counter samples."""

    def __init__(
        self,
        courses: Sequence[Course],
        seed: int,
        sampling_seconds: float = 1.0,
        delivery: Delivery | None = None,
        known_topology: bool = True,
        steps_only: bool = False,
    ) -> None:
        self.random = np.random.default_rng([seed, 23])
        self.sampling_seconds = sampling_seconds
        self.delivery = Delivery() if delivery is None else delivery
        self.steps_only = steps_only
        self.known_topology = known_topology
        self.now = 0.0
        self._courses = list(courses)
        self._jobs: dict[str, _Reported] = {}
        self._outages: list[tuple[float, float, int]] = []
        self._announced: set[tuple[int, int]] = set()

    def add(self, course: Course) -> None:
        """Add a job to the world."""
        self._courses.append(course)

    @property
    def courses(self) -> Sequence[Course]:
        """All jobs, including ended jobs and jobs that have not begun."""
        return self._courses

    def tick(self, seconds: float) -> Telemetry:
        """Advance by `seconds` and return the new telemetry. Counter windows end at multiples of the sampling time."""
        before, self.now = self.now, self.now + seconds
        now_ns = WALL_START_NS + round(self.now * NS)
        alive = [c for c in self._courses if c.begin <= before and c.finish > before]
        for name in [name for name, job in self._jobs.items() if job.course not in alive]:
            del self._jobs[name]
        for course in alive:
            if course.plan.name not in self._jobs:
                meter = Meter(course, np.random.default_rng(self.random.integers(2**63)), self.sampling_seconds)
                self._jobs[course.plan.name] = _Reported(course, shape_of(course, self.known_topology), meter)
            course.advance_to(self.now)
        self._begin_outages(seconds)
        first, last = (int(np.floor(at / self.sampling_seconds + 1e-6)) for at in (before, self.now))
        ends = self.sampling_seconds * np.arange(first + 1, last + 1)
        jobs, tables = [], []
        received_ns: dict[str, int] = {}
        for job in self._jobs.values():
            quiet = self._quiet(job)
            jobs.append(self._job(job, quiet))
            tables.append(self._counters(job, ends))
            seen = self.now - 0.3
            for index, node in enumerate(job.meter.nodes.tolist()):
                since = quiet.get(index)
                received_ns[f"node-{node:05d}"] = WALL_START_NS + round((seen if since is None else since) * NS)
            job.course.forget(self.now - seconds - 4.0 * self.sampling_seconds - job.course.usual - 40.0)
        at_ns = WALL_START_NS + np.round(ends * NS).astype(np.int64)
        values = np.concatenate(tables, axis=2) if tables else np.zeros((len(FEATURES), len(ends), 0), np.float32)
        self._merge_shared(values)
        lags = [job.meter.phase[job.meter.node_of] for job in self._jobs.values()]
        lag = np.concatenate(lags).astype(np.float32) if lags else None
        counters = Counters(at_ns, self.sampling_seconds, values, lag)
        return Telemetry(now_ns, tuple(jobs), counters, tuple(self._events(before)), received_ns)

    # --- outages of agents --------------------------------------------------------------------------------------------

    def _begin_outages(self, seconds: float) -> None:
        self._outages = [s for s in self._outages if s[1] > self.now - 600.0]
        rate = self.delivery.silent_per_day
        nodes = [node for job in self._jobs.values() for node in job.meter.nodes.tolist()] if rate else []
        for _ in range(self.random.poisson(rate * len(nodes) * seconds / 86400.0) if nodes else 0):
            node = int(self.random.choice(nodes))
            length = self.delivery.silent_seconds * self.random.uniform(0.2, 3.0)
            self._outages.append((self.now, self.now + length, node))
        for course in self._courses:
            for fault in course.faults:
                key = id(course), id(fault)
                if (
                    fault.disorder in ("agent-loss", "mass-loss")
                    and fault.begin <= self.now
                    and key not in self._announced
                ):
                    self._announced.add(key)
                    lost = sorted(set(course.place.node[list(fault.ranks)].tolist()))
                    self._outages += [(fault.begin + self.random.uniform(0, 20.0), fault.end, node) for node in lost]

    def _quiet(self, job: _Reported) -> dict[int, float]:
        """Return the start of each agent outage in progress, by the node's index in ``Meter.nodes``."""
        index = {node: at for at, node in enumerate(job.meter.nodes.tolist())}
        return {index[n]: begin for begin, end, n in self._outages if n in index and begin <= self.now < end}

    # --- steps --------------------------------------------------------------------------------------------------------

    def _job(self, job: _Reported, quiet: dict[int, float]) -> JobTelemetry:
        course, shape = job.course, job.shape
        if not course.reports:
            return JobTelemetry(shape)
        delivery, random = self.delivery, self.random
        if random.random() < delivery.held:
            job.held_until = self.now + delivery.held_seconds * random.uniform(0.3, 2.0)
        until = self.now - 1.1 if self.now >= job.held_until else -1.0
        parts = []
        for block in course.blocks:
            rows = np.flatnonzero((block.end > job.reported_end) & (block.end <= until))
            if len(rows):
                parts.append(self._table(job, block, rows, quiet))
                job.reported, job.reported_end = block.first + int(rows[-1]), float(block.end[rows[-1]])
        steps = _joined(parts) if parts else _joined([self._table(job, course.blocks[0], np.zeros(0, np.intp), quiet)])
        opened, entered = self._open(job, quiet)
        if len(job.finished) != len(shape):
            job.finished = np.full(len(shape), -1, np.int64)
        if parts:
            job.finished = np.full(len(shape), job.reported, np.int64)
        return JobTelemetry(shape, steps, opened, entered, job.finished)

    def _table(self, job: _Reported, block: Block, rows: IndexArray, quiet: dict[int, float]) -> StepTable:
        course, random = job.course, self.random
        count, steps = course.plan.gpus, len(rows)
        length, end = (block.end - block.begin)[rows, None], block.end[rows, None]
        if block.own_begin is not None and block.own_end is not None:
            length, end = (block.own_end - block.own_begin)[rows], block.own_end[rows]
        seconds = length + STEP_JITTER_SECONDS * random.standard_normal((steps, count), dtype=np.float32)
        stall = block.stall if len(block.stall) == 1 else block.stall[rows]
        own = block.kernels[rows] + stall
        wait = np.maximum(length - block.pause[rows, None] - own, 0.0)
        wait = wait * (1.0 + WAIT_NOISE * random.standard_normal((steps, count), dtype=np.float32))
        if course.variation is not None:
            end = end + course.variation.clock_error(self.now)
        end_ns = WALL_START_NS + np.round(end * NS).astype(np.int64)
        end_ns = end_ns + (random.standard_normal((1, count), dtype=np.float32) * STEP_JITTER_SECONDS * NS).astype(
            np.int64
        )
        gone = random.random((steps, count), dtype=np.float32) < self.delivery.lost
        if quiet:
            silent = np.isin(job.meter.node_of, list(quiet))
            gone |= silent
        seconds[gone] = np.nan
        wait[gone if course.plan.reports_waits else slice(None)] = np.nan
        reports = course.plan.reports_tokens and block.tokens is not None
        tokens = block.tokens[rows].astype(np.float64) if reports and block.tokens is not None else None
        squares = block.squares[rows].astype(np.float64) if reports and block.squares is not None else None
        if course.plan.reports_tokens and tokens is None:
            tokens = np.full((steps, count), course.plan.tokens)
        for values in (tokens, squares):
            if values is not None:
                values[gone] = np.nan
        wait_seconds = np.minimum(wait, np.where(np.isnan(seconds), np.inf, seconds)).astype(np.float64)
        numbers = (block.first + rows).astype(np.int64)
        return StepTable(numbers, end_ns, seconds.astype(np.float64), wait_seconds, tokens, squares)

    def _open(self, job: _Reported, quiet: dict[int, float]) -> tuple[IntArray, IntArray]:
        """Return each rank's current step and last entered collective: two arrays [ranks, 3].

        Each row contains the step number, the start, and the time of the report in nanoseconds. Unknown values are -1.
        """
        course, count = job.course, job.course.plan.gpus
        if len(job.entered) != count:
            job.entered = np.full((count, 3), -1, np.int64)
        opened = np.full((count, 3), -1, np.int64)
        block = next((b for b in course.blocks if b.end[-1] > self.now), course.blocks[-1])
        if course.traits.restarts and (block.begin[0] > self.now or block.end[-1] <= self.now):  # it has crashed
            job.entered[:] = -1
            return opened, job.entered.copy()
        row = int(np.clip(np.searchsorted(block.begin, self.now, side="right") - 1, 0, len(block) - 1))
        begin, meet = float(block.begin[row]), float(block.meet[row])
        number = block.first + row
        now_ns = WALL_START_NS + round((self.now - 0.3) * NS)
        opened[:] = (number, WALL_START_NS + round(begin * NS), now_ns)
        if block.own_begin is not None and block.own_end is not None:
            own_row = np.minimum((block.own_end <= self.now).sum(axis=0), len(block) - 1)
            own_begin = block.own_begin[own_row, np.arange(count)]
            opened[:, 0] = block.first + own_row
            opened[:, 1] = WALL_START_NS + np.round(own_begin * NS).astype(np.int64)
        hang = block.hangs if row == len(block) - 1 else None
        arrival = begin + course.meeting * course.usual
        since = meet if hang is None or hang[1] == "transport" else arrival
        inside = np.full(count, self.now - 0.3 >= since)
        if hang is not None and hang[1] == "compute":
            inside[hang[0]] = False
        if quiet:
            silent = np.isin(job.meter.node_of, list(quiet))
            inside &= ~silent
            opened[silent, 2] = WALL_START_NS + round(min(quiet.values()) * NS)
        job.entered[inside] = (number, WALL_START_NS + round(since * NS), now_ns)
        entered = job.entered.copy()
        if course.variation is not None:
            error_ns = np.round(course.variation.clock_error(self.now) * NS).astype(np.int64)[:, None]
            opened[:, 1:] += error_ns
            entered[:, 1:] += np.where(entered[:, 1:] < 0, 0, error_ns)
        return opened, entered

    # --- counters -----------------------------------------------------------------------------------------------------

    def _counters(self, job: _Reported, ends: FloatArray) -> FloatArray:
        course, random, delivery = job.course, self.random, self.delivery
        if self.steps_only:
            return np.full((len(FEATURES), len(ends), course.plan.gpus), np.nan, np.float32)
        values = job.meter.read(ends)
        size = len(ends), len(job.meter.nodes)
        node_of = job.meter.node_of
        if delivery.missing or delivery.late:
            gone = random.random(size) < delivery.missing + delivery.late
            values[:, gone[:, node_of]] = np.nan
        if delivery.reset:
            restarted = (random.random(size) < delivery.reset)[:, node_of]
            if restarted.any():
                values[np.ix_(RATES)] = np.where(restarted, np.nan, values[RATES])
        for begin, end, node in self._outages:
            at = np.flatnonzero(job.meter.nodes == node)
            if len(at):
                values[:, ((ends >= begin) & (ends < end))[:, None] & (node_of == at[0])] = np.nan
        for fault in course.faults:
            if fault.disorder == "detachment" and self.now >= fault.begin:
                of_gpu = np.array([feature.of == "gpu" for feature in FEATURES])
                lost = np.ix_(of_gpu, ends >= fault.begin, np.asarray(fault.ranks, np.intp))
                values[lost] = np.nan
        return values

    def _merge_shared(self, values: FloatArray) -> None:
        """Merge counters of ranks that share a host or a NIC: the largest host value, and the sum of NIC values."""
        hosts: dict[str, list[int]] = {}
        nics: dict[str, list[int]] = {}
        base = 0
        jobs = list(self._jobs.values())
        shared = {node for node, times in _counted([h.meter.nodes for h in jobs]).items() if times > 1}
        for job in jobs:
            own = np.isin(job.course.place.node, list(shared)) if shared else np.zeros(0, bool)
            doubled = len(set(job.shape.nics)) < len(job.shape)
            for rank in np.flatnonzero(own).tolist() if not doubled else range(len(job.shape)):
                hosts.setdefault(job.shape.nodes[rank], []).append(base + rank)
                nics.setdefault(job.shape.nics[rank], []).append(base + rank)
            base += len(job.shape)
        for columns in hosts.values():
            for name in ("cpu_waiting", "io_waiting"):
                row = values[FEATURE[name]][:, columns]
                known = np.isfinite(row)
                most = np.max(np.where(known, row, -1.0), axis=1, keepdims=True)
                values[FEATURE[name]][:, columns] = np.where(most >= 0, most, np.nan)
        of_nic = [row for row, feature in enumerate(FEATURES) if feature.of == "nic"]
        for columns in (c for c in nics.values() if len(c) > 1):
            for row_of in of_nic:
                values[row_of][:, columns] = values[row_of][:, columns].sum(axis=1, keepdims=True)

    # --- events -------------------------------------------------------------------------------------------------------

    def _events(self, before: float) -> list[NodeEvent]:
        found = []
        for job in self._jobs.values():
            course = job.course
            for fault in course.faults:
                found += fault_events(course, fault, before, self.now)
            per_tick = 0.02 * course.plan.gpus * (self.now - before) / 86400.0
            for _ in range(self.random.poisson(per_tick)):
                rank = int(self.random.integers(course.plan.gpus))
                found.append(xid(course, rank, int(self.random.choice(USER_XIDS)), self.now))
        return found


def _counted(arrays: Sequence[IntArray]) -> dict[int, int]:
    """Return how often each number occurs in all arrays together."""
    if not arrays:
        return {}
    numbers, times = np.unique(np.concatenate(arrays), return_counts=True)
    return dict(zip(numbers.tolist(), times.tolist(), strict=True))


def _joined(parts: list[StepTable]) -> StepTable:
    if len(parts) == 1:
        return parts[0]
    tokens = [p.tokens for p in parts if p.tokens is not None]
    squares = [p.squares for p in parts if p.squares is not None]
    return StepTable(
        np.concatenate([p.number for p in parts]),
        np.concatenate([p.end_ns for p in parts]),
        np.concatenate([p.seconds for p in parts]),
        np.concatenate([p.wait_seconds for p in parts]),
        np.concatenate(tokens) if tokens else None,
        np.concatenate(squares) if squares else None,
    )
