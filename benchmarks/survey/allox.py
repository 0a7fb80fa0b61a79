"""Row of AlloX: least average completion time of jobs that arrive at once, by min-cost matching to GPU types.

Of the jobs on one GPU, the one that is k-th from the end adds its run time to the completion times of k jobs. So the
least average completion time is the least cost of a matching of jobs to (GPU, k), where a job with run time p costs
k p (Le et al., "AlloX: compute allocation in hybrid clusters", EuroSys'20, section 3). Solved by scipy, which only
developers install, as Gavel's programs are (decision 89). Jobs have one GPU: AlloX matches no gangs.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.survey.gavel import BY_DEFAULT, FIRST_FREE, NODE_GPUS, SEEDS, simulated
from benchmarks.survey.gavel_allocations import Matrix
from benchmarks.survey.gavel_data import GPU_TYPES, GavelJob, read_simulation, static_jobs
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval

JOBS = 200
GPUS_OF_A_TYPE = 12
"""GPUs of each of the three types, so that about six jobs share one GPU."""

SOURCE = "Le et al., EuroSys'20 (other jobs: up to 95 % less than the best single-resource schedulers)"


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"average completion time of {JOBS} jobs on 3x{GPUS_OF_A_TYPE} GPUs, h"
    return [Row("AlloX", "min-cost matching of jobs to GPU types", measure, None, SOURCE, _measured)]


def least_average_seconds(run_seconds: Matrix, gpus: int) -> float:
    """Return the least average completion time of jobs that all arrive at once.

    run_seconds: jobs x types; infinity where a job does not run. gpus: number of GPUs of each type.
    """
    jobs, types = run_seconds.shape
    known = np.where(np.isfinite(run_seconds), run_seconds, 0.0)
    never = 1.0 + known.sum() * jobs
    last = -(-jobs // gpus)  # the GPUs of a type are equal, so none needs more than its part of all jobs
    places = np.tile(np.arange(1, last + 1, dtype=float), gpus)
    costs = np.concatenate(
        [np.where(np.isfinite(run_seconds[:, [n]]), run_seconds[:, [n]], never) * places for n in range(types)], axis=1
    )
    matched = costs[linear_sum_assignment(costs)].sum()
    return float(matched / jobs)


def one_gpu_jobs(count: int, seed: int) -> list[GavelJob]:
    """Return the first jobs with one GPU of a static trace of Gavel."""
    found = [job for job in static_jobs(read_simulation(), 3 * count, seed) if job.gpus == 1]
    return found[:count]


def _measured() -> Outcome:
    best: list[float] = []
    mine: list[float] = []
    greedy: list[float] = []
    for seed in SEEDS:
        jobs = one_gpu_jobs(JOBS, seed)
        speeds = np.array([job.speeds for job in jobs])
        steps = np.array([[job.steps] for job in jobs])
        with np.errstate(divide="ignore"):
            best.append(least_average_seconds(steps / speeds, GPUS_OF_A_TYPE) / 3600)
        for policy, found in ((BY_DEFAULT, mine), (FIRST_FREE, greedy)):
            average = simulated(jobs, policy, gpus=GPUS_OF_A_TYPE).avg_jct_seconds
            assert average is not None, "all jobs end"
            found.append(average / 3600)
    reason = (
        f"all jobs arrive at once, {len(GPU_TYPES)} types, nodes of {NODE_GPUS} GPUs, 10 seeds; reproduced is the "
        f"matching, an optimum without restarts, +-{interval(tuple(best)):.1f}; ours is the default policy, "
        f"+-{interval(tuple(mine)):.1f}; greedy (the fastest free type) {fmean(greedy):.1f} "
        f"+-{interval(tuple(greedy)):.1f}"
    )
    return Outcome(round(fmean(best), 2), round(fmean(mine), 2), reason)
