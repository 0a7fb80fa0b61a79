"""Generator of step traces: lengths of steps and costs of faults, compared with hand-computed values."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grimp
import numpy as np
import pytest

from benchmarks.traces.faults import FAULTS
from benchmarks.traces.generate import CLASSES, generate
from benchmarks.traces.model import LAYOUTS, FloatArray, Layout, LayoutName, make_layout, step_seconds
from benchmarks.traces.trace_file import rows, write
from scheduler_feedback import step_traces

ROOT = Path(__file__).parents[2]


def scheduled(own: FloatArray, stages: int, data: int, microbatches: int) -> float:
    """Return the length of one pipeline step by scheduling each forward and backward pass."""
    longest = 0.0
    for replica in range(data):
        time = [float(own[stage * data + replica]) / microbatches for stage in range(stages)]
        forward, backward = [t / 3 for t in time], [2 * t / 3 for t in time]
        ends = np.zeros((stages, microbatches))
        for micro in range(microbatches):
            for stage in range(stages):
                before = ends[stage - 1, micro] if stage else 0.0
                busy = ends[stage, micro - 1] if micro else 0.0
                ends[stage, micro] = max(before, busy) + forward[stage]
        begin, ends = float(ends[-1, -1]), np.zeros((stages, microbatches))
        for micro in range(microbatches):
            for stage in reversed(range(stages)):
                before = ends[stage + 1, micro] if stage + 1 < stages else begin
                busy = ends[stage, micro - 1] if micro else 0.0
                ends[stage, micro] = max(before, busy) + backward[stage]
        longest = max(longest, float(ends[0, -1]))
    return longest


def test_a_data_parallel_step_ends_with_its_slowest_rank_and_the_all_reduce() -> None:
    own = np.array([[2.0, 3.0, 2.5, 2.0], [2.0, 2.0, 2.0, 2.0]])
    steps = step_seconds(Layout("ddp", 1, 4, 1, 1, 4), own, np.array([0.5, 0.25]))
    assert steps.tolist() == [3.5, 2.25]


def test_a_slow_rank_in_a_pipeline_costs_what_hand_computation_gives() -> None:
    layout = Layout("pp", 2, 2, 1, 1, 2, microbatches=4)
    own = np.array([[4.0, 4.0, 4.0, 4.0], [4.0, 6.0, 4.0, 4.0]])
    # Microbatches of 1 s in two stages: 1 + 1 + 3 * 1 = 5. With 1.5 s in one stage: 1.5 + 1 + 3 * 1.5 = 7.
    assert step_seconds(layout, own, np.zeros(2)).tolist() == [5.0, 7.0]


def test_the_length_of_a_pipeline_step_is_that_of_its_schedule() -> None:
    rng = np.random.default_rng(5)
    layout = Layout("pp", 4, 3, 1, 1, 4, microbatches=6)
    own = rng.uniform(1.0, 4.0, (20, 12))
    expected = [scheduled(one, 4, 3, 6) for one in own]
    assert step_seconds(layout, own, np.zeros(20)).tolist() == pytest.approx(expected)


def test_a_tensor_group_is_as_slow_as_its_slowest_rank() -> None:
    layout = Layout("pp-tp", 2, 1, 2, 1, 2, microbatches=1)
    assert step_seconds(layout, np.array([[1.0, 2.0, 5.0, 1.0]]), np.zeros(1)).tolist() == [7.0]


def test_experts_meet_in_each_layer() -> None:
    shares = np.array([[0.75, 0.25, 0.5, 0.5], [0.25, 0.75, 0.5, 0.5]])
    layout = Layout("moe", 1, 4, 1, 2, 4, shares=shares)
    # Layer by layer: the slower of ranks 0 and 1 needs 3 s in each of two layers; ranks 2 and 3 need 2 + 2.
    assert step_seconds(layout, np.array([[4.0, 4.0, 4.0, 4.0]]), np.array([1.0])).tolist() == [7.0]


def test_the_cost_of_a_fault_is_that_of_its_steps() -> None:
    job = generate(3, "one-rank", layout="ddp", ranks=16, waits="known", severity=1.0)
    truth, rank = job.truth, job.truth.culprits[0]
    during = slice(truth.onset, truth.end + 1)
    without = job.own[during].max(axis=1) + job.comm[during]
    slowed = job.own[during].copy()
    slowed[:, rank] *= 2.0
    cost = (slowed.max(axis=1) + job.comm[during]).mean() / without.mean()
    assert truth.cost == pytest.approx(cost) and truth.cost_of[rank] == pytest.approx(cost)
    assert 1.4 < cost < 2.0
    assert job.seconds[: truth.onset].tolist() == (job.own.max(axis=1) + job.comm)[: truth.onset].tolist()


def test_the_file_contains_each_ranks_wait_for_the_slowest(tmp_path: Path) -> None:
    job = generate(3, "one-rank", layout="ddp", ranks=8, waits="known", severity=1.0)
    write(job, tmp_path / "trace.jsonl")
    (trace,) = step_traces.read(tmp_path / "trace.jsonl").traces
    assert trace.steps.seconds[:, 0] == pytest.approx(job.seconds, abs=2e-6)
    assert trace.steps.seconds - trace.steps.wait_seconds == pytest.approx(job.faulty_own, abs=3e-6)
    during = trace.steps.wait_seconds[job.truth.onset :]
    assert set(during.argmin(axis=1)) == set(job.truth.culprits), "the culprit waits least"


def test_times_that_end_before_the_collective_are_the_ranks_own(tmp_path: Path) -> None:
    job = generate(3, "one-rank", layout="ddp", ranks=8, waits="own", severity=1.0)
    write(job, tmp_path / "trace.jsonl")
    (trace,) = step_traces.read(tmp_path / "trace.jsonl").traces
    assert trace.steps.seconds == pytest.approx(job.faulty_own, abs=2e-6)
    assert np.isnan(trace.steps.wait_seconds).all()
    chosen = {generate(seed, "plain", ranks=8).truth.waits for seed in range(40)}
    assert chosen == {"known", "null", "absent"}, "it is only used on request"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in FAULTS if generate(1, name, ranks=8).truth.localisable])
def test_without_waits_no_file_shows_which_rank_or_node_is_at_fault(name: str, layout: LayoutName) -> None:
    """If replicas and stages exchange all their times, the culprits are other ranks, and the file stays the same."""
    job = generate(7, name, layout=layout, ranks=16, waits="absent")
    place, before = job.layout, rows(job)
    stage, data, tensor = place.stage_of(), place.data_of(), place.tensor_of()
    stage, data = (stage + place.stages // 2) % place.stages, (data + place.experts) % place.data
    moved = (stage * place.data + data) * place.tensor + tensor
    job.own, job.faulty_own = job.own[:, moved], job.faulty_own[:, moved]
    if place.experts > 1:
        job.layout = replace(place, shares=place.shares[:, moved])
    culprits = set(np.argsort(moved)[job.truth.culprits].tolist())
    job.truth.culprits = []
    job.finish()
    assert rows(job) == before
    assert culprits != set(generate(7, name, layout=layout, ranks=16, waits="absent").truth.culprits)


def test_each_sick_rank_of_a_stage_costs_less_alone() -> None:
    job = generate(7, "sick-stage-node", severity=0.5)
    truth = job.truth
    assert {rank // truth.per_node for rank in truth.culprits} == {truth.node}
    assert set(job.layout.stage_of()[truth.culprits]) == {truth.node}, "the node is one whole stage"
    assert truth.cost > 1.05
    assert all(1.0 < alone <= truth.cost + 1e-9 for alone in truth.cost_of.values())


@pytest.mark.parametrize("name", CLASSES)
def test_a_seed_gives_the_same_file_and_the_file_is_read(name: str, tmp_path: Path) -> None:
    job = generate(11, name, most_ranks=16)
    assert rows(job) == rows(generate(11, name, most_ranks=16))
    assert rows(job) != rows(generate(12, name, most_ranks=16))
    path = tmp_path / "trace.jsonl"
    write(job, path)
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    (trace,) = step_traces.read(path).traces
    assert (len(trace.shape), len(trace.steps)) == (truth["ranks"], truth["steps"])
    assert truth["healthy"] == (truth["onset"] < 0) == (truth["cost"] == 1.0)
    assert bool(np.isfinite(trace.steps.wait_seconds).any()) == (truth["waits"] == "known")
    assert bool(trace.notes) == bool(job.repeats), "repeated steps come twice"


def test_every_rank_of_every_layout_has_a_place_of_its_own() -> None:
    for name in ("ddp", "pp", "pp-tp", "moe"):
        for ranks in (8, 64, 512):
            layout = make_layout(name, ranks, np.random.default_rng(1))  # type: ignore[arg-type]
            places = {*zip(layout.stage_of(), layout.data_of(), layout.tensor_of(), strict=True)}
            assert layout.ranks == len(places) == ranks


def test_a_popular_expert_is_popular_in_all_groups() -> None:
    job = generate(3, "hot-expert-tokens", most_ranks=64)
    assert job.tokens is not None and job.layout.ranks > job.layout.experts
    more, experts = np.log(job.tokens / 8192.0), job.layout.expert_of()
    step, rank = np.unravel_index(int(more.argmax()), more.shape)
    assert more[step, experts == experts[rank]].min() > 0.05
    lost = np.mean(job.tokens[step].reshape(-1, job.layout.experts) / 8192.0, axis=1)
    assert lost == pytest.approx(np.ones(len(lost)), abs=0.03), "the others of each group get as many fewer"


def test_the_generator_imports_neither_simulator_nor_detectors() -> None:
    graph = grimp.build_graph("benchmarks", "scheduler_feedback", cache_dir=None)
    simulator = {one for one in graph.modules if one.startswith("scheduler_feedback.sim")}
    assert simulator
    for module in (one for one in graph.modules if one.startswith("benchmarks.traces")):
        assert not graph.find_upstream_modules(module) & simulator, module
    generator = graph.find_upstream_modules("benchmarks.traces.trace_file") | graph.find_upstream_modules(
        "benchmarks.traces.generate"
    )
    assert not [one for one in generator if one.startswith("scheduler_feedback")]


def test_a_run_loads_no_module_of_the_simulator() -> None:
    code = "import sys, benchmarks.traces.__main__; print([m for m in sys.modules if 'scheduler_feedback.sim' in m])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
