"""Trainings without declared memory, run by the scheduler: what it learns of their memory, and jobs that run out of it.

Assumptions, because no public trace has both the device memory of jobs and their users:

- CLASSES classes of recurring jobs, each of one user and workload, with weights 1/n (Alibaba's PAI: 65 % of all tasks
  are of groups with at least five instances; Weng et al., NSDI'22, section 4.1).
- The memory of a class is that of one measured training (``memory.py``), times a factor between 1 and MOST_FACTOR,
  drawn evenly by its logarithm. A run of it differs by a standard deviation of SPREAD. In CHANGED of all runs its user
  has changed something, and it needs CHANGE times as much.
- A job uses COMPUTE of a GPU's computing power, declares that, and runs as fast as alone. So memory decides how many
  jobs fit, as in ``memory.py``. Half of the users declare their memory, DECLARED times the usual amount of the class.
- The growth of the memory within a run: ``scheduler_feedback/sim/speeds/device_memory.py``.

The jobs arrive evenly in time. The arriving memory is LOAD times what the GPUs have. Nothing is known before the first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from benchmarks.survey.measured_memory import GPU_MIB, measured
from benchmarks.survey.row import Outcome
from benchmarks.survey.shares import SEEDS, interval
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Policy, Sharing
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.co_location import of_parts
from scheduler_feedback.sim.speeds.device_memory import DeviceMemory

GPUS, JOBS, CLASSES = 4, 200, 20
COMPUTE = 0.02
MOST_FACTOR = 6.0
SPREAD, CHANGED, CHANGE = 0.03, 0.02, 1.5
OFTEN = 0.2
"""Share of changed runs in a second, harder input."""
DECLARED = 1.5
LOAD = 1.5
RUN_SECONDS, RUN_SIGMA = 3600.0, 1.0
"""Median of the run times, and standard deviation of their logarithm."""

FIFO = Policy(learn_speeds=False, default_time_limit_seconds=4 * RUN_SECONDS)
POLICIES = {
    "whole GPUs": FIFO,
    "declared": replace(FIFO, sharing=Sharing.FGD),
    "learnt": replace(FIFO, sharing=Sharing.FGD, learnt_memory=True),
    "known": replace(FIFO, sharing=Sharing.FGD),
}
"""Policies by name. With "known", each job declares its true peak."""


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one simulation."""

    failed: float
    """Jobs that ran out of memory, in per cent of all jobs; a job counts once for each time."""
    used: float
    """Share of the GPUs' memory that the running jobs need, until the last job starts."""
    jct_seconds: float
    """Average time from a submission to its end."""
    separated: int
    """Number of jobs that were stopped because a slot was almost full."""


def jobs_of(seed: int, known: bool = False, changed: float = CHANGED) -> tuple[Trace, Mapping[str, int]]:
    """Return the jobs of one seed, and the true peak of each in MiB.

    known: each job declares it. changed: share of the runs that their user has changed.
    """
    chance = random.Random(f"learnt memory {seed}")
    _, mib = measured()
    usual = [float(chance.choice(mib)) * MOST_FACTOR ** chance.random() for _ in range(CLASSES)]
    drawn = chance.choices(range(CLASSES), [1 / (n + 1) for n in range(CLASSES)], k=JOBS)
    peaks, jobs = {}, []
    for number, of in enumerate(drawn):
        change = CHANGE if chance.random() < changed else 1.0
        peak = min(round(usual[of] * change * chance.lognormvariate(0.0, SPREAD)), int(GPU_MIB))
        peaks[f"j{number}"] = peak
        declared = peak if known else round(DECLARED * usual[of]) if of % 2 else 0
        spec = JobSpec(
            f"j{number}", SIMULATED_COMMAND, 1, user=f"user-{of}", workload="training", shareable=True,
            restartable=True, preemptible=True, slot_share=COMPUTE, slot_memory_mib=min(declared, int(GPU_MIB)),
        )  # fmt: skip
        jobs.append(TraceJob(spec.name, number + 1, 0, chance.lognormvariate(0.0, RUN_SIGMA) * RUN_SECONDS, spec))
    span = sum(peaks[one.job_id] * one.run_seconds for one in jobs) / (GPUS * GPU_MIB * LOAD)
    arrivals = sorted(chance.uniform(0.0, span) for _ in jobs)
    placed = [replace(job, submitted_ns=round(at * 1e9)) for job, at in zip(jobs, arrivals, strict=True)]
    return Trace(f"seed {seed}", tuple(placed)), peaks


@cache
def result(name: str, seed: int, changed: float = CHANGED) -> Result:
    """Return the figures of a policy of POLICIES. changed: share of the runs that their user has changed."""
    trace, peaks = jobs_of(seed, name == "known", changed)
    memory = DeviceMemory(peaks, seed)
    policy = POLICIES[name]
    nodes = grid(1, GPUS, jobs_per_slot=1 if policy.sharing is Sharing.NONE else 100, slot_memory_mib=int(GPU_MIB))
    engine = Simulation(
        trace, nodes, policy, restart_cost_seconds=30.0, co_speed=of_parts, memory=memory, spans=True
    ).engine()
    report = engine.run()
    assert report.avg_jct_seconds is not None and not engine.refused, "all jobs end"
    began_ns = engine.first_ns
    last_ns = max(one.first_start_ns or 0 for one in engine.courses.values())
    held = sum(peaks[one.job_id] * max(min(one.ended_ns, last_ns) - one.began_ns, 0) for one in engine.spans)
    failed = engine.memory.failed if engine.memory is not None else []
    return Result(
        100 * len(failed) / JOBS,
        held / (GPUS * GPU_MIB * (last_ns - began_ns)),
        report.avg_jct_seconds,
        engine.state.counts.get("decisions/separate/applied", 0),
    )


def values(name: str, figure: str, changed: float = CHANGED) -> tuple[float, ...]:
    """Return a figure of a policy for each seed."""
    return tuple(float(getattr(result(name, seed, changed), figure)) for seed in SEEDS)


def outcome() -> Outcome:
    """Return the jobs that ran out of memory by learnt needs, and how much of the memory each policy used."""
    used = {name: values(name, "used") for name in POLICIES}
    jct = [a / b for a, b in zip(values("learnt", "jct_seconds"), values("declared", "jct_seconds"), strict=True)]
    many = f"{OFTEN:.0%} of the runs changed: {fmean(values('learnt', 'failed', OFTEN)):.2f} % out of memory, "
    many += f"{fmean(values('learnt', 'separated', OFTEN)):.1f} jobs of {JOBS} separated before"
    text = "; ".join(f"{name} {_percent(found)}" for name, found in used.items())
    failed = values("learnt", "failed")
    reason = (
        f"95 % intervals: {fmean(failed):.2f} +-{interval(failed):.2f} % out of memory; memory used: {text}; "
        f"average JCT, declared = 1: {fmean(jct):.3f} +-{interval(tuple(jct)):.3f}; {many}; assumed jobs, see there"
    )
    return Outcome(None, round(fmean(failed), 3), reason)


def _percent(found: tuple[float, ...]) -> str:
    return f"{fmean(found):.1%} +-{interval(found) * 100:.1f}"
