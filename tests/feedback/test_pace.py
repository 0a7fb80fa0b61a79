"""How fast ranks have gone lately, and how that is handed to the page: bounded, and nothing told twice."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from agent.schema.clock import SystemClock
from scheduler_feedback.core import pace as pace_module
from scheduler_feedback.core.fleet import Sample
from scheduler_feedback.core.pace import Pace, Paces
from scheduler_feedback.core.telemetry import JobTelemetry, Shape, StepTable, Telemetry, no_counters
from scheduler_feedback.core.verdict import Finding
from scheduler_feedback.watch import Watch
from scheduler_feedback.web import paces as documents

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND


def shape(ranks: int = 4, job: str = "j-1", attempt: int = 1, stages: int = 1) -> Shape:
    numbers = np.arange(ranks, dtype=np.int64)
    nodes = tuple(f"node-{rank // 2}" for rank in range(ranks))
    return Shape(job, attempt, numbers, nodes, stage=numbers * stages // ranks)


def telemetry(of: Shape, first: int, own: list[list[float]], at_seconds: list[float]) -> Telemetry:
    """Steps from number `first` on, with the ranks' own times, ending at these seconds; all wait for the slowest."""
    busy = np.array(own, float)
    seconds = np.repeat(busy.max(axis=1, keepdims=True), len(of), axis=1)
    end_ns = np.repeat(np.array([[WALL + int(at * SECOND)] for at in at_seconds], np.int64), len(of), axis=1)
    table = StepTable(np.arange(first, first + len(own), dtype=np.int64), end_ns, seconds, seconds - busy)
    return Telemetry(WALL, (JobTelemetry(of, table),), no_counters(len(of)))


def steady(paces: Paces, of: Shape, seconds: int, slow: float = 1.0, first: int = 0) -> None:
    """A step every half second; rank 1 takes `slow` times what the others do."""
    own = [0.1] * len(of)
    own[1] *= slow
    for at in range(first, first + seconds):
        paces.take(telemetry(of, 2 * at, [own, own], [at, at + 0.5]))


def read(paces: Paces, sequence: int = -1) -> Pace:
    found = paces.since("j-1", sequence)
    assert found is not None
    return found


def test_a_row_is_a_second_with_steps_in_it() -> None:
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
    assert found.usual_seconds == pytest.approx(0.2)
    assert found.ratios()[3] == pytest.approx([1, 4, 1, 1])


def test_peers_are_those_of_the_same_role() -> None:
    paces = Paces()
    of = shape(stages=2)
    paces.take(telemetry(of, 0, [[0.1, 0.1, 0.3, 0.6]], [0]))
    assert read(paces).ratios()[0] == pytest.approx([1, 1, 2 / 3, 4 / 3])


def test_only_what_is_new_is_handed_out_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert paces.newest_seconds().keys() == {"j-8"}


def test_a_large_cluster_keeps_shorter_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_CELLS", 10_000)
    paces = Paces()
    kept = []
    for number in range(1, 5):
        steady(paces, shape(ranks=64, job=f"j-{number}"), 200)
        every = [paces.since(f"j-{before}") for before in range(1, number + 1)]
        kept.append([found.sequence.tolist() for found in every if found is not None])
    for histories, rows in zip(kept, (156, 78, 52, 39), strict=True):
        assert all(history == list(range(200 - len(history), 200)) for history in histories), "the newest"
        assert all(rows <= len(history) <= rows * pace_module.SPARE for history in histories)


def test_a_history_that_was_shortened_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_CELLS", 10_000)
    paces = Paces()
    steady(paces, shape(ranks=64), 500, slow=2.0)
    steady(paces, shape(ranks=64, job="j-2"), 1)
    steady(paces, shape(ranks=64), 10, slow=3.0, first=500)
    found = read(paces)
    assert found.sequence.tolist() == list(range(510 - 78, 510))
    assert ((found.at_ns - WALL) // SECOND).tolist() == found.sequence.tolist()
    assert found.own_seconds[:, 1] == pytest.approx([0.2] * 68 + [0.3] * 10)


def test_another_attempt_begins_anew() -> None:
    paces = Paces()
    steady(paces, shape(), 5)
    steady(paces, shape(attempt=2), 2)
    found = read(paces)
    assert (found.attempt, found.sequence.tolist()) == (2, [0, 1])


def test_the_page_is_told_who_is_slow_now() -> None:
    paces = Paces()
    steady(paces, shape(), 60)
    steady(paces, shape(), 10, slow=1.5, first=60)
    found = paces.since("j-1", -1, documents.LAST)
    assert found is not None
    summary = documents.summary(found, [0, 1, 99])
    assert summary is not None
    assert (summary["worst_rank"], summary["worst_node"], summary["newest"]) == (1, "node-0", 139)
    assert summary["worst_ratio"] == pytest.approx(1.5)
    assert (summary["seconds"], summary["usual_seconds"]) == (pytest.approx(0.15), pytest.approx(0.1))
    assert summary["own_seconds"] == {0: pytest.approx(0.1), 1: pytest.approx(0.15)}


def _cells(document: documents.Document) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    flat = np.frombuffer(base64.b64decode(document["cells"]), np.uint8)
    return flat.reshape(len(document["at"]), len(document["bands"]))


def test_a_small_gang_has_a_line_a_rank_and_a_row_that_may_grow_is_held_back() -> None:
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


def test_a_large_gang_has_bands_in_which_no_slow_rank_is_lost() -> None:
    paces = Paces()
    of = shape(ranks=2000)
    steady(paces, of, 3, slow=3.0)
    document = documents.document(read(paces), (1, 1999))
    names = [line["name"] for line in document["lines"]]
    assert names == ["rank 1 · node-0", "rank 1999 · node-999", "slowest", "90 % are faster", "median", "fastest"]
    assert [line["values"][0] for line in document["lines"]] == [0.3, 0.1, 0.3, 0.1, 0.1, 0.1]
    assert len(document["bands"]) == 500 <= documents.MOST_BANDS
    assert document["bands"][:2] == ["ranks 0 to 3", "ranks 4 to 7"]
    assert _cells(document)[:, 0].tolist() == [255] * 3  # three times, the most that a cell holds is 2.55
    assert set(_cells(document)[:, 1:].ravel().tolist()) == {100}


class _Broken(Paces):
    def take(self, telemetry: Telemetry) -> None:
        raise ZeroDivisionError("a bug")


def test_a_bug_in_what_people_look_at_keeps_no_detector_from_looking(caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[Telemetry] = []

    class Counting:
        name = "counting"

        def tick(self, telemetry: Telemetry) -> list[Finding]:
            ticks.append(telemetry)
            return []

        def measures(self) -> list[Sample]:
            return []

        def snapshot(self) -> bytes:
            return b""

        def restore(self, data: bytes) -> None:
            raise AssertionError

    watch = Watch((Counting(),), lambda _: None, SystemClock())
    watch._paces = _Broken()
    watch.look()
    watch.look()
    assert len(ticks) == 2
    assert watch.broken() == "pace failed: ZeroDivisionError: a bug"
    assert ("gangwatch_part_failures_total", (("part", "pace"),), 1.0) in watch.measures()
    assert (watch.pace_of("j-1"), watch.step_seconds()) == (None, {})
