"""Ranks that process the same samples are slow together: a rank that is only slow with all of them is not faulty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Abstention, Cause, Finding, Verdict
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from tests.detectors.alone import alone

START_NS = 1_700_000_000_000_000_000
STEP_SECONDS = 2.0
DATA, TENSOR = 8, 4
ONSET = 60

Slow = Callable[[int, Shape], np.ndarray]


def shape(stages: int, replicas_a_node: int = 1) -> Shape:
    stage, data, tensor = np.indices((stages, DATA, TENSOR)).reshape(3, -1)
    nodes = tuple(f"n{s}-{d // replicas_a_node}" for s, d in zip(stage.tolist(), data.tolist(), strict=True))
    return Shape("j", 1, np.arange(len(data)), nodes, data=data, stage=stage, tensor=tensor)


def findings(
    stages: int,
    slow: Slow,
    steps: int = 90,
    varies: float = 0.0,
    reports_tokens: bool = False,
    replicas_a_node: int = 1,
    silent: str = "",
) -> list[Finding]:
    """Return the results for a job, with one window for each step.

    varies: standard deviation of the replicas' work. silent: node that does not report after the slowness begins.
    """
    random = np.random.default_rng(5)
    job, detector = shape(stages, replicas_a_node), alone(StragglerDetector())
    found: list[Finding] = []
    end_ns = START_NS
    for number in range(steps):
        given = np.exp(varies * random.standard_normal(DATA))[job.data]
        own = STEP_SECONDS * given * random.normal(1.0, 0.006, len(job)) * slow(number, job)
        seconds = np.full((1, len(job)), own.max() + 0.3)
        end_ns += round(float(seconds[0, 0]) * 1e9)
        if number >= ONSET:
            seconds[0, np.array(job.nodes) == silent] = np.nan
        ends = np.full((1, len(job)), end_ns)
        tokens = 1000.0 * given[None] if reports_tokens else None
        table = StepTable(np.array([number]), ends, seconds, seconds - own, tokens, tokens)
        found += detector.tick(Telemetry(end_ns, (JobTelemetry(job, table),), no_counters(len(job))))
    return found


def reported(found: list[Finding]) -> list[Verdict]:
    return [one for one in found if isinstance(one, Verdict)]


def whole_replica(number: int, job: Shape, last: int = ONSET + 6, by: float = 1.6) -> np.ndarray:
    assert job.data is not None
    return np.where((job.data == 3) & (ONSET <= number < last), by, 1.0)


def one_rank(number: int, job: Shape) -> np.ndarray:
    return np.where((job.ranks == 13) & (number >= ONSET), 1.6, 1.0)


def test_a_slow_replica_on_several_nodes_is_one_abstention() -> None:
    found = findings(2, whole_replica)
    assert not reported(found)
    (reason,) = [one.reason for one in found if isinstance(one, Abstention) and one.rank is not None]
    assert "all 8 ranks that process the same samples are equally slow, on 2 nodes" in reason


def test_a_stale_rank_of_the_replica_is_no_evidence_for_even_samples() -> None:
    assert not reported(findings(2, whole_replica, varies=0.08, silent="n1-3"))


def test_a_rank_slower_than_its_replica_is_accused() -> None:
    for varies in (0.0, 0.08):
        assert {verdict.rank for verdict in reported(findings(2, one_rank, varies=varies))} == {13}


def test_a_replica_on_one_node_accuses_it_only_with_even_or_reported_lengths() -> None:
    def lasting(number: int, job: Shape) -> np.ndarray:
        return whole_replica(number, job, last=10_000)

    assert {verdict.rank for verdict in reported(findings(1, lasting))} & {12, 13, 14, 15}
    assert {verdict.node for verdict in reported(findings(1, lasting))} == {"n0-3"}
    assert reported(findings(1, lasting, varies=0.08, reports_tokens=True))
    untold = findings(1, whole_replica, varies=0.08)
    assert not reported(untold)
    (reason,) = [one.reason for one in untold if isinstance(one, Abstention) and one.rank is not None]
    assert "sequence lengths are not reported" in reason


@pytest.mark.parametrize(("windows", "accused"), [(12, set()), (36, {"n0-1"})])
def test_a_node_with_only_slow_replicas_is_at_fault_if_it_stays_slow(windows: int, accused: set[str]) -> None:
    """A stall of the node's data loader looks the same until it ends: NODE_WINDOWS."""

    def whole_node(number: int, job: Shape) -> np.ndarray:
        return np.where((np.array(job.nodes) == "n0-1") & (ONSET <= number < ONSET + windows), 1.6, 1.0)

    found = reported(findings(1, whole_node, varies=0.08, replicas_a_node=2))
    assert {verdict.node for verdict in found} == accused


def test_an_episode_far_longer_than_earlier_ones_is_not_chance() -> None:
    found = reported(findings(1, lambda number, job: whole_replica(number, job, 10_000), steps=260, varies=0.08))
    assert found and {verdict.node for verdict in found} == {"n0-3"}
    assert {verdict.cause for verdict in found} == {Cause.UNKNOWN}
    first = min(verdict.detected_step for verdict in found)
    assert first >= ONSET + 24, "three times as long as any earlier episode, of at least eight windows"


def next_to_a_culprit(by: float) -> Slow:
    """Return a slowdown: rank 13 takes 1.6 times as long; later rank 22 of the same stage takes slightly longer too."""

    def slow(number: int, job: Shape) -> np.ndarray:
        late = np.where((job.ranks == 22) & (number >= ONSET + 12), by, 1.0)
        return one_rank(number, job) * late

    return slow


def test_the_cost_of_an_accused_rank_is_not_attributed_to_another() -> None:
    # Without both ranks the steps would be shorter by a factor of 1.6; without the second alone, by four per cent.
    assert {verdict.rank for verdict in reported(findings(3, next_to_a_culprit(1.05)))} == {13}
    assert {verdict.rank for verdict in reported(findings(3, next_to_a_culprit(1.3)))} == {13, 22}


def test_the_cost_of_a_suspected_rank_is_not_attributed_to_another() -> None:
    def slow(number: int, job: Shape) -> np.ndarray:
        # Both alarm in one window; the rank judged first, by number, costs four per cent on its own.
        lesser = np.where((job.ranks == 5) & (number >= ONSET - 10), 1.05, 1.0)
        return one_rank(number, job) * lesser

    assert {verdict.rank for verdict in reported(findings(3, slow))} == {13}
