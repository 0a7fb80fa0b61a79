"""Baseline detectors of the benchmark follow their published rules, on public traces and hand-computed cases."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.detection.baselines import (
    BASELINES,
    Panel,
    bocd_verified,
    dlrover,
    eroica_mad,
    mean_2sigma,
    nvrx,
    pairwise_distance,
    sliding_window,
)
from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    FEATURES,
    Counters,
    JobTelemetry,
    Shape,
    StepTable,
    Telemetry,
    no_counters,
)
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS
from tests import needs

FloatArray = npt.NDArray[np.float64]

COMPUTE = ("forward-compute", "backward-compute")


def traced_compute(name: str) -> FloatArray:
    """Return each traced rank's median compute time over the steps of a ByteDance trace: [ranks]."""
    parquet = needs.package("pyarrow.parquet")
    table = parquet.read_table(needs.data("steps", f"bytedance-{name}.parquet"))
    columns = {key: np.array(table[key].to_pylist()) for key in ("rank", "step", "duration")}
    computing = np.isin(np.array(table["optype"].to_pylist()), COMPUTE)
    ranks, rank = np.unique(columns["rank"], return_inverse=True)
    steps, step = np.unique(columns["step"], return_inverse=True)
    total = np.zeros((len(steps), len(ranks)))
    np.add.at(total, (step[computing], rank[computing]), columns["duration"][computing])
    return np.asarray(np.median(total, axis=0))


def telemetry_of(
    seconds: FloatArray, wait: FloatArray, *, stage: Sequence[int] | None = None, per_tick: int = 1
) -> list[Telemetry]:
    """Return telemetry without counters for the steps of one job. seconds, wait: [steps, ranks]."""
    count = seconds.shape[1]
    shape = Shape(
        "j",
        1,
        np.arange(count),
        tuple(f"node-{rank // 8}" for rank in range(count)),
        tuple(f"GPU-{rank}" for rank in range(count)),
        data=np.arange(count),
        stage=np.zeros(count, np.int64) if stage is None else np.asarray(stage),
    )
    ends = np.cumsum(seconds.max(axis=1))
    found = []
    for first in range(0, len(seconds), per_tick):
        rows = slice(first, first + per_tick)
        end_ns = WALL_START_NS + np.round(ends[rows] * NS).astype(np.int64)[:, None] + np.zeros((1, count), np.int64)
        table = StepTable(np.arange(len(seconds))[rows], end_ns, seconds[rows], wait[rows])
        job = JobTelemetry(shape, table)
        found.append(Telemetry(int(end_ns[-1, 0]), (job,), no_counters(count)))
    return found


def synchronous(compute: FloatArray, communication: float = 0.2) -> tuple[FloatArray, FloatArray]:
    """Return (seconds, wait) of ranks that compute for these times, [steps, ranks], and then synchronise."""
    seconds = np.repeat(compute.max(axis=1, keepdims=True) + communication, compute.shape[1], axis=1)
    return seconds, seconds - compute


def accused(rule: str, stream: list[Telemetry]) -> set[int | str]:
    """Return the ranks or nodes that the rule accuses."""
    panel = Panel([kind() for kind in BASELINES if kind.name == rule])
    claims = [claim for telemetry in stream for claim in panel.look(telemetry)[rule]]
    return {claim.node if claim.rank < 0 else claim.rank for claim in claims}


def test_nvrx_flags_one_of_sixteen_ranks_on_the_trace_with_a_slow_worker() -> None:
    medians = traced_compute("AR")
    flagged = np.flatnonzero(nvrx.scores(medians) < nvrx.THRESHOLD)
    assert len(medians) == 16
    assert flagged.tolist() == [0]


def test_nvrx_flags_two_of_eight_healthy_ranks_on_the_trace_with_unequal_stages() -> None:
    medians = traced_compute("ST")
    assert len(medians) == 8
    assert len(np.flatnonzero(nvrx.scores(medians) < nvrx.THRESHOLD)) == 2


def test_nvrx_streams_the_same_score() -> None:
    compute = np.tile(traced_compute("AR"), (6, 1))
    assert accused("nvrx", telemetry_of(*synchronous(compute))) == {0}


def test_the_nvrx_score_is_the_fastest_median_divided_by_the_own_median() -> None:
    assert nvrx.scores(np.array([1.0, 2.0, 4.0])).tolist() == [1.0, 0.5, 0.25]


