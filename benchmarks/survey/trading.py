"""Row of Gandiva_fair: users with equal tickets trade their shares of GPU types.

Chaudhary et al., EuroSys'20, section 3.3. Each user owns an equal part of each GPU type. A user whose jobs gain least
from a faster type sells parts of it to the user whose jobs gain most, for parts of the slower type. The price is the
gain of the second-highest bidder, as in the paper, so both sides win. Users have the mean gains of five job types each,
drawn from Gavel's measured throughputs. Their traces and profiles are not public.

The second row runs the scheduler: a queue with a quota for each user, always with pending jobs of its five job types,
for HORIZON_SECONDS. It compares `policy.type_quotas` "traded" with "own".
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from statistics import fmean

import numpy as np
from scipy.optimize import linprog

from benchmarks.policies import RESTART_COST_SECONDS
from benchmarks.survey.gavel_data import GPU_TYPES, JOB_TYPES, read_simulation
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import SEEDS, interval
from scheduler_feedback.core.events import Event, NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import FAIR_POLICY, Estimates, Policy, Queue, TypeQuotas
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.occurrence import Occurrence
from scheduler_feedback.sim.simulation import Simulation

USERS, KINDS, GPUS = 8, 5, 36
"""Users, job types of a user, and GPUs of each type."""

NODES, NODE_GPUS = 16, 4
"""Nodes of each type, and GPUs of one, in the run of the scheduler: each user owns 8 GPUs of each type."""

RUNS = range(52, 62)
"""Seeds of the runs of the scheduler. Rules and constants were chosen on seeds 42 and 43."""

JOBS = 60
"""Jobs of each user in the run of the scheduler, all submitted at its start: more than it can end."""

HORIZON_SECONDS = 12 * 3600.0
"""Time for which the scheduler runs."""

SIZES = ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05))
"""GPUs of a job, and their chances, as in Gavel's traces (``gavel_data.static_jobs``)."""

TINY = 1e-9


@dataclass(slots=True)
class User:
    """A user with equal tickets."""

    speeds: tuple[float, ...]
    """Mean speed of its jobs on each of GPU_TYPES; 1 on the slowest."""
    gpus: list[float]
    """Its GPUs of each type."""

    def work(self) -> float:
        """Return the work per second, in GPUs of the slowest type."""
        return sum(speed * count for speed, count in zip(self.speeds, self.gpus, strict=True))


def users(seed: int) -> list[User]:
    """Return the users of one seed, each with its equal part of the cluster."""
    chance, throughputs = random.Random(f"users {seed}"), read_simulation()
    found = []
    for _ in range(USERS):
        rows = [throughputs[name, 1] for name in _kinds(chance)]
        relative = [[speed / row[0] for speed in row] for row in rows if row[0] > 0]
        speeds = tuple(fmean(column) for column in zip(*relative, strict=True))
        found.append(User(speeds, [GPUS / USERS] * len(GPU_TYPES)))
    return found


def trade(found: list[User]) -> int:
    """Trade in place until no two users gain, for each pair of types, and return the number of trades."""
    trades = 0
    for slow, fast in combinations(range(len(GPU_TYPES)), 2):
        while True:
            sellers = [user for user in found if user.gpus[fast] > TINY]
            bidders = [user for user in found if user.gpus[slow] > TINY]
            if not sellers or len(bidders) < 2:
                break
            gain = {id(user): user.speeds[fast] / user.speeds[slow] for user in found}
            seller = min(sellers, key=lambda user: gain[id(user)])
            bids = sorted(bidders, key=lambda user: -gain[id(user)])
            buyer = bids[0]
            price = max(gain[id(bids[1])], gain[id(seller)])
            if buyer is seller or gain[id(buyer)] <= gain[id(seller)] + TINY or price <= TINY:
                break
            amount = min(seller.gpus[fast], buyer.gpus[slow] / price)
            seller.gpus[fast] -= amount
            seller.gpus[slow] += amount * price
            buyer.gpus[fast] += amount
            buyer.gpus[slow] -= amount * price
            trades += 1
    return trades


def most_work(found: list[User]) -> float:
    """Return the largest total work at which no user does less than with its own part (a linear program)."""
    kinds = len(GPU_TYPES)
    gains = np.array([speed for user in found for speed in user.speeds])
    totals = np.zeros((kinds, gains.size))
    own = np.zeros((len(found), gains.size))
    for number, user in enumerate(found):
        for kind in range(kinds):
            totals[kind, number * kinds + kind] = 1
        own[number, number * kinds : (number + 1) * kinds] = [-speed for speed in user.speeds]
    limits = np.concatenate([[float(GPUS)] * kinds, [-sum(user.speeds) * GPUS / USERS for user in found]])
    result = linprog(-gains, A_ub=np.concatenate([totals, own]), b_ub=limits)
    assert result.success, result.message
    return float(-result.fun)


def _measured() -> Outcome:
    gains, least, best, counts = [], [], [], []
    for seed in SEEDS:
        found = users(seed)
        before = [user.work() for user in found]
        best.append(most_work(found) / sum(before))
        counts.append(trade(found))
        after = [user.work() for user in found]
        gains.append(sum(after) / sum(before))
        least.append(min(a / b for a, b in zip(after, before, strict=True)))
    reason = (
        f"a study; +-{interval(tuple(gains)):.3f} (95 %), at most "
        f"{fmean(best):.3f} by a linear program; least gain of a user {min(least):.3f}; {fmean(counts):.1f} trades"
    )
    return Outcome(None, round(fmean(gains), 4), reason)


