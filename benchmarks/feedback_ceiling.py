"""Upper bound of the time that moving gangs can save if a fault's duration is unknown.

``python -m benchmarks.feedback_ceiling`` prints it for the transient faults of ``benchmarks.feedback_pays`` and the
gangs on the faulty nodes. Let r be a gang's loss per second, L the duration of the fault, R the remaining run time of
the gang if it stays, and C the cost of a move. The gang's expected cost is:

it stays                                  r E min(L, R) it moves if that is cheaper, given L, R   E min(r min(L, R), C)
L unknown, distributions of L, R known    the least over T of  r E min(L, T) + P(L > T) C,  for T < R, and of staying

The last line is optimal stopping with the simulator's own distribution of L (``sim.faults.life``). It assumes that the
slow node, its slowdown and each gang's end are known at once and exactly. No rule that does not know L does better on
average. Losses that every policy avoids are left out: those of gangs that start on the node later, and those of gangs
that are already slow.

``drawn`` in the report is the cost of the same rule for the fault durations that were drawn in feedback_pays.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.feedback_pays import FIRST, JOBS, NODES, SEEDS
from benchmarks.policies import POLICIES, data_folder
from scheduler_feedback.core.events import Event
from scheduler_feedback.sim import faults
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulated_feedback import Hurt, Slowness
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from scheduler_feedback.sim.truth import Gang

RESTART_COSTS_SECONDS = (10.0, 30.0, 60.0, 120.0, 300.0, 900.0)

_WAITS = (0.0, *(2.0 ** (step / 16) for step in range(16 * 24)))
"""Possible waits in seconds before a gang moves, from 0 to half a year, in steps of a sixteenth of an octave."""


@dataclass(frozen=True, slots=True)
class Life:
    """Log-normal distribution of fault durations.

    mean_seconds: mean duration. sigma: standard deviation of its logarithm.
    """

    mean_seconds: float
    sigma: float

    def outlasts(self, seconds: float) -> float:
        """Return the probability that a fault lasts longer than `seconds`."""
        return _below(-self._at(seconds)) if seconds > 0 else 1.0

    def until(self, seconds: float) -> float:
        """Return the expected time, within the fault's first `seconds`, for which the fault lasts: E min(L,
        seconds)."""
        if seconds <= 0:
            return 0.0
        inside = 1.0 if math.isinf(seconds) else _below(self._at(seconds) - self.sigma)
        return self.mean_seconds * inside + (0.0 if math.isinf(seconds) else seconds * self.outlasts(seconds))

    def _at(self, seconds: float) -> float:
        return (math.log(seconds / self.mean_seconds) + self.sigma**2 / 2) / self.sigma


def _below(deviations: float) -> float:
    return math.erfc(-deviations / math.sqrt(2)) / 2


@dataclass(frozen=True, slots=True)
class Hit:
    """A gang on a node that becomes slow.

    runs_seconds: remaining run time of the gang if it stays and the fault does not end.
    """

    life: Life
    lasted_seconds: float
    slowdown: float
    runs_seconds: float

    @property
    def lost_in_a_second(self) -> float:
        return 1 - 1 / self.slowdown

    def best_wait(self, cost_seconds: float) -> tuple[float, float]:
        """Return (least expected cost, wait before a move), in seconds, if the fault's duration is unknown.

        A wait of inf means that the gang stays.
        """
        rate, life = self.lost_in_a_second, self.life
        stays = (rate * life.until(self.runs_seconds), math.inf)
        waits = (wait for wait in _WAITS if wait < self.runs_seconds)
        return min(stays, *((rate * life.until(wait) + life.outlasts(wait) * cost_seconds, wait) for wait in waits))

    def expected(self, cost_seconds: float) -> Costs:
        rate = self.lost_in_a_second
        known = self.life.until(min(self.runs_seconds, cost_seconds / rate))
        return Costs(rate * self.life.until(self.runs_seconds), self.best_wait(cost_seconds)[0], rate * known)

    def drawn(self, cost_seconds: float) -> Costs:
        rate, both = self.lost_in_a_second, min(self.lasted_seconds, self.runs_seconds)
        wait = self.best_wait(cost_seconds)[1]
        return Costs(
            rate * both, rate * both if both <= wait else rate * wait + cost_seconds, min(rate * both, cost_seconds)
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of faults in seconds.

    stays: gangs never move. stops: gangs move after the best wait. knows: gangs move if that is cheaper, since the
    fault's duration is known.
    """

    stays: float
    stops: float
    knows: float

    def __add__(self, other: Costs) -> Costs:
        return Costs(self.stays + other.stays, self.stops + other.stops, self.knows + other.knows)

    def share(self, avoided: float) -> float:
        """Return the saving without knowledge of the fault's duration, as a share of the saving with it.

        avoided: seconds that both save in addition, at no cost.
        """
        return (self.stays - self.stops + avoided) / (self.stays - self.knows + avoided)