def test_dlrover_and_two_sigma_flag_the_slow_worker_and_dlrover_none_below_twice() -> None:
    medians = traced_compute("AR")
    assert np.flatnonzero(dlrover.flagged(medians)).tolist() == [0]
    assert np.flatnonzero(mean_2sigma.flagged(medians)).tolist() == [0]
    assert not dlrover.flagged(np.array([1.0, 1.0, 1.0, 1.99])).any()
    assert dlrover.flagged(np.array([1.0, 1.0, 1.0, 2.01])).tolist() == [False, False, False, True]


def test_two_sigma_cannot_flag_a_rank_among_four() -> None:
    # The largest possible deviation among n is (n - 1)/sqrt(n) sigmas: 1.5 among four.
    assert not mean_2sigma.flagged(np.array([1.0, 1.0, 1.0, 100.0])).any()
    assert mean_2sigma.flagged(np.array([1.0] * 9 + [100.0])).any()


def test_the_sliding_window_compares_ten_with_ten() -> None:
    assert not sliding_window.changed([1.0] * 19)
    assert not sliding_window.changed([1.0] * 10 + [1.09] * 10)
    assert sliding_window.changed([1.0] * 10 + [1.11] * 10)
    compute = np.ones((40, 8))
    compute[20:, 3] = 1.5
    assert accused("sliding_window", telemetry_of(*synchronous(compute))) == {3}


def test_the_change_point_becomes_certain_soon_after_a_change() -> None:
    random = np.random.default_rng(4)
    point = bocd_verified.ChangePoint()
    before = [point.take(v) for v in 1.0 + 0.01 * random.standard_normal(120)]
    after = [point.take(v) for v in 1.3 + 0.01 * random.standard_normal(6)]
    assert max(before[20:]) < bocd_verified.PROBABILITY
    assert max(after[:4]) > bocd_verified.PROBABILITY


def test_a_change_of_less_than_a_tenth_is_not_verified() -> None:
    random = np.random.default_rng(4)
    for factor, expected in ((1.05, set()), (1.3, {2})):
        compute = 1.0 + 0.003 * random.standard_normal((90, 8))
        compute[60:, 2] *= factor
        assert accused("bocd_verified", telemetry_of(*synchronous(compute))) == expected


def test_eroica_requires_a_slower_job_and_five_deviations() -> None:
    assert eroica_mad.flagged(np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.6])).tolist() == [False] * 5 + [False]
    assert eroica_mad.flagged(np.array([1.0, 1.1, 0.9, 1.2, 0.8, 2.0])).tolist() == [False] * 5 + [True]
    random = np.random.default_rng(4)
    compute = 1.0 + 0.01 * random.standard_normal((160, 8))
    compute[:, 5] *= 1.2
    assert accused("eroica_mad", telemetry_of(*synchronous(compute))) == set()  # the job is not slower than its best
    compute[80:, 5] *= 1.3
    assert accused("eroica_mad", telemetry_of(*synchronous(compute))) == {5}


def test_minder_needs_four_minutes_of_the_same_machine() -> None:
    random = np.random.default_rng(4)
    shape = Shape("j", 1, np.arange(64), tuple(f"node-{rank // 8}" for rank in range(64)))
    assert pairwise_distance.CONTINUITY_SECONDS == 240.0

    def stream(seconds: int) -> list[Telemetry]:
        found = []
        for at in range(10, seconds, 10):
            values = np.full((len(FEATURES), 1, 64), np.nan, np.float32)
            values[FEATURE["power"]] = 600.0 + random.standard_normal(64)
            if at > 120:
                values[FEATURE["power"], 0, 16:24] = 400.0
            at_ns = WALL_START_NS + at * NS
            counters = Counters(np.array([at_ns]), 10.0, values)
            found.append(Telemetry(at_ns, (JobTelemetry(shape),), counters))
        return found

    assert accused("pairwise_distance", stream(330)) == set()
    assert accused("pairwise_distance", stream(480)) == {"node-2"}


def test_dissimilarity_is_a_normalised_sum_of_distances() -> None:
    score = pairwise_distance.dissimilarity(np.array([[0.0], [0.0], [0.0], [3.0]]))
    sums = np.array([3.0, 3.0, 3.0, 9.0])
    assert score == pytest.approx((sums - sums.mean()) / sums.std())


def test_baselines_have_the_names_of_the_report() -> None:
    assert json.dumps([rule.name for rule in BASELINES]) == json.dumps(
        ["nvrx", "dlrover", "mean_2sigma", "sliding_window", "bocd_verified", "pairwise_distance", "eroica_mad"]
    )
