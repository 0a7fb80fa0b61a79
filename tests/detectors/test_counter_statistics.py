"""Counter statistics, computed for all columns at once, equal their formulas bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback.core.telemetry.telemetry import FEATURES, Counters, Grouping, JobTelemetry, Shape, Telemetry
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.counter_statistics import (
    ALLOWANCE,
    CLIP,
    DECAY,
    HIGHEST,
    WARM_UP_WINDOWS,
    CounterStatistics,
    _peers,
    joined,
)
from scheduler_feedback.detectors.counters.feature_scales import BAD, COUNTS, FLOOR, LOGS
from scheduler_feedback.detectors.stats.validity_mask import ValidityMasks

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
ONE = np.float32(1.0)


class Plain:
    """Formulas of the counter statistics for one feature of one rank. Windows last a second."""

    def __init__(self, feature: int, switches: Switches) -> None:
        self.feature, self.switches = feature, switches
        self.floor = max(FLOOR[feature], np.float32(np.log1p(1.0))) if COUNTS[feature] else FLOOR[feature]
        self.mean = self.square = self.taken = self.score = np.float32(0.0)
        self.scale = FLOOR[feature]
        self.level = self.peers = self.newest = np.float32(np.nan)

    def take(self, value: np.float32, x: np.float32) -> None:
        if np.isnan(x):
            return
        self.newest = value
        if self.taken < WARM_UP_WINDOWS:
            self.taken += ONE
            away = x - self.mean
            self.mean += away / self.taken
            self.square += away * (x - self.mean)
            self.scale = max(np.sqrt(self.square / max(self.taken - ONE, ONE)), self.floor)
        residual = x - self.mean if self.switches.self_residual else x
        if np.isnan(self.level):
            self.level, self.peers = residual, x
        self.level += (residual - self.level) * DECAY
        self.peers += (x - self.peers) * DECAY
        bad = BAD[self.feature]
        if bad:
            scale = self.scale if self.switches.frozen_scale else max(abs(self.level), FLOOR[self.feature])
            step = min(max(bad * residual / scale, -CLIP), CLIP) - ALLOWANCE
            self.score = min(max(self.score + step, np.float32(0.0)), HIGHEST)


def against_peers(feature: int, values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return each rank's value on the feature's scale, less the lower median of its group's present values: [ranks]."""
    x = values.copy()
    if LOGS[feature]:
        x = np.log(np.maximum(x, np.float32(1e-6)))
    elif COUNTS[feature]:
        x = np.log1p(np.maximum(x, np.float32(0.0)))
    for group in range(int(of.max()) + 1):
        members = of == group
        known = np.sort(x[members & ~np.isnan(x)])
        if len(known):
            x[members] -= known[(len(known) - 1) // 2]
    return x


def windows(random: np.random.Generator, columns: int, count: int) -> list[np.ndarray]:
    """Return windows, float32 [features, columns].

    They contain counts that are mostly zero, in changing columns or in many columns at once; and missing nodes and
    features.
    """
    found = []
    for window in range(count):
        late = 5 if window > 0.7 * count else 0
        often = 0.6 if int(0.8 * count) == window else 0.2
        values = random.normal(1.0, 0.05, (len(FEATURES), columns)).astype(np.float32)
        for row, feature in enumerate(FEATURES):
            if feature.unit == "1/s" and (row % 3 or random.random() < 0.8):
                failing = ((np.arange(columns) + late) % 17 == row % 17) | (often > 0.2)
                failing &= random.random(columns) < often
                values[row] = np.where(failing, random.uniform(-1, 90, columns), 0.0)
        if random.random() < 0.4:
            values[:, np.repeat(random.random(columns // 4 + 1) < random.random(), 4)[:columns]] = np.nan
        if random.random() < 0.3:
            values[random.random(values.shape) < 0.1] = np.nan
        values[random.random(len(FEATURES)) < 0.1] = np.nan
        found.append(values)
    return found


@pytest.mark.parametrize("switches", [Switches(), Switches(self_residual=False), Switches(frozen_scale=False)], ids=str)
@pytest.mark.parametrize(("stages", "seed"), [([0] * 18 + [1] * 18, 1), ([0, 1] * 12 + [0] * 9, 2), ([0], 3)], ids=str)
def test_the_statistics_equal_their_formulas_to_the_bit(stages: list[int], seed: int, switches: Switches) -> None:
    columns = len(stages)
    shape = Shape("j", 1, np.arange(columns), tuple(f"n{index // 4}" for index in range(columns)),
                  stage=np.array(stages))  # fmt: skip
    statistics, random = CounterStatistics(switches), np.random.default_rng(seed)
    plain = [[Plain(feature, switches) for _ in stages] for feature in range(len(FEATURES))]
    for window, values in enumerate(windows(random, columns, 120)):
        now_ns = START + window * SECOND
        counters = Counters(np.array([now_ns], np.int64), 1.0, values[:, None])
        statistics.take(Telemetry(now_ns, (JobTelemetry(shape),), counters))
        for feature, row in enumerate(plain):
            x = against_peers(feature, values[feature], statistics.peers_of.of)
            for column, one in enumerate(row):
                one.take(values[feature, column], x[column])
    for name in ("level", "peers", "scale", "score", "newest"):
        expected = np.array([[getattr(one, name) for one in row] for row in plain], np.float32)
        assert np.array_equal(getattr(statistics, name), expected, equal_nan=True), name
    assert statistics.score[COUNTS].any() or columns == 1, "no rank deviated from its peers"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_missing_samples_leave_the_state_unchanged(of: list[int], holes: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=len(of)).astype(np.float32)
    missing = random.random(len(of)) < holes
    values[missing] = np.nan
    grouping = Grouping(of)
    known = ValidityMasks(grouping).of(values)
    assert np.array_equal(known.of, ~missing) and known.whole == (not missing.any()) and known.any != missing.all()
    sizes = [int((~missing[grouping.of == group]).sum()) for group in range(len(grouping))]
    assert known.sizes.tolist() == sizes
    before = random.normal(size=len(of)).astype(np.float32)
    put, cleared = before.copy(), values.copy()
    known.put(put, values)
    known.clear(cleared)
    assert np.array_equal(put, np.where(missing, before, values))
    assert np.array_equal(cleared, np.where(missing, np.float32(0.0), values))
    reported = random.normal(size=len(grouping)).astype(np.float32)
    assert np.array_equal(grouping.spread(reported, np.empty(len(of), np.float32)), reported[grouping.of])


@pytest.mark.parametrize(("stages", "peers"), [
    ([0] * 4 + [1] * 4, [0] * 4 + [1] * 4), ([0] * 3 + [1] * 5, [0] * 8), ([0] * 8, [0] * 8), ([0, 1], [0, 0]),
])  # fmt: skip
def test_peers_are_the_role_if_it_can_vote_and_else_the_job(stages: list[int], peers: list[int]) -> None:
    shape = Shape("j", 1, np.arange(len(stages)), ("n",) * len(stages), stage=np.array(stages))
    assert _peers(shape).tolist() == peers
    assert joined([_peers(shape), _peers(shape)]).tolist() == [*peers, *(1 + max(peers) + one for one in peers)]
    assert joined([]).tolist() == []


def seen_by(statistics: CounterStatistics, shape: Shape, windows: int, first: int = 0) -> None:
    random = np.random.default_rng(first)
    for second in range(first, first + windows):
        values = random.normal(1.0, 0.02, (len(FEATURES), 1, len(shape))).astype(np.float32)
        now = START + second * SECOND
        statistics.take(Telemetry(now, (JobTelemetry(shape),), Counters(np.array([now]), 1.0, values)))


def test_baselines_survive_two_restarts_in_short_succession() -> None:
    whole = Shape("j", 1, np.arange(16), ("n",) * 16)
    part = Shape("j", 1, np.arange(5), ("n",) * 5)
    first, second, third = CounterStatistics(), CounterStatistics(), CounterStatistics()
    seen_by(first, whole, WARM_UP_WINDOWS + 1)
    second.load(first.dump())
    seen_by(second, part, 2, 100)
    third.load(second.dump())
    seen_by(third, whole, 1, 200)
    assert (third._taken >= WARM_UP_WINDOWS).all(), "the norm of ranks that did not report is kept as well"
    assert np.abs(third._mean - first._mean).max() < 0.01


def test_the_time_since_the_warm_up_counts_until_now_and_from_before_a_restart() -> None:
    job, next_attempt = Shape("j", 1, np.arange(4), ("n",) * 4), Shape("j", 2, np.arange(4), ("n",) * 4)
    statistics, restarted = CounterStatistics(), CounterStatistics()
    assert statistics.learned_seconds(job) == 0.0
    seen_by(statistics, job, WARM_UP_WINDOWS - 1)
    assert statistics.learned_seconds(job) == 0.0
    seen_by(statistics, job, 11, WARM_UP_WINDOWS - 1)
    assert statistics.learned_seconds(job) == 10.0
    restarted.load(statistics.dump())
    seen_by(restarted, job, 1, 100)
    assert restarted.learned_seconds(job) > 1e6, "restored values were learned before any alarm"
    seen_by(statistics, next_attempt, 1, 200)
    assert statistics.learned_seconds(next_attempt) == statistics.learned_seconds(job) == 0.0


def test_restored_baselines_are_dropped_after_ten_minutes() -> None:
    gone, here = Shape("gone", 1, np.arange(4), ("n",) * 4), Shape("here", 1, np.arange(4), ("n",) * 4)
    before, after = CounterStatistics(), CounterStatistics()
    seen_by(before, gone, WARM_UP_WINDOWS + 1)
    after.load(before.dump())
    seen_by(after, here, 1, 0)
    seen_by(after, here, 1, 500)
    assert after._restored
    seen_by(after, here, 1, 700)
    assert not after._restored
    with pytest.raises(ValueError, match="norms of counters"):
        after.load(b"\xc1")


def test_detectors_of_a_stream_share_statistics_and_switches() -> None:
    switches = Switches(self_residual=False)
    one, another = make_detection(switches=switches).shared, make_detection().shared
    context = one.begin(
        Telemetry(1, (), Counters(np.zeros(0, np.int64), 1.0, np.zeros((len(FEATURES), 0, 0), np.float32)))
    )
    assert context.counters is one.counters and context.switches is one.counters._switches is switches
    assert another.counters is not one.counters and another.counters._switches == Switches()


@pytest.mark.parametrize("seed", range(4))
def test_moving_columns_within_the_arrays_equals_new_arrays(seed: int) -> None:
    """Jobs start and end, and sometimes change their order: their columns move to the left, the right, or stay."""
    random = np.random.default_rng(seed)
    moved, anew = CounterStatistics(), CounterStatistics()
    jobs: list[Shape] = []
    in_place = 0
    for window in range(60):
        if random.uniform() < 0.3 and jobs:
            del jobs[int(random.integers(len(jobs)))]
        if random.uniform() < 0.4 or not jobs:
            ranks = np.arange(random.integers(1, 9))
            new = Shape(f"job-{window}", 1, ranks, tuple(f"node-{rank}" for rank in ranks.tolist()))
            jobs.insert(int(random.integers(len(jobs) + 1)) if random.uniform() < 0.2 else len(jobs), new)
        if random.uniform() < 0.05:
            jobs.reverse()
        count = sum(map(len, jobs))
        values = random.normal(1.0, 0.1, (len(FEATURES), 1, count)).astype(np.float32)
        values[:, :, random.uniform(size=count) < 0.1] = np.nan
        at_ns = START + window * SECOND
        of_jobs = tuple(JobTelemetry(one) for one in jobs)
        new_telemetry = Telemetry(at_ns, of_jobs, Counters(np.array([at_ns]), 1.0, values))
        before = moved._room.get("score")
        moved.take(new_telemetry)
        if anew._room:  # with more room than is kept, every array is made anew
            anew._room["score"] = np.pad(anew.score, ((0, 0), (0, 3 * count + 99)), constant_values=np.nan)
        anew.take(new_telemetry)
        in_place += moved._room["score"] is before
        for name in ("_mean", "_square", "_taken", "scale", "level", "peers", "newest", "score"):
            assert np.array_equal(getattr(moved, name), getattr(anew, name), equal_nan=True), (window, name)
    assert in_place > 30
