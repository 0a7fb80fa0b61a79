"""Users of a test day, whose activities are drawn from the seed."""

from __future__ import annotations

import heapq
import math
import random
import time
from typing import Any

from benchmarks.ordinary.person import Activity
from benchmarks.ordinary.submissions import Submitter

MOST_WAITING = 14
"""Number of pending jobs at which users submit no more jobs, so that the queue stays short."""

STARTS_A_MINUTE = 12
"""Number of job starts per minute below which users do not rest."""


class Users(Submitter):
    """All users of the cluster, simulated as one."""

    def live(self, until: float) -> None:
        """Do one activity after another until `until` (monotonic time)."""
        try:
            while time.monotonic() < until and not self.stopped:
                while self._later and self._later[0][0] <= time.monotonic():
                    self.attempt("later", heapq.heappop(self._later)[2])
                name, activity = self._choose()
                self.attempt(name, activity)
                if not self._too_few_starts():
                    time.sleep(self.random.expovariate(1 / 1.2))
        except Exception as error:
            self.errors.append(f"the harness itself: users: {error!r}")
            raise

    def _choose(self) -> tuple[str, Activity]:
        waiting = sum(job["state"] == "pending" for job in self._jobs().values())
        choices = [*self._operations()]
        if waiting < MOST_WAITING:
            choices += self._submissions()
        choices = [choice for choice in choices if not self.only or choice[0] in self.only]
        if not choices:
            return "rest", lambda: time.sleep(0.5)
        if self._too_few_starts():
            choices = [choice for choice in choices if choice[0] not in ("rest", "borrowed", "stretched")] or choices
        # Prefer activities not done yet, so that a short day includes all.
        weights = [weight * (4.0 if not self.done[name] else 1.0) for name, weight, _ in choices]
        name, _, activity = self.random.choices(choices, weights)[0]
        return name, activity

    def _too_few_starts(self) -> bool:
        """Return whether too few attempts have started so far for a valid day."""
        minutes = (time.monotonic() - self._began) / 60
        attempts = len({(job, attempt) for job, attempt, _ in list(self.facts.lives)})
        return minutes > 0.5 and attempts / minutes < STARTS_A_MINUTE


def first_policy(source: random.Random, total: int) -> dict[str, Any]:
    """Return the policy at the start of a day. source: random numbers. total: number of slots."""
    owner = max(1, math.ceil(total / 2))
    policy: dict[str, Any] = {
        "order": source.choice(["fair", "fair", "fair", "fifo", "sjf", "las"]),
        "backfill": source.choice(["easy", "easy", "conservative", "greedy"]),
        "estimates": source.choice(["limit", "history"]),
        "preempt": True,
        "min_run_seconds": float(source.choice([0, 3, 6, 12])),
        "quarantine_seconds": 15.0,
        "suspect_seconds": 15.0,
        "probation_seconds": 5.0,
        "default_time_limit_seconds": 60.0,
        "queues": [
            {"name": "owner", "quota": owner},
            {"name": "guest", "quota": total - owner},
            {"name": "small", "limit": 2},
        ],
    }
    return policy
