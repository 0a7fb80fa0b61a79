"""The queue model of `benchmarks.crosscheck`: its isolation, its arithmetic, and its files."""

from __future__ import annotations

import json
from pathlib import Path

import grimp
import numpy as np
import pytest

from benchmarks.crosscheck.effects import EFFECTS
from benchmarks.crosscheck.faults import FAULTS
from benchmarks.crosscheck.job import Job, Load, times
from benchmarks.crosscheck.trace import generate, write
from tests import needs

SEEDS = range(400, 424)


@pytest.fixture(autouse=True)
def public_traces() -> None:
    needs.data("steps", "pai-job3.csv")


def job(**fields: object) -> Job:
    usual: dict[str, object] = {
        "replicas": 4, "stages": 1, "shards": 1, "steps": 5, "micro": 4, "style": "ddp", "group": 2, "per_node": 2,
        "base": 1.0, "transfer": 0.1, "number": np.arange(4), "names": ["a", "b"],
    }  # fmt: skip
    return Job(**(usual | fields))  # type: ignore[arg-type]


def load(of: Job) -> Load:
    nothing = np.zeros((of.steps, of.ranks))
    return Load(nothing + 1, nothing.copy(), nothing.copy(), nothing + 1)


def test_the_generator_shares_no_code_with_the_other_one_the_simulator_or_the_detectors() -> None:
    graph = grimp.build_graph("benchmarks", "scheduler_feedback", cache_dir=None)
    ours = {one for one in graph.modules if one.startswith("benchmarks.crosscheck")}
    assert len(ours) >= 6
    for module in ours:
        above = graph.find_upstream_modules(module)
        assert not [one for one in above if one.startswith(("benchmarks.traces", "scheduler_feedback.sim"))], module
    for module in ("benchmarks.crosscheck.trace", "benchmarks.crosscheck.score"):
        above = graph.find_upstream_modules(module)
        assert not [one for one in above if one.startswith("scheduler_feedback")], module
    theirs = {one for one in graph.modules if one.startswith("benchmarks.traces")}
    for module in theirs:
        assert not graph.find_upstream_modules(module) & ours, module


def test_a_seed_gives_the_same_trace_again_and_another_one_does_not() -> None:
    first, again, other = generate(401), generate(401), generate(403)
    assert np.array_equal(first.seconds, again.seconds) and first.culprits == again.culprits
    assert first.seconds.shape != other.seconds.shape or not np.allclose(first.seconds, other.seconds)


def test_a_slow_rank_costs_the_step_its_excess_and_the_others_wait() -> None:
    of, slow = job(), load(job())
    slow.factor[:, 2] = 1.5
    seconds, own = times(of, slow, 1)
    assert seconds.mean() == pytest.approx(1.6, abs=0.01)
    assert (seconds - own).mean(axis=0) == pytest.approx([0.6, 0.6, 0.1, 0.6], abs=0.01)


def test_a_pipeline_has_bubbles_and_its_slowest_stage_sets_the_pace() -> None:
    of = job(replicas=2, stages=2, number=np.arange(4))
    usual = times(of, load(of), 1)[0].mean()
    assert usual == pytest.approx(1.0 * (4 + 1) / 4 + 0.1, rel=0.01), "micro-batches and one bubble"
    slow = load(of)
    slow.factor[:, 1] = 1.4  # replica 0, stage 1
    assert times(of, slow, 1)[0].mean() == pytest.approx(usual + 0.4, rel=0.02)


def test_ranks_of_a_local_job_meet_after_some_steps() -> None:
    of, slow = job(style="local", steps=8), load(job(steps=8))
    slow.factor[:, 2] = 1.5
    seconds, own = times(of, slow, 1)
    assert (seconds - own)[:3] == pytest.approx(0)
    assert (seconds - own)[3] == pytest.approx([2.1, 2.1, 0.1, 2.1])


@pytest.mark.parametrize("style", ["fsdp", "experts", "tree"])
def test_ranks_meet_within_a_step(style: str) -> None:
    of = job(style=style)
    slow = load(of)
    slow.factor[:, 0] = 2.0
    assert times(of, slow, 1)[0].mean() > 1.9


def test_each_effect_is_harmless_and_each_fault_names_its_ranks() -> None:
    for name, effect in EFFECTS.items():
        of = job(steps=200, stages=2, replicas=2, number=np.array([2, 3, 0, 1]))
        changed = load(of)
        effect(of, changed, np.random.default_rng(2))
        untouched = load(of)
        parts = ("factor", "start", "end")
        assert any(not np.array_equal(getattr(changed, p), getattr(untouched, p)) for p in parts), name
    found = [generate(seed, most_ranks=32, most_samples=4000) for seed in SEEDS]
    assert {one.fault.kind for one in found if one.fault} == set(FAULTS)
    for one in found:
        assert bool(one.culprits) == (one.seed % 2 == 1)
        assert one.cost >= 0.99


def test_files_have_the_documented_keys_and_no_lost_samples(tmp_path: Path) -> None:
    for seed in SEEDS[:10]:
        trace = generate(seed, most_ranks=16, most_samples=2000)
        write(trace, tmp_path / "t.jsonl")
        rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
        assert len(rows) == trace.seconds.size - trace.lost.sum()
        assert {row["rank"] for row in rows} == set(range(trace.job.ranks))
        for row in rows:
            assert row["seconds"] > 0 and row["node"]
            assert ("wait_seconds" in row and row["wait_seconds"] is not None) == (trace.waits == "known")
            if trace.waits == "known":
                assert 0 <= row["wait_seconds"] <= row["seconds"] + 1e-5
