"""Recent speed of ranks and its updates for the page: limited in size, and each value is sent once."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest

from agent.schema.clock import SystemClock
from agent.schema.sample import Sample, expanded
from scheduler_feedback.api.web import paces as documents
from scheduler_feedback.api.web.job_progress import is_stalled
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.telemetry.steps import pace as pace_module
from scheduler_feedback.core.telemetry.steps.pace import Pace, Paces, _Ring
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.detectors.context import DetectionContext

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND


def shape(ranks: int = 4, job: str = "j-1", attempt: int = 1, stages: int = 1) -> Shape:
    numbers = np.arange(ranks, dtype=np.int64)
    nodes = tuple(f"node-{rank // 2}" for rank in range(ranks))
    return Shape(job, attempt, numbers, nodes, stage=numbers * stages // ranks)


def telemetry(of: Shape, first: int, own: list[list[float]], at_seconds: list[float]) -> Telemetry:
    """Return steps from number `first` on that end at these seconds. own: compute seconds of the ranks in each step.

    All ranks wait for the slowest.
    """
    busy = np.array(own, float)
    seconds = np.repeat(busy.max(axis=1, keepdims=True), len(of), axis=1)
    end_ns = np.repeat(np.array([[WALL + int(at * SECOND)] for at in at_seconds], np.int64), len(of), axis=1)
    table = StepTable(np.arange(first, first + len(own), dtype=np.int64), end_ns, seconds, seconds - busy)
    return Telemetry(WALL, (JobTelemetry(of, table),), no_counters(len(of)))


def steady(paces: Paces, of: Shape, seconds: int, slow: float = 1.0, first: int = 0) -> None:
    """Add two steps a second, in which rank 1 takes `slow` times as long as all other ranks."""
    own = [0.1] * len(of)
    own[1] *= slow
    for at in range(first, first + seconds):
        paces.take(telemetry(of, 2 * at, [own, own], [at, at + 0.5]))


def read(paces: Paces, sequence: int = -1) -> Pace:
    found = paces.since("j-1", sequence)
    assert found is not None
    return found


def test_a_row_is_a_second_in_which_steps_ended() -> None:
    paces = Paces()
    of = shape()
    steady(paces, of, 3, slow=2.0)
    paces.take(telemetry(of, 6, [[0.1, 0.4, 0.1, 0.1]], [9.5]))
    found = read(paces)
    assert found.sequence.tolist() == [0, 1, 2, 3]
    assert ((found.at_ns - WALL) // SECOND).tolist() == [0, 1, 2, 9]
    assert found.steps.tolist() == [2, 2, 2, 1]
    assert found.newest.tolist() == [1, 3, 5, 6]
    assert found.seconds == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert found.own_seconds[0] == pytest.approx([0.1, 0.2, 0.1, 0.1])
    assert found.slowest_seconds == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert math.isnan(found.speed.usual_seconds), "four rows are too few"
    assert found.ratios()[3] == pytest.approx([1, 4, 1, 1])


def test_a_row_grows_with_late_reports_of_steps_that_ended_in_its_second() -> None:
    paces, of = Paces(), shape()
    for number, (slowest, at) in enumerate(((0.2, 5.1), (0.4, 5.5), (0.3, 5.9))):
        paces.take(telemetry(of, number, [[0.1, slowest, 0.1, 0.1]], [at]))
    found = read(paces)
    assert (found.sequence.tolist(), found.steps.tolist(), found.newest.tolist()) == ([0], [3], [2])
    assert found.seconds == pytest.approx([0.3])
    assert found.slowest_seconds == pytest.approx([0.4])
    assert found.own_seconds[0] == pytest.approx([0.1, 0.3, 0.1, 0.1])
    assert found.slowest_own_seconds[0] == pytest.approx([0.1, 0.4, 0.1, 0.1])
    paces.take(telemetry(of, 3, [[0.1, 0.1, 0.1, 0.1]], [4.2]))  # reported late, by another clock
    assert read(paces).steps.tolist() == [4], "no row is older than the newest row"


def test_steps_that_come_one_by_one_give_the_same_rows() -> None:
    random = np.random.default_rng(1)
    count, ranks = 40, 6
    ends = np.cumsum(random.uniform(0.1, 1.5, count) * SECOND).astype(np.int64)
    seconds = random.uniform(0.5, 2.0, (count, ranks))
    waits = np.where(random.uniform(size=seconds.shape) < 0.2, np.nan, 0.3 * seconds)
    end_ns = WALL + ends[:, None] + random.integers(0, SECOND // 10, seconds.shape)
    shape = Shape("j", 1, np.arange(ranks), ("n",) * ranks)
    together, apart = _Ring(shape, 64), _Ring(shape, 64)
    together.add(StepTable(np.arange(count), end_ns, seconds, waits))
    for one in range(count):
        row = slice(one, one + 1)
        apart.add(StepTable(np.arange(count)[row], np.maximum(end_ns[row], end_ns[:one].max(initial=0)),
                            seconds[row], waits[row]))  # fmt: skip
    assert together.count == apart.count > 10 and together.end_ns == apart.end_ns
    for name in ("at_ns", "steps", "newest"):
        assert np.array_equal(getattr(together, name), getattr(apart, name)), name
    for name in ("seconds", "slowest_seconds", "own_seconds", "slowest_own_seconds"):
        np.testing.assert_allclose(getattr(together, name), getattr(apart, name), rtol=1e-6, err_msg=name)


def test_peers_have_the_same_role() -> None:
    paces = Paces()
    of = shape(stages=2)
    paces.take(telemetry(of, 0, [[0.1, 0.1, 0.3, 0.6]], [0]))
    assert read(paces).ratios()[0] == pytest.approx([1, 1, 2 / 3, 4 / 3])


def test_only_new_rows_are_returned_and_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_ROWS", 8)
    monkeypatch.setattr(pace_module, "LEAST_ROWS", 8)
    monkeypatch.setattr(pace_module, "MOST_GONE", 2)
    paces = Paces()
    steady(paces, shape(), 20)
    found = read(paces)
    assert found.sequence.tolist() == list(range(12, 20))
    assert read(paces, 17).sequence.tolist() == [18, 19]
    assert read(paces, 19).sequence.tolist() == []
    for number in range(2, 9):
        steady(paces, shape(job=f"j-{number}"), 1)
    kept = [number for number in range(1, 9) if paces.since(f"j-{number}") is not None]
    assert kept == [6, 7, 8]
    assert paces.speeds().keys() == {"j-8"}


def test_a_large_cluster_keeps_shorter_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_CELLS", 10_000)
    paces = Paces()
    kept = []
    for number in range(1, 5):
        steady(paces, shape(ranks=64, job=f"j-{number}"), 200)
        every = [paces.since(f"j-{before}") for before in range(1, number + 1)]
        kept.append([found.sequence.tolist() for found in every if found is not None])
    for histories, rows in zip(kept, (156, 78, 52, 39), strict=True):
        assert all(history == list(range(200 - len(history), 200)) for history in histories), "the newest rows"
        assert all(rows <= len(history) <= rows * pace_module.SPARE for history in histories)


def test_a_shortened_history_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_CELLS", 10_000)
    paces = Paces()
    steady(paces, shape(ranks=64), 500, slow=2.0)
    steady(paces, shape(ranks=64, job="j-2"), 1)
    steady(paces, shape(ranks=64), 10, slow=3.0, first=500)
    found = read(paces)
    assert found.sequence.tolist() == list(range(510 - 78, 510))
    assert ((found.at_ns - WALL) // SECOND).tolist() == found.sequence.tolist()
    assert found.own_seconds[:, 1] == pytest.approx([0.2] * 68 + [0.3] * 10)


def test_another_attempt_starts_a_new_history() -> None:
    paces = Paces()
    steady(paces, shape(), 5)
    steady(paces, shape(attempt=2), 2)
    found = read(paces)
    assert (found.attempt, found.sequence.tolist()) == (2, [0, 1])


def test_the_page_gets_the_currently_slow_ranks() -> None:
    paces = Paces()
    steady(paces, shape(), 60)
    steady(paces, shape(), 10, slow=1.5, first=60)
    found = paces.since("j-1", -1, pace_module.NEWEST_ROWS)
    assert found is not None
    summary = documents.summary(found)
    assert summary is not None
    speed = summary["speed"]
    assert (summary["worst_rank"], summary["worst_node"], speed.newest) == (1, "node-0", 139)
    assert summary["slowest"] == [1, 0, 2, 3]
    assert summary["worst_ratio"] == pytest.approx(1.5)
    assert (speed.seconds, speed.usual_seconds) == (pytest.approx(0.15), pytest.approx(0.1))
    assert speed.slow
    assert speed == paces.speeds()["j-1"]
    assert [summary["own_seconds"].get(rank) for rank in (0, 1, 99)] == [pytest.approx(0.1), pytest.approx(0.15), None]


def _with_stop(before: int, stop_seconds: float, after: int) -> Paces:
    """Return ten steps a second, one step in which rank 1 is stopped, then ten steps a second again."""
    paces = Paces()
    of = shape()
    number = 0
    for at in [*range(before), *range(before + int(stop_seconds), before + int(stop_seconds) + after)]:
        own = [[0.1] * 4 for _ in range(10)]
        if at == before + int(stop_seconds):
            own[0][1] = stop_seconds + 0.1
        paces.take(telemetry(of, number, own, [at + place / 10 for place in range(10)]))
        number += 10
    return paces


@pytest.mark.parametrize("stop_seconds", [40.0, 140.0])
def test_a_stop_is_drawn_with_its_length_and_leaves_a_gap(stop_seconds: float) -> None:
    pace = read(_with_stop(60, stop_seconds, 30))
    now_ns = WALL + int((100 + stop_seconds) * SECOND)
    document = documents.document(pace, (), now_ns)
    longest = document["lines"][1]["values"]
    assert max(longest) == pytest.approx(stop_seconds + 0.1, abs=0.1), "not the mean over its second"
    assert max(document["slowest_seconds"]) == pytest.approx(stop_seconds + 0.1, abs=0.1)
    assert max(document["lines"][2]["values"]) == pytest.approx(0.1), "the other ranks only waited"
    apart = np.diff(document["at"])
    assert apart.max() == stop_seconds + 1
    assert (apart > document["gap"]).sum() == 1, "only the stop is a gap"
    assert longest.index(max(longest)) == int(apart.argmax()) + 1, "the long step ends the gap"
    assert document["now"] == now_ns / 1e9
    assert document["until"] is None


def test_one_long_step_is_no_slow_job_and_a_long_time_without_steps_is_no_step() -> None:
    speed = _with_stop(60, 40.0, 1).speeds()["j-1"]
    assert speed.seconds == pytest.approx(0.1), "the median of the newest rows"
    assert not speed.slow
    assert speed.end_ns == WALL + int(100.9 * SECOND)
    assert not is_stalled(speed, speed.end_ns + 4 * SECOND)
    assert is_stalled(speed, speed.end_ns + 6 * SECOND)


def test_a_longer_usual_step_allows_a_longer_time_without_steps() -> None:
    paces = Paces()
    for at in range(0, 400, 20):
        paces.take(telemetry(shape(), at // 20, [[20.0] * 4], [float(at)]))
    speed = paces.speeds()["j-1"]
    assert speed.gap_seconds == pytest.approx(60)
    assert not is_stalled(speed, speed.end_ns + 60 * SECOND)
    assert is_stalled(speed, speed.end_ns + 63 * SECOND)


@pytest.mark.parametrize(("slower", "slow"), [(1.0, False), (1.08, False), (1.3, True), (1.52, True)])
@pytest.mark.parametrize("lasts", [10, 200, 400])
def test_a_job_is_slow_if_it_slows_by_more_than_its_steps_vary(slower: float, slow: bool, lasts: int) -> None:
    paces = Paces()
    noise = np.random.default_rng(7)
    for at in range(600):
        own = 0.1 * (1 + 0.04 * noise.standard_normal()) * (slower if at >= 600 - lasts else 1.0)
        paces.take(telemetry(shape(), at, [[own] * 4], [float(at)]))
    assert paces.speeds()["j-1"].slow == slow


def test_a_healthy_job_with_varying_steps_is_not_slow() -> None:
    """Steps vary by 15 % on a busy machine. Less than one second in a hundred is marked slow."""
    paces = Paces()
    noise = np.random.default_rng(11)
    found = []
    for at in range(2000):
        own = 0.1 * np.exp(0.15 * noise.standard_normal())
        paces.take(telemetry(shape(), at, [[own] * 4], [float(at)]))
        if at > 60:
            found.append(paces.speeds()["j-1"].slow)
    assert np.mean(found) < 0.01


def test_a_job_half_as_slow_again_is_slow_at_any_variation() -> None:
    paces = Paces()
    noise = np.random.default_rng(5)
    for at in range(300):
        paces.take(telemetry(shape(), at, [[0.1 * np.exp(0.5 * noise.standard_normal())] * 4], [float(at)]))
    usual = paces.speeds()["j-1"].usual_seconds
    for at in range(300, 306):
        paces.take(telemetry(shape(), at, [[1.52 * usual] * 4], [float(at)]))
    assert paces.speeds()["j-1"].slow


def _cells(document: documents.Document) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    flat = np.frombuffer(base64.b64decode(document["cells"]), np.uint8)
    return flat.reshape(len(document["at"]), len(document["bands"]))


def test_a_small_gang_has_one_line_per_rank_and_unfinished_rows_are_held_back() -> None:
    paces = Paces()
    steady(paces, shape(), 5, slow=2.0)
    now_ns = WALL + 4 * SECOND + SECOND // 2
    document = documents.document(read(paces), (), now_ns)
    assert (len(document["at"]), document["sequence"]) == (4, 3)
    assert [line["name"] for line in document["lines"]] == [
        "rank 0 · node-0", "rank 1 · node-0", "rank 2 · node-1", "rank 3 · node-1"
    ]  # fmt: skip
    assert document["lines"][1]["values"] == [0.2] * 4
    assert _cells(document).tolist() == [[100, 200, 100, 100]] * 4
    later = documents.document(read(paces, document["sequence"]), (), now_ns + 2 * SECOND)
    assert (later["sequence"], len(later["at"])) == (4, 1)
    nothing = documents.document(read(paces, 4), ())
    assert (nothing["at"], nothing["cells"]) == ([], "")


def test_a_large_gang_has_bands_that_show_every_slow_rank() -> None:
    paces = Paces()
    of = shape(ranks=2000)
    steady(paces, of, 3, slow=3.0)
    document = documents.document(read(paces), (1, 1999))
    names = [line["name"] for line in document["lines"]]
    assert names == ["rank 1 · node-0", "rank 1999 · node-999", "slowest", "90 % are faster", "median", "fastest"]
    assert [line["values"][0] for line in document["lines"]] == [0.3, 0.1, 0.3, 0.1, 0.1, 0.1]
    assert len(document["bands"]) == 500 <= documents.MOST_BANDS
    assert document["bands"][:2] == ["ranks 0 to 3", "ranks 4 to 7"]
    assert _cells(document)[:, 0].tolist() == [255] * 3  # a factor of three; a cell holds at most 2.55
    assert set(_cells(document)[:, 1:].ravel().tolist()) == {100}


class _BrokenPace(Paces):
    def take(self, telemetry: Telemetry) -> None:
        raise ZeroDivisionError("a bug")


def test_an_error_in_the_page_data_does_not_stop_detectors(caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[DetectionContext] = []

    class Counting:
        name = "counting"

        def tick(self, context: DetectionContext) -> list[Finding]:
            ticks.append(context)
            return []

        def measures(self) -> list[Sample]:
            return []

        def snapshot(self) -> bytes:
            return b""

        def restore(self, data: bytes) -> None:
            raise AssertionError

    watch = DetectionThread((Counting(),), lambda _: None, SystemClock())
    watch._paces = _BrokenPace()
    watch.run_tick()
    watch.run_tick()
    assert len(ticks) == 2
    assert watch.broken() == "pace failed: ZeroDivisionError: a bug"
    assert ("gangwatch_part_failures_total", (("part", "pace"),), 1.0) in expanded(watch.measures())
    assert (watch.pace_of("j-1"), watch.speeds()) == (None, {})
