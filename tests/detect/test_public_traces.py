"""`gangwatch detect` on public traces, unchanged or with permuted ranks, permuted times, or an early end."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs
from tests.detect.traces import authors, bytedance, detect, of_kind, pai, write_bytedance, write_pai


@functools.cache
def detected(*parts: str) -> dict[str, Any]:
    """Return the output of `gangwatch detect --json` for an unchanged trace; several tests compare with it."""
    return detect(needs.data(*parts))


# --- unchanged --------------------------------------------------------------------------------------------------------


def test_deliberately_slowed_worker_is_found() -> None:
    found = detected("steps", "bytedance-AR.parquet")
    result = authors("AR")
    (straggler,) = of_kind(found, "straggler")
    numbers = sorted(int(step) for step in result["step_t_base"])
    assert (straggler["rank"], straggler["dp_rank"], straggler["stage"]) == (0, 0, 0)
    assert straggler["confidence"] >= 0.9
    assert straggler["detected_step"] <= numbers[12], "certain after a dozen slow steps"
    assert straggler["evidence"]
    assert not of_kind(found, "stage_imbalance")
    ideal = np.mean(list(result["step_t_noblk"].values()))
    assert found["job"]["slowdown"] == pytest.approx(result["blocking_slowdown"], rel=0.05)
    assert found["job"]["without_suspects_seconds"] == pytest.approx(ideal, rel=0.05)
    assert found["job"]["step_seconds"] == pytest.approx(np.mean(list(result["step_t_base"].values())), rel=1e-4)
    assert (found["job"]["steps"], found["job"]["ranks"]) == (44, 16)


def test_unequal_stages_are_no_straggler() -> None:
    found = detected("steps", "bytedance-ST.parquet")
    assert not of_kind(found, "straggler")
    (imbalance,) = of_kind(found, "stage_imbalance")
    assert (imbalance["stage"], imbalance["rank"]) == (3, None)
    assert found["job"]["slowdown"] == pytest.approx(authors("ST")["blocking_slowdown"], rel=0.05)
    of_stage = json.loads(needs.data("steps", "bytedance-ST.ms.json").read_text())
    assert imbalance["slowdown"] == pytest.approx(of_stage["tori"] / of_stage["trem"], rel=0.02)


def test_temporarily_slow_worker_is_found() -> None:
    found = detected("steps", "pai-job1.csv")
    (straggler,) = of_kind(found, "straggler")
    assert (straggler["worker"], straggler["rank"]) == (6, 6)
    assert straggler["first_step"] == pytest.approx(1811, abs=50)
    assert straggler["last_step"] == pytest.approx(1941, abs=50)
    assert straggler["first_step"] <= straggler["detected_step"] <= 1941
    (offsets,) = of_kind(found, "workload")
    assert (offsets["ranks"], offsets["cause"]) == ([0, 1, 2], "standing-offset")


def test_several_slow_workers_are_reported_as_unknown() -> None:
    """The true cause is unknown: workers 6 to 9 are equally slow near the end, and no single one explains the steps."""
    found = detected("steps", "pai-job3.csv")
    assert not of_kind(found, "straggler")
    (offsets,) = of_kind(found, "workload")
    assert offsets["ranks"] == [0, 1]
    unknown = of_kind(found, "unknown")
    assert {6, 7} <= {verdict["worker"] for verdict in unknown}
    assert all(verdict["detected_step"] > 2150 for verdict in unknown)


# --- as a stream ------------------------------------------------------------------------------------------------------


def test_verdict_uses_no_later_steps(tmp_path: Path) -> None:
    """If the trace ends at the step of detection, the verdict is the same."""
    table = bytedance("AR")
    whole = detected("steps", "bytedance-AR.parquet")
    (verdict,) = of_kind(whole, "straggler")
    kept = table["step"] <= verdict["detected_step"]
    begun = detect(write_bytedance(tmp_path / "begun.parquet", {name: values[kept] for name, values in table.items()}))
    (again,) = of_kind(begun, "straggler")
    same = ("rank", "first_step", "detected_step", "slowdown", "confidence", "evidence")
    assert [again[name] for name in same] == [verdict[name] for name in same]


def test_verdict_on_a_worker_uses_no_later_steps(tmp_path: Path) -> None:
    iterations, times = pai("pai-job1")
    (verdict,) = of_kind(detected("steps", "pai-job1.csv"), "straggler")
    kept = iterations <= verdict["detected_step"]
    (again,) = of_kind(detect(write_pai(tmp_path / "begun.csv", iterations[kept], times[kept])), "straggler")
    assert (again["worker"], again["detected_step"]) == (verdict["worker"], verdict["detected_step"])


# --- variants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_permuting_the_replicas_permutes_the_verdict(tmp_path: Path, seed: int) -> None:
    """Permute data-parallel ranks, with random rank numbers and a random order of rows."""
    random = np.random.default_rng(seed)
    table = bytedance("AR")
    to = random.permutation(4)
    numbers = np.unique(table["rank"])
    renamed = dict(zip(numbers.tolist(), random.permutation(64)[: len(numbers)].tolist(), strict=True))
    table["dp_rank"] = to[table["dp_rank"]]
    table["rank"] = np.array([renamed[rank] for rank in table["rank"].tolist()])
    order = random.permutation(len(table["rank"]))
    found = detect(write_bytedance(tmp_path / "t.parquet", {name: values[order] for name, values in table.items()}))
    (straggler,) = of_kind(found, "straggler")
    assert (straggler["rank"], straggler["dp_rank"], straggler["stage"]) == (renamed[0], to[0], 0)
    assert found["job"]["slowdown"] == pytest.approx(authors("AR")["blocking_slowdown"], rel=0.05)


@pytest.mark.parametrize("scale", [1e-3, 60.0, 1e9])
def test_unit_of_time_does_not_matter(tmp_path: Path, scale: float) -> None:
    table = bytedance("AR")
    for name in ("start_ts", "duration"):
        table[name] = table[name].astype(np.float64) * scale
    found = detect(write_bytedance(tmp_path / "t.parquet", table))
    whole = detected("steps", "bytedance-AR.parquet")
    same = ("kind", "rank", "first_step", "last_step", "detected_step", "cause")
    assert [[v[name] for name in same] for v in found["verdicts"]] == [
        [v[name] for name in same] for v in whole["verdicts"]
    ]
    assert found["job"]["slowdown"] == pytest.approx(whole["job"]["slowdown"], rel=1e-3)
    iterations, times = pai("pai-job1")
    scaled = detect(write_pai(tmp_path / "t.csv", iterations, times * scale))
    usual = detected("steps", "pai-job1.csv")
    assert [[v[name] for name in same] for v in scaled["verdicts"]] == [
        [v[name] for name in same] for v in usual["verdicts"]
    ]


@pytest.mark.parametrize(("worker", "begin"), [(worker, (60, 140, 230)[worker % 3]) for worker in range(10)])
def test_slowdown_moved_to_another_worker_and_time_is_found(tmp_path: Path, worker: int, begin: int) -> None:
    iterations, times = pai("pai-job1")
    slow = slice(int(np.searchsorted(iterations, 1811)), int(np.searchsorted(iterations, 1941)) + 1)
    usual = np.median(times, axis=0)
    ratio = times[slow, 6] / usual[6]
    times[slow, 6] = times[slow.start - len(ratio) : slow.start, 6]
    times[begin : begin + len(ratio), worker] = usual[worker] * ratio
    found = detect(write_pai(tmp_path / "t.csv", iterations, times))
    (straggler,) = of_kind(found, "straggler")
    assert straggler["worker"] == worker
    assert straggler["first_step"] == pytest.approx(iterations[begin], abs=50)
    assert straggler["last_step"] == pytest.approx(iterations[begin + len(ratio) - 1], abs=50)


@pytest.mark.parametrize("seed", range(3))
def test_job_without_its_slow_period_has_no_straggler(tmp_path: Path, seed: int) -> None:
    """Use a healthy job with real noise: PAI job 1 without its slow period, with permuted workers and times."""
    random = np.random.default_rng(seed)
    iterations, times = pai("pai-job1")
    slow = slice(int(np.searchsorted(iterations, 1811)), int(np.searchsorted(iterations, 1941)) + 1)
    keep = np.ones(len(iterations), np.bool_)
    keep[slow] = False
    times = times[keep][:, random.permutation(10)]
    order = random.permutation(len(times)) if seed else np.arange(len(times))
    found = detect(write_pai(tmp_path / "t.csv", iterations[keep], times[order]))
    assert not of_kind(found, "straggler")


@pytest.mark.parametrize(("rank", "factor"), [(1, 1.5), (4, 2.0), (7, 1.7)])
@pytest.mark.parametrize("begin", [10, 20])
def test_slow_rank_of_a_small_unequal_pipeline_is_found(tmp_path: Path, rank: int, factor: float, begin: int) -> None:
    """Lengthen one rank's compute time in trial ST from some step on, and the steps by as much.

    Two ranks a stage have no majority, so the detector must compare the rank with its own past.
    """
    table = bytedance("ST")
    numbers = np.unique(table["step"])
    own = np.isin(table["optype"].astype(str), ["forward-compute", "backward-compute"])
    for name in ("start_ts", "duration"):
        table[name] = table[name].astype(np.float64)
    for step in numbers[begin:]:
        rows = table["step"] == step
        slow = rows & own & (table["rank"] == rank)
        longer = (factor - 1) * float(table["duration"][slow].sum())
        table["duration"][slow] *= factor
        last = rows & (table["optype"].astype(str) == "grads-reduce-scatter")
        table["duration"][last & (table["rank"] != rank)] += longer
        late = rows & np.isin(table["optype"].astype(str), ["optimizer", "optimizer-clip-main-grad"])
        table["start_ts"][late] += longer
    found = detect(write_bytedance(tmp_path / "t.parquet", table))
    assert [verdict["rank"] for verdict in of_kind(found, "straggler")] == [rank]
    (straggler,) = of_kind(found, "straggler")
    if straggler["confidence"] >= 0.9:
        assert numbers[begin + 9] <= straggler["detected_step"], "certain after a dozen slow steps"
    else:
        assert numbers[begin] <= straggler["detected_step"] <= numbers[begin + 6]
