"""The default policy with run time estimates from history does not use the true run time of a running job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event
from scheduler_feedback.core.state import FAIR_POLICY, Estimates, Policy, State
from scheduler_feedback.cycle import Outcome
from scheduler_feedback.sim.engine import Engine, Journal
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from tests import needs


class _Decisions(Journal):
    def __init__(self) -> None:
        self.all: list[tuple[int, Action]] = []

    def write(self, now_ns: int, events: Sequence[Event], outcome: Outcome, state: State) -> None:
        self.all += [(now_ns, action) for action in outcome.actions]


def _run(trace: Trace, policy: Policy) -> tuple[Engine, _Decisions]:
    decisions = _Decisions()
    engine = Simulation(trace, grid(8, 8), policy, restart_cost_seconds=300.0).engine(decisions)
    engine.run()
    return engine, decisions


_known: dict[Estimates, tuple[Engine, _Decisions]] = {}


def _undisturbed(trace: Trace, policy: Policy) -> tuple[Engine, _Decisions]:
    if policy.estimates not in _known:
        _known[policy.estimates] = _run(trace, policy)
    return _known[policy.estimates]


def _changed(trace: Trace, number: int, factor: float) -> Trace:
    jobs = list(trace.jobs)
    jobs[number] = replace(jobs[number], run_seconds=jobs[number].run_seconds * factor)
    return replace(trace, jobs=tuple(jobs))


def _first_difference(trace: Trace, policy: Policy, number: int, factor: float) -> tuple[int | None, int]:
    """Run the trace unchanged, and with the run time of job `number` multiplied by `factor`.

    Return the time of the first different decision (None: no difference), and the job's end in the run where it ends
    first.
    """
    one, before = _undisturbed(trace, policy)
    other, after = _run(_changed(trace, number, factor), policy)
    job_id = trace.jobs[number].job_id
    ends = min(engine.courses[job_id].ended_ns or 0 for engine in (one, other))
    assert ends > 0
    for (at, action), (at_other, action_other) in zip(before.all, after.all, strict=False):
        if (at, action) != (at_other, action_other):
            return min(at, at_other), ends
    return None, ends


@pytest.fixture(scope="module")
def trace() -> Trace:
    whole = read_trace(needs.data("jobs", "muri-trace3.csv"), "muri")
    return replace(whole, jobs=whole.jobs[:300]).scaled(3.0)


@pytest.mark.parametrize("number", [40, 120, 200])
@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_true_run_time_changes_no_decision_before_the_job_ends(trace: Trace, number: int, factor: float) -> None:
    first, ends = _first_difference(trace, FAIR_POLICY, number, factor)
    assert first is None or first >= ends


def test_clairvoyant_policy_is_detected(trace: Trace) -> None:
    seen = [
        first is not None and first < ends
        for number in (40, 120)
        for first, ends in [_first_difference(trace, replace(FAIR_POLICY, estimates=Estimates.EXACT), number, 3.0)]
    ]
    assert any(seen)
