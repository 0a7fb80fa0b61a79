"""Rotating slowness: a rank that is slow more often by chance is not accused; a permanently slow one is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.straggler import rotating_slowness
from scheduler_feedback.detectors.straggler.alarm_case import Case
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement
from scheduler_feedback.detectors.straggler.rotating_slowness import judged_by_rotation
from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, World

SICK = 9


def reported(seed: int, *others: Fault) -> list[Verdict]:
    """Return the verdicts on a job of 16 GPUs whose ranks collect garbage in turn from 300 s on."""
    one = Course(
        plan.make("j", 16, "dp2", 1.0, np.random.default_rng(seed)),
        clos_fabric.place(np.arange(2), 16),
        np.random.default_rng(seed),
    )
    for fault in (Fault("garbage-collection", "j", tuple(range(16)), 300.0, 400.0, "step", 0.5), *others):
        one.faults.append(one.solved(fault))
    world, detectors = World([one], seed, 10.0, PERFECT), make_detection()
    findings = []
    for _ in range(140):
        telemetry = world.tick(5.0)
        findings += detectors.tick(telemetry)
    return [found for found in findings if isinstance(found, Verdict)]


def test_a_rank_slow_more_often_by_chance_is_not_accused() -> None:
    assert {(found.kind, found.cause) for found in reported(6)} == {(Kind.WORKLOAD, Cause.PAUSES)}


def test_a_slow_rank_among_rotating_pauses_is_found() -> None:
    found = reported(6, Fault("memory-errors", "j", (SICK,), 450.0, 250.0, "step", 0.3))
    assert {one.rank for one in found if one.kind in ACCUSING} == {SICK}


@pytest.mark.parametrize(
    ("slow", "windows", "why", "cause", "for_work", "active"),
    [
        (11, 12, Cause.PAUSES, Cause.UNKNOWN, False, True),
        (10, 12, Cause.PAUSES, Cause.UNKNOWN, False, False),
        (5, 5, Cause.PAUSES, Cause.UNKNOWN, False, False),
        (3, 5, None, Cause.UNKNOWN, False, True),
        (3, 5, Cause.PAUSES, Cause.GPU, False, True),
        (3, 5, Cause.PAUSES, Cause.UNKNOWN, True, False),
        (3, 5, Cause.SEQUENCE_LENGTH, Cause.UNKNOWN, False, False),
        (3, 5, Cause.SEQUENCE_LENGTH, Cause.UNKNOWN, True, True),
    ],
)
def test_rotating_slowness_refuses_alarms_without_cause_or_persistence(
    monkeypatch: pytest.MonkeyPatch,
    slow: int,
    windows: int,
    why: Cause | None,
    cause: Cause,
    for_work: bool,
    active: bool,
) -> None:
    monkeypatch.setattr(rotating_slowness, "slow_windows", lambda interval, rank: interval[:slow])
    case = cast(Case, SimpleNamespace(rank=3, interval=[None] * windows, for_work=for_work))
    judgement = Judgement(3, 1.2, 1.2, cause, 0.8, (), False)
    after = judged_by_rotation(judgement, case, why)
    assert (after == judgement) is active
    assert active or f"slow in only {slow} of {windows} windows" in after.refusal