def _kinds(chance: random.Random, kinds: int = KINDS) -> list[str]:
    return chance.sample([name for name, _ in JOB_TYPES], kinds)


def trace(seed: int, each: int = KINDS) -> Trace:
    """Return the jobs of all users for the run of the scheduler. Run times are those on the fastest type.

    each: number of job types of each user.
    """
    chance, throughputs, several = random.Random(f"trading {seed}"), read_simulation(), dict(JOB_TYPES)
    found: list[TraceJob] = []
    for user in range(USERS):
        kinds = _kinds(chance, each)
        for _ in range(JOBS):
            kind = chance.choice(kinds)
            gpus = chance.choices([size for size, _ in SIZES], [share for _, share in SIZES])[0] if several[kind] else 1
            row = throughputs[kind, gpus]
            low, high = (3.0, 4.0) if chance.random() >= 0.8 else (1.5, 3.0)
            seconds = 60.0 * 10.0 ** chance.uniform(low, high)
            speeds = {name: speed / row[-1] for name, speed in zip(GPU_TYPES, row, strict=True) if speed > 0}
            spec = JobSpec(
                f"t{len(found)}", SIMULATED_COMMAND, gpus, queue=f"u{user}", workload=kind, throughput=speeds,
                gpu_types=tuple(speeds), restartable=True, preemptible=True,
            )  # fmt: skip
            found.append(TraceJob(spec.name, len(found) + 1, 0, seconds, spec))
    chance.shuffle(found)
    return Trace("trading", tuple(found))


@cache
def scheduled(seed: int, quotas: TypeQuotas, each: int = KINDS) -> tuple[float, ...]:
    """Return the work of each user within HORIZON_SECONDS, in GPU-seconds of the slowest type of each job."""
    queues = tuple(Queue(f"u{user}", quota=NODES * NODE_GPUS * len(GPU_TYPES) // USERS) for user in range(USERS))
    policy: Policy = replace(FAIR_POLICY, estimates=Estimates.EXACT, queues=queues, type_quotas=quotas)
    nodes = tuple(
        NodeSeen(f"{name}-{number}", NODE_GPUS, machine=f"{name}-{number}", gpu_type=name)
        for name in GPU_TYPES
        for number in range(NODES)
    )
    work = dict.fromkeys((queue.name for queue in queues), 0.0)
    engine = Simulation(trace(seed, each), nodes, policy, restart_cost_seconds=RESTART_COST_SECONDS).engine()
    engine.later(Occurrence(engine.first_ns + round(HORIZON_SECONDS * 1e9), partial(_stop, work=work)))
    try:
        engine.run()
    except _HorizonError:
        return tuple(work.values())
    raise AssertionError("the users have too few jobs")


class _HorizonError(Exception):
    pass


def _stop(engine: Engine, now_ns: int, *, work: dict[str, float]) -> Iterable[Event]:
    """Add the work of each queue until now, and end the simulation."""
    for job_id, course in engine.courses.items():
        left_ns = course.left_ns
        if (gang := engine.gangs.get(job_id)) is not None:
            gang.advance(now_ns)
            left_ns = gang.left_ns
        spec = course.job.spec
        work[spec.queue] += (course.work_ns - left_ns) / 1e9 * spec.ranks / min(spec.throughput.values())
    raise _HorizonError


def _scheduled() -> Outcome:
    """Compare the work with trades, with own parts of each type, and with one quota for all types."""
    texts, first = [], 0.0
    for each in (1, KINDS):
        for kind in (TypeQuotas.TRADED, TypeQuotas.ALIKE):
            pairs = [(scheduled(seed, kind, each), scheduled(seed, TypeQuotas.OWN, each)) for seed in RUNS]
            gains = tuple(sum(mine) / sum(own) for mine, own in pairs)
            least = tuple(min(a / b for a, b in zip(mine, own, strict=True)) for mine, own in pairs)
            first = first or fmean(gains)
            texts.append(
                f"{each} job types a queue, {kind.value}: {fmean(gains):.3f} +-{interval(gains):.3f} (95 %), least "
                f"gain of a queue {fmean(least):.3f} +-{interval(least):.3f}"
            )
    return Outcome(None, round(first, 4), f"{'; '.join(texts)}; restart cost {RESTART_COST_SECONDS:g} s")


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"total work of {USERS} users on 3x{GPUS} GPUs after trading, before = 1, ten seeds"
    mechanism = "ticket trading between users and types"
    source = "Chaudhary et al., EuroSys'20"
    simulated = (
        f"total work of {USERS} queues on 3x{NODES * NODE_GPUS} GPUs in 12 h, own parts of each type = 1, ten seeds"
    )
    return [
        Row("Gandiva_fair", mechanism, measure, None, source, _measured),
        Row("Gandiva_fair", f"{mechanism}, in the scheduler", simulated, None, source, _scheduled, slow=True),
    ]
