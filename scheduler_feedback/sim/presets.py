"""Presets: the rules of published simulations, so that their figures can be reproduced and compared with.

**muri**: the runs of Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM'22, as read in
Rivendile/Muri, ``simulator/run_sim.py`` (Apache-2.0), whose results stand in ``simulator/draw_fig9-10.py``:

* It replans at every arrival and every end, and where a job falls into the next queue of LAS. A replan goes through
  running and waiting jobs together in the order of the policy; whoever fits into the GPUs that are left runs, whoever
  does not is passed over. Nothing is reserved, nothing is moved, GPUs of several nodes may be shared by a gang.
* LAS has three queues, with limits of 3,250 and 7,200 GPU-seconds; inside of a queue those that run come before those
  that wait.
* Restarts cost nothing where a job was preempted. But every replan costs every gang that goes on running the time that
  its model was measured to take for a start (`START_SECONDS`), as far as it had run since the replan before; and every
  job takes 1.5 % longer than its trace says (what their scheduler was measured to cost it).

The last rule is no scheduler's: it says how fast gangs really run, and so it is the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler_feedback.core.state import Backfilling, Policy
from scheduler_feedback.sim.trace import Trace, TraceJob

MURI_SLOWER = 1.015
"""run time / that in the trace: `itertime_overhead_list[0]` of Muri's ``jobs.py``."""

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
"""What a start was measured to take, by model and GPUs (`overhead_dict` of Muri's ``run_sim.py``)."""

OTHER_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Preset:
    """The rules of published runs.

    policy: the settings that it implies, put over those that were asked for. slower: factor on every run time.
    stall_seconds: what a replan costs a gang that goes on. restart_cost_seconds: of a preempted job.
    """

    name: str
    policy: Callable[[Policy], Policy]
    slower: float
    stall_seconds: Callable[[TraceJob], float]
    restart_cost_seconds: float = 0.0

    def trace(self, trace: Trace) -> Trace:
        """The trace with the run times of these runs."""
        jobs = tuple(replace(job, run_seconds=job.run_seconds * self.slower) for job in trace.jobs)
        return replace(trace, jobs=jobs)


def _muri_policy(policy: Policy) -> Policy:
    return replace(
        policy,
        backfill=Backfilling.GREEDY,
        preempt=True,
        replan_seconds=0.0,
        min_run_seconds=0.0,
        starvation_seconds=math.inf,
        las_thresholds=MURI_LAS_GPU_SECONDS,
    )


def _muri_stall(job: TraceJob) -> float:
    return START_SECONDS.get(job.spec.workload, {}).get(job.spec.ranks, OTHER_START_SECONDS)


MURI = Preset("muri", _muri_policy, MURI_SLOWER, _muri_stall)

PRESETS = (MURI,)
"""Every preset."""
