"""Causes within a job that reports no steps, found by its counters. Slowness of single ranks is not such a cause."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Counters, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors import Detection
from scheduler_feedback.detectors.arbiter import Arbiter
from scheduler_feedback.detectors.health.health import HealthDetector
from scheduler_feedback.detectors.workload.unreported_workload import RoleActivity
from scheduler_feedback.detectors.workload.workload import WorkloadDetector
from tests.detectors.alone import accuse

NS = 1_000_000_000
START = 1_700_000_000 * NS
RANKS, STAGES = 32, 2
STAGE = np.arange(RANKS) // (RANKS // STAGES)
BEGINS = 200
SLOWER = 1.3

POLLING = 0.18
"""Active share of the SMs of a polling rank."""

Does = Callable[[FloatArray], None]
"""Changes an iteration in place: [3, ranks], seconds of work, idle seconds, and the clock."""

WORKS, IDLES, CLOCK = range(3)


def reported(
    does: Does,
    seconds: int = 300,
    until: int = 10_000,
    per_node: int = 8,
    staged: bool = True,
    begins: int = BEGINS,
    meanwhile: Callable[[Arbiter], None] = lambda arbiter: None,
) -> list[Finding]:
    """Return the results for a job of two stages. Its iterations take a second, and longer from second `begins` on."""
    random = np.random.default_rng(5)
    nodes = tuple(f"n{rank // per_node}" for rank in range(RANKS))
    shape = Shape("job", 1, np.arange(RANKS), nodes, stage=STAGE if staged else None)
    detection = Detection((HealthDetector(), WorkloadDetector()))
    found: list[Finding] = []
    for second in range(1, seconds + 1):
        step = np.stack([np.full(RANKS, 0.7), np.zeros(RANKS), np.ones(RANKS)])
        length = 1.0
        if begins < second <= until:
            does(step)
            length = SLOWER
        works, idles = step[WORKS] / length, step[IDLES] / length
        made = np.zeros((len(FEATURES), 1, RANKS), np.float32)
        noise = random.normal(1.0, 0.005, (4, RANKS))
        made[FEATURE["tensor_active"], 0] = 0.7 * works * noise[0]
        made[FEATURE["sm_active"], 0] = (works + POLLING * (1.0 - works - idles)) * noise[1]
        made[FEATURE["sm_clock"], 0] = 1.98e9 * step[CLOCK]
        made[FEATURE["power"], 0] = 100 + 600 * works + 80 * (1.0 - works - idles)
        made[FEATURE["nvlink_bytes"], 0] = 1e9 / length * noise[2]
        made[FEATURE["nic_transmit_bytes"], 0] = 1e8 / length * noise[3]
        made[FEATURE["pcie_link"], 0] = 1.0
        now = START + second * NS
        telemetry = Telemetry(now, (JobTelemetry(shape),), Counters(np.array([now]), 1.0, made), (), {})
        meanwhile(detection.shared.arbiter)
        found += detection.tick(telemetry)
    return found


def kinds(found: list[Finding]) -> set[tuple[Kind, Cause]]:
    return {(one.kind, one.cause) for one in found if isinstance(one, Verdict)}


def all_work_more(step: FloatArray) -> None:
    step[WORKS] *= SLOWER


def last_stage_works_more(step: FloatArray) -> None:
    step[WORKS, STAGE == 1] *= SLOWER


def all_wait_for_input(step: FloatArray) -> None:
    step[IDLES] = SLOWER - 1.0


def first_stage_waits_for_input(step: FloatArray) -> None:
    step[IDLES, STAGE == 0] = SLOWER - 1.0


def one_works_longer(step: FloatArray) -> None:
    step[WORKS, 5] *= SLOWER


def one_is_slowed(step: FloatArray) -> None:
    step[IDLES, 5] = SLOWER - 1.0


def a_node_is_slowed(step: FloatArray) -> None:
    step[IDLES, 8:16] = SLOWER - 1.0


def the_network_is_slow(step: FloatArray) -> None:
    """All ranks poll for longer."""


def all_are_hot(step: FloatArray) -> None:
    step[WORKS] *= SLOWER
    step[CLOCK] /= SLOWER


@pytest.mark.parametrize(
    ("does", "kind", "cause"),
    [
        (all_work_more, Kind.WORKLOAD, Cause.WHOLE_JOB),
        (last_stage_works_more, Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION),
        (all_wait_for_input, Kind.WORKLOAD, Cause.DATA_LOADING),
        (first_stage_waits_for_input, Kind.WORKLOAD, Cause.DATA_LOADING),
    ],
)
def test_behaviour_of_most_ranks_is_a_cause_within_the_job(does: Does, kind: Kind, cause: Cause) -> None:
    found = reported(does)
    assert kinds(found) == {(kind, cause)}
    (verdict,) = (one for one in found if isinstance(one, Verdict))
    assert verdict.slowdown == pytest.approx(SLOWER, rel=0.03)
    assert verdict.rank == -1
    assert verdict.last_wall_ns <= START + (BEGINS + 30) * NS
    assert verdict.ranks == (tuple(range(16, 32)) if kind is Kind.STAGE_IMBALANCE else ())


@pytest.mark.parametrize("does", [one_works_longer, one_is_slowed, a_node_is_slowed, the_network_is_slow, all_are_hot])
def test_effects_of_members_network_or_heat_are_no_workload_verdict(does: Does) -> None:
    assert not kinds(reported(does))


def test_a_stage_on_one_node_gives_no_workload_verdict() -> None:
    assert not kinds(reported(last_stage_works_more, per_node=16))
    assert not kinds(reported(first_stage_waits_for_input, per_node=16))


def test_a_job_on_one_node_gives_no_workload_verdict() -> None:
    assert not kinds(reported(all_work_more, per_node=RANKS))


def test_a_job_with_another_known_cause_gets_no_workload_verdict() -> None:
    assert not kinds(reported(all_work_more, meanwhile=lambda arbiter: accuse(arbiter, "job", kind=Kind.INTERFERENCE)))
    assert not kinds(reported(all_work_more, meanwhile=lambda arbiter: accuse(arbiter, "job")))
    others = reported(all_work_more, meanwhile=lambda arbiter: accuse(arbiter, "another"))
    assert kinds(others) == {(Kind.WORKLOAD, Cause.WHOLE_JOB)}


def test_without_known_stages_no_stage_is_reported() -> None:
    assert not kinds(reported(last_stage_works_more, staged=False))


def test_a_stage_that_always_had_more_work_is_reported() -> None:
    found = reported(last_stage_works_more, seconds=420, begins=0)
    assert kinds(found) == {(Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION)}
    assert [one.ranks for one in found if isinstance(one, Verdict)] == [tuple(range(16, 32))]
    for does, more in ((last_stage_works_more, {"per_node": 16}), (one_works_longer, {}), (all_work_more, {})):
        assert not kinds(reported(does, seconds=420, begins=0, **more))


@pytest.mark.parametrize(
    ("busy", "clock", "found"),
    [
        ((0.5, 0.5, 0.5, 0.7), (1.9, 1.9, 1.9, 1.9), True),
        ((0.5, 0.5, 0.65, 0.7), (1.9, 1.9, 1.9, 1.9), False),  # the others differ as much
        ((0.5, 0.5, 0.5, 0.7), (1.9, 1.9, 1.9, 1.6), False),  # its clock is lower, which may be the reason
    ],
)
def test_a_larger_stage_needs_equal_others_and_no_lower_clock(
    busy: tuple[float, ...], clock: tuple[float, ...], found: bool
) -> None:
    stage = np.arange(64) // 16
    activity = RoleActivity(Shape("job", 1, np.arange(64), tuple(f"n{rank // 8}" for rank in range(64)), stage=stage))
    values = np.zeros((len(FEATURES), 64), np.float32)
    values[FEATURE["tensor_active"]] = np.array(busy)[stage]
    values[FEATURE["sm_clock"]] = np.array(clock)[stage] * 1e9
    for _ in range(310):
        activity.take(values)
    assert [claim.kind for claim in activity.stage_claims(1.0)] == [Kind.STAGE_IMBALANCE] * found


def test_a_verdict_is_cleared_when_its_cause_is_over() -> None:
    found = reported(all_work_more, seconds=440, until=260)
    assert [type(one) for one in found] == [Verdict, Cleared]
