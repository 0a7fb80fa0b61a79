"""A node that stops reporting, wholly or in part, causes no accusation of other nodes."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from tests.detectors.alone import alone

START_NS = 1_700_000_000_000_000_000
STAGE_SECONDS = (0.26, 0.26, 0.27, 0.31)
DATA, TENSOR = 2, 8
WARM_STEPS, STEPS = 240, 340
EVALUATION = (150, 190)


def accused(stale: int | None, slow: int | None, by: float = 1.3) -> set[int]:
    """Return the accused ranks of a pipeline whose last stage has the most work. Each node is one replica of a stage.

    An evaluation with steps of a third comes first, so no later step is the shortest. stale: node that does not report
    after the warm-up. slow: rank that is slower by the factor `by` from then on.
    """
    stage, data, tensor = np.indices((len(STAGE_SECONDS), DATA, TENSOR)).reshape(3, -1)
    node = stage * DATA + data
    names = tuple(f"n{number}" for number in node.tolist())
    shape = Shape("j", 1, np.arange(len(node)), names, data=data, stage=stage, tensor=tensor)
    random, detector, end_ns, found = np.random.default_rng(3), alone(StragglerDetector()), START_NS, set[int]()
    for number in range(STEPS):
        own = np.array(STAGE_SECONDS)[stage] * random.normal(1.0, 0.006, len(node))
        if slow is not None and number >= WARM_STEPS:
            own[slow] *= by
        if EVALUATION[0] <= number < EVALUATION[1]:
            own /= 3.0
        seconds = np.full((1, len(node)), own.max() + 0.15)
        end_ns += round(float(seconds[0, 0]) * 1e9)
        ends, waits = np.full((1, len(node)), end_ns), seconds - own
        if stale is not None and number >= WARM_STEPS:
            seconds[:, node == stale] = waits[:, node == stale] = np.nan
        job = JobTelemetry(shape, StepTable(np.array([number]), ends, seconds, waits))
        reported = detector.tick(Telemetry(end_ns, (job,), no_counters(len(node))))
        found |= {one.rank for one in reported if isinstance(one, Verdict)}
    return found


@pytest.mark.parametrize("stale", range(2 * len(STAGE_SECONDS)))
def test_a_stale_node_does_not_make_its_peers_slow(stale: int) -> None:
    assert not accused(stale, None)


@pytest.mark.parametrize(("stale", "slow"), [(None, 48), (7, 48), (0, 48), (6, 60)])
def test_a_slow_rank_is_found_despite_a_stale_node(stale: int | None, slow: int) -> None:
    assert accused(stale, slow) == {slow}


def test_a_rank_that_reports_only_the_checkpoint_step_is_not_slow() -> None:
    ranks, random, detector, end_ns = 16, np.random.default_rng(4), alone(StragglerDetector()), START_NS
    shape = Shape("j", 1, np.arange(ranks), tuple(f"n{rank // 8}" for rank in range(ranks)))
    for number in range(STEPS):
        own = 1.3 * random.normal(1.0, 0.006, (1, ranks))
        own[0, 6] *= 1.06  # it always had slightly more work
        if number >= WARM_STEPS:
            own[0, 5] *= 1.08
        if number % 20 == 0:
            own += 3.0
        seconds = np.full((1, ranks), own.max() + 0.3)
        end_ns += round(float(seconds[0, 0]) * 1e9)
        ends, waits = np.full((1, ranks), end_ns), seconds - own
        if number >= WARM_STEPS and number % 20 == 19:  # the other step of the window of two
            seconds[0, 5] = waits[0, 5] = np.nan
        job = JobTelemetry(shape, StepTable(np.array([number]), ends, seconds, waits))
        reported = detector.tick(Telemetry(end_ns, (job,), no_counters(ranks)))
        assert not [one for one in reported if isinstance(one, Verdict)]
