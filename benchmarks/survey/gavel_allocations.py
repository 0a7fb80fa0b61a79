"""Gavel's policies as linear programs: the share of time that each job gets on each GPU type.

x[i, j] is the share of time for which job i runs on GPUs of type j. A job is never on two types at once, so a row sums
up to at most 1. A type has N_j GPUs, and job i uses s_i of them while it runs (Narayanan et al., OSDI'20, section 3).
Solved by HiGHS through scipy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Matrix = NDArray[np.float64]

TOLERANCE = 1e-4
"""Relative precision of the finish-time ratio, which is found by bisection."""


def max_min_fairness(speeds: Matrix, gpus: Matrix, capacity: Matrix, weights: Matrix | None = None) -> Matrix:
    """Return the shares of time that maximise the least normalised throughput (section 4.1).

    speeds: steps per second, jobs x types. gpus: number of GPUs of each job. capacity: number of GPUs of each type.
    weights: weight of each job; None: all 1. A job's throughput is divided by that of an equal split of the cluster and
    multiplied by its GPUs, as in Gavel.
    """
    equal = speeds @ equal_split(len(speeds), capacity)
    scaled = speeds * (gpus / equal / (np.ones(len(speeds)) if weights is None else weights))[:, None]
    return _solve(-1.0, scaled, np.zeros(len(speeds)), -np.ones(len(speeds)), gpus, capacity)


def equal_split(jobs: int, capacity: Matrix) -> Matrix:
    """Return the shares of time on each type if all jobs use the types in equal parts, at most 1 in total."""
    share = capacity / jobs
    split: Matrix = share / share.sum()
    return split


def least_makespan(speeds: Matrix, gpus: Matrix, capacity: Matrix, steps: Matrix) -> tuple[float, Matrix]:
    """Return the least time until all jobs have ended, if they share the GPUs in the best way (section 4.2).

    The unknowns are the times z[i, j] that job i runs on type j, and the makespan T. Both are returned, in seconds.
    """
    jobs, types = speeds.shape
    variables = jobs * types + 1
    cost = np.zeros(variables)
    cost[-1] = 1.0
    done = np.zeros((jobs, variables))
    busy = np.zeros((jobs, variables))
    held = np.zeros((types, variables))
    for job in range(jobs):
        done[job, job * types : (job + 1) * types] = -speeds[job]
        busy[job, job * types : (job + 1) * types] = 1.0
        held[:, job * types : (job + 1) * types] = gpus[job] * np.eye(types)
    busy[:, -1] = -1.0
    held[:, -1] = -capacity
    limits = np.concatenate([-steps, np.zeros(jobs + types)])
    found = linprog(cost, np.concatenate([done, busy, held]), limits, method="highs")
    if found.status != 0:
        raise ValueError(f"no schedule ends all jobs: {found.message}")
    return float(found.fun), found.x[:-1].reshape(jobs, types)


def finish_time_fairness(
    speeds: Matrix, gpus: Matrix, capacity: Matrix, steps: Matrix, elapsed: Matrix
) -> tuple[float, Matrix]:
    """Return the least possible largest rho, and shares of time that achieve it (section 4.2).

    rho = (elapsed time + remaining time with these shares) / (elapsed time + remaining time with an own n-th part of
    the cluster). steps: remaining steps of each job. elapsed: seconds since its submission. For a given rho each job
    needs a throughput, so whether rho is possible is a linear program; the least rho is found by bisection.
    """
    jobs = len(speeds)
    own = capacity[None, :] / jobs / gpus[:, None]
    own /= np.maximum(own.sum(axis=1), 1.0)[:, None]
    alone = elapsed + steps / (speeds * own).sum(axis=1)
    low, high = float((elapsed / alone).max()), 1.0
    best: Matrix | None = None
    while best is None or high - low > TOLERANCE * high:
        rho = high if best is None else (low + high) / 2
        found = None
        if (left := rho * alone - elapsed).min() > 0:
            found = _feasible(speeds, steps / left, gpus, capacity)
        if found is not None:
            best, high = found, rho
        elif best is None:
            low, high = high, 2 * high
        else:
            low = rho
    return high, best


def _feasible(speeds: Matrix, needed: Matrix, gpus: Matrix, capacity: Matrix) -> Matrix | None:
    """Return shares of time with at least the needed throughputs, in steps per second; None if there are none."""
    try:
        return _solve(0.0, speeds, needed, np.zeros(len(speeds)), gpus, capacity)
    except ValueError:
        return None


def _solve(cost: float, gain: Matrix, needed: Matrix, slack: Matrix, gpus: Matrix, capacity: Matrix) -> Matrix:
    """Minimise cost x c with sum_j gain[i, j] x[i, j] + slack[i] c >= needed[i], and the limits of the cluster.

    Return x, jobs x types. Raises ValueError if it is not possible.
    """
    jobs, types = gain.shape
    costs = np.zeros(jobs * types + 1)
    costs[-1] = cost
    rows = np.zeros((jobs + jobs + types, jobs * types + 1))
    for job in range(jobs):
        place = slice(job * types, (job + 1) * types)
        rows[job, place], rows[job, -1] = -gain[job], -slack[job]
        rows[jobs + job, place] = 1.0
        rows[2 * jobs :, place] = gpus[job] * np.eye(types)
    found = linprog(costs, rows, np.concatenate([-needed, np.ones(jobs), capacity]), method="highs")
    if found.status != 0:
        raise ValueError(f"no allocation: {found.message}")
    shares: Matrix = found.x[:-1].reshape(jobs, types)
    return shares
