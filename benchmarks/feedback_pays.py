"""What feedback is worth: ``python -m benchmarks.feedback_pays --json``.

The same jobs, faults and seeds three times: nobody says anything (`off`); a detector with the measured delays and
errors tells the cycle (`on`); an oracle tells it at once, exactly, and for how long (`oracle`). Two presets of faults
(scheduler_feedback/sim/faults.py): transient as published, and nodes that stay bad until they are repaired. Then `on`
once more with false verdicts at 0.1 to 10 per 1,000 GPU-days.

Intervals are of the mean of the paired differences over the seeds, by Student's t at 95 %. The whole of Philly takes
hours; ``--jobs`` takes a stretch of it, ``--seeds`` fewer seeds, ``--processes`` more processors.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from benchmarks.policies import RESTART_COST_SECONDS, data_folder
from scheduler_feedback.core.state import FAIR_POLICY
from scheduler_feedback.sim.feedback import DetectorModel
from scheduler_feedback.sim.nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from scheduler_feedback.sim.trace import Trace

SEEDS = 10
FALSE_RATES = (0.1, 1.0, 10.0)
LEAST_SHARE = 0.9
"""Of what the oracle recovers, where that is more than the interval."""
MOST_HARM = 0.01
"""False verdicts may cost at most so large a share of the average JCT."""

# Student's t, two-sided 95 %, by degrees of freedom (any table of it); beyond 30 the normal's.
_T = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval; an infinite width for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    freedom = len(values) - 1
    t = _T[freedom] if freedom < len(_T) else 2.0
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def jct(trace: Trace, nodes: int, faults: str | None, feedback: str, seed: int, false_rate: float = 0.0) -> float:
    """Average JCT in seconds of one simulation."""
    report = Simulation(
        trace,
        grid(nodes, 8),
        FAIR_POLICY,
        restart_cost_seconds=RESTART_COST_SECONDS,
        faults=faults,
        feedback=feedback,
        detector=DetectorModel(false_per_1000_gpu_days=false_rate),
        seed=seed,
    ).run()
    assert report.avg_jct_seconds is not None and not report.unfinished
    return report.avg_jct_seconds


def recovered(pool: Executor, trace: Trace, nodes: int, faults: str, seeds: int) -> dict[str, Any]:
    """What `on` and `oracle` save of what the faults cost, over the seeds."""
    names = ("off", "on", "oracle")
    asked = {
        (name, seed): pool.submit(jct, trace, nodes, faults, name, seed) for seed in range(seeds) for name in names
    }
    runs: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(seeds):
        for name, found in runs.items():
            found.append(asked[name, seed].result())
        print(f"{faults} seed {seed}: " + ", ".join(f"{k} {v[-1]:.0f} s" for k, v in runs.items()), file=sys.stderr)
    saved = {
        name: [off - value for off, value in zip(runs["off"], runs[name], strict=True)] for name in ("on", "oracle")
    }
    oracle, width = interval(saved["oracle"])
    on, on_width = interval(saved["on"])
    tells = oracle > width
    return {
        "faults": faults,
        "avg_jct_seconds": {
            name: dict(zip(("mean", "half_width"), interval(found), strict=True)) for name, found in runs.items()
        },
        "by_seed": runs,
        "oracle_saves_seconds": {"mean": oracle, "half_width": width},
        "on_saves_seconds": {"mean": on, "half_width": on_width},
        "share": on / oracle if tells else None,
        "kept": not tells or on >= LEAST_SHARE * oracle,
    }


def harmed(pool: Executor, trace: Trace, nodes: int, rate: float, seeds: int) -> dict[str, Any]:
    """What false verdicts alone cost: no fault at all, so that `off` is the best that can be."""
    base = pool.submit(jct, trace, nodes, None, "off", 0)
    runs = [pool.submit(jct, trace, nodes, None, "on", seed, rate) for seed in range(seeds)]
    harm = [run.result() / base.result() - 1 for run in runs]
    mean, width = interval(harm)
    print(f"{rate:g} false verdicts per 1,000 GPU-days: {100 * mean:+.2f} %", file=sys.stderr)
    return {"false_per_1000_gpu_days": rate, "harm": {"mean": mean, "half_width": width}, "kept": mean <= MOST_HARM}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, help="first job of the stretch")
    parser.add_argument("--jobs", type=int, help="so many jobs; default all")
    parser.add_argument("--nodes", type=int, default=64, help="of 8 GPUs")
    parser.add_argument("--faults", nargs="*", default=["transient", "persistent"])
    parser.add_argument("--processes", type=int, default=1, help="simulations at a time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    last = None if arguments.jobs is None else arguments.first + arguments.jobs
    trace = replace(trace, jobs=trace.jobs[arguments.first : last])
    nodes, seeds = arguments.nodes, arguments.seeds
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        document: dict[str, Any] = {
            "jobs": len(trace.jobs),
            "nodes": nodes,
            "seeds": seeds,
            "faults": [recovered(pool, trace, nodes, faults, seeds) for faults in arguments.faults],
            "false_verdicts": [harmed(pool, trace, nodes, rate, seeds) for rate in FALSE_RATES],
        }
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 0 if all(one["kept"] for one in (*document["faults"], *document["false_verdicts"])) else 1


if __name__ == "__main__":
    sys.exit(main())
