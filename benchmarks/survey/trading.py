"""Row of Gandiva_fair: users with equal tickets trade their shares of GPU types.

Chaudhary et al., EuroSys'20, section 3.3. Each user owns an equal part of each GPU type. A user whose jobs gain least
from a faster type sells parts of it to the user whose jobs gain most, for parts of the slower type. The price is the
gain of the second-highest bidder, as in the paper, so both sides win. Users have the mean gains of five job types each,
drawn from Gavel's measured throughputs. Their traces and profiles are not public.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np
from scipy.optimize import linprog

from benchmarks.survey.gavel_data import GPU_TYPES, JOB_TYPES, read_simulation
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import SEEDS, interval

USERS, KINDS, GPUS = 8, 5, 36
"""Users, job types of a user, and GPUs of each type."""

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
        rows = [throughputs[name, 1] for name in chance.sample([name for name, _ in JOB_TYPES], KINDS)]
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
        f"a study: queues' quotas count slots of all types alike; +-{interval(tuple(gains)):.3f} (95 %), at most "
        f"{fmean(best):.3f} by a linear program; least gain of a user {min(least):.3f}; {fmean(counts):.1f} trades"
    )
    return Outcome(None, round(fmean(gains), 4), reason)


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"total work of {USERS} users on 3x{GPUS} GPUs after trading, before = 1, ten seeds"
    mechanism = "ticket trading between users and types"
    return [Row("Gandiva_fair", mechanism, measure, None, "Chaudhary et al., EuroSys'20", _measured)]
