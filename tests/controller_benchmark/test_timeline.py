"""Simulated cluster of the controller's benchmark: jobs start, are disturbed and end, as agents and Slurm report."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.schema.frame import Frame, Layout, StepRecord, check_fits
from agent.schema.wire import Decoder
from benchmarks.controller.fake_slurm import FakeSlurm, node_name
from benchmarks.ingest.frames import GPUS, Agents, Job
from benchmarks.ingest.timeline import MOST_NODES, SLOWER, Plan, Run, Timeline, sizes
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED

SECOND = 1_000_000_000
PLAN = Plan(nodes=200, seed=3, begun_ns=7 * SECOND, disturbed_ns=40 * SECOND, lifetime_seconds=30.0)


def test_jobs_fill_the_cluster_and_have_the_sizes_of_the_issue() -> None:
    for seed in range(5):
        found = sizes(12_500, seed)
        assert sum(found) == 12_500
        assert 800 < len(found) < 1_250
        assert min(found) == 1 and 150 < max(found) <= MOST_NODES


@given(st.lists(st.integers(1, 20 * SECOND), min_size=1, max_size=20))
def test_every_node_has_one_job_and_processes_agree_on_it(advances: list[int]) -> None:
    """Each process advances at its own time, but the jobs must be the same."""
    timeline, at_once = Timeline(PLAN), Timeline(PLAN)
    seen = {run.number: run for run in timeline.running}
    now_ns = PLAN.begun_ns
    for advance in advances:
        now_ns += advance
        seen |= {run.number: run for run in timeline.advance(now_ns)}
        nodes = [node for run in timeline.running for node in range(run.first_node, run.first_node + run.nodes)]
        assert nodes == list(range(PLAN.nodes))
        assert all(run.begun_ns <= now_ns < run.ends_ns for run in timeline.running)
    at_once.advance(now_ns)
    assert at_once.running == timeline.running
    assert {(run.number, run.gang) for run in timeline.running} <= {(run.number, run.gang) for run in seen.values()}


@given(st.integers(0, 300 * SECOND), st.integers(0, 100 * SECOND), st.sampled_from([frozenset(), frozenset({2})]))
def test_steps_follow_each_other_without_a_gap(now_ns: int, disturbed_ns: int, slow: frozenset[int]) -> None:
    job = Job("j", 0, 3 * SECOND, 0, disturbed_ns, SLOWER, slow)
    step, begun_ns, length_ns = job.step_at(now_ns)
    assert begun_ns <= now_ns < begun_ns + length_ns
    assert job.step_at(begun_ns + length_ns)[:2] == (step + 1, begun_ns + length_ns)
    is_disturbed = bool(slow) and begun_ns >= disturbed_ns
    assert (length_ns > job.step_ns) == is_disturbed


def test_a_disturbed_rank_computes_longer_and_the_others_wait_for_it() -> None:
    job = Job("j", 0, 2 * SECOND, 0, 10 * SECOND, SLOWER, frozenset({2}))
    agents, decoder = Agents(0, [job], WANTED, as_tables=False), Decoder()
    own: dict[int, set[float]] = {}
    for half_second in range(1, 60):
        now_ns = half_second * SECOND // 2
        agents.advance(slice(0, 1), 10**18 + now_ns, now_ns)
        frame = decoder.decode(agents.frame_message(0)[4:])
        assert isinstance(frame, Frame)
        for record in frame.records:
            if isinstance(record, StepRecord) and record.start_ns >= 10 * SECOND:
                assert record.wait_ns is not None
                own.setdefault(record.member.rank, set()).add(round((record.duration_ns - record.wait_ns) / 1e9, 6))
    assert own.keys() == set(range(GPUS))
    assert own.pop(2) == {round(1.6 * SLOWER, 6)}
    assert all(seconds == {1.6} for seconds in own.values())


def test_a_node_sends_the_layout_and_the_steps_of_its_new_job() -> None:
    jobs = [Run(number, 0, 2, 0, 10**12, 2 * SECOND, 10**12, frozenset()) for number in (1, 22)]
    agents, decoder = Agents(0, [jobs[0].job_on(node) for node in (0, 1)], WANTED, as_tables=False), Decoder()

    def received(index: int) -> tuple[Layout, Frame]:
        layout = decoder.decode(agents.layout_message(index)[4:])
        frame = decoder.decode(agents.frame_message(index)[4:])
        assert isinstance(layout, Layout) and isinstance(frame, Frame)
        check_fits(layout, frame)
        return layout, frame

    agents.advance(slice(0, 2), 10**18, 30 * SECOND)
    agents.change_job(1, jobs[1].job_on(1))
    agents.advance(slice(0, 2), 10**18, 31 * SECOND)
    for index, gang in ((0, "slurm-1.0"), (1, "slurm-22.0")):
        layout, frame = received(index)
        labels = {dict(column.labels).get("gang") for column in (*layout.gauges, *layout.counters)}
        assert labels == {None, gang}
        ranks = [record.member for record in frame.records if not hasattr(record, "kind")]
        assert {member.gang for member in ranks} == {gang}
        assert {member.rank for member in ranks} == set(range(index * GPUS, (index + 1) * GPUS))


def test_the_product_reads_the_jobs_that_the_fake_slurm_lists(tmp_path: Path) -> None:
    timeline = Timeline(PLAN)
    slurm = FakeSlurm(tmp_path / "slurm", PLAN.nodes)
    slurm.list_jobs(timeline.running)
    commands = Commands(str(slurm.folder))

    async def read() -> tuple[dict[int, tuple[str, ...]], int, str]:
        jobs, nodes = await commands.jobs(), await commands.nodes()
        assert not jobs.refused and not nodes.refused
        assert all(job.runs and job.gpus == (tuple(range(GPUS)),) * len(job.nodes) for job in jobs.records.values())
        return {number: job.nodes for number, job in jobs.records.items()}, len(nodes.records), await commands.running()

    listed, nodes, before = asyncio.run(read())
    assert nodes == PLAN.nodes
    for run in timeline.running:
        assert listed[run.number] == tuple(node_name(run.first_node + offset) for offset in range(run.nodes))
    assert timeline.advance(PLAN.begun_ns + 60 * SECOND)
    slurm.list_jobs(timeline.running)
    listed, _, after = asyncio.run(read())
    assert listed.keys() == {run.number for run in timeline.running}
    assert before != after, "the product lists the jobs again only if this text changes"
