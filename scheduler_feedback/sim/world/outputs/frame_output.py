"""Exact output of the simulated world: frames as the nodes' agents would send them, with the real metric names.

It is for small worlds, to test the product's path from feed to detectors. Every node has an agent with a
layout, monotonic integer counters, a sample time for each tier, step and open records, and a separate clock. Frames can
be lost, late or repeated; agents can restart and drivers can be reloaded, which resets counters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agent.schema.catalog import BY_NAME
from agent.schema.frame import (
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
    Tier,
    make_layout,
)
from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.block import Block
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.outputs.device_counters import Meter
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS, fault_events
from scheduler_feedback.sim.world.outputs.published_names import GENERATION, LANES, PUBLISHED, TIERS, WIDTHS, Labels


@dataclass(frozen=True, slots=True)
class Path:
    """Probabilities of errors in the delivery of frames. Each applies to every frame."""

    lost: float = 0.0
    """Probability that a frame is lost."""
    doubled: float = 0.0
    """Probability that a frame is sent twice."""
    late: float = 0.0
    """Probability that a frame arrives late."""
    late_seconds: float = 5.0
    """Longest delay of a late frame, in seconds."""
    restarted: float = 0.0
    """Probability that the agent restarts (another agent_id, sequence from 1)."""
    reloaded: float = 0.0
    """Probability that the GPU driver is reloaded, so that GPU counters start at zero."""


CLEAR = Path()

_Passed = tuple[list[tuple[Block, int]], tuple[Block, int] | None]
"""Steps that ended since the last frame, and the step in progress or None. Each step is (block, index of the step in
the block)."""

Sent = tuple[float, Layout, Frame]
"""A sent frame: (world seconds of its arrival, layout, frame)."""


@dataclass(slots=True)
class _Agent:
    """One node's agent: its ranks of each course, its layout, and its counter values."""

    name: str
    ranks: list[tuple[int, int]]
    layout: Layout
    gauges: list[tuple[int, int, int, float]]
    constants: list[float]
    counters: list[tuple[int, int, int, float]]
    totals: FloatArray
    clock: float
    agent_id: str
    tier_ns: FloatArray
    seq: int = 0
    record_seq: int = 0
    shown: tuple[FloatArray, FloatArray] | None = None
    due: dict[int, float] = field(default_factory=dict)


