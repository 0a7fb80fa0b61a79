"""A slow node has one verdict, not one for each rank. It is cleared when all ranks run at normal speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.straggler import Reported, watch
from scheduler_feedback.core.verdict import Cause, Cleared, Verdict
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement
from scheduler_feedback.detectors.straggler.gang_state import ActiveVerdict
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.detectors.straggler.verdict_building import says_more
from scheduler_feedback.sim.world.processes.gang import Gang, frames, happen
from tests.detectors.alone import Alone, alone

EIGHT = range(8, 16)
SLOW = dict.fromkeys(EIGHT, (25.0, 70.0, 1.4))
NODE = Gang(ranks=32, ranks_per_node=8, shared_machine=False, slower=SLOW)
"""The second of four nodes."""


def course(gang: Gang, seconds: float, detector: Alone | None = None, seed: int = 8101) -> list[Reported]:
    return watch(
        detector or alone(StragglerDetector()), [frames(gang, happen(gang, seconds, seed), seed, until=seconds)]
    )


def verdicts(results: list[Reported]) -> list[Verdict]:
    return [item.finding for item in results if isinstance(item.finding, Verdict)]


@pytest.mark.parametrize("seed", [8101, 8102])
def test_a_slow_node_is_reported_once(seed: int) -> None:
    results = course(NODE, 110.0, seed=seed)
    reported = verdicts(results)
    assert {verdict.node for verdict in reported} == {"n1"}
    # One rank may be reported before the others alarm; the next verdict is then on the node.
    assert len({verdict.verdict_id for verdict in reported}) <= 2
    assert reported[-1].level == "node"
    assert set(reported[-1].ranks) <= set(EIGHT)
    cleared = [item for item in results if isinstance(item.finding, Cleared)]
    assert {item.finding.verdict_id for item in cleared if isinstance(item.finding, Cleared)} == {
        verdict.verdict_id for verdict in reported
    }


def test_a_node_verdict_is_active_until_all_ranks_run_at_normal_speed() -> None:
    longer = SLOW | dict.fromkeys(range(12, 16), (25.0, 120.0, 1.4))
    results = course(replace(NODE, slower=longer), 160.0)
    of_node = {verdict.verdict_id for verdict in verdicts(results) if verdict.level == "node"}
    ends = [
        item.at_seconds for item in results if isinstance(item.finding, Cleared) and item.finding.verdict_id in of_node
    ]
    assert max(ends) > 120.0
    assert len({verdict.verdict_id for verdict in verdicts(results)}) <= 2, (
        "ranks that stay slow are not reported again"
    )


def test_slow_ranks_of_another_node_are_reported_as_well() -> None:
    results = course(replace(NODE, slower=SLOW | {30: (50.0, 90.0, 2.0)}), 80.0)
    assert {verdict.node for verdict in verdicts(results)} == {"n1", "n3"}


def test_a_node_verdict_survives_a_restart_of_the_controller() -> None:
    history = happen(NODE, 68.0, 8101)
    sent = list(frames(NODE, history, 8101, until=68.0))
    before, after = alone(StragglerDetector()), alone(StragglerDetector())
    first = watch(before, [iter([item for item in sent if item[0] <= 50.0])])
    after.restore(before.snapshot())
    assert after.snapshot() == before.snapshot()
    later = watch(after, [iter([item for item in sent if item[0] > 50.0])], start_seconds=50.0)
    reported = {verdict.verdict_id for verdict in verdicts(first)}
    assert reported
    assert {verdict.verdict_id for verdict in verdicts(later)} <= reported


@pytest.mark.parametrize(
    ("cause", "confidence", "own", "more"),
    [
        (Cause.CPU_CONTENTION, 0.95, False, False),
        (Cause.UNKNOWN, 0.99, False, False),
        (Cause.THERMAL, 0.95, False, True),  # one of its GPUs has a separate cause
        (Cause.THERMAL, 0.95, True, False),  # the verdict on the rank itself is final
    ],
)
def test_a_fault_of_a_part_is_reported_besides_its_nodes_cause(
    cause: Cause, confidence: float, own: bool, more: bool
) -> None:
    of_node = ActiveVerdict("v", 0, 0.95, reported_cause=True, node="n1", cause=Cause.CPU_CONTENTION)
    judgement = Judgement(3, 1.4, 0.1, cause, confidence, (), counters=True)
    assert says_more(of_node, judgement, own) is more
