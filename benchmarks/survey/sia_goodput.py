"""Row of Sia's public simulator: rounds of 60 s, goodput with sizes of batches, an integer program for all jobs.

Rebuilt from the paper (Subramanya et al., SOSP'23, section 3) and the behaviour of its public simulator on the ten
traces of ``sia_data``: 64 GPUs of three types. Goodput is throughput times statistical efficiency (Qiao et al.,
OSDI'21). ``data/sia-models.json`` has the measured gradient statistics, and fitted times of a step. Two things differ
from the public simulator: real times are those of the fit, and the scheduler knows the fit of all GPU types from the
first minutes of a job on, instead of learning it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_matrix

from benchmarks.survey import elastic, sia_data
from benchmarks.survey.muri_groups import standard_output_to_error
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.state import Sizes

MODELS_FILE = Path(__file__).parent / "data" / "sia-models.json"

PUBLISHED_HOURS = 0.7
"""Published average JCT of Sia on the Helios traces (table 3: 0.7 +-0.1 h)."""

ROUND_SECONDS = 60.0
FAIRNESS, UNPLACED = -0.5, 1.1
"""Exponent of goodput, and cost of a job without GPUs (the artifact's p and lambda_n)."""

SLOWER = {"bert": 1.2, "cifar10": 1.8, "deepspeech2": 1.2, "imagenet": 1.2, "yolov3": 1.2}
"""How much slower real runs are than the measured times (the artifact's calibration)."""

LOSS_SECONDS = {"bert": 120.0, "cifar10": 30.0, "deepspeech2": 25.0, "imagenet": 250.0, "yolov3": 45.0}
"""Cost of a restart that the program assumes, as in the artifact. Real restarts take ``sia_data.RESTART_SECONDS``."""

MOST_GPUS = 64
BATCHES = 50
"""Number of batch sizes that are tried, evenly spaced in their logarithm."""


@dataclass(frozen=True, slots=True)
class Option:
    """A number of GPUs of one type that a job may get."""

    gpu_type: str
    nodes: int
    ranks: int


def _options() -> tuple[Option, ...]:
    found = []
    for name, count in sia_data.NODES.items():
        per_node = sia_data.GPUS[name]
        inside = [2**n for n in range(int(math.log2(per_node)) + 1)]
        found += [Option(name, 1, ranks) for ranks in inside]
        found += [Option(name, nodes, nodes * per_node) for nodes in range(2, count + 1)]
    return tuple(found)


OPTIONS = _options()


def network_seconds(values: Any, nodes: Any, ranks: Any) -> Any:
    """Return the time of the synchronisation: by the fourth to seventh parameter of the fit."""
    more = np.maximum(ranks - 2, 0)
    inside = np.where(ranks > 1, values[4] + values[5] * more, 1e-8)
    return np.where(nodes > 1, values[2] + values[3] * more, inside)


@cache
def models() -> dict[str, Any]:
    """Return the derived models."""
    found: dict[str, Any] = json.loads(MODELS_FILE.read_text())
    for model in found.values():
        model["sizes"] = np.array([int(size) for size in model["gradients"]], float)
        model["sqr"] = np.array([[one[0] for one in rows] for rows in model["gradients"].values()])
        model["var"] = np.array([[one[1] for one in rows] for rows in model["gradients"].values()])
    return found


def gradients(model: str, batch: float, epoch: int) -> tuple[float, float]:
    """Return the squared norm and the variance of the gradient in this epoch."""
    one = models()[model]
    sqr, var = (float(np.interp(batch, one["sizes"], one[name][:, epoch])) for name in ("sqr", "var"))
    return sqr, var


@cache
def best(
    model: str, option: Option, most_batch: float, gradient: tuple[float, float]
) -> tuple[float, float, float] | None:
    """Return goodput, batch and seconds of a step with the best batch size; None if no batch fits.

    The goodput is in samples per second that count, relative to the smallest batch size.
    """
    one = models()[model]
    about, first = one["types"][option.gpu_type], one["sizes"][0]
    values, least, most = about["step"], about["least_local"], about["most_local"]
    local = np.geomspace(max(first, least * option.ranks), max(most_batch, first), BATCHES) / option.ranks
    more = np.ceil(local / most - 1e-8) - 1
    if option.ranks == 1:  # two parts at least: one gives no variance of the gradient
        more = np.where(local > first + 1e-8, np.maximum(more, 1), more)
    atomic = np.ceil(local / (more + 1) - 1e-8)
    compute = values[0] + values[1] * atomic
    network = network_seconds(values, np.array(option.nodes), np.array(option.ranks))
    seconds = more * compute + (compute ** values[6] + network ** values[6]) ** (1 / values[6])
    batch = option.ranks * atomic * (more + 1)
    sqr, var = gradient
    scale = np.maximum(batch / first, 1.0)
    goodput = batch / seconds * (var + sqr) / (var / scale + sqr) / scale
    goodput = np.where((atomic >= least) & (atomic <= most), goodput, 0.0)
    at = int(np.argmax(goodput))
    return (float(goodput[at]), float(batch[at]), float(seconds[at])) if goodput[at] > 0 else None


@dataclass(slots=True, eq=False)
class GoodputJob:
    """A job, and its progress."""

    submitted: float
    model: str
    most_batch: float
    """Largest batch size for which the scheduler evaluates it."""
    option: int | None = None
    """Index of its present option; None while it has no GPUs."""
    restart_left: float = 0.0
    restarts: int = -1
    epoch: int = 0
    progress: float = 0.0
    gradient: tuple[float, float] | None = None
    """Newest gradient statistics; None before its first step."""
    tried: dict[str, int] = field(default_factory=dict)
    """Largest number of GPUs with which it has run, by type."""
    ended: float | None = None

    def step(self, now: float, seconds: float) -> None:
        """Run for this time from `now` on."""
        if self.option is None or self.ended is not None:
            return
        option, one = OPTIONS[self.option], models()[self.model]
        delay = min(self.restart_left, seconds)
        self.restart_left -= delay
        at, left = now + delay, seconds - delay
        while left > 0 and self.ended is None:
            known = self.gradient or gradients(self.model, one["sizes"][0], self.epoch)
            found = best(self.model, option, one["sizes"][-1], known)
            assert found is not None, "an option is chosen only if a batch fits"
            batch, step_seconds = found[1], found[2]
            sqr, var = self.gradient = gradients(self.model, batch, self.epoch)
            self.tried[option.gpu_type] = max(self.tried.get(option.gpu_type, 0), option.ranks)
            gain = (var + sqr) / (var / (batch / one["sizes"][0]) + sqr)
            rate = gain / step_seconds / SLOWER[self.model]
            until = one["progress"][self.epoch]
            needed = max(until - self.progress, 0.0) / rate
            if needed > left:
                self.progress += rate * left
                return
            self.progress, self.epoch = until, self.epoch + 1
            at, left = at + needed, left - needed
            if self.epoch == len(one["progress"]):
                self.ended = at

    def most_gpus(self) -> int:
        """Return the largest number of GPUs that it may get: at most twice what it has run with."""
        one = models()[self.model]
        return max(
            int(min(max(2 * self.tried.get(name, 0), 1), MOST_GPUS, one["sizes"][-1] // about["least_local"]))
            for name, about in one["types"].items()
        )


def costs(job: GoodputJob, now: float) -> list[float]:
    """Return the cost of each option to the job: a power of its goodput relative to the least; infinite if barred."""
    if job.gradient is None:
        return [1.0 if option.ranks == 1 else math.inf for option in OPTIONS]
    most = job.most_gpus()
    goodput = [0.0] * len(OPTIONS)
    for number, option in enumerate(OPTIONS):
        if option.ranks <= most and (found := best(job.model, option, job.most_batch, job.gradient)) is not None:
            goodput[number] = found[0]
    least = min((one for one in goodput if one > 0), default=1.0)
    age, loss = now - job.submitted, LOSS_SECONDS[job.model]
    kept = 1.0 if age < loss else max(age - max(job.restarts, 0) * loss, 0.0) / (age + loss)
    values = []
    for number, one in enumerate(goodput):
        relative = one / least * (1.0 if number == job.option else kept)
        values.append(round(relative**FAIRNESS, 2) if relative > 0 else math.inf)
    return values


def choose(jobs: list[GoodputJob], now: float) -> list[int | None]:
    """Return the option of each job that minimises the sum of all costs. A job that restarts keeps its own."""
    entries = [
        (row, number, cost - UNPLACED)
        for row, job in enumerate(jobs)
        for number, cost in enumerate(costs(job, now))
        if cost < math.inf and (job.restart_left <= 0 or number == job.option)
    ]
    names = list(sia_data.NODES)
    rows, columns, values = [], [], []
    for column, (row, number, _) in enumerate(entries):
        option = OPTIONS[number]
        rows += [row, len(jobs) + names.index(option.gpu_type)]
        columns += [column, column]
        values += [1.0, float(option.ranks)]
    matrix = csr_matrix((values, (rows, columns)), shape=(len(jobs) + len(names), len(entries)))
    high = [1.0] * len(jobs) + [float(sia_data.GPUS[name] * sia_data.NODES[name]) for name in names]
    low = [1.0 if job.restart_left > 0 and job.option is not None else 0.0 for job in jobs] + [0.0] * len(names)
    with standard_output_to_error():
        found = milp(
            np.array([cost for *_, cost in entries]),
            constraints=LinearConstraint(matrix, low, high),
            integrality=np.ones(len(entries)),
            bounds=(0, 1),
            options={"mip_rel_gap": 1e-4},
        )
    assert found.success, found.message
    chosen: list[int | None] = [None] * len(jobs)
    for value, (row, number, _) in zip(found.x, entries, strict=True):
        if value > 0.5:
            chosen[row] = number
    return chosen


@cache
def average_jct(trace: int) -> float:
    """Return the average completion time of a trace, in seconds."""
    jobs = []
    for one in sia_data.jobs(trace):
        model, batch = one.workload.rsplit("-", 1)
        jobs.append(GoodputJob(one.seconds, model, float(batch)))
    now = 0.0
    while any(job.ended is None for job in jobs):
        active = [job for job in jobs if job.submitted <= now and job.ended is None]
        for job in active:
            job.step(now, ROUND_SECONDS)
        now += ROUND_SECONDS
        active = [job for job in jobs if job.submitted <= now and job.ended is None]
        for job, option in zip(active, choose(active, now) if active else (), strict=True):
            if option != job.option:
                job.option = option
                if option is not None:
                    job.restart_left = sia_data.RESTART_SECONDS[job.model]
                    job.restarts += 1
    return fmean((job.ended or 0.0) - job.submitted for job in jobs)


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"average JCT on {sia_data.TRACES} Helios traces, 64 GPUs of three types, h"
    return [
        Row("Sia", "goodput-optimal size, type and batch", measure, PUBLISHED_HOURS,
            "Subramanya et al., SOSP'23, table 3 (0.7 +-0.1)", _measured, slow=True),
    ]  # fmt: skip


def _measured() -> Outcome:
    traces = range(1, sia_data.TRACES + 1)
    hours = tuple(average_jct(trace) / 3600 for trace in traces)
    mine = tuple(elastic.average_jct(trace, Sizes.GOODPUT, True) / 3600 for trace in traces)
    reason = (
        f"reproduced +-{interval(hours):.3f} (95 %), ours +-{interval(mine):.3f}; ours is the rule `goodput` with the "
        f"traces' fixed batches, times without the calibration, and learnt speeds"
    )
    return Outcome(round(fmean(hours), 3), round(fmean(mine), 3), reason)
