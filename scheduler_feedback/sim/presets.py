"""Presets: rules of published simulations, to reproduce their figures and compare with them.

**muri**: the runs of Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM'22, according to
Rivendile/Muri, ``simulator/run_sim.py`` (Apache-2.0), with the results in ``simulator/draw_fig9-10.py``:

* It replans at every arrival and end, and when a job falls into the next queue of LAS. A replan goes through running
  and waiting jobs in the order of the policy. A job that fits into the remaining GPUs runs; any other job is skipped.
  Nothing is reserved or moved, and a gang may use GPUs of several nodes.
* LAS has three queues, with limits of 3,250 and 7,200 GPU-seconds. In each queue, running jobs come before waiting
  jobs.
* The restart of a preempted job costs nothing. But every gang that continues loses, at every replan, the measured start
  time of its model (`START_SECONDS`), at most its run time since the last replan. And every job takes 1.5 % longer than
  in its trace (the measured overhead of their scheduler).

The last rule is not a scheduling rule: it describes the real speed of gangs, so the engine applies it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler_feedback.core.state import Backfilling, Policy
from scheduler_feedback.sim.job_trace import Trace, TraceJob

MURI_SLOWER = 1.015
"""Run time in the published runs divided by the run time in the trace: `itertime_overhead_list[0]` of Muri's
``jobs.py``."""

MURI_LAS_GPU_SECONDS = (3250.0, 7200.0)

START_SECONDS: dict[str, dict[int, float]] = {
    "vgg16": {1: 7, 2: 7, 4: 8, 8: 9, 16: 9, 32: 10},
    "vgg19": {1: 7, 2: 7, 4: 8, 8: 9, 16: 10, 32: 10},
    "resnet18": {1: 4, 2: 5, 4: 5, 8: 7, 16: 7, 32: 7},
    "shufflenet_v2_x1_0": {1: 4, 2: 4, 4: 5, 8: 5, 16: 7, 32: 8},
    "bert": {1: 10, 2: 10, 4: 10, 8: 10, 16: 10, 32: 10},
    "gpt2": {1: 10, 2: 10, 4: 10, 8: 10, 16: 10, 32: 10},
    "a2c": {1: 38, 2: 39, 4: 39, 8: 46, 16: 46, 32: 46},
    "dqn": {1: 5, 2: 5, 4: 6, 8: 6, 16: 8, 32: 8},
}
"""Measured start time in seconds, by model and number of GPUs (`overhead_dict` of Muri's ``run_sim.py``)."""

OTHER_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Preset:
    """Rules of one published simulation, to reproduce its results."""

    name: str
    """Name of the preset."""
    policy: Callable[[Policy], Policy]
    """Returns the requested settings with the preset's overrides."""
    slower: float
    """Factor by which every run time is multiplied."""
    stall_seconds: Callable[[TraceJob], float]
    """Returns the seconds that a job's running gang loses each time the scheduler plans again."""
    restart_cost_seconds: float = 0.0
    """Restart cost of a preempted job, in seconds."""

    def trace(self, trace: Trace) -> Trace:
        """Return the trace with the run times of the published simulation."""
        jobs = tuple(replace(job, run_seconds=job.run_seconds * self.slower) for job in trace.jobs)
        return replace(trace, jobs=jobs)


def _muri_policy(policy: Policy) -> Policy:
    return replace(
        policy,
        backfill=Backfilling.GREEDY,
        preempt=True,
        replan_seconds=0.0,
        drift_seconds=math.inf,
        min_run_seconds=0.0,
        starvation_seconds=math.inf,
        las_thresholds=MURI_LAS_GPU_SECONDS,
    )


def _muri_stall(job: TraceJob) -> float:
    return START_SECONDS.get(job.spec.workload, {}).get(job.spec.ranks, OTHER_START_SECONDS)


MURI = Preset("muri", _muri_policy, MURI_SLOWER, _muri_stall)

PRESETS = (MURI,)
"""All presets that a simulation can use."""