class FrameExit:
    """Simulated agents of all nodes with jobs. intervals: sampling seconds by tier (group of metrics); default 1.

    Jobs are simulated only as far as frames are requested.
    """

    def __init__(
        self,
        courses: Sequence[Course],
        seed: int,
        intervals: Mapping[str, float] | None = None,
        path: Path = CLEAR,
    ) -> None:
        self.random = np.random.default_rng([seed, 31])
        self.courses = list(courses)
        self.intervals = {tier: (intervals or {}).get(tier, 1.0) for tier in TIERS}
        self.path = path
        self.now = 0.0
        # Devices are sampled at the end of each second here, so that only the agent determines a node's phase.
        self._meters = [Meter(c, np.random.default_rng(self.random.integers(2**63)), 1.0) for c in self.courses]
        self._agents = [self._agent(node) for node in sorted({int(n) for c in self.courses for n in c.place.node})]

    def until(self, seconds: float) -> Iterator[Sent]:
        """Yield the frames that arrive until this simulated time, in order of arrival. Each node sends one frame per
        second.
        """
        waiting: list[tuple[float, int, Layout, Frame]] = []
        number = 0
        while self.now < seconds:
            before, self.now = self.now, self.now + 1.0
            for course in self.courses:
                course.advance_to(self.now + 0.1)
            windows = [meter.read(np.array([self.now]))[:, 0, :] for meter in self._meters]
            passed = [self._passed(course, before) for course in self.courses]
            events = self._fault_events(before)
            for agent in self._agents:
                for at, frame in self._send(agent, windows, passed, events.get(agent.name, [])):
                    heapq.heappush(waiting, (at, number, agent.layout, frame))
                    number += 1
            for course in self.courses:
                course.forget(self.now - 60.0)
            while waiting and waiting[0][0] <= self.now:
                at, _, layout, frame = heapq.heappop(waiting)
                yield at, layout, frame

    # --- agents -------------------------------------------------------------------------------------------------------

    def _agent(self, node: int) -> _Agent:
        name = f"node-{node:05d}"
        ranks = [
            (number, int(rank))
            for number, course in enumerate(self.courses)
            for rank in np.flatnonzero(course.place.node == node)
        ]
        gauge_columns: list[Column] = []
        counter_columns: list[Column] = []
        gauges: list[tuple[int, int, int, float]] = []
        constants: list[float] = []
        counters: list[tuple[int, int, int, float]] = []
        seen: set[tuple[str, Labels]] = set()
        for number, rank in ranks:
            course = self.courses[number]
            for series in PUBLISHED:
                metric = BY_NAME[series.metric]
                labels = tuple(sorted((*series.labels, *_of(course, rank, series.tier, series.metric))))
                if (series.metric, labels) in seen:
                    continue
                seen.add((series.metric, labels))
                column = Column(series.metric, labels, TIERS.index(series.tier), WIDTHS.get(series.metric, 64))
                if metric.kind == "counter":
                    counter_columns.append(column)
                    counters.append((number, rank, FEATURE[series.feature], series.share / metric.scale))
                else:
                    gauge_columns.append(column)
                    gauges.append((number, rank, FEATURE[series.feature], series.share))
        for number, rank in ranks:
            for column, value in _known(self.courses[number], rank):
                gauge_columns.append(column)
                constants.append(value)
        tiers = [Tier(tier, self.intervals[tier]) for tier in TIERS]
        layout = make_layout(name, tiers, gauge_columns, counter_columns)
        start = np.floor(self.random.uniform(1e3, 1e9, len(counters)))
        offset = float(self.random.uniform(1e3, 1e6))
        return _Agent(
            name, ranks, layout, gauges, constants, counters, start, offset, f"{name}-1", np.zeros(len(TIERS))
        )

    def _send(
        self, agent: _Agent, windows: list[FloatArray], passed: list[_Passed], events: list[EventRecord]
    ) -> list[tuple[float, Frame]]:
        if not any(self.courses[number].begin < self.now for number, _ in agent.ranks) or self._silent(agent):
            return []
        path, random = self.path, self.random
        if random.random() < path.restarted:
            generation = int(agent.agent_id.rpartition("-")[2]) + 1
            agent.agent_id, agent.seq, agent.record_seq = f"{agent.name}-{generation}", 0, 0
        if random.random() < path.reloaded:
            gpu = [self._tier(agent.layout.counters[i].tier) in ("gpu", "nvlink") for i in range(len(agent.counters))]
            agent.totals[gpu] = 0.0
        gauges, valid = self._sample(agent, windows)
        wall_ns = WALL_START_NS + round((self.now + self._clock_error(agent)) * NS)
        monotonic_ns = round((self.now + agent.clock) * NS)
        records = [*self._records(agent, passed), *events]
        agent.seq += 1
        shown, shown_valid = agent.shown if agent.shown is not None else (agent.totals, valid)
        frame = Frame(
            agent.name,
            f"boot-{agent.name}",
            agent.agent_id,
            agent.seq,
            agent.layout.layout_id,
            wall_ns,
            monotonic_ns,
            np.round(agent.tier_ns).astype(np.int64),
            gauges.astype(np.float64),
            _integers(shown, agent.layout),
            np.asarray(shown_valid, np.bool_),
            agent.record_seq,
            tuple(records),
        )
        agent.record_seq += len(records)
        if random.random() < path.lost:
            return []
        at = self.now + float(random.uniform(0.001, 0.05))
        if random.random() < path.late:
            at += float(random.uniform(0.0, path.late_seconds))
        sent = [(at, frame)]
        if random.random() < path.doubled:
            sent.append((at + float(random.uniform(0.0, 1.0)), frame))
        return sent

    def _tier(self, index: int) -> str:
        return TIERS[index]

    def _clock_error(self, agent: _Agent) -> float:
        """Return the error of the node's wall clock in seconds."""
        number, rank = agent.ranks[0]
        variation = self.courses[number].variation
        return 0.0 if variation is None else float(variation.clock_error(self.now)[rank])

    def _silent(self, agent: _Agent) -> bool:
        for course in self.courses:
            for fault in course.faults:
                lost = fault.disorder in ("agent-loss", "mass-loss") and fault.begin <= self.now < fault.end
                if lost and any(course.place.nodes[rank] == agent.name for rank in fault.ranks):
                    return True
        return False

    def _sample(self, agent: _Agent, windows: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Advance an agent's counters by one second. Return the gauge values, and for each counter whether it is
        valid."""
        advance = np.array([windows[n][f, r] * scale for n, r, f, scale in agent.counters])
        valid = np.isfinite(advance)
        agent.totals = agent.totals + np.where(valid, np.maximum(advance, 0.0), 0.0)
        values = np.full(len(agent.layout.gauges), np.nan)
        for index, (number, rank, row, scale) in enumerate(agent.gauges):
            values[index] = windows[number][row, rank] * scale
        values[len(agent.gauges) :] = agent.constants
        for number, rank in agent.ranks:
            for fault in self.courses[number].faults:
                if fault.disorder == "detachment" and rank in fault.ranks and self.now >= fault.begin:
                    gpu = self.courses[number].place.gpus[rank]
                    valid &= np.array([("gpu", gpu) not in column.labels for column in agent.layout.counters])
                    gone = [("gpu", gpu) in column.labels for column in agent.layout.gauges]
                    values[gone] = np.nan
        before = agent.shown
        shown, shown_valid = agent.totals.copy(), valid.copy()
        for tier, name in enumerate(TIERS):
            if self.now + 1e-9 >= agent.due.get(tier, 0.0):
                agent.due[tier] = self.now + self.intervals[name]
                agent.tier_ns[tier] = (self.now - 0.02 + agent.clock) * NS
            elif before is not None:
                held = np.array([column.tier == tier for column in agent.layout.counters], np.bool_)
                shown[held], shown_valid[held] = before[0][held], before[1][held]
        agent.shown = shown, shown_valid
        return values, valid

    def _records(self, agent: _Agent, passed: list[_Passed]) -> list[Record]:
        found: list[Record] = []
        for number, rank in agent.ranks:
            course, (finished, current) = self.courses[number], passed[number]
            member = Member(course.plan.name, 1, rank)
            for block, row in finished:
                begin_at, end_at = float(block.begin[row]), float(block.end[row])
                if block.own_begin is not None and block.own_end is not None:
                    begin_at, end_at = float(block.own_begin[row, rank]), float(block.own_end[row, rank])
                length = end_at - begin_at
                stall = float(block.stall[min(row, len(block.stall) - 1), rank])
                own = float(block.kernels[row, rank] + block.pause[row]) + stall
                wait_ns = round(min(max(length - own, 0.0), length) * NS) if course.plan.reports_waits else None
                tokens = squares = None
                if course.plan.reports_tokens:
                    tokens = round(course.plan.tokens if block.tokens is None else float(block.tokens[row, rank]))
                    squares = None if block.squares is None else round(float(block.squares[row, rank]))
                begin = round((begin_at + agent.clock) * NS)
                found.append(
                    StepRecord(member, block.first + row, begin, round(length * NS), wait_ns, tokens, 1, squares)
                )
            if current is not None:
                found += self._opened(course, rank, member, *current, agent.clock)
        return found

    def _opened(
        self, course: Course, rank: int, member: Member, block: Block, row: int, clock: float
    ) -> Iterator[OpenRecord]:
        begin, meet, step = float(block.begin[row]), float(block.meet[row]), block.first + row
        yield OpenRecord(member, "step", step, round((begin + clock) * NS))
        if block.hangs is not None and row == len(block) - 1 and block.hangs[1] == "compute":
            meet = begin + course.meeting * course.usual
            if rank == block.hangs[0]:
                return
        if self.now >= meet:
            yield OpenRecord(member, "collective", step, round((meet + clock) * NS))

    def _passed(self, course: Course, before: float) -> _Passed:
        """Return the steps that ended after `before`, and the step that is in progress now."""
        if not course.reports:
            return [], None
        ended = [
            (block, row)
            for block in course.blocks
            for row in np.flatnonzero((block.end > before) & (block.end <= self.now)).tolist()
        ]
        under_way = [
            (block, row)
            for block in course.blocks
            for row in np.flatnonzero((block.begin <= self.now) & (block.end > self.now)).tolist()
        ]
        return ended, under_way[0] if under_way else None

    def _fault_events(self, before: float) -> dict[str, list[EventRecord]]:
        found: dict[str, list[EventRecord]] = {}
        for course in self.courses:
            for fault in course.faults:
                for one in fault_events(course, fault, before, self.now):
                    found.setdefault(one.node, []).append(one.event)
        return found


def _of(course: Course, rank: int, tier: str, metric: str) -> Labels:
    """Return the labels that identify the rank's device in metrics of this tier, for example its GPU."""
    if metric == "gangwatch_pcie_link_lanes":
        return (("pci_address", _address(course, rank)),)
    if tier in ("gpu", "nvlink", "pcie"):
        return (("gpu", course.place.gpus[rank]),)
    if tier == "rdma":
        return (("device", course.place.nics[rank].rpartition("/")[2]), ("port", "1"))
    if tier == "process":
        return (("attempt", "1"), ("gang", course.plan.name), ("rank", str(rank)))
    return ()


def _known(course: Course, rank: int) -> list[tuple[Column, float]]:
    """Return the constant series of a rank with their values: its GPU, NIC, rail, coordinates and PCIe link."""
    place = course.place
    gpu, nic, local = place.gpus[rank], place.nics[rank].rpartition("/")[2], int(place.local[rank])
    pci = _address(course, rank)
    owner = {"attempt": "1", "gang": course.plan.name, "gpu": gpu, "rank": str(rank)}
    owner |= {"container": "", "mig": "", "namespace": "", "pod": "", "slurm_job": ""}
    info = {"driver": "", "gpu": gpu, "index": str(local), "mig_mode": "", "minor": str(local), "serial": ""}
    model = course.plan.model
    if course.variation is not None and course.traits.other_model is not None and course.variation.other[rank]:
        model = course.traits.other_model
    info |= {"model": model.name, "pci_address": pci, "vbios": ""}
    rail = {"distance": "1", "nic": nic, "nic_pci_address": "", "numa_node": "", "pci_address": pci}
    rail |= {"rail": str(int(place.rail[rank])), "switch": f"0000:{0x80 + local // 2:02x}:00.0"}
    stage, data, tensor = (int(axis[rank]) for axis in course.plan.coordinates())
    expert = (data * course.plan.tensor + tensor) % course.plan.expert if course.plan.expert > 1 else ""
    coordinates = {"attempt": "1", "gang": course.plan.name, "rank": str(rank), "expert": str(expert)}
    coordinates |= {"data": str(data), "stage": str(stage), "tensor": str(tensor)}
    link = (("pci_address", pci),)
    return [
        (Column("gangwatch_gpu_owner_info", tuple(sorted(owner.items())), TIERS.index("gpu")), 1.0),
        (Column("gangwatch_gpu_info", tuple(sorted(info.items())), TIERS.index("gpu")), 1.0),
        (Column("gangwatch_topology_rail_info", tuple(sorted(rail.items())), TIERS.index("pcie")), 1.0),
        (Column("gangwatch_rank_place_info", tuple(sorted(coordinates.items())), TIERS.index("process")), 1.0),
        (Column("gangwatch_pcie_link_generation", link, TIERS.index("pcie")), GENERATION),
        (Column("gangwatch_pcie_link_generation_maximum", link, TIERS.index("pcie")), GENERATION),
        (Column("gangwatch_pcie_link_lanes_maximum", link, TIERS.index("pcie")), LANES),
    ]


def _address(course: Course, rank: int) -> str:
    """Return the PCI address of the rank's GPU."""
    return f"0000:{0x10 + int(course.place.local[rank]):02x}:00.0"


def _integers(totals: FloatArray, layout: Layout) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Convert counter totals to integers. A counter with 32 bits starts at 0 again when it overflows."""
    whole = np.floor(totals)
    narrow = np.array([column.width == 32 for column in layout.counters], np.bool_)
    return np.where(narrow, whole % 2.0**32, whole).astype(np.uint64)
