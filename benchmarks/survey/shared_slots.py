"""Rows of Gandiva, AntMan, SJF-BSBF and IADeep: jobs that share GPUs, with the pair speeds that Gavel measured.

Jobs are drawn as in Gavel's traces (``gavel_data.static_jobs``), and arrive at random so that their work is LOAD times
what the cluster can do alone. The true speeds of a pair are those of one GPU of type v100 in Gavel's public file of
measured throughputs; a pair of which one did not run (out of memory) makes almost no progress. The scheduler does not
know these speeds: it measures pairs, or predicts them from the pairs measured so far. Every restart costs 300 s.
None of the four systems published a result for a public trace.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from benchmarks.survey.gavel_data import read_simulation, static_jobs
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import SEEDS, interval
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy, Sharing
from scheduler_feedback.policies.sharing.interference_model import fit
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.co_location import of_pairs

JOBS = 400
NODES = 6
LOAD = 1.2
GPU_TYPE = "v100"

_KEY = re.compile(r"\('(.+)', 1\)")

FIFO = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT)
SJF = replace(FIFO, order=Order.SJF)

BASE = f"{JOBS} jobs of Gavel's distribution, {NODES}x8 v100, ten seeds"


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one simulation."""

    jct: float
    """Average completion time, in seconds."""
    host_slowdown: float
    """Run time of the jobs that are not opportunistic, divided by their work, mean over jobs without restarts."""
    guaranteed_jct: float
    """Average completion time of the jobs that are not opportunistic, in seconds."""
    makespan: float
    """First submission to last end, in seconds."""
    separated: int
    """Number of pairs that were separated."""
    shared: int
    """Number of starts beside other jobs."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    jct = f"average JCT, without sharing = 1, {BASE}"
    return [
        Row("Gandiva", "packing with introspective undo", jct, None, "Xiao et al., OSDI'18 (26 % utilisation gain)",
            _gandiva, slow=True),
        Row("AntMan", "opportunistic jobs on leftovers",
            f"average JCT of guaranteed jobs, without opportunistic ones = 1, {BASE}", None, "Xiao et al., OSDI'20",
            _antman, slow=True),
        Row("SJF-BSBF", "sharing only where it pays", f"average JCT, SJF without sharing = 1, {BASE}", None,
            "Luo et al., IWQoS'24", _sjf_bsbf, slow=True),
        Row("IADeep", "interference prediction for placement", jct, None, "Chen et al., SC'23", _iadeep, slow=True),
        Row("IADeep", "interference prediction", "mean error of held-out speeds of pairs, v100", None,
            "Chen et al., SC'23", _held_out),
    ]  # fmt: skip


@cache
def pair_speeds() -> Mapping[str, Mapping[str, float]]:
    """Return the measured speeds: job type -> other job type -> speed of the first, relative to its speed alone.

    Raises ValueError if the file is not in Gavel's format.
    """
    path = data_folder() / "interference" / "gavel-throughputs.json"
    rows = json.loads(path.read_text())[GPU_TYPE]
    found: dict[str, dict[str, float]] = {}
    for key, row in rows.items():
        if (one := _KEY.fullmatch(key)) is None:
            continue
        alone = row["null"]
        for other_key, pair in row.items():
            if (other := _KEY.fullmatch(other_key)) is not None and alone > 0:
                found.setdefault(one[1], {})[other[1]] = min(pair[0] / alone, 1.0)
    if not found:
        raise ValueError(f"{path} has no pairs of jobs with one GPU of type {GPU_TYPE}")
    return found


def trace_of(seed: int, opportunistic: float = 0.0, only_guaranteed: bool = False, load: float = LOAD) -> Trace:
    """Return the jobs of one seed. opportunistic: share of the jobs that run on leftovers only. load: see LOAD."""
    chance = random.Random(f"arrivals {seed}")
    drawn = static_jobs(read_simulation(), JOBS, seed)
    work = sum(job.seconds * job.gpus for job in drawn)
    span = work / (NODES * 8 * load)
    arrivals = sorted(chance.uniform(0, span) for _ in drawn)
    jobs = []
    for number, (job, at_seconds) in enumerate(zip(drawn, arrivals, strict=True)):
        leftover = chance.random() < opportunistic
        if leftover and only_guaranteed:
            continue
        spec = JobSpec(
            f"j{number}", SIMULATED_COMMAND, job.gpus, workload=job.job_type, restartable=True, preemptible=True,
            shareable=True, opportunistic=leftover,
        )  # fmt: skip
        jobs.append(TraceJob(spec.name, number + 1, round(at_seconds * 1e9), job.seconds, spec))
    return Trace(f"seed {seed}", tuple(jobs))


def run(trace: Trace, policy: Policy) -> Figures:
    """Simulate the trace under this policy."""
    engine = engine_of(trace, policy)
    report = engine.run()
    assert report.avg_jct_seconds is not None, "all jobs end"
    plain = [one for one in engine.courses.values() if not one.job.spec.opportunistic and one.ended_ns is not None]
    jct = [((one.ended_ns or 0) - one.submitted_ns) / 1e9 for one in plain]
    ran = [((one.ended_ns or 0) - one.submitted_ns - one.waiting_ns) / one.work_ns for one in plain if one.starts == 1]
    counts = engine.state.counts
    return Figures(
        report.avg_jct_seconds, fmean(ran), fmean(jct), report.makespan_seconds,
        counts.get("decisions/separate/applied", 0), counts.get("decisions/shares/applied", 0),
    )  # fmt: skip


def engine_of(trace: Trace, policy: Policy) -> Engine:
    """Return the engine for this trace, with measured speeds of pairs and restarts of 300 s."""
    table = {GPU_TYPE: pair_speeds()}
    nodes = grid(NODES, 8, gpu_type=GPU_TYPE, jobs_per_slot=1 if policy.sharing is Sharing.NONE else 2)
    return Simulation(
        trace, nodes, policy, restart_cost_seconds=RESTART_COST_SECONDS, co_speed=of_pairs(table)
    ).engine()


@cache
def figures(name: str) -> tuple[Figures, ...]:
    """Return the figures of one policy, by seed."""
    given = {one: dict(row) for one, row in pair_speeds().items()}
    policies = {
        "fifo": FIFO,
        "sjf": SJF,
        "always": replace(FIFO, sharing=Sharing.GANDIVA, separate_below=0.0),
        "gandiva": replace(FIFO, sharing=Sharing.GANDIVA),
        "iadeep": replace(FIFO, sharing=Sharing.IADEEP),
        "oracle": replace(FIFO, sharing=Sharing.IADEEP, pair_speeds=given),
        "sjf-always": replace(SJF, sharing=Sharing.GANDIVA, separate_below=0.0),
        "sjf-gandiva": replace(SJF, sharing=Sharing.GANDIVA),
        "sjf-bsbf": replace(SJF, sharing=Sharing.SJF_BSBF, pair_speeds=given),
    }
    return tuple(run(trace_of(seed), policies[name]) for seed in SEEDS)


def _ratio(name: str, base: str) -> tuple[float, ...]:
    return tuple(one.jct / other.jct for one, other in zip(figures(name), figures(base), strict=True))


def _said(values: tuple[float, ...]) -> str:
    return f"{fmean(values):.3f} +-{interval(values):.3f}"


def _gandiva() -> Outcome:
    kept = _ratio("gandiva", "fifo")
    separated = fmean(one.separated for one in figures("gandiva"))
    shared = fmean(one.shared for one in figures("gandiva"))
    makespan = tuple(a.makespan / b.makespan for a, b in zip(figures("gandiva"), figures("fifo"), strict=True))
    text = (
        f"{_said(kept)}; makespan {_said(makespan)}; {separated:.0f} of {shared:.0f} pairs separated, 30 s after both "
        f"had begun to train; without undo {_said(_ratio('always', 'fifo'))}; both FIFO and EASY"
    )
    return Outcome(None, round(fmean(kept), 4), text)


def _iadeep() -> Outcome:
    found = _ratio("iadeep", "fifo")
    text = (
        f"{_said(found)}; with all speeds known {_said(_ratio('oracle', 'fifo'))}, by trial (Gandiva) "
        f"{_said(_ratio('gandiva', 'fifo'))}; both FIFO and EASY"
    )
    return Outcome(None, round(fmean(found), 4), text)


def _sjf_bsbf() -> Outcome:
    found = _ratio("sjf-bsbf", "sjf")
    text = (
        f"{_said(found)}; always sharing {_said(_ratio('sjf-always', 'sjf'))}, Gandiva's rule "
        f"{_said(_ratio('sjf-gandiva', 'sjf'))}; run times and speeds known, as in the paper"
    )
    return Outcome(None, round(fmean(found), 4), text)


OPPORTUNISTIC = 0.3
"""Share of opportunistic jobs in the row of AntMan."""


def _antman() -> Outcome:
    ratios, slower, all_of_them = [], [], []
    for seed in SEEDS:
        alone = run(trace_of(seed, OPPORTUNISTIC, only_guaranteed=True), FIFO)
        mixed = run(trace_of(seed, OPPORTUNISTIC), replace(FIFO, sharing=Sharing.ANTMAN))
        ratios.append(mixed.guaranteed_jct / alone.guaranteed_jct)
        slower.append(mixed.host_slowdown)
        plain = run(_guaranteed(trace_of(seed, OPPORTUNISTIC)), FIFO)
        all_of_them.append(mixed.jct / plain.jct)
    text = (
        f"{_said(tuple(ratios))}; run time of guaranteed jobs {_said(tuple(slower))} of that alone; average JCT of all "
        f"jobs, all guaranteed = 1: {_said(tuple(all_of_them))}; {OPPORTUNISTIC:.0%} of the jobs are opportunistic"
    )
    return Outcome(None, round(fmean(ratios), 4), text)


def _guaranteed(trace: Trace) -> Trace:
    return replace(
        trace,
        jobs=tuple(replace(job, spec=structs.replace(job.spec, opportunistic=False)) for job in trace.jobs),
    )


def held_out_errors(fold: int, folds: int = 5) -> tuple[list[float], list[float]]:
    """Return the errors of predicted speeds of the pairs of one fold, and those of the mean of all other pairs."""
    pairs = [(one, other, speed) for one, row in pair_speeds().items() for other, speed in row.items()]
    random.Random(7).shuffle(pairs)
    table: dict[str, dict[str, float]] = {}
    for number, (one, other, speed) in enumerate(pairs):
        if number % folds != fold:
            table.setdefault(one, {})[other] = speed
    model = fit(table)
    mean = fmean(speed for row in table.values() for speed in row.values())
    held = [pair for number, pair in enumerate(pairs) if number % folds == fold]
    return (
        [abs(model.speed(one, other) - speed) for one, other, speed in held],
        [abs(mean - speed) for _, _, speed in held],
    )


def _held_out() -> Outcome:
    errors: list[float] = []
    base: list[float] = []
    for fold in range(5):
        found, mean = held_out_errors(fold)
        errors += found
        base += mean
    reason = f"absolute, five folds; {fmean(base):.3f} if the mean of all pairs is predicted; speeds are from 0 to 1"
    return Outcome(None, round(fmean(errors), 4), reason)
