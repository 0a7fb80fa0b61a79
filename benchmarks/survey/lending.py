"""Row of Lyra: training jobs use the nodes of an inference deployment at night and leave them when it needs them.

Lyra (Li et al., EuroSys'23) lends idle inference servers to training jobs and takes them back as the load grows. Its
traces are not public. Input, from its description: the load of the inference cluster is 42 % of its nodes before dawn
and 95 % at the peak, with noise; servers are lent and taken back every five minutes, with 2 % of headroom; 443 training
and 520 inference servers of eight GPUs, here 44 and 52. The training jobs are pieces of the Philly trace, all
restartable. Both queues have their nodes as cells, so any lent node is taken back at once. The figures of the
description are from memory and were not checked against the paper.

A replica of the deployment is one node. It is requested for the highest load of the two next intervals. The latency
objective is kept in a minute in which as many replicas run as the load needs.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from statistics import fmean

from msgspec import structs

from benchmarks.policies import RESTART_COST_SECONDS
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from benchmarks.survey.virtual_clusters import EASY, NODE_GPUS, PIECES, piece
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Cell, Policy, Queue
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation

TRAINING_NODES, SERVING_NODES = 44, 52
"""A tenth of Lyra's training and inference servers."""

LOW, HIGH = 0.42, 0.95
"""Share of the inference nodes that the load needs before dawn and at the peak (Lyra, not checked)."""

NOISE = 0.02
"""Standard deviation of the load around its daily course, as a share of the nodes: our choice."""

INTERVAL_SECONDS = 300
"""Time between two decisions of how many nodes to lend (Lyra, not checked)."""

HEADROOM = 0.02
"""Share of the inference nodes that is never lent (Lyra, not checked)."""

READY_SECONDS = 60
"""Time from the start of a replica until it serves: our choice."""

SERVING = "serving"
"""Queue, and prefix of the job ids, of the replicas."""


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one seed."""

    waits: tuple[float, float]
    """Mean wait of training jobs without lending, and with it, in seconds."""
    completion: float
    """Mean completion time of training jobs without lending, divided by that with it."""
    kept: float
    """Share of minutes in which the latency objective is kept."""
    preemptions: int
    """Number of stops of training jobs."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [
        Row("Lyra", "loan of inference nodes", f"JCT without lending / with it, {PIECES} pieces of Philly", 1.48,
            "Li et al., EuroSys'23 (its own traces; queueing 1.53)", _measured, slow=True),
    ]  # fmt: skip


def load(seconds: int, seed: int) -> list[int]:
    """Return the number of replicas that the load needs in each interval, for this many seconds."""
    noise = random.Random(f"load {seed}")
    found = []
    for number in range(seconds // INTERVAL_SECONDS + 1):
        day = number * INTERVAL_SECONDS / 86_400
        share = (LOW + HIGH) / 2 - (HIGH - LOW) / 2 * math.cos(2 * math.pi * day) + noise.gauss(0, NOISE)
        found.append(min(max(math.ceil(share * SERVING_NODES), 1), SERVING_NODES))
    return found


def replicas(needed: list[int], first_ns: int) -> list[TraceJob]:
    """Return the replicas as jobs: number k runs while at least k are requested."""
    spare = math.ceil(HEADROOM * SERVING_NODES)
    wanted = [min(max(needed[one : one + 3]) + spare, SERVING_NODES) for one in range(len(needed))]
    found = []
    for number in range(1, SERVING_NODES + 1):
        since: int | None = None
        for at, count in enumerate([*wanted, 0]):
            if count >= number and since is None:
                since = at
            elif count < number and since is not None:
                seconds = float((at - since) * INTERVAL_SECONDS)
                spec = JobSpec(
                    SERVING, ("serve",), NODE_GPUS, queue=SERVING, grace_seconds=0.0, required_level=Level.NODE
                )
                at_ns = first_ns + since * INTERVAL_SECONDS * 1_000_000_000
                found.append(TraceJob(f"{SERVING}-{number}-{since}", 0, at_ns, seconds, spec))
                since = None
    return found


def kept(needed: list[int], ready: list[tuple[float, float]]) -> float:
    """Return the share of minutes with enough replicas. ready: from when to when each serves, in seconds."""
    minutes = [0] * (len(needed) * INTERVAL_SECONDS // 60)
    for since, until in ready:
        for minute in range(math.ceil(since / 60), min(int(until // 60), len(minutes))):
            minutes[minute] += 1
    enough = [count >= needed[number * 60 // INTERVAL_SECONDS] for number, count in enumerate(minutes)]
    return fmean(enough)


def measured(number: int, policy: Policy = EASY) -> Result:
    """Return the figures of one piece of the trace."""
    changes = {"queue": "training", "restartable": True, "preemptible": True}
    jobs = [
        replace(job, spec=structs.replace(job.spec, **changes))
        for job in piece(number).jobs
        if job.spec.ranks <= TRAINING_NODES * NODE_GPUS
    ]
    first_ns = jobs[0].submitted_ns
    alone = Simulation(
        Trace("training", tuple(jobs)), grid(TRAINING_NODES, NODE_GPUS), policy,
        restart_cost_seconds=RESTART_COST_SECONDS,
    ).engine()  # fmt: skip
    report = alone.run()
    needed = load(round(report.makespan_seconds), number)
    serving = replicas(needed, first_ns)
    both = sorted([*jobs, *serving], key=lambda job: job.submitted_ns)
    queues = (
        Queue("training", cells={Cell.NODE: TRAINING_NODES}),
        Queue(SERVING, cells={Cell.NODE: SERVING_NODES}),
    )
    lending = Simulation(
        Trace("lending", tuple(both)), grid(TRAINING_NODES + SERVING_NODES, NODE_GPUS), replace(policy, queues=queues),
        restart_cost_seconds=RESTART_COST_SECONDS,
    ).engine()  # fmt: skip
    shared = lending.run()
    waits = {name: one.waiting_ns / 1e9 for name, one in lending.courses.items()}
    ready = [
        (since + waits[job.job_id] + (READY_SECONDS if since else 0), since + job.run_seconds)
        for job in serving
        if (since := (job.submitted_ns - first_ns) / 1e9) >= 0
    ]  # fmt: skip
    before, after = (report.per_queue["training"], shared.per_queue["training"])
    waits_of = (before["avg_queue_seconds"] or 0.0, after["avg_queue_seconds"] or 0.0)
    completion = (before["avg_jct_seconds"] or 0.0) / (after["avg_jct_seconds"] or math.inf)
    return Result(waits_of, completion, kept(needed, ready), shared.preemptions)


def _measured() -> Outcome:
    found = [measured(number) for number in range(PIECES)]
    completion = tuple(one.completion for one in found)
    less = tuple((one.waits[0] - one.waits[1]) / 60 for one in found)
    without, lent = (fmean([one.waits[which] / 60 for one in found]) for which in (0, 1))
    worst = 100 * min(one.kept for one in found)
    reason = (
        f"Lyra's traces are not public: input made from its description; JCT {fmean(completion):.2f} "
        f"+-{interval(completion):.2f} times; mean wait {without:.1f} min without lending, {lent:.1f} min with it, "
        f"{fmean(less):.1f} +-{interval(less):.1f} min less; latency objective kept in {worst:.2f} % of minutes or "
        f"more; {fmean([one.preemptions for one in found]):.0f} stops of training jobs"
    )
    return Outcome(None, round(fmean(completion), 2), reason)
