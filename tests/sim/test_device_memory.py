"""Simulated device memory: jobs that run out of it, and a scheduler that learns it."""

from __future__ import annotations

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Policy, Sharing
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.co_location import of_parts
from scheduler_feedback.sim.speeds.device_memory import DeviceMemory


def ran(declared: int, peaks: tuple[int, ...], policy: Policy, retries: int = 0) -> tuple[Engine, DeviceMemory]:
    """Simulate one job after the other on two slots of 10,000 MiB each."""
    jobs = []
    for number in range(len(peaks)):
        spec = JobSpec(
            f"j{number}", ("x",), 1, user="ann", workload="w", shareable=True, slot_share=0.1, restartable=True,
            slot_memory_mib=declared, max_retries=retries,
        )  # fmt: skip
        jobs.append(TraceJob(spec.name, number + 1, number * 10**9, 1000.0, spec))
    memory = DeviceMemory({f"j{number}": peak for number, peak in enumerate(peaks)})
    nodes = grid(1, 2, jobs_per_slot=4, slot_memory_mib=10_000)
    engine = Simulation(Trace("t", tuple(jobs)), nodes, policy, co_speed=of_parts, memory=memory).engine()
    report = engine.run()
    assert report.avg_jct_seconds is not None and not engine.refused
    assert engine.memory is not None and engine.memory is not memory
    return engine, engine.memory


def test_jobs_that_declare_too_little_run_out_of_memory_once() -> None:
    engine, memory = ran(2000, (6000, 6000, 6000, 6000), Policy(sharing=Sharing.BEST_FIT))
    assert memory.failed and len(set(memory.failed)) == len(memory.failed), "each of them has run alone since"
    (row,) = engine.state.memory["ann|w"]
    assert row.out_of_memory == len(memory.failed)


def test_learnt_needs_fill_the_slots_without_a_failure() -> None:
    policy = Policy(sharing=Sharing.BEST_FIT, learnt_memory=True)
    peaks = (2000, 2040, 1980, 2020, 2000, 2010, 1990)
    engine, memory = ran(0, peaks, policy)
    assert not memory.failed
    waited = [course.waiting_ns / 1e9 for course in engine.courses.values()]
    assert max(waited) < 100.0, "the first job of the class is measured after a minute"
    alone, _ = ran(0, peaks, Policy(sharing=Sharing.BEST_FIT))
    assert max(course.waiting_ns for course in alone.courses.values()) > 2000e9
