"""Device memory of ranks: read from frames, and reported after the first steps and after growth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from agent.schema.frame import Column, Frame, Layout, Member, StepRecord, Tier, make_layout
from scheduler_feedback.core.events import MemoryMeasured
from scheduler_feedback.core.telemetry.device_memory import MEMORY, OWNER
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.steps.memory_reports import EVERY_NS, MemoryReports
from scheduler_feedback.core.telemetry.steps.speed_reports import WARM_STEPS
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters

SECOND, MIB = 1_000_000_000, 1 << 20
GANG = "j-000001"

Process = tuple[str, str, int]
"""(GPU, pid, rank that owns the process; -1: unknown)."""


def layout_of(processes: Mapping[Process, float]) -> Layout:
    gauges = [Column("gangwatch_rank_memory_resident_bytes", (("attempt", "1"), ("gang", GANG), ("rank", "0")), 0)]
    gauges += [Column(MEMORY, (("gpu", gpu), ("mig", ""), ("pid", pid)), 0) for gpu, pid, _ in processes]
    for gpu, pid, rank in processes:
        labels = {"gpu": gpu, "mig": "", "pid": pid, "attempt": "1", "gang": GANG, "rank": str(rank), "pod": ""}
        if rank >= 0:
            gauges.append(Column(OWNER, tuple(sorted(labels.items())), 0))
    return make_layout("n0", (Tier("gpu-processes", 15.0),), gauges, ())


class Reported:
    """Fleet with one gang of two ranks on one node."""

    def __init__(self) -> None:
        self.fleet, self.seq = Fleet(), 1
        layout = make_layout("steps", (Tier("steps", 1.0),), (), ())
        records = tuple(StepRecord(Member(GANG, 1, rank), 1, SECOND - 10, 10, 0) for rank in range(2))
        self._take(layout, np.zeros(0), records)
        for rank in range(2):
            self.fleet.gangs[GANG].column(rank, "n0")

    def report(self, processes: Mapping[Process, float]) -> list[float]:
        layout = layout_of(processes)
        ones = np.ones(len(layout.gauges) - 1 - len(processes))
        self.seq += 1
        self._take(layout, np.concatenate([[9e9], list(processes.values()), ones]), ())
        found: list[float] = self.fleet.device_memory(self.fleet.gangs[GANG]).tolist()
        return found

    def _take(self, layout: Layout, gauges: np.ndarray, records: tuple[StepRecord, ...]) -> None:
        at = self.seq * SECOND
        frame = Frame(
            layout.node, "b", layout.node, self.seq, layout.layout_id, at, at, np.array([at], np.int64), gauges,
            np.zeros(0, np.uint64), np.zeros(0, np.bool_), 0, records,
        )  # fmt: skip
        assert self.fleet.observe(layout, frame, at)


def test_the_largest_device_of_a_rank_counts_and_memory_of_the_host_does_not() -> None:
    reported = Reported()
    nan = float("nan")
    assert reported.report({}) == pytest.approx([nan, nan], nan_ok=True)
    used = {("a", "7", 0): 100.0, ("a", "8", 0): 50.0, ("b", "7", 0): 120.0, ("b", "9", -1): 500.0}
    assert reported.report(used) == pytest.approx([150.0, nan], nan_ok=True)
    assert reported.report({("a", "7", 1): 70.0}) == pytest.approx([nan, 70.0], nan_ok=True)
    assert {MEMORY, OWNER} <= set(WANTED)


class Training:
    """A gang of two ranks that make steps and use memory."""

    def __init__(self) -> None:
        self.reports, self.now_ns = MemoryReports(), 0

    def tick(self, steps: int, *mib: float, attempt: int = 1, seconds: float = 15.0) -> list[int]:
        self.now_ns += round(seconds * SECOND)
        shape = Shape("j-1", attempt, np.arange(2), ("n0", "n1"))
        none = np.zeros((steps, 2))
        table = StepTable(np.arange(steps), np.zeros((steps, 2), np.int64), none, none)
        job = JobTelemetry(shape, table, device_memory=lambda: np.array(mib) * MIB)
        found = self.reports.take(Telemetry(self.now_ns, (job,), no_counters(2)))
        assert all(one == MemoryMeasured("j-1", attempt, one.mib) for one in found)
        return [one.mib for one in found]


def test_a_report_follows_the_first_steps_and_growth() -> None:
    training, nan = Training(), float("nan")
    assert training.tick(WARM_STEPS - 1, 900.0, 1000.0) == []
    assert training.tick(1, 900.0, 1000.0) == [1000]
    assert training.tick(1, 1049.0, 10.0) == [] and training.tick(1, 1050.0, nan) == [1050]
    assert training.tick(1, nan, nan) == []
    assert training.tick(1, 2000.0, 10.0, seconds=EVERY_NS / 2 / SECOND) == [], "it was evaluated just now"
    assert training.tick(0, 2000.2, 10.0) == [2001]
    assert training.tick(WARM_STEPS, 100.0, 50.0, attempt=2) == [100]
    assert training.tick(0, 63.0, 50.0, attempt=3) == [] and training.tick(WARM_STEPS, 63.0, 50.0, attempt=3) == []


def test_a_gang_that_has_left_is_forgotten() -> None:
    training = Training()
    assert training.tick(WARM_STEPS, 100.0, 100.0) == [100]
    assert training.reports.take(Telemetry(0, (), no_counters(0))) == []
    assert training.tick(0, 200.0, 100.0) == []
