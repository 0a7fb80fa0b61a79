"""Time that moves after verdicts (feedback) save: ``python -m benchmarks.feedback_pays --json``.

Simulates the same jobs, faults and seeds three times: without feedback (`off`); with a detector that has the measured
delays and errors (`on`); and with an oracle that reports at once, exactly, and for how long (`oracle`). ``--told`` adds
a fourth run that reports at once and exactly, but not for how long. There are two presets of faults
(scheduler_feedback/sim/faults.py): transient as published, and nodes that stay slow until they are repaired. Then `on`
runs once more with false verdicts at 0.1 to 10 per 1,000 GPU-days.

Intervals are 95 % intervals (Student's t) of the mean of the paired differences over the seeds. In the default part
of the Philly trace few jobs wait, so savings do not come from a different schedule. ``--first`` and ``--jobs``
choose another part, ``--policy fifo-easy`` another policy. ``--busy 0.95`` makes the same jobs arrive faster, until
they request that share of all slots. The report contains the average completion time of a job, and the average time
that a job lost to slow nodes and restarts: from its submission to its end, without its waiting time and its work.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from scipy.stats import sem, t

from benchmarks.policies import POLICIES, RESTART_COST_SECONDS, data_folder
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulated_feedback import DetectorModel
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace

SEEDS = 10
FIRST, JOBS, NODES = 64_000, 4_000, 64
"""Part of the Philly trace (number of the first job, number of jobs), and the number of nodes of 8 GPUs."""
FALSE_RATES = (0.1, 1.0, 10.0)
LEAST_SHARE = 0.9
"""Minimum saving of `on` as a share of the oracle's saving. Not checked if the oracle's saving is not significant."""
MOST_HARM = 0.01
"""Maximum cost of false verdicts, as a share of the average job completion time."""


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student's t), which is infinite for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    return mean, float(t.ppf(0.975, len(values) - 1) * sem(values))


@dataclass(frozen=True, slots=True)
class Setting:
    """Input of one simulation. policy: name in benchmarks.policies. restart_cost_seconds: cost of every move."""

    trace: Trace
    nodes: int
    policy: str
    restart_cost_seconds: float = RESTART_COST_SECONDS


@dataclass(frozen=True, slots=True)
class Found:
    """Average seconds per job in one simulation.

    lost: time lost to slow nodes and restarts. waited: time without slots.
    """

    jct: float
    lost: float
    waited: float


def with_load(trace: Trace, slots: int, share: float) -> Trace:
    """Return the same jobs with scaled arrival times, so that their work is the share `share` of the slots'
    capacity."""
    span_seconds = (trace.jobs[-1].submitted_ns - trace.jobs[0].submitted_ns) / 1e9
    work = sum(job.run_seconds * job.spec.ranks for job in trace.jobs)
    return trace.scaled(share * span_seconds * slots / work)


def simulate(setting: Setting, faults: str | None, feedback: str, seed: int, false_rate: float = 0.0) -> Found:
    """Run one simulation to its end."""
    engine = Simulation(
        setting.trace,
        grid(setting.nodes, 8),
        POLICIES[setting.policy],
        restart_cost_seconds=setting.restart_cost_seconds,
        faults=faults,
        feedback=feedback,
        detector=DetectorModel(false_per_1000_gpu_days=false_rate),
        seed=seed,
    ).engine()
    report = engine.run()
    assert report.avg_jct_seconds is not None and not report.unfinished
    lost_ns = [
        course.ended_ns - course.submitted_ns - course.waiting_ns - course.work_ns
        for course in engine.courses.values()
        if course.ended_ns is not None
    ]
    waited_ns = [course.waiting_ns for course in engine.courses.values()]
    return Found(report.avg_jct_seconds, statistics.fmean(lost_ns) / 1e9, statistics.fmean(waited_ns) / 1e9)


def recovered(
    pool: Executor, setting: Setting, faults: str, seeds: range, names: tuple[str, ...] = ("off", "on", "oracle")
) -> dict[str, Any]:
    """Return the share of the faults' cost that the runs `on` and `oracle` save, over all seeds."""
    asked = {(name, seed): pool.submit(simulate, setting, faults, name, seed) for seed in seeds for name in names}
    runs: dict[str, list[Found]] = {name: [] for name in names}
    for seed in seeds:
        for name, found in runs.items():
            found.append(asked[name, seed].result())
        print(
            f"{faults} seed {seed}: "
            + ", ".join(
                f"{k} {v[-1].jct:.0f} s ({v[-1].lost:.1f} lost, {v[-1].waited:.0f} waited)" for k, v in runs.items()
            ),
            file=sys.stderr,
            flush=True,
        )
    jct = {name: [one.jct for one in found] for name, found in runs.items()}
    lost = {name: [one.lost for one in found] for name, found in runs.items()}
    waited = {name: [one.waited for one in found] for name, found in runs.items()}
    document: dict[str, Any] = {"faults": faults}
    for what, by_name in (("avg_jct_seconds", jct), ("lost_seconds", lost), ("waited_seconds", waited)):
        document[what] = {name: _stated(values) for name, values in by_name.items()} | {"by_seed": by_name}
        document[what] |= {
            f"{name}_saves": _stated([off - value for off, value in zip(by_name["off"], by_name[name], strict=True)])
            for name in names[1:]
        }
    on, oracle = (document["avg_jct_seconds"][f"{name}_saves"] for name in ("on", "oracle"))
    measurable = oracle["mean"] > oracle["half_width"]
    harm = _stated([on / off - 1 for on, off in zip(jct["on"], jct["off"], strict=True)])
    kept = harm["mean"] <= MOST_HARM and (not measurable or on["mean"] >= LEAST_SHARE * oracle["mean"])
    return document | {"share": on["mean"] / oracle["mean"] if measurable else None, "harm": harm, "kept": kept}


