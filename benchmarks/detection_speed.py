"""``python -m benchmarks.detection_speed --json``: cost of one tick of all detectors, for 1,000 to 100,000 GPUs.

Each fleet has jobs of 8 to 3,000 ranks with steps of 2 to 20 s; all features are sampled each second. One rank in a
hundred is faulty: half of these compute more slowly, the others have errors or a lower clock in their counters. A
tick runs every detector on one second's telemetry; the time to create the telemetry is not included. The report
contains CPU time, wall time, number of processors and load, because times depend on the machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    FEATURES,
    Counters,
    Float32Array,
    JobTelemetry,
    Shape,
    StepTable,
    Telemetry,
)
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.counters.cause_signatures import Priors, weigh
from scheduler_feedback.detectors.counters.counter_statistics import ALARM

SIZES = (1_000, 10_000, 100_000)
TICKS = 100
WARM_UP_TICKS = 240
"""Ticks before the measurement. In them, jobs with steps of up to 8 s learn what is normal; the others learn it
later."""

NODE_RANKS = 8
ALARMED_SHARE = 0.01
START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Job:
    """One job of the fleet: positions, compute times and slowdowns of its ranks, and the end of its next step."""

    shape: Shape
    compute: Float32Array
    wait_seconds: float
    next_ns: int
    number: int
    factor: Float32Array


class Fleet:
    """A synthetic fleet of jobs that produces telemetry second by second."""

    def __init__(self, gpus: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        random = self._random
        self.jobs: list[_Job] = []
        first = 0
        while first < gpus:
            ranks = min(int(np.exp(random.uniform(np.log(8), np.log(3000)))) // 8 * 8, gpus - first)
            self.jobs.append(self._job(max(ranks, 1), first))
            first += ranks
        count = sum(len(job.shape) for job in self.jobs)
        self._usual = np.abs(random.normal(1.0, 0.02, (len(FEATURES), count))).astype(np.float32)
        counts = [FEATURE[f.name] for f in FEATURES if f.unit == "1/s"]
        self._usual[counts] = 0.0
        self._noise = random.normal(0.0, 0.01, (8, len(FEATURES), count)).astype(np.float32)
        self._noise[:, counts] = 0.0
        self._alarmed = random.choice(count, int(ALARMED_SHARE * count), replace=False)
        half = self._alarmed[: len(self._alarmed) // 2]
        ends = np.cumsum([len(job.shape) for job in self.jobs])
        self._slow = [(int(np.searchsorted(ends, column, side="right")), int(column)) for column in half.tolist()]
        self._starts = ends - np.array([len(job.shape) for job in self.jobs])
        self._failing = self._alarmed[len(self._alarmed) // 2 :]
        self.faulty = False

    def _job(self, ranks: int, first: int) -> _Job:
        random = self._random
        index = np.arange(ranks)
        tensor = 8 if ranks % 8 == 0 else 1
        replicas = ranks // tensor
        stages = next(s for s in (8, 4, 2, 1) if (replicas % s == 0 and replicas // s >= 4) or s == 1)
        shape = Shape(
            f"job-{first}", 1, index, tuple(f"node-{(first + one) // NODE_RANKS}" for one in index.tolist()),
            tuple(f"GPU-{first + one}" for one in index.tolist()),
            tuple(f"node-{(first + one) // NODE_RANKS}/mlx5_{one % 8}" for one in index.tolist()),
            data=index // tensor % (replicas // stages), stage=index // (ranks // stages), tensor=index % tensor,
            rail=index % NODE_RANKS,
            sharing={"uplink": tuple(f"leaf-{(first + one) // 256}" for one in index.tolist())},
        )  # fmt: skip
        seconds = float(random.uniform(2.0, 20.0))
        compute = (0.8 * seconds * random.normal(1.0, 0.01, ranks)).astype(np.float32)
        return _Job(shape, compute, 0.2 * seconds, START_NS + int(seconds * 1e9), 0, np.ones(ranks, np.float32))

    def fail(self) -> None:
        """Make one rank in a hundred faulty from now on."""
        self.faulty = True
        for job, column in self._slow:
            self.jobs[job].factor[column - int(self._starts[job])] = 1.3

    def tick(self, number: int) -> Telemetry:
        """Return the telemetry of this second."""
        now_ns = START_NS + number * SECOND_NS
        values = self._usual * (1.0 + self._noise[number % len(self._noise)])
        if self.faulty:
            third = len(self._failing) // 3
            values[FEATURE["sm_clock"], self._failing[:third]] *= 0.8
            values[FEATURE["nic_physical_errors"], self._failing[third : 2 * third]] = 50.0
            values[FEATURE["thermal_throttle"], self._failing[2 * third :]] += 0.5
        counters = Counters(np.array([now_ns], np.int64), 1.0, values[:, None, :])
        return Telemetry(now_ns, tuple(self._steps(job, now_ns) for job in self.jobs), counters)

    def _steps(self, job: _Job, now_ns: int) -> JobTelemetry:
        count = len(job.shape)
        ends, computes = [], []
        while job.next_ns <= now_ns:
            noise = self._random.normal(1.0, 0.01, count).astype(np.float32)
            compute = job.compute * job.factor * noise
            ends.append(job.next_ns)
            computes.append(compute)
            job.next_ns += int((float(compute.max()) + job.wait_seconds) * 1e9)
            job.number += 1
        if not ends:
            none = np.zeros((0, count))
            return JobTelemetry(job.shape, StepTable(np.zeros(0, np.int64), np.zeros((0, count), np.int64), none, none))
        compute = np.array(computes, np.float64)
        seconds = np.repeat(compute.max(axis=1, keepdims=True) + job.wait_seconds, count, axis=1)
        number = np.arange(job.number - len(ends), job.number)
        end_ns = np.repeat(np.array(ends, np.int64)[:, None], count, axis=1)
        return JobTelemetry(job.shape, StepTable(number, end_ns, seconds, seconds - compute))


def measure(gpus: int, ticks: int, seed: int) -> dict[str, float]:
    """Measure one fleet: run the detectors without faults first, then `ticks` ticks with one rank in a hundred
    faulty."""
    fleet, detection = Fleet(gpus, seed), make_detection()
    counters = detection.shared.counters
    number = 0
    for _ in range(WARM_UP_TICKS):
        number += 1
        detection.tick(fleet.tick(number))
    fleet.fail()
    gc.collect()
    taken, used, reported, alarmed = [], [], 0, 0
    for _ in range(ticks):
        number += 1
        telemetry = fleet.tick(number)
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        reported += sum(isinstance(finding, Verdict) for finding in detection.tick(telemetry))
        suspects = np.flatnonzero((counters.score >= ALARM).any(axis=0))
        weigh(counters, suspects, Priors())
        taken.append((time.perf_counter() - begun) * 1e3)
        used.append((time.thread_time() - begun_cpu) * 1e3)
        alarmed = len(suspects)
    return {
        "tick_ms_median": round(float(np.median(taken)), 2),
        "tick_ms_p99": round(float(np.quantile(taken, 0.99)), 2),
        "tick_cpu_ms_median": round(float(np.median(used)), 2),
        "tick_cpu_ms_p99": round(float(np.quantile(used, 0.99)), 2),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "jobs": len(fleet.jobs),
        "features": len(FEATURES),
        "ranks_in_alarm_by_counters": alarmed,
        "verdicts": reported,
    }


def main() -> None:
    """Measure each size of fleet and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection_speed", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.add_argument("--gpus", type=int, action="append", help="sizes (default 1000, 10000 and 100000)")
    parser.add_argument("--ticks", type=int, default=TICKS, help="measured ticks (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report: dict[str, object] = {}
    for gpus in options.gpus or SIZES:
        report[str(gpus)] = measure(gpus, options.ticks, options.seed)
        print(f"{gpus} GPUs: {report[str(gpus)]}", file=sys.stderr)
    report["processors"] = os.cpu_count()
    report["load_average"] = round(os.getloadavg()[0], 1)
    if options.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
