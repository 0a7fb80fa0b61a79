"""Kernel states of each rank's processes, read from frames, and ranks that are missing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from agent.schema.frame import Column, Frame, Layout, Member, StepRecord, Tier, make_layout
from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.process_states import METRIC
from scheduler_feedback.core.telemetry.telemetry import UNKNOWN_STATE

SECOND = 1_000_000_000
GANG = "j-000001"
RUNNING, STOPPED, GONE = int(ProcessState.RUNNING), int(ProcessState.STOPPED), int(ProcessState.GONE)


def layout_of(node: str, reported: Mapping[tuple[str, int, int], float]) -> Layout:
    """Return a layout with one state gauge for each (gang, attempt, rank), and another gauge before them."""
    gauges = [Column("gangwatch_host_load1", (), 0)]
    gauges += [
        Column(METRIC, (("attempt", str(attempt)), ("gang", gang), ("rank", str(rank))), 0)
        for gang, attempt, rank in reported
    ]
    return make_layout(node, (Tier("process", 1.0),), gauges, ())


class ReportedStates:
    """Fleet with one node whose agent reports process states."""

    def __init__(self, ranks: int = 3, attempt: int = 1) -> None:
        self.fleet, self.seq = Fleet(), 0
        self.begin(attempt, ranks)

    def begin(self, attempt: int, ranks: int) -> None:
        """Start the gang: every rank makes a step in the attempt."""
        layout = make_layout("steps", (Tier("steps", 1.0),), (), ())
        self.seq += 1
        at = self.seq * SECOND
        records = tuple(StepRecord(Member(GANG, attempt, rank), 1, at - 10, 10, 0) for rank in range(ranks))
        self._take(layout, np.zeros(0), records, agent=str(self.seq))
        gang = self.fleet.gangs[GANG]
        for rank in range(ranks):
            gang.column(rank, "n0")

    def report(self, reported: Mapping[tuple[str, int, int], float]) -> list[int]:
        """Send one frame with the states of these (gang, attempt, rank). Return the fleet's states of the gang's
        ranks."""
        self.seq += 1
        self._take(layout_of("n0", reported), np.array([9.0, *reported.values()]), ())
        return self.states()

    def states(self) -> list[int]:
        found: list[int] = self.fleet.process_states(self.fleet.gangs[GANG]).tolist()
        return found

    def _take(self, layout: Layout, gauges: np.ndarray, records: tuple[StepRecord, ...], agent: str = "a") -> None:
        at = self.seq * SECOND
        frame = Frame(
            layout.node, "b", agent, self.seq, layout.layout_id, at, at, np.array([at], np.int64), gauges,
            np.zeros(0, np.uint64), np.zeros(0, np.bool_), 0, records,
        )  # fmt: skip
        assert self.fleet.observe(layout, frame, at)


def of(*ranks: int, attempt: int = 1, state: float = RUNNING) -> dict[tuple[str, int, int], float]:
    return {(GANG, attempt, rank): state for rank in ranks}


def test_each_rank_has_the_state_of_the_newest_frame() -> None:
    reported = ReportedStates()
    assert reported.states() == [UNKNOWN_STATE] * 3, "nothing is reported yet"
    assert reported.report(of(0, 1, 2)) == [RUNNING] * 3
    assert reported.report({**of(2, 0), **of(1, state=STOPPED)}) == [RUNNING, STOPPED, RUNNING], "in any order"
    assert reported.report(of(0, 1, 2)) == [RUNNING] * 3, "the process continues"


def test_a_rank_that_is_no_longer_reported_is_gone_until_it_is_reported_again() -> None:
    reported = ReportedStates()
    reported.report(of(0, 1, 2))
    assert reported.report(of(0, 2)) == [RUNNING, GONE, RUNNING]
    assert reported.report(of(0)) == [RUNNING, GONE, GONE]
    assert reported.report({}) == [GONE] * 3
    assert reported.report({("another", 1, 0): RUNNING}) == [GONE] * 3, "a new layout does not bring a rank back"
    assert reported.report(of(0, 1, 2)) == [RUNNING] * 3


def test_a_rank_that_was_never_reported_is_not_gone() -> None:
    reported = ReportedStates()
    assert reported.report(of(0)) == [RUNNING, UNKNOWN_STATE, UNKNOWN_STATE]
    assert reported.report(of(0, 1)) == [RUNNING, RUNNING, UNKNOWN_STATE]


def test_states_of_an_earlier_attempt_or_another_gang_are_dropped() -> None:
    reported = ReportedStates()
    reported.report({**of(0, 1, 2), ("another", 1, 1): STOPPED})
    reported.begin(2, 3)
    assert reported.states() == [UNKNOWN_STATE] * 3, "states of the previous attempt do not apply to this one"
    assert reported.report(of(0, attempt=2)) == [RUNNING, UNKNOWN_STATE, UNKNOWN_STATE]
    [states] = reported.fleet._states.values()
    assert not states.gone, "memory holds none of them"


@pytest.mark.parametrize("value", [np.nan, -1.0, float(len(ProcessState)), 1e9])
def test_an_invalid_state_is_unknown(value: float) -> None:
    assert ReportedStates().report(of(0, 1, 2, state=value)) == [UNKNOWN_STATE] * 3


@pytest.mark.parametrize("labels", [{}, {"gang": GANG}, {"gang": GANG, "attempt": "x", "rank": "0"}])
def test_a_gauge_without_a_rank_is_ignored(labels: dict[str, str]) -> None:
    reported = ReportedStates()
    layout = make_layout("n0", (Tier("process", 1.0),), [Column(METRIC, tuple(sorted(labels.items())), 0)], ())
    reported.seq += 1
    reported._take(layout, np.array([float(STOPPED)]), ())
    assert reported.states() == [UNKNOWN_STATE] * 3