def _stated(values: list[float]) -> dict[str, float]:
    mean, half_width = interval(values)
    return {"mean": mean, "half_width": half_width}


def harmed(pool: Executor, setting: Setting, rate: float, seeds: range) -> dict[str, Any]:
    """Return the cost of false verdicts at this rate, in simulations without faults, compared with `off`."""
    base = pool.submit(simulate, setting, None, "off", 0)
    runs = [pool.submit(simulate, setting, None, "on", seed, rate) for seed in seeds]
    harm = [run.result().jct / base.result().jct - 1 for run in runs]
    mean, width = interval(harm)
    print(f"{rate:g} false verdicts per 1,000 GPU-days: {100 * mean:+.3f} %", file=sys.stderr, flush=True)
    return {"false_per_1000_gpu_days": rate, "harm": {"mean": mean, "half_width": width}, "kept": mean <= MOST_HARM}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=FIRST, help="first job of the stretch")
    parser.add_argument("--jobs", type=int, default=JOBS, help="number of jobs; 0: all from the first on")
    parser.add_argument("--nodes", type=int, default=NODES, help="of 8 GPUs")
    parser.add_argument("--restart-cost", type=float, default=RESTART_COST_SECONDS, help="of every move, in seconds")
    parser.add_argument("--told", action="store_true", help="add feedback at once and exactly, without duration")
    parser.add_argument("--busy", type=float, help="arriving work, as a share of the slots' capacity")
    parser.add_argument("--no-false", action="store_true", help="without the runs with false verdicts")
    parser.add_argument("--policy", choices=list(POLICIES), default="default")
    parser.add_argument("--faults", nargs="*", default=["transient", "persistent"])
    parser.add_argument("--processes", type=int, default=1, help="simulations at a time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    last = arguments.first + arguments.jobs if arguments.jobs else None
    trace = replace(trace, jobs=trace.jobs[arguments.first : last])
    if arguments.busy is not None:
        trace = with_load(trace, arguments.nodes * 8, arguments.busy)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    setting = Setting(trace, arguments.nodes, arguments.policy, arguments.restart_cost)
    names = ("off", "on", *(("told",) if arguments.told else ()), "oracle")
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        document: dict[str, Any] = {
            "jobs": len(trace.jobs),
            "first": arguments.first,
            "nodes": setting.nodes,
            "policy": setting.policy,
            "busy": arguments.busy,
            "restart_cost_seconds": setting.restart_cost_seconds,
            "seeds": len(seeds),
            "first_seed": seeds.start,
            "faults": [recovered(pool, setting, faults, seeds, names) for faults in arguments.faults],
            "false_verdicts": [
                harmed(pool, setting, rate, seeds) for rate in (() if arguments.no_false else FALSE_RATES)
            ],
        }
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 0 if all(one["kept"] for one in (*document["faults"], *document["false_verdicts"])) else 1


if __name__ == "__main__":
    sys.exit(main())