class Witness:
    """Source of feedback that reports nothing to the scheduler, and records each gang on a node that becomes slow.

    lives: distribution of the fault's duration, by slowdown (each kind of fault has its own slowdown).
    """

    def __init__(self, lives: dict[float, Life]) -> None:
        self.hits: list[Hit] = []
        self._lives = lives
        self._slow_until_ns: dict[str, int] = {}

    def begin(self, engine: Engine) -> None:
        pass

    def slow(self, slowness: Slowness, now_ns: int) -> Iterable[Event]:  # noqa: ARG002 - Feedback's signature
        return ()

    def slows(self, hurt: Hurt) -> Iterable[Event]:
        fault, slow_until_ns = hurt.slowness, self._slow_until_ns.get(hurt.job_id, 0)
        self._slow_until_ns[hurt.job_id] = max(slow_until_ns, fault.until_ns)
        if not hurt.began_so and slow_until_ns <= hurt.now_ns:
            lasted = (fault.until_ns - hurt.now_ns) / 1e9
            runs = _left_seconds(hurt.gang, hurt.now_ns) * fault.slowdown
            self.hits.append(Hit(self._lives[fault.slowdown], lasted, fault.slowdown, runs))
        return ()

    def sound(self, engine: Engine, slowness: Slowness, now_ns: int) -> Iterable[Event]:  # noqa: ARG002
        return ()


def _left_seconds(gang: Gang, now_ns: int) -> float:
    """Return the gang's remaining work, in seconds at full speed."""
    elapsed_ns = max(now_ns - gang.since_ns - gang.warm_ns, 0)
    return (gang.left_ns - elapsed_ns * gang.speed) / gang.full_speed / 1e9


def witnessed(trace: Trace, seed: int) -> tuple[list[Hit], float]:
    """Return the gangs that faults hit without feedback, and the seconds that all jobs lost to these faults."""
    drawn = faults.transient(trace.jobs, seed).by_job or {}
    ranks = {job.job_id: job.spec.ranks for job in trace.jobs}
    witness = Witness({fault.slowdown: Life(*faults.life(ranks[job_id])) for job_id, fault in drawn.items()})
    engine = Simulation(
        trace, grid(NODES, 8), POLICIES["default"], faults="transient", feedback=witness, seed=seed
    ).engine()
    engine.run()
    lost_ns = sum(
        course.ended_ns - course.submitted_ns - course.waiting_ns - course.work_ns
        for course in engine.courses.values()
        if course.ended_ns is not None
    )
    return witness.hits, lost_ns / 1e9


def ceiling(hits: list[Hit], avoided: float, cost_seconds: float, of_all: int) -> dict[str, Any]:
    """Return the largest possible saving of feedback in seconds per job, if a move costs `cost_seconds`.

    avoided: seconds saved by every policy. of_all: number of all jobs.
    """
    document: dict[str, Any] = {"restart_cost_seconds": cost_seconds}
    for name, costs in (
        ("expected", [hit.expected(cost_seconds) for hit in hits]),
        ("drawn", [hit.drawn(cost_seconds) for hit in hits]),
    ):
        whole = sum(costs, Costs(0.0, 0.0, 0.0))
        document[name] = {
            "saved_without_foresight": (whole.stays - whole.stops + avoided) / of_all,
            "saved_with_it": (whole.stays - whole.knows + avoided) / of_all,
            "share": whole.share(avoided),
        }
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--restart-costs", type=float, nargs="+", default=RESTART_COSTS_SECONDS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = read_trace(data_folder() / "jobs" / "philly.csv", "philly")
    trace = replace(trace, jobs=trace.jobs[FIRST : FIRST + JOBS])
    hits: list[Hit] = []
    lost: list[float] = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        found, seconds = witnessed(trace, seed)
        print(f"seed {seed}: {len(found)} gangs were hit, {seconds / len(trace.jobs):.1f} s lost", file=sys.stderr)
        hits += found
        lost.append(seconds)
    avoided = sum(lost) - sum(hit.drawn(1.0).stays for hit in hits)
    of_all = len(trace.jobs) * arguments.seeds
    document = {
        "jobs": len(trace.jobs),
        "seeds": [arguments.first_seed, arguments.first_seed + arguments.seeds - 1],
        "gangs_hit": len(hits),
        "lost_seconds": statistics.fmean(lost) / len(trace.jobs),
        "avoided_by_both_seconds": avoided / of_all,
        "ceilings": [ceiling(hits, avoided, cost, of_all) for cost in arguments.restart_costs],
    }
    if arguments.json:
        print(json.dumps(document, indent=2))
        return 0
    for one in document["ceilings"]:
        shares = f"{one['expected']['share']:.1%} on average, {one['drawn']['share']:.1%} of the lives drawn"
        print(f"a restart of {one['restart_cost_seconds']:g} s: without foresight {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
