"""Row of Crux and CASSINI: gangs that share uplinks, placed by their learnt traffic, with priority classes.

Neither system's simulator or testbed can be run here, so the input is made from published descriptions:

- jobs: the eight models of Muri's public traces, with the measured seconds of one iteration and of its third resource
  on 8, 16 and 32 GPUs (``resource_time_2`` of Rivendile/Muri, trace 1). That is 0 on one GPU and grows with their
  number, so it is taken as the communication. Model and size are drawn evenly, run times from a log-normal
  distribution, and arrivals are a Poisson process.
- cluster: 48 nodes of 8 GPUs, 4 in a rack. The uplink of a rack carries the ring of one gang at full rate, so two gangs
  collide while both communicate. That stands for the paths of a real fabric, where flows meet by chance.
- speed: ``sim.speeds.shared_links``, which simulates the phases of all gangs that share an uplink.

The scheduler does not know the models' traffic. It learns it from the gangs' reports. Utilisation is the part of the
time of held GPUs for which they compute, Crux's goal.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from benchmarks.policies import TRACES, data_folder
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Order, Policy
from scheduler_feedback.policies.network.link_speeds import Profile
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.shared_links import SharedLinks

SEEDS = range(10)
JOBS = 300
SIZES = (8, 16, 24, 32, 48, 64)
"""GPUs of a job: of one node to two racks, some of which do not fill their last rack."""

MEASURED = (8, 16, 32)
"""GPUs of whole nodes for which Muri's traces have the stages. Other sizes have those of the next smaller one."""

MEDIAN_SECONDS, SIGMA = 3600.0, 1.0
"""Median run time, and standard deviation of its logarithm: assumptions."""

NODES, GPUS, RACK = 48, 8, 4
UPLINK_NODES = 1.0
LOAD = 0.8
"""Requested GPU time, relative to that of the cluster, if no gang slows another down. With blind placement, about as
many jobs then share an uplink as in the production cluster of Crux's authors: 36.3 % of the jobs, with 51 % of the
GPUs."""

BLIND = Policy(order=Order.FIFO, estimates=Estimates.EXACT)
POLICIES = {
    "blind": BLIND,
    "placed": replace(BLIND, uplink_slowdown=0.1),
    "classed": replace(BLIND, uplink_slowdown=0.1, network_classes=8),
    "no limit": BLIND,
    "blind, shifted": replace(BLIND, time_shifts=True),
    "placed, shifted": replace(BLIND, uplink_slowdown=0.1, time_shifts=True),
    "classed, shifted": replace(BLIND, uplink_slowdown=0.1, network_classes=8, time_shifts=True),
}
"""Policies by name. "no limit" is the blind one with uplinks that slow no gang down: what there is to gain."""

CRUX = ("placed", "classed", "no limit")
"""Policies of the row of Crux."""

SOURCE = "Cao et al., SIGCOMM'24, and Rajasekaran et al., NSDI'24 (abstracts)"
PUBLISHED = 1.083
"""Lower end of Crux's published gain in utilisation on its testbed of 96 GPUs: 8.3 to 14.8 %."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = "utilisation of held GPUs, relative to contention-blind placement, ten seeds"
    mechanism = "placement by traffic, and priority classes of the network"
    return [
        Row("Crux, CASSINI", mechanism, measure, PUBLISHED, SOURCE, _measured, slow=True),
        Row("CASSINI", "time shifts of steps", measure, None, f"{SOURCE}; its gain of 1.6 in JCT is of its testbed",
            _shifted, slow=True),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one simulation."""

    jct: float
    """Average completion time, in seconds."""
    utilisation: float
    """Part of the time of held GPUs for which they compute."""


@cache
def profiles() -> dict[tuple[str, int], Profile]:
    """Return one step of each model by its number of GPUs, as measured by Muri's authors."""
    found: dict[tuple[str, int], Profile] = {}
    with (data_folder() / "jobs" / TRACES["muri-1"][0]).open() as file:
        for row in csv.DictReader(file):
            step, network = float(row["iteration_time"]) / 1e3, float(row["resource_time_2"]) / 1e3
            found[row["model_name"], int(row["num_gpu"])] = Profile(step - network, network)
    models = {model for model, _ in found}
    return {(model, size): found[model, max(s for s in MEASURED if s <= size)] for model in models for size in SIZES}


def trace(seed: int, load: float = LOAD) -> Trace:
    """Return the jobs of one seed."""
    chance = random.Random(f"traffic {seed}")
    models = sorted({model for model, _ in profiles()})
    drawn = [
        (chance.choice(models), chance.choice(SIZES), MEDIAN_SECONDS * chance.lognormvariate(0.0, SIGMA))
        for _ in range(JOBS)
    ]
    work = sum(ranks * seconds for _, ranks, seconds in drawn)
    gap = work / JOBS / (NODES * GPUS * load)
    at, jobs = 0.0, []
    for number, (model, ranks, seconds) in enumerate(drawn):
        at += chance.expovariate(1 / gap)
        spec = JobSpec(f"{model}-{number}", SIMULATED_COMMAND, ranks, workload=model)
        jobs.append(TraceJob(f"j{number}", number + 1, round(at * 1e9), seconds, spec))
    return Trace(f"traffic {seed}", tuple(jobs))


@cache
def figures(seed: int, name: str, load: float = LOAD) -> Figures:
    """Return the figures of a policy on the jobs of one seed."""
    jobs = trace(seed, load)
    links = SharedLinks(profiles(), 1e6 if name == "no limit" else UPLINK_NODES, seed)
    report = Simulation(jobs, grid(NODES, GPUS, RACK), POLICIES[name], links=links, seed=seed).run()
    assert report.avg_jct_seconds is not None and not report.unfinished, "all jobs end"
    computed = sum(
        job.run_seconds * job.spec.ranks * (1 - profiles()[job.spec.workload, job.spec.ranks].share)
        for job in jobs.jobs
    )
    held = report.utilization * NODES * GPUS * report.makespan_seconds
    return Figures(report.avg_jct_seconds, computed / held)


def _compared(names: tuple[str, ...]) -> tuple[dict[str, tuple[float, ...]], str]:
    """Return the utilisation of each policy relative to the blind one, by seed, and all figures as text."""
    found = {name: [figures(seed, name) for seed in SEEDS] for name in names}
    blind = [figures(seed, "blind") for seed in SEEDS]
    used = {
        name: tuple(a.utilisation / b.utilisation for a, b in zip(one, blind, strict=True))
        for name, one in found.items()
    }
    jct = {name: tuple(a.jct / b.jct for a, b in zip(one, blind, strict=True)) for name, one in found.items()}
    text = "; ".join(
        f"{name}: utilisation x {fmean(used[name]):.3f} +-{interval(used[name]):.3f}, average JCT x "
        f"{fmean(jct[name]):.3f} +-{interval(jct[name]):.3f}"
        for name in found
    )
    return used, text


def _measured() -> Outcome:
    used, text = _compared(CRUX)
    return Outcome(None, round(fmean(used["classed"]), 4), f"{text}; no time shifts")


def _shifted() -> Outcome:
    used, text = _compared(tuple(name for name in POLICIES if name.endswith("shifted")))
    reason = f"shifts are decided by the scheduler (policy.time_shifts); ours is placed by traffic and shifted; {text}"
    return Outcome(None, round(fmean(used["placed, shifted"]), 4), reason)
