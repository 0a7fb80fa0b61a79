"""Parts of the straggler detector: windows, medians, gains, attribution; and arbitrary step times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schema.frame import Frame, Member, StepRecord, Tier, make_layout
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series.consumption_trail import Consumed
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang, IntArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import AlarmInterval, HealthyState, attribute
from scheduler_feedback.detectors.stats.log_odds import BOUND, bounded, confidence
from scheduler_feedback.detectors.stats.medians import median_of_others
from scheduler_feedback.detectors.stats.spread import spread_of_others
from scheduler_feedback.detectors.steps.places import Places, places
from scheduler_feedback.detectors.steps.windows import Window, blame_stopped, cut, prepare
from scheduler_feedback.detectors.straggler import cusum
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, rest
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from tests.detectors.alone import alone

SECOND = 1_000_000_000
finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(finite, min_size=2, max_size=40))
def test_the_median_of_others_is_correct(values: list[float]) -> None:
    array = np.array(values)
    naive = [np.median(np.delete(array, index)) for index in range(len(values))]
    assert median_of_others(array).tolist() == pytest.approx(naive, abs=1e-6)


def gang_of(compute: np.ndarray, waits: np.ndarray, nodes: list[str] | None = None) -> Gang:
    """Return a gang that has made these steps: compute time and waits in seconds, float64 [steps, ranks]."""
    gang = Gang("g", 1)
    now = np.zeros(compute.shape[1])
    for step in range(len(compute)):
        for rank in range(compute.shape[1]):
            column = gang.column(rank, "n" if nodes is None else nodes[rank])
            duration = compute[step, rank] + waits[step, rank]
            gang.finish(
                column, step, round(now[rank] * SECOND), round(duration * SECOND), round(waits[step, rank] * SECOND), 0
            )
            now[rank] += duration
    return gang


def table_of(gang: Gang) -> StepTable:
    steps = gang.completed()
    assert steps is not None
    return StepTable(steps.number, steps.end_ns, steps.seconds, steps.wait_seconds)


def at(nodes: list[str]) -> Places:
    return places(Shape("g", 1, np.arange(len(nodes)), tuple(nodes)))


def windows_of(gang: Gang) -> list[Window]:
    return cut(table_of(gang), at(list(gang.nodes)), gang.consumed)[0]


@pytest.mark.parametrize("missing", [False, True])
def test_windows_are_the_same_with_counters_that_were_read_before(missing: bool) -> None:
    random, asked = np.random.default_rng(1), list[int]()
    gang = gang_of(random.uniform(0.1, 0.4, (12, 3)), np.full((12, 3), 0.1))
    table, where = table_of(gang), at(list(gang.nodes))
    if missing:
        table.seconds[4, 1] = np.nan

    def consumed(at_ns: IntArray) -> Consumed:
        asked.append(int(at_ns[0]))
        return Consumed(np.outer(at_ns, np.arange(6.0)), at_ns)

    direct, used = cut(table, where, consumed)
    count = len(asked)
    (prepared, none) = prepare([(table, consumed), (table, None)], timed=True)
    assert none is None
    windows, used_then = cut(table, where, prepared)
    assert used_then == used and len(asked) == 2 * count and len(windows) == count // 2
    for one, other in zip(windows, direct, strict=True):
        np.testing.assert_array_equal(one.began.values, other.began.values)
        np.testing.assert_array_equal(one.stopped, other.stopped)


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_the_gain_is_the_step_time_saved_without_the_rank(ranks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    compute = random.uniform(0.1, 0.4, (12, ranks))
    waits = compute.max(axis=1, keepdims=True) - compute + 0.05
    nodes = [f"n{rank // 2}" for rank in range(ranks)]
    gang = gang_of(compute, waits, nodes)
    first = 0
    for window in windows_of(gang):
        rows = compute[first : first + window.steps]
        first += window.steps
        for rank in range(ranks):
            without = np.delete(rows, rank, axis=1).max(axis=1)
            expected = np.maximum(rows.max(axis=1) - without, 0).mean()
            assert window.gain[rank] == pytest.approx(expected, abs=1e-6)
        for node in range(len(set(nodes))) if len(set(nodes)) > 1 else []:
            others = rows[:, [rank for rank in range(ranks) if rank // 2 != node]].max(axis=1)
            assert window.node_gain[node] == pytest.approx(np.maximum(rows.max(axis=1) - others, 0).mean(), abs=1e-6)
    assert first > 0


def test_windows_last_a_second_and_hold_five_steps() -> None:
    short = windows_of(gang_of(np.full((100, 2), 0.03), np.full((100, 2), 0.02)))
    assert {window.steps for window in short[:-1]} <= {20, 21}
    long = windows_of(gang_of(np.full((23, 2), 2.0), np.full((23, 2), 1.0)))
    assert [window.steps for window in long] == [1] * 23
    middling = windows_of(gang_of(np.full((24, 2), 0.6), np.full((24, 2), 0.2)))
    assert [window.steps for window in middling] == [3] * 8
    assert long[0].compute.tolist() == pytest.approx([2.0, 2.0])
    assert long[0].wait.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("missing", range(2))
def test_missing_times_are_filled_from_peers_and_the_usual_difference(missing: int) -> None:
    own = np.array([1.3, 1.3, 1.3, 1.4]) + np.array([[0.0], [9.0]])  # the job saves in the second of two steps
    seconds = np.full((2, 4), 1.9) + np.array([[0.0], [9.0]])
    waits = seconds - own
    seconds[missing, 3] = waits[missing, 3] = np.nan
    ends = np.array([[2 * SECOND], [13 * SECOND]]) + np.zeros((1, 4), np.int64)
    (window,), _ = cut(StepTable(np.arange(2), ends, seconds, waits), at(list("abcd")), None)
    assert window.compute.tolist() == pytest.approx([5.8, 5.8, 5.8, 5.9])
    assert window.wait.tolist() == pytest.approx([0.6, 0.6, 0.6, 0.5])
    assert window.gain.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.1])
    assert window.step_seconds == pytest.approx(6.4)


def test_filled_compute_times_are_not_negative() -> None:
    own = np.array([[1.3, 1.3, 1.3, np.nan], [10.3, 10.3, 10.3, 1.3]])  # all but the last save in the second step
    seconds = np.array([[1.9, 1.9, 1.9, np.nan], [10.9, 10.9, 10.9, 10.9]])
    ends = np.array([[2 * SECOND], [13 * SECOND]]) + np.zeros((1, 4), np.int64)
    (window,), _ = cut(StepTable(np.arange(2), ends, seconds, seconds - own), at(list("abcd")), None)
    assert window.compute.tolist() == pytest.approx([5.8, 5.8, 5.8, 0.65])


def test_a_step_is_used_once_and_the_rest_is_left_for_later() -> None:
    gang = gang_of(np.full((23, 2), 0.6), np.full((23, 2), 0.2))
    steps = table_of(gang)
    _, used = cut(steps, at(list(gang.nodes)), gang.consumed)
    left = rest(steps, used)
    assert left.number.tolist() == [21, 22]
    assert cut(left, at(list(gang.nodes)), gang.consumed) == ([], 0)


def test_the_spread_of_others_includes_their_bursts_only() -> None:
    shifts = np.zeros((8, 4))
    shifts[:, 0] = 1.0
    assert spread_of_others(shifts, 0) == 0.0
    shifts[3, 2] = 0.8
    assert spread_of_others(shifts, 0) == pytest.approx(0.8 / np.sqrt(24))


def stopped_window(stopped: list[float]) -> Window:
    gang = gang_of(np.full((5, 3), 0.3), np.full((5, 3), 0.5), ["a", "b", "c"])
    window = windows_of(gang)[0]
    return Window(**{name: getattr(window, name) for name in Window.__slots__} | {"stopped": np.array(stopped)})


def test_excess_time_of_a_collective_is_attributed_to_the_stopped_rank() -> None:
    window = stopped_window([0.0, 2.0, 0.0])
    blamed = blame_stopped(window, 0.1, at(["a", "b", "c"]))
    excess = 0.5 - 1.25 * 0.1
    assert blamed.compute.tolist() == pytest.approx([0.3, 0.3 + excess, 0.3])
    assert blamed.wait.tolist() == pytest.approx([0.5, 0.5 - excess, 0.5])
    assert blamed.gain[1] == pytest.approx(window.gain[1] + excess)


@pytest.mark.parametrize("stopped", [[0.0, 0.0, 0.0], [1.0, 2.0, 0.0]], ids=["no node", "two nodes"])
def test_a_collective_is_attributed_only_to_a_single_stopped_node(stopped: list[float]) -> None:
    window = stopped_window(stopped)
    assert blame_stopped(window, 0.1, at(["a", "b", "c"])) is window


# --- attribution ------------------------------------------------------------------------------------------------------

USUAL = np.full(4, 0.1)
HEALTHY = HealthyState(USUAL, np.tile([0.1, 0.0, 0.0], (4, 1)), np.zeros(4))


def cause_of(
    extra: tuple[float, float, float], total: float, *, stopped_again: bool = False, on_device: bool = False
) -> Cause:
    """Return the cause for a rank that needs `total` more seconds a step, of which counters explain `extra`."""
    compute, parts = USUAL.copy(), np.tile([0.1, 0.0, 0.0, 0.0, 1.0, 0.0], (4, 1))
    compute[1] += total
    parts[1, :3] += extra
    samples = np.array([[5.0 * stopped_again, 10.0]] * 4)
    return attribute(1, AlarmInterval(compute, parts, samples, 0.15, stopped_again), HEALTHY, on_device).cause


@pytest.mark.parametrize(
    ("extra", "stopped_again", "cause"),
    [
        ((0.0, 0.0, 0.0), True, Cause.SUSPENDED),
        ((0.0, 0.0, 0.0), False, Cause.SUSPENDED),
        ((0.0, 0.03, 0.0), False, Cause.UNKNOWN),
        ((0.0, 0.03, 0.0), True, Cause.SUSPENDED),
        ((0.0, 0.08, 0.0), False, Cause.CPU_CONTENTION),
        ((0.08, 0.0, 0.0), False, Cause.COMPUTE),
        ((0.0, 0.0, 0.08), False, Cause.STORAGE),
        ((0.05, 0.05, 0.0), False, Cause.UNKNOWN),
        ((0.0, 0.0, 0.05), False, Cause.UNKNOWN),
        ((0.03, 0.0, 0.0), False, Cause.UNKNOWN),
        ((0.01, 0.0, 0.0), False, Cause.SUSPENDED),
    ],
)
def test_a_cause_explains_most_of_the_excess(
    extra: tuple[float, float, float], stopped_again: bool, cause: Cause
) -> None:
    assert cause_of(extra, 0.1, stopped_again=stopped_again) is cause


@pytest.mark.parametrize(
    ("extra", "stopped_again", "cause"),
    [
        ((0.0, 0.0, 0.0), False, Cause.UNKNOWN),
        ((0.1, 0.0, 0.0), False, Cause.UNKNOWN),
        ((0.0, 0.0, 0.0), True, Cause.SUSPENDED),
        ((0.0, 0.08, 0.0), False, Cause.CPU_CONTENTION),
        ((0.0, 0.0, 0.08), False, Cause.STORAGE),
    ],
    ids=["sleeps for its GPU", "spins for its GPU", "seen stopped", "waits for a processor", "waits for a disk"],
)
def test_a_process_that_waits_for_a_slow_gpu_is_not_called_suspended(
    extra: tuple[float, float, float], stopped_again: bool, cause: Cause
) -> None:
    assert cause_of(extra, 0.1, stopped_again=stopped_again, on_device=True) is cause


@pytest.mark.parametrize(
    ("extra", "faults", "usual", "cause"),
    [
        ((0.03, 0.02, 0.0), 1500.0, 0.0, Cause.MEMORY_PRESSURE),
        ((0.01, 0.01, 0.0), 20.0, 0.0, Cause.MEMORY_PRESSURE),
        ((0.0, 0.0, 0.08), 20.0, 0.0, Cause.MEMORY_PRESSURE),
        ((0.0, 0.0, 0.08), 0.0, 0.0, Cause.STORAGE),
        ((0.0, 0.0, 0.08), 1500.0, 1500.0, Cause.STORAGE),
        ((0.03, 0.02, 0.0), 20.0, 0.0, Cause.UNKNOWN),
        ((0.01, 0.01, 0.0), 2.0, 0.0, Cause.SUSPENDED),
        ((0.01, 0.01, 0.0), np.nan, 0.0, Cause.SUSPENDED),
        ((0.0, 0.08, 0.0), 1500.0, 0.0, Cause.CPU_CONTENTION),
    ],
    ids=["many, fast disk", "fewer, slow disk", "the kernel counts waits", "none", "its peers have them too",
         "too few", "very few", "unknown", "waits for a processor"],
)  # fmt: skip
def test_page_faults_that_explain_the_excess_are_memory_pressure(
    extra: tuple[float, float, float], faults: float, usual: float, cause: Cause
) -> None:
    compute, parts = USUAL.copy(), np.tile([0.1, 0.0, 0.0, 0.0, 1.0, usual], (4, 1))
    compute[1] += 0.1
    parts[1, :3] += extra
    parts[1, 5] = faults
    split = attribute(1, AlarmInterval(compute, parts, np.ones((4, 2)), 0.15, False), HEALTHY)
    assert split.cause is cause


def test_growth_shared_with_peers_is_not_excess() -> None:
    compute, parts = USUAL + 0.05, np.tile([0.15, 0.0, 0.0, 0.0, 1.0, 0.0], (4, 1))
    compute[1] += 0.1
    split = attribute(1, AlarmInterval(compute, parts, np.ones((4, 2)), 0.3, False), HEALTHY)
    assert split.excess == pytest.approx(0.1)
    assert split.processor == pytest.approx(0.0)
    assert split.rest == pytest.approx(0.1)


def test_missing_counters_give_no_cause() -> None:
    compute, parts = USUAL.copy(), np.full((4, 6), np.nan)
    compute[1] += 0.1
    split = attribute(1, AlarmInterval(compute, parts, np.full((4, 2), np.nan), 0.2, False), HEALTHY)
    assert (split.cause, split.known, split.may_be_chance_load) == (Cause.UNKNOWN, False, True)


def test_a_missing_disk_counter_alone_does_not_hide_the_rest() -> None:
    compute, parts = USUAL.copy(), np.tile([0.1, 0.0, np.nan, 0.0, 1.0, 0.0], (4, 1))
    compute[1] += 0.1
    parts[1, 0] += 0.1
    healthy = HealthyState(USUAL, np.tile([0.1, 0.0, np.nan], (4, 1)), np.zeros(4))
    assert attribute(1, AlarmInterval(compute, parts, np.ones((4, 2)), 0.2, False), healthy).cause is Cause.COMPUTE


# --- confidence -------------------------------------------------------------------------------------------------------


def test_confidence_rises_with_evidence_and_stays_a_probability() -> None:
    def fact(ratio: float) -> Evidence:
        return Evidence("m", 1.0, 0.0, "", "x", ratio)

    assert confidence([]) < 0.5 < confidence([fact(3.0)]) < confidence([fact(3.0), fact(1.0)]) < 1.0
    assert 0.0 < confidence([fact(-BOUND)] * 20) < 1e-6


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_single_fact_decides_alone(value: float) -> None:
    assert -BOUND <= bounded(value) <= BOUND


# --- random input -----------------------------------------------------------------------------------------------------


def found_in_bursts(seed: int) -> tuple[list[str], list[int]]:
    """Return the results for a gang of 16 with an intermittently slow rank, and the size of the stored history.

    The size is the number of windows with per-rank times, after each step.
    """
    random = np.random.default_rng(seed)
    shape = Shape("g", 1, np.arange(16), tuple(f"n{rank // 8}" for rank in range(16)))
    detector, at_ns = alone(StragglerDetector()), SECOND
    found: list[str] = []
    kept: list[int] = []
    for step in range(400):
        compute = 1.0 + 0.02 * random.standard_normal(16)
        if step % 100 > 60:
            compute[5] *= 1.4
        at_ns += round(compute.max() * SECOND) + SECOND // 5
        seconds = np.full((1, 16), compute.max() + 0.2)
        table = StepTable(np.array([step]), np.full((1, 16), at_ns), seconds, seconds - compute)
        found += map(repr, detector.tick(Telemetry(at_ns, (JobTelemetry(shape, table),), no_counters(16))))
        history = detector._watched["g"].history
        kept.append(sum(len(judged.window.compute) > 0 for judged in history))
        assert all(len(judged.sigmas) for judged in history)
    return found, kept


def test_windows_that_no_alarm_reads_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    found, kept = found_in_bursts(1)
    assert any("Verdict(" in one for one in found)
    assert any("Cleared(" in one for one in found)
    assert max(kept) == INTERVAL_WINDOWS, "while a rank is in alarm"
    assert np.median(kept) < 16
    monkeypatch.setattr(cusum, "_forget", lambda _: None)
    same, kept = found_in_bursts(1)
    assert max(kept) > INTERVAL_WINDOWS
    assert same == found


LAYOUT = make_layout("n0", (Tier("steps", 1.0),), (), ())
moments = st.integers(0, 40 * SECOND)
streams = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 120),
        moments,
        st.integers(1, 5 * SECOND),
        st.one_of(st.none(), st.floats(0.0, 1.0)),
        st.integers(1, 2),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(streams, st.integers(0, 2**32 - 1))
def test_no_stream_of_steps_breaks_the_detector(
    stream: list[tuple[int, int, int, int, float | None, int]], seed: int
) -> None:
    """Arbitrary steps come between regular ones, with which the warm-up ends."""
    random = np.random.default_rng(seed)
    fleet, detector = Fleet(), alone(StragglerDetector())
    look = Look(fleet)
    reported = 0
    for second in range(1, 30):
        at = second * SECOND
        records = []
        for rank in range(4):
            for tenth in range(10):
                start, number = at - SECOND + tenth * SECOND // 10, second * 10 + tenth
                records.append(
                    StepRecord(Member("g", 1, rank), number, start, SECOND // 10, int(random.integers(1, SECOND // 10)))
                )
        for rank, number, start, duration, wait, attempt in stream if second % 7 == 0 else []:
            wait_ns = None if wait is None else int(wait * duration)
            records.append(StepRecord(Member("g", attempt, rank), number + second, start, duration, wait_ns))
        frame = Frame(
            "n0", "b", "a", second, LAYOUT.layout_id, at, at, np.array([at], np.int64),
            np.zeros(0), np.zeros(0, np.uint64), np.zeros(0, np.bool_), reported, tuple(records),
        )  # fmt: skip
        reported += len(records)
        fleet.observe(LAYOUT, frame, at)
        for finding in detector.tick(look.next(at)):
            assert finding.detector == "straggler" if hasattr(finding, "detector") else finding.verdict_id
    copy = alone(StragglerDetector())
    copy.restore(detector.snapshot())
    list(detector.measures())
