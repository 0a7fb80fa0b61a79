"""Recordings of steps without waits, with counters: the counters show the slow rank and the cause."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.schema.errors import TraceError
from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.step_traces import json_lines, read
from scheduler_feedback.step_traces.step_trace import START_NS, TICK_NS
from tests.detect.counters import ONSET, POLLS, RANKS, STEP_SECONDS, USUAL, lines, write
from tests.detect.traces import detect, of_kind

SLOWER = 1.3
LOST = 1.0 - 1.0 / SLOWER


def accused(path: Path, rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    found = detect(write(path, rows))
    blamed = of_kind(found, "straggler") + of_kind(found, "health") + of_kind(found, "hang")
    assert all(one["confidence"] >= 0.9 for one in blamed)
    return [(one["rank"], one["cause"]) for one in blamed]


def throttled(rank: int, faulty: bool) -> dict[str, float]:
    if rank != 5 or not faulty:
        return {"thermal_throttle": 0.0}
    return USUAL | {"sm_clock": 1.75e9 / SLOWER, "thermal_throttle": 0.6, "power": 520.0}


def on_busy_host(rank: int, faulty: bool) -> dict[str, float]:
    if rank < 8 or not faulty:
        return {}
    idle = {name: usual * (1 - LOST) for name, usual in USUAL.items()}
    return idle | {"power": 600.0 * (1 - LOST) + 90.0 * LOST, "cpu_waiting": 0.2}


def with_bad_nic(rank: int, faulty: bool) -> dict[str, float]:
    return {"nic_sequence_errors": 40.0 if faulty and rank == 9 else 0.0}


def with_long_kernels(rank: int, faulty: bool) -> dict[str, float]:
    return {"sm_active": USUAL["sm_active"]} if faulty and rank == 3 else {}


def with_more_work(rank: int, faulty: bool) -> dict[str, float]:
    return USUAL if faulty and rank == 3 else {}


def polling(_rank: int, _faulty: bool) -> dict[str, float]:
    return {}


def test_a_throttled_rank_is_accused_with_its_cause(tmp_path: Path) -> None:
    found = detect(write(tmp_path / "t.jsonl", lines(SLOWER, throttled)))
    (verdict,) = of_kind(found, "straggler")
    assert (verdict["rank"], verdict["cause"]) == (5, "thermal") and verdict["confidence"] >= 0.9
    assert ONSET <= verdict["detected_step"] <= ONSET + 12
    assert abs(verdict["slowdown"] - SLOWER) < 0.05


def test_a_node_whose_host_is_busy_is_accused(tmp_path: Path) -> None:
    found = accused(tmp_path / "t.jsonl", lines(SLOWER, on_busy_host))
    assert found and {cause for _, cause in found} == {"cpu-contention"} and found[0][0] >= 8


def test_a_nic_is_accused_if_its_errors_begin_with_the_slowness(tmp_path: Path) -> None:
    assert accused(tmp_path / "t.jsonl", lines(SLOWER, with_bad_nic)) == [(9, "nic")]


def test_a_nic_whose_errors_began_earlier_is_not_accused(tmp_path: Path) -> None:
    rows = lines(SLOWER, polling)
    for row in rows:
        if row.get("at", 0) > ONSET * STEP_SECONDS * 0.5 and row["rank"] == 9:
            row["nic_sequence_errors"] = 40.0
    assert accused(tmp_path / "t.jsonl", rows) == []


def test_a_nic_is_not_accused_while_the_network_of_other_nodes_is_congested(tmp_path: Path) -> None:
    def change(rank: int, faulty: bool) -> dict[str, float]:
        return with_bad_nic(rank, faulty) | {"nic_congestion": 200.0 if faulty else 2.0}

    assert accused(tmp_path / "t.jsonl", lines(SLOWER, change)) == []


def test_a_rank_that_slows_the_job_by_less_than_five_per_cent_is_not_accused(tmp_path: Path) -> None:
    assert accused(tmp_path / "t.jsonl", lines(1.044, throttled)) == []


def test_longer_kernels_are_accused_without_a_cause_but_more_work_is_not(tmp_path: Path) -> None:
    assert accused(tmp_path / "t.jsonl", lines(SLOWER, with_long_kernels)) == [(3, "unknown")]
    assert accused(tmp_path / "w.jsonl", lines(SLOWER, with_more_work)) == []


@pytest.mark.parametrize("change", [polling, throttled, with_bad_nic])
def test_nobody_is_accused_without_a_slowdown(tmp_path: Path, change: Any) -> None:
    rows = lines(1.0, change if change is polling else lambda rank, faulty: change(rank, False))
    assert accused(tmp_path / "t.jsonl", rows) == []


@pytest.mark.parametrize(("change", "steps"), [(on_busy_host, 13), (throttled, 6), (with_bad_nic, 6)])
def test_a_short_stall_is_not_accused(tmp_path: Path, change: Any, steps: int) -> None:
    rows = lines(SLOWER, change, steps=ONSET + steps)
    assert accused(tmp_path / "t.jsonl", rows) == []


def test_a_rank_that_throttles_from_the_start_is_accused(tmp_path: Path) -> None:
    def change(rank: int, _faulty: bool) -> dict[str, float]:
        return throttled(rank, True) | ({"sm_active": 0.95} if rank == 5 else {})

    assert accused(tmp_path / "t.jsonl", lines(1.0, change)) == [(5, "thermal")]


@pytest.mark.parametrize(("rate", "found"), [(14.0, [(6, "gpu-memory")]), (3.0, [])])
def test_a_memory_with_errors_in_each_block_since_the_start_is_accused(
    tmp_path: Path, rate: float, found: list[tuple[int, str]]
) -> None:
    rows = lines(1.0, lambda rank, _: {"memory_errors": rate if rank == 6 else 0.0}, steps=90)
    assert accused(tmp_path / "t.jsonl", rows) == found
    for row in rows:
        if row.get("at", 0.0) > 60 and row["rank"] == 6:
            row["memory_errors"] = 0.0
    assert accused(tmp_path / "ended.jsonl", rows) == []


@pytest.mark.parametrize(("idles", "found"), [(False, [(4, "gpu")]), (True, [])])
def test_a_clock_that_is_lower_all_the_time_is_accused_without_sm_activity(
    tmp_path: Path, idles: bool, found: list[tuple[int, str]]
) -> None:
    """The clock of a GPU that has nothing to run for a part of the time is lower in some samples only."""
    rows = lines(1.0, lambda rank, _: {"power": 480.0} if rank == 4 else {}, steps=90)
    random = np.random.default_rng(1)
    for row in rows:
        row.pop("sm_active", None)
        if "at" in row and row["rank"] == 4:
            row["sm_clock"] *= (0.1 if random.random() < 0.33 else 1.0) if idles else 0.7
    assert accused(tmp_path / "t.jsonl", rows) == found


@pytest.mark.parametrize(("activity", "found"), [(0.9, [(12, "never-arrived")]), (0.3, [])])
def test_a_kernel_that_runs_on_is_a_hang_and_short_kernels_are_not(
    tmp_path: Path, activity: float, found: list[tuple[int, str]]
) -> None:
    rows = [row for row in lines(1.0, polling) if row.get("step", 0) < ONSET]
    begins = ONSET * STEP_SECONDS
    for row in rows:
        if "at" in row:
            row["nvlink_bytes"] = 9e10 if row["at"] <= begins else 0.0
            if row["at"] > begins:
                row["sm_active"] = activity if row["rank"] == 12 else POLLS["sm_active"]
    assert accused(tmp_path / "t.jsonl", rows) == found


def test_a_hang_shows_by_power_if_sms_are_not_measured(tmp_path: Path) -> None:
    rows = [row for row in lines(1.0, polling) if row.get("step", 0) < ONSET]
    begins = ONSET * STEP_SECONDS
    for row in rows:
        if "at" in row:
            row.pop("sm_active")
            row["nvlink_bytes"] = 9e10 if row["at"] <= begins else 0.0
            if row["at"] > begins:
                row["power"] = 90.0 if row["rank"] == 12 else POLLS["power"]
    assert accused(tmp_path / "t.jsonl", rows) == [(12, "never-arrived")]


def test_counters_are_sorted_into_windows_on_the_clock_of_the_steps(tmp_path: Path) -> None:
    rows = [{"step": k, "rank": r, "seconds": 4.0, "end": 104.0 + 4 * k} for k in range(5) for r in (7, 2)]
    rows += [{"at": 102.0 + 2 * k, "rank": r, "power": 100.0 * k + r} for k in range(9) for r in (7, 2)]
    rows = [row for row in rows if not (row.get("at") == 108.0 and row["rank"] == 2)]
    recording = read(write(tmp_path / "a.jsonl", rows))
    (trace,) = recording.traces
    assert recording.timed and trace.counters is not None and trace.counters.seconds == 2.0
    windows = [one.counters for one in recording.stream() if len(one.counters.at_ns)]
    power = np.concatenate([one.values[FEATURE["power"]] for one in windows])
    assert np.array_equal(power[:, 1], [100.0 * k + 7 for k in range(9)])
    assert np.flatnonzero(np.isnan(power[:, 0])).tolist() == [3]
    assert all(np.isnan(one.values[FEATURE["sm_active"]]).all() for one in windows)
    # The first step begins at second 100, two seconds before the first sample.
    assert trace.steps.end_ns[0].tolist() == [START_NS + 4_000_000_000] * 2
    ticks = list(recording.stream())
    assert {b.now_ns - a.now_ns for a, b in itertools.pairwise(ticks)} == {TICK_NS}
    assert sum(len(one.jobs[0].steps) for one in ticks if one.jobs[0].steps is not None) == 5


def test_without_ends_steps_follow_each_other_from_second_zero(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": k, "rank": 0, "seconds": 3.0} for k in range(4)]
    rows += [{"at": 1.0 + k, "rank": 0, "power": "5"} for k in range(9)]
    (trace,) = json_lines.read(write(tmp_path / "a.jsonl", rows))
    assert trace.counters is not None
    assert trace.steps.end_ns[:, 0].tolist() == [START_NS + (3 + 3 * k) * 10**9 for k in range(4)]
    assert trace.counters_start_ns == START_NS + 10**9


STEP = {"step": 1, "rank": 0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([STEP, {"at": -1, "rank": 0}], "line 2, key 'at': -1 is not a valid duration"),
        ([STEP, {"at": 1e12, "rank": 0}], "line 2, key 'at': 1e+12 is out of range"),
        ([STEP, {"at": 1}], "line 2: key 'rank' is missing"),
        ([STEP, {"at": 1, "rank": 1 << 20}], "line 2, key 'rank': 1048576 is not a rank number"),
        ([STEP, {"at": 1, "rank": 0, "power": "hot"}], "line 2, key 'power': 'hot' is not a number"),
        ([STEP, {"at": 1, "rank": 0, "power": True}], "line 2, key 'power': True is not a finite number"),
        ([STEP, {"at": 1, "rank": 0, "power": 1e30}], "line 2, key 'power': 1e+30 is out of range"),
        ([STEP, {"at": 1, "rank": 0, "job": 5}], "line 2, key 'job': 5 is not a string"),
        ([STEP, {"at": 1, "rank": 4}], "rank 4 has counters but no steps"),
        ([{"at": 1, "rank": 4}], "job a has counters but no steps"),
        ([STEP, STEP | {"job": "b"}, {"at": 1, "rank": 0}], "must have one job, but has 2"),
        ([STEP | {"end": 1.0}, STEP | {"step": 2}, {"at": 1, "rank": 0}], "key 'end' is missing"),
        ([STEP | {"end": 1e15}, {"at": 1, "rank": 0}], "line 1, key 'end': 1e+15 is out of range"),
        ([STEP | {"end": 1.7e9}, {"at": 1, "rank": 0}], "'end' and 'at' must be on one clock"),
        ([STEP, {"at": 1.7e9, "rank": 0}], "'end' and 'at' must be on one clock"),
        ([STEP, STEP | {"step": 2, "seconds": 2e7}, {"at": 1, "rank": 0}], "a step takes more than 1e+06 s"),
        ([STEP, STEP | {"step": 2, "seconds": 9e5}, {"at": 1e6, "rank": 0}], "one clock"),
        ([STEP, *({"at": at, "rank": 0} for at in (1, 5e5, 2e6))], "span more than 1e+06 s"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(TraceError) as error:
        json_lines.read(write(tmp_path / "a.jsonl", rows))
    assert words in str(error.value)


def test_a_time_far_away_is_refused_before_memory_is_used(tmp_path: Path) -> None:
    rows = [STEP, *({"at": at, "rank": 0} for at in (1.0, 1.1, 1.2, 9e10))]
    with pytest.raises(TraceError, match="the times 'at' span"):
        json_lines.read(write(tmp_path / "a.jsonl", rows))


def test_blocks_may_end_between_steps_and_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", lines(SLOWER, throttled)[:4000])
    (whole,) = json_lines.read(path)
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 700)
    (parts,) = json_lines.read(path)
    assert np.array_equal(whole.steps.end_ns, parts.steps.end_ns)
    assert len(path.read_text().splitlines()) > RANKS
    assert json.loads(path.read_text().splitlines()[-1])["rank"] < RANKS
